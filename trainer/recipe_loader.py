"""From files and overrides to a `Recipe`, with errors that a person can act on.

Files compose left to right (mappings merge, everything else is replaced), what a file `extends`
comes before it, and `a.b=c` overrides come last. A name that is no path finds a recipe shipped in
`rocknroll.recipes`, so `roll train alfworld` works outside a checkout; in folders there lie
overlays, which change part of a recipe (`roll train alfworld-qwen hardware/gpu8`). Every key remembers where it
was set, so that an error can say so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rocknroll.envs.registry import UnknownFamily, family
from rocknroll.envs.text import OutsideFamily
from rocknroll.sandbox import strict_yaml
from rocknroll.sandbox.config_errors import Schema, did_you_mean, explain, kind, nearest
from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.recipe import FaultsSection, Recipe

RECIPE_FILE = "recipe.yaml"
"""The resolved recipe, in a run folder."""


def load_recipe(names: Sequence[str | Path], overrides: Sequence[str] = ()) -> Recipe:
    """Compose recipes and overrides and check the result.

    Raises:
        RecipeError: a file is missing or not YAML, a key is unknown, a value does not fit.
    """
    tree = _Tree()
    for name in names:
        _add_file(tree, find_recipe(name), ())
    for override in overrides:
        _add_override(tree, override)
    return _check(tree)


def check_environment(recipe: Recipe) -> None:
    """Check the part of a recipe that its environment families alone know; makes nothing.

    Raises:
        RecipeError: there is no such family, or it refuses its `env.config`.
        EnvDataError: data that the configuration names is not there.
    """
    for domain, source in recipe.sources.items():
        key = f"domains.{domain}.env" if domain else "env"
        try:
            made = family(source.env.name, source.env.config)
        except UnknownFamily as unknown:
            raise RecipeError(f"`{key}.name`: {unknown}") from unknown
        except ValidationError as invalid:
            schema = Schema(f"{key}.config.", type(family(source.env.name).config), "A recipe")
            raise RecipeError(explain(invalid, schema, lambda loc: "the recipe")) from invalid
        if isinstance(made, OutsideFamily) and source.env.faults != FaultsSection():
            raise RecipeError(
                f"`{key}.faults`: {source.env.name} does not run inside its sandboxes, so faults cannot be put into it."
                " Leave them out, or break its sandboxes instead."
            )


def shipped_recipes() -> dict[str, Path]:
    """Recipes inside the package, by name."""
    folder = Path(str(resources.files("rocknroll.recipes")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_recipe(name: str | Path) -> Path:
    """The file that `name` means: a path, or the name of a shipped recipe.

    Raises:
        RecipeError: there is neither; the text lists what there is.
    """
    path = Path(name)
    if path.is_file():
        return path
    if path.is_dir() and (path / RECIPE_FILE).is_file():
        return path / RECIPE_FILE
    shipped = shipped_recipes()
    if str(name) in shipped:
        return shipped[str(name)]
    overlay = Path(str(resources.files("rocknroll.recipes"))) / f"{name}.yaml"
    if overlay.is_file():
        return overlay
    near = nearest(path.stem, list(shipped))
    raise RecipeError(
        f"There is no recipe `{name}`: neither a file nor a shipped recipe has that name. {did_you_mean(near)}"
        f"Shipped: {', '.join(shipped) or 'none'}. Give a path to a YAML file or one of these names."
    )


def dump_recipe(recipe: Recipe) -> str:
    """The whole recipe as YAML; `load_recipe` reads it back as an equal recipe."""
    return strict_yaml.dump(recipe.model_dump(mode="json"))


@dataclass
class _Tree:
    """Merged settings and, for each dotted key, the file or override that set it last."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[tuple[str, ...], str] = field(default_factory=dict)

    def merge(self, layer: Mapping[str, Any], origin: str) -> None:
        self._merge(self.values, layer, (), origin)

    def origin(self, loc: tuple[str, ...]) -> str:
        """Who set this key, or the nearest key above it."""
        for depth in range(len(loc), 0, -1):
            if loc[:depth] in self.origins:
                return self.origins[loc[:depth]]
        return "the recipe"

    def _merge(self, into: dict[str, Any], layer: Mapping[str, Any], loc: tuple[str, ...], origin: str) -> None:
        for key, value in layer.items():
            here = (*loc, key)
            self.origins[here] = origin
            if isinstance(value, Mapping):
                below = into.get(key)
                into[key] = dict(below) if isinstance(below, Mapping) else {}
                self._merge(into[key], value, here, origin)
            else:
                into[key] = value


def _add_file(tree: _Tree, path: Path, chain: tuple[Path, ...]) -> None:
    if path.resolve() in chain:
        raise RecipeError(f"{path}: recipes extend each other in a circle. Take one `extends` out.")
    try:
        data = strict_yaml.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: the recipe cannot be read: {error}. Check the file and its permissions.") from error
    except ValueError as error:
        raise RecipeError(f"{path}: not valid YAML: {error}. Correct the file there.") from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of keys to values, this is {kind(data)}.")
    for base in _bases(data.pop("extends", ()), path):
        _add_file(tree, base, (*chain, path.resolve()))
    tree.merge(data, str(path))


def _bases(extends: Any, path: Path) -> list[Path]:
    names = [extends] if isinstance(extends, str) else extends
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise RecipeError(f"{path}: `extends` must be a recipe's name or path, or a list of them; got {extends!r}.")
    beside = [path.parent / name for name in names]
    return [near if near.is_file() else find_recipe(name) for near, name in zip(beside, names, strict=True)]


def _add_override(tree: _Tree, override: str) -> None:
    key, equals, text = override.partition("=")
    parts = tuple(key.split("."))
    if not equals or not all(parts):
        raise RecipeError(f"The override `{override}` is not of the form `section.key=value`.")
    try:
        value = strict_yaml.parse(text)
    except ValueError as error:
        raise RecipeError(f"The override `{override}`: the value is not valid YAML: {error}.") from error
    layer: dict[str, Any] = {parts[-1]: value}
    for part in reversed(parts[:-1]):
        layer = {part: layer}
    tree.merge(layer, f"override `{override}`")


def _check(tree: _Tree) -> Recipe:
    try:
        # Strict JSON: `true` is no number and "3" no integer, yet a list may become a tuple.
        return Recipe.model_validate_json(json.dumps(tree.values), strict=True)
    except ValidationError as invalid:
        raise RecipeError(explain(invalid, Schema("", Recipe, "A recipe"), tree.origin)) from invalid
