"""The experiment trackers a recipe may name in `report_to`, and whether they are installed."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from importlib.util import find_spec

from rocknroll.trainer.errors import RecipeError

TRACKERS: dict[str, str] = {
    "tensorboard": "pip install tensorboard",
    "wandb": "pip install 'rocknroll[wandb]'",
    "swanlab": "pip install 'rocknroll[swanlab]'",
    "trackio": "pip install 'rocknroll[trackio]'",
    "mlflow": "pip install 'rocknroll[mlflow]'",
}
"""Module name (also transformers' name) and the command that installs it."""


def installed_trackers() -> list[str]:
    """Those that can be imported here."""
    return [name for name in TRACKERS if find_spec(name) is not None]


def require_trackers(names: Sequence[str]) -> None:
    """Check `report_to` before anything is made.

    Raises:
        RecipeError: a tracker is unknown or not installed.
    """
    for name in names:
        if name not in TRACKERS:
            nearest = get_close_matches(name, TRACKERS, n=1)
            meant = f"Did you mean `{nearest[0]}`? " if nearest else ""
            raise RecipeError(f"`report_to` names the unknown tracker `{name}`. {meant}Known: {', '.join(TRACKERS)}.")
        if find_spec(name) is None:
            raise RecipeError(
                f"`report_to` names `{name}`, which is not installed. Install it with `{TRACKERS[name]}`, or take it"
                " out of `report_to`."
            )
