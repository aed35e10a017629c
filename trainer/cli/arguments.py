"""Arguments that several commands take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.recipe_loader import shipped_recipes


def split_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Recipes and `a.b=c` overrides, told apart: an override has `=` and is no file."""
    recipes = [word for word in words if "=" not in word or Path(word).is_file()]
    return recipes, [word for word in words if word not in recipes]


def overrides_only(words: Sequence[str]) -> list[str]:
    """All words as overrides.

    Raises:
        RecipeError: one of them is none.
    """
    for word in words:
        if "=" not in word:
            raise RecipeError(f"`{word}` is not of the form `section.key=value`; only overrides can stand here.")
    return list(words)


def name_recipes() -> str:
    """The shipped recipes, for messages."""
    return ", ".join(shipped_recipes())
