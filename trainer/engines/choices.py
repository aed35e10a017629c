"""Constrained decoding over a list of token sequences: which token may come next.

The tree of the sequences' prefixes is a dict from token to subtree; a leaf ends a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Tree: TypeAlias = "dict[int, Tree]"


def prefix_tree(choices: Sequence[Sequence[int]]) -> Tree:
    """The tree of all sequences.

    Raises:
        ValueError: there is nothing to choose, or one choice begins with another, so that it would
            not be known where the shorter one ends (put the stop token behind each).
    """
    root: Tree = {}
    for choice in choices:
        node, grew = root, False
        for token in choice:
            if not node and node is not root and not grew:
                raise ValueError(f"a choice begins with another choice: {list(choice)}")
            if token not in node:
                node[token] = {}
                grew = True
            node = node[token]
        if node:
            raise ValueError(f"another choice begins with this one: {list(choice)}")
    if not root:
        raise ValueError("constrained decoding needs at least one choice that is not empty")
    return root
