"""Several environments in one run: what a recipe may say of them, and in which order their tasks come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_policy_render import CHATML, chat_tokenizer
from wordgames import TASK_COUNT, WORDGAMES, wordgame

from rocknroll.envs.registry import family as make_family
from rocknroll.envs.text import EnvDataError, Task
from rocknroll.trainer.domains import Domains
from rocknroll.trainer.errors import RecipeError, RunFolderError
from rocknroll.trainer.ratio import Ratio, weight_at
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.recipe_loader import check_environment, dump_recipe, load_recipe
from rocknroll.trainer.resuming import check_settled
from rocknroll.trainer.rollout.tasks import MixedOrder, Share, TaskOrder

TASKS = [Task(f"t{i}", "kind") for i in range(7)]

weights = st.floats(0.01, 100.0)
curricula = st.lists(
    st.tuples(st.integers(0, 60), st.floats(0.0, 10.0)), min_size=1, max_size=4, unique_by=lambda point: point[0]
).map(lambda points: tuple(sorted(points)))
ratios = st.lists(st.one_of(weights, curricula), min_size=1, max_size=5)


def marked(name: str) -> list[Task]:
    return [Task(f"{name}{i}", "kind", domain=name) for i in range(5)]


def mixed(ratios: Sequence[Ratio], num_groups: int = 1, seed: int = 0) -> MixedOrder:
    """Domains 0, 1, … of five tasks each. One of weight 0.01 beside them: there is always something to play."""
    return MixedOrder(
        {str(i): Share(TaskOrder(marked(str(i)), seed), ratio) for i, ratio in enumerate([*ratios, 0.01])}, num_groups
    )


def refused(*overrides: str) -> str:
    with pytest.raises(RecipeError) as error:
        check_environment(load_recipe([], overrides))
    return str(error.value)


@given(ratios, st.integers(1, 7), st.integers(1, 400))
def test_every_prefix_has_the_share_of_every_domain_up_to_rounding(
    ratios: list[Ratio], num_groups: int, length: int
) -> None:
    order = mixed(ratios, num_groups)
    played: Counter[str] = Counter()
    due = [0.0] * (len(ratios) + 1)
    farthest_behind = sum(1 / n for n in range(2, len(due) + 1))
    for index in range(length):
        now = [weight_at(ratio, index // num_groups) for ratio in [*ratios, 0.01]]
        due = [sofar + weight / sum(now) for sofar, weight in zip(due, now, strict=True)]
        played[order[index].domain] += 1
        for domain, sofar in enumerate(due):
            assert -1 < sofar - played[str(domain)] <= farthest_behind + 1e-9


@given(ratios, st.integers(0, 200), st.integers(0, 3))
def test_a_task_is_the_same_wherever_one_begins_to_ask(ratios: list[Ratio], index: int, seed: int) -> None:
    in_turn = mixed(ratios, 2, seed)
    before = [in_turn[i] for i in range(index)]
    at_once = mixed(ratios, 2, seed)
    assert at_once[index] == in_turn[index]
    assert [at_once[i] for i in range(index)] == before


def test_a_domain_plays_its_tasks_in_an_order_that_the_others_do_not_change() -> None:
    alone = [TaskOrder(marked("0"), 0)[i] for i in range(12)]
    order = mixed([1.0, 2.0, ((0, 0.0), (20, 3.0))])
    assert [task for task in map(order.__getitem__, range(200)) if task.domain == "0"][:12] == alone


def test_one_to_three_is_one_in_four_of_any_four() -> None:
    order = MixedOrder({name: Share(TaskOrder(marked(name), 0), r) for name, r in (("a", 1.0), ("b", 3.0))}, 4)
    domains = [order[i].domain for i in range(40)]
    assert all(domains[i : i + 4].count("a") == 1 for i in range(36))


def test_a_curriculum_goes_over_evenly_and_stays_where_it_ends() -> None:
    rising: Ratio = ((2, 0.0), (6, 1.0), (8, 0.5))
    assert [weight_at(rising, i) for i in range(11)] == [0, 0, 0, 0.25, 0.5, 0.75, 1, 0.75, 0.5, 0.5, 0.5]
    falling: Ratio = ((0, 1.0), (10, 0.0))
    order = MixedOrder(
        {name: Share(TaskOrder(marked(name), 0), r) for name, r in (("a", falling), ("b", ((0, 0.0), (10, 1.0))))}, 20
    )
    easy = [sum(order[i].domain == "a" for i in range(20 * n, 20 * n + 20)) for n in range(12)]
    assert easy == [20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0, 0]


class TestARun:
    """`Domains`, made from a recipe."""

    @pytest.fixture
    def several(self) -> Recipe:
        return Recipe.model_validate(
            {
                "domains": {
                    "a": {"env": wordgame(disguised=True)},
                    "b": {"env": wordgame(), "ratio": [[0, 0.0], [4, 2.0]]},
                }
            }
        )

    def test_one_environment_has_the_order_of_its_tasks_and_no_name(self) -> None:
        domains = Domains(Recipe.model_validate({"seed": 3, "env": wordgame(disguised=True)}))
        family = make_family(WORDGAMES, {"disguised": True})
        plain = TaskOrder(family.tasks("train"), 3, family.disguise_task)
        order = domains.order()
        assert [order[i] for i in range(1000)] == [plain[i] for i in range(1000)]
        assert [(domain.name, domain.title) for domain in domains] == [("", WORDGAMES)]

    def test_tasks_say_whose_they_are_and_are_disguised_by_their_own_family(self, several: Recipe) -> None:
        order = Domains(several).order()
        tasks = [order[i] for i in range(several.rollout.num_groups * 8)]
        assert {task.domain for task in tasks[: several.rollout.num_groups]} == {"a"}
        assert {"disguise" in task.options for task in tasks if task.domain == "a"} == {True}
        assert {"disguise" in task.options for task in tasks if task.domain == "b"} == {False}

    def test_domains_of_the_same_tasks_come_in_different_orders(self, several: Recipe) -> None:
        order = Domains(several).order()
        tasks = [order[i] for i in range(several.rollout.num_groups * 20)]
        first = [[task.id for task in tasks if task.domain == name][:TASK_COUNT] for name in "ab"]
        assert first[0] != first[1]
        assert sorted(first[0]) == sorted(first[1])

    def test_a_domain_whose_ratio_is_always_0_is_only_evaluated(self, several: Recipe) -> None:
        settings = several.model_dump(mode="json")
        settings["domains"]["held-out"] = {"env": wordgame(tasks=0), "ratio": [[0, 0.0]]}
        domains = Domains(Recipe.model_validate(settings))
        order = domains.order()
        assert {order[i].domain for i in range(200)} == {"a", "b"}
        assert {task.domain for task in domains["held-out"].tasks("unseen")} == {"held-out"}

    def test_a_domain_without_a_training_task_is_named(self, several: Recipe) -> None:
        settings = several.model_dump(mode="json")
        settings["domains"]["b"]["env"] = wordgame(tasks=0)
        with pytest.raises(EnvDataError, match=r"^b has no task to train on"):
            Domains(Recipe.model_validate(settings)).order()


def test_chat_models_are_told_the_instructions_of_the_domain() -> None:
    recipe = Recipe.model_validate({"domains": {word: {"env": wordgame(word=word)} for word in ("apple", "orange")}})
    tokenizer = chat_tokenizer(CHATML, "<|im_end|>")
    for word, renderer in Domains(recipe).renderers(tokenizer).items():
        assert tokenizer.decode(renderer.first("Go.")).startswith(f"<|im_start|>system\nSay {word}.<|im_end|>")


def test_a_recipe_of_domains_reads_back_and_says_nothing_of_env(tmp_path: Path) -> None:
    recipe = load_recipe([], ["domains.a.env.name=alfworld", "domains.b={env: {}, ratio: [[0, 1], [9, 0.5]]}"])
    file = tmp_path / "recipe.yaml"
    file.write_text(dump_recipe(recipe), encoding="utf-8")
    assert load_recipe([file]) == recipe
    assert "\nenv:" not in file.read_text(encoding="utf-8")
    assert recipe.environments == "a (alfworld), b (alfworld)"


def test_a_run_of_domains_goes_on_with_its_own_and_no_others() -> None:
    several = load_recipe([], ["domains.a.env.name=alfworld", "domains.b.env.name=alfworld"])
    check_settled(several, several)
    with pytest.raises(RunFolderError, match="keeps the `domains`"):
        check_settled(several, load_recipe([], ["domains.a.env.name=alfworld"]))
    with pytest.raises(RunFolderError, match="keeps the `domains`"):
        check_settled(several, load_recipe([]))


def test_env_and_domains_together_are_refused() -> None:
    assert "both `env` and `domains` are given" in refused("env.name=alfworld", "domains.a.env.name=alfworld")


@pytest.mark.parametrize("name", ["a b", "a/b", "-a", "", "a" * 41])
def test_a_name_that_could_not_name_metrics_and_sandboxes_is_refused(name: str) -> None:
    assert f"{name!r} cannot be the name of a domain" in refused(f"domains={{'{name}': {{env: {{}}}}}}")


@pytest.mark.parametrize("ratio", ["0", "-1", "true", "much", ".nan", ".inf"])
def test_a_ratio_that_is_no_weight_is_refused(ratio: str) -> None:
    assert "`domains.a.ratio`:" in (told := refused("domains.a.env.name=alfworld", f"domains.a.ratio={ratio}"))
    assert "is no share: give a weight above 0" in told


@pytest.mark.parametrize("points", ["[[0.5, 1]]", "[[0, -1]]", "[[-1, 1]]", "[0, 1]", "[[0, 1, 2]]", "[[0, x]]"])
def test_a_point_that_is_none_is_refused(points: str) -> None:
    assert "is no point of a curriculum" in refused("domains.a.env.name=alfworld", f"domains.a.ratio={points}")


@pytest.mark.parametrize("points", ["[]", "[[5, 1], [0, 1]]", "[[5, 1], [5, 2]]"])
def test_points_out_of_order_are_refused(points: str) -> None:
    told = refused("domains.a.env.name=alfworld", f"domains.a.ratio={points}")
    assert "the iterations of the points must ascend" in told


def test_an_iteration_with_nothing_to_play_is_refused() -> None:
    told = refused(
        "domains.a={env: {}, ratio: [[0, 1], [5, 0], [9, 1]]}", "domains.b={env: {}, ratio: [[4, 1], [5, 0]]}"
    )
    assert "all ratios are 0 at iteration 5" in told


def test_what_is_wrong_inside_a_domain_is_told_by_its_own_key() -> None:
    assert "Did you mean `domains.a.ratio`? `domains.a` knows: env, ratio, sandboxes" in refused("domains.a.ratoi=1")
    assert "`domains.a.env.name`: there is no environment family" in refused("domains.a.env.name=alfwrld")
    assert "unknown key `domains.a.env.config.max_step`" in refused("domains.a.env.config.max_step=1")
    assert "`domains.a.env` is missing" in refused("domains.a.sandboxes=3")
