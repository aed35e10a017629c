"""Which settings of an engine go together, as a person who wrote them is told."""

from __future__ import annotations

import pytest

from rocknroll.trainer.engine_section import EngineSection, VLLMSection
from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.recipe_loader import load_recipe

URL = "engine.vllm.urls=[http://127.0.0.1:8000]"


def test_every_recipe_may_be_played_by_vllm() -> None:
    recipe = load_recipe(["alfworld-smoke"], ["engine.kind=vllm"])
    assert (recipe.engine.kind, recipe.engine.slots, recipe.bit_exact) == ("vllm", 8, False)
    assert load_recipe(["alfworld-smoke"], ["rollout.async_ratio=0", "engine.kind=vllm"]).bit_exact is False
    assert load_recipe(["alfworld-smoke"], ["rollout.async_ratio=0"]).bit_exact is True


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["engine.kind=vllm", "engine.bit_exact=true"], "cannot be had from vLLM"),
        (["engine.vllm.eager=true"], "`engine.kind` is `local`, which uses none"),
        (["engine.kind=vllm", URL, "engine.replicas=2"], "has 1 servers for 2 engines"),
        (
            ["engine.kind=vllm", URL, "engine.vllm.args=[--seed=1]"],
            "`engine.vllm.args`: settings of servers that the run starts",
        ),
        (["engine.kind=vllm", URL, "engine.cores=[0]"], "`engine.cores`: settings of servers"),
        (["engine.kind=vllm", "engine.vllm.urls=[localhost]"], "is no address of a server"),
        (["engine.kind=vllm", "engine.vllm.kv_cache=1"], "kv_cache"),
        (
            [
                "engine.kind=vllm",
                "engine.replicas=2",
                "engine.vllm.urls=[http://127.0.0.1:8000,http://127.0.0.1:8000/]",
            ],
            "names a server twice",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(overrides: list[str], complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint):
        load_recipe(["alfworld-smoke"], overrides)


def test_addresses_are_kept_without_a_slash_at_their_end() -> None:
    section = EngineSection(kind="vllm", vllm=VLLMSection(urls=("http://127.0.0.1:8000/",)))
    assert section.vllm.urls == ("http://127.0.0.1:8000",)
