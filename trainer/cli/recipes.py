"""`roll recipes`: what is shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.output import JsonOption, print_json
from rocknroll.trainer.recipe_loader import dump_recipe, find_recipe, load_recipe, shipped_recipes


def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this recipe, resolved.")] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List the shipped recipes, or show one with every setting filled in.

    Examples:

      roll recipes

      roll recipes alfworld > my.yaml
    """
    if name is not None:
        recipe = load_recipe([find_recipe(name)])
        if as_json:
            print_json(recipe.model_dump(mode="json"))
        else:
            print(dump_recipe(recipe), end="")
        return
    described = {stem: _description(path) for stem, path in shipped_recipes().items()}
    if as_json:
        print_json({"recipes": described})
    else:
        for stem, text in described.items():
            print(f"{stem:<20} {text}")


def _description(path: Path) -> str:
    """The first comment line of the file."""
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
