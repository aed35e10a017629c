"""Which node a new sandbox goes to (pure).

A node is in question that takes sandboxes, has room, and has the image, for nothing fetches one unasked. Of those the
one with the least of itself in use: the share of its room that is taken, and the share of its cores that are busy,
with whatever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class NodeState:
    """A node as it is known at this moment."""

    name: str
    room: int
    """Sandboxes that it may have at once."""
    sandboxes: int = 0
    """That it has, those that start included."""
    load: float = 0.0
    """Processes that want to run, per core, as last told."""
    images: frozenset[str] = frozenset()
    """Docker images that it has, as `name:tag`, digest or id."""
    closed: str = ""
    """Why it takes no sandboxes now; empty when it does."""

    @property
    def use(self) -> float:
        """0 for an idle and empty node, 2 for a busy and full one."""
        return self.sandboxes / self.room + min(self.load, 1.0)


def place(nodes: Iterable[NodeState], image: str = "", avoid: Collection[str] = ()) -> NodeState | None:
    """The node for a sandbox with this image (empty: none needed); None when no node can take it."""
    candidates = [node for node in nodes if node.name not in avoid and not refusal(node, image)]
    return min(candidates, key=lambda node: (node.use, node.name), default=None)


def refusal(node: NodeState, image: str = "") -> str:
    """Why this node cannot take such a sandbox now; empty when it can."""
    if node.closed:
        return node.closed
    if image and full_name(image) not in node.images:
        return f"has no image {image}"
    if node.sandboxes >= node.room:
        return f"is full: {node.sandboxes} of {node.room} sandboxes"
    return ""


def lacks_image(nodes: Iterable[NodeState], image: str) -> bool:
    """Whether no node has the image, so that waiting for room would be in vain."""
    return bool(image) and not any(full_name(image) in node.images for node in nodes)


def full_name(image: str) -> str:
    """An image's name as Docker lists it: with a tag, unless it is a digest or an id."""
    if "@" in image or image.startswith("sha256:") or ":" in image.rpartition("/")[2]:
        return image
    return f"{image}:latest"
