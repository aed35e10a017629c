"""YAML as recipes and fleet files want it: one safe document, a mapping, without YAML 1.1's surprises.

`3e-4` is a number, `on` and `no` are text, dates stay text, and a key given twice is an error.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

_FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$")
_INT = re.compile(r"^[-+]?[0-9]+$")
_BOOL = re.compile(r"^(true|True|TRUE|false|False|FALSE)$")
_NULL = re.compile(r"^(~|null|Null|NULL|)$")


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's core scalars."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own shape)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is not text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"`{key}` is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node))


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", _NULL, ["~", "n", "N", ""])
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)  # 1.1 reads 012 as octal


def parse(text: str) -> Any:
    """Parse one document.

    Raises:
        ValueError: not YAML; the text says the line and column.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{where}{error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def dump(data: Any) -> str:
    """Text that `parse` reads back as the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes what `parse` would otherwise read as something else."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own shape)
        first: yaml.SafeDumper.yaml_implicit_resolvers.get(first, []) + _Loader.yaml_implicit_resolvers.get(first, [])
        for first in {*yaml.SafeDumper.yaml_implicit_resolvers, *_Loader.yaml_implicit_resolvers}
    }
