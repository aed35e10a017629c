"""Environment families by name, imported only when one is asked for."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, cast

import gymnasium

from rocknroll.envs.own import OwnFamily
from rocknroll.envs.text import Family

FAMILIES: dict[str, str] = {
    "alfworld": "rocknroll.envs.alfworld.family:AlfWorldFamily",
    "swebench": "rocknroll.envs.swebench.family:SWEBenchFamily",
    "code": "rocknroll.envs.reasoning.code_family:CodeFamily",
    "countdown": "rocknroll.envs.reasoning.family:CountdownFamily",
    "judge": "rocknroll.envs.reasoning.judge_family:JudgeFamily",
    "math": "rocknroll.envs.reasoning.math_family:MathFamily",
}
"""Name -> `package.module:Class`; the class takes the family's configuration as a mapping."""
ENTRY_POINTS = "rocknroll.envs"
"""Group of the entry points by which installed packages add names; those here come first."""


class UnknownFamily(LookupError):
    """No environment family of that name."""


def family(name: str, config: Mapping[str, Any] | None = None) -> Family:
    """Make a configured family. `name` is a registered one, an entry point's, or `package.module:Class`: a family, or a
    Gymnasium environment (see `own.py`).

    Raises:
        UnknownFamily: there is none; the text has the nearest name and the list.
        pydantic.ValidationError: the family refuses the configuration.
        EnvDataError: data that the configuration names is missing.
    """
    installed = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    known = {**installed, **FAMILIES}
    target = known.get(name, name)
    module, colon, attribute = target.partition(":")
    if not colon:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownFamily(
            f"there is no environment family {name!r}.{hint} Known: {', '.join(sorted(known))}; "
            "or give your own as `package.module:Class`."
        )
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UnknownFamily(f"the environment family {target!r} cannot be imported: {error}") from error
    if isinstance(found, type) and issubclass(found, gymnasium.Env):
        return cast(Family, OwnFamily(target, config))
    return cast(Family, found(dict(config or {})))
