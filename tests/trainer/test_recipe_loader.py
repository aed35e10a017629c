"""Recipes compose, and whatever is wrong with one is told where it was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocknroll.envs.text import EnvDataError
from rocknroll.sandbox import strict_yaml
from rocknroll.sandbox.config_errors import known_keys
from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.recipe_loader import check_environment, dump_recipe, load_recipe, shipped_recipes


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def refused(*overrides: str) -> str:
    with pytest.raises(RecipeError) as error:
        load_recipe([], overrides)
    return str(error.value)


def test_every_shipped_recipe_loads_by_name_and_by_path() -> None:
    assert {"alfworld", "alfworld-curriculum", "alfworld-smoke"} <= shipped_recipes().keys()
    for name, path in shipped_recipes().items():
        assert load_recipe([name]) == load_recipe([path])
        assert load_recipe([name]).name == name


def test_files_compose_left_to_right_and_overrides_win(tmp_path: Path) -> None:
    first = write(tmp_path / "a.yaml", "seed: 1\nlearner: {learning_rate: 1e-3, epochs: 2}\n")
    second = write(tmp_path / "b.yaml", "seed: 2\nlearner: {epochs: 3}\n")
    recipe = load_recipe([first, second], ["seed=3"])
    assert (recipe.seed, recipe.learner.epochs, recipe.learner.learning_rate) == (3, 3, 1e-3)


def test_lists_are_replaced_not_merged(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yaml", "eval: {splits: [seen, unseen]}\n")
    assert load_recipe([file], ["eval.splits=[train]"]).eval.splits == ("train",)


def test_settings_of_an_environment_merge_key_by_key(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yaml", "env: {config: {max_steps: 20, objects: [3, 6]}}\n")
    assert load_recipe([file], ["env.config.max_steps=50"]).env.config == {"max_steps": 50, "objects": [3, 6]}


def test_extends_finds_a_file_beside_it_and_a_shipped_recipe(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", "extends: alfworld\nseed: 7\n")
    child = write(tmp_path / "child.yaml", "extends: [base.yaml]\nname: child\n")
    recipe = load_recipe([child])
    assert (recipe.name, recipe.seed, recipe.env.config) == ("child", 7, load_recipe(["alfworld"]).env.config)


def test_recipes_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "extends: b.yaml\n")
    with pytest.raises(RecipeError, match="circle"):
        load_recipe([write(tmp_path / "b.yaml", "extends: a.yaml\n")])


def test_a_resolved_recipe_reads_back_as_itself(tmp_path: Path) -> None:
    recipe = load_recipe(["alfworld"], ["learner.learning_rate=3e-5", 'name="007"', "policy.model=no"])
    assert load_recipe([write(tmp_path / "recipe.yaml", dump_recipe(recipe))]) == recipe


def test_unknown_key_names_its_origin_the_nearest_key_and_the_section(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.yaml", "learner:\n  lerning_rate: 1e-4\n")
    with pytest.raises(RecipeError) as error:
        load_recipe([file])
    text = str(error.value)
    assert str(file) in text
    assert "unknown key `learner.lerning_rate`" in text
    assert "Did you mean `learner.learning_rate`?" in text
    assert "`learner` knows: objective, advantage" in text


def test_a_key_in_the_wrong_section_is_pointed_to_where_it_belongs() -> None:
    told = refused("learning_rate=1e-3")
    assert all(f"`{section}.learning_rate`" in told for section in ("warmstart", "learner", "critics"))
    assert "Did you mean `rollout.async_ratio`?" in refused("learner.async_ratio=1")


def test_a_key_like_no_other_gets_no_suggestion() -> None:
    assert "Did you mean" not in refused("zzzzzz=1")


def test_a_file_is_blamed_only_for_what_no_override_changed(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yaml", "seed: -1\n")
    with pytest.raises(RecipeError, match=r"override `seed=-2`: `seed` must be greater than or equal to 0"):
        load_recipe([file], ["seed=-2"])


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("learner.iterations=abc", '`learner.iterations` must be a whole number, but is "abc" (text)'),
        ("learner.iterations=2.5", "but is 2.5 (a number)"),
        ("learner.iterations=true", "but is true (a truth value)"),
        ("learner.iterations=0", "must be greater than 0"),
        ("learner.learning_rate=.nan", "must be"),
        ("learner.learning_rate=.inf", "must be a finite number"),
        ("learner.objective=grop", "or 'reinforce', but is \"grop\" (text). Did you mean `grpo`?"),
        ("learner.advantage=reinforcepp", "Did you mean `reinforce++`?"),
        ("learner.aggregation=tokenmean", "Did you mean `token_mean`?"),
        ("learner.ratio_level=segments", "Did you mean `segment`?"),
        ("learner.objective=3", "but is 3 (a whole number)."),
        ("learner.dual_clip=1", "must be greater than 1"),
        ("learner=3", "`learner` must be a section (a mapping)"),
        ("eval.splits=unseen", "`eval.splits` must be a list"),
        ("warmstart.enabled=1", "must be true or false"),
        ("name=../../etc", "`name` may hold letters"),
        ("name=..", "`name` may hold letters"),
        ("seed=", "but is null (nothing)"),
    ],
)
def test_wrong_type_says_key_expectation_and_value(override: str, says: str) -> None:
    text = refused(override)
    assert text.startswith(f"override `{override}`: ")
    assert says in text


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("learner.minibatches=5", "rollout.num_groups=4"), "`learner.minibatches` (5) must divide"),
        (("learner.minibatches=5", "rollout.num_groups=12"), "whole groups: choose one of 1, 2, 3, 4, 6, 12."),
        (("learner.objective=gspo", "learner.ratio_level=token"), "it is `ppo`: say `objective: ppo`"),
        (("learner.objective=reinforce", "learner.ratio_level=segment"), "it has no probability ratio"),
        (("learner.objective=topr", "learner.dual_clip=3"), "`dual_clip` bounds the clipped surrogate of PPO"),
        (("learner.advantage=gae",), "needs critics, which say what a state is worth"),
        (("critics.kind=asyppo", "critics.count=9"), "`critics.count` (9) is more than `rollout.group_size` (8)"),
        (("critics.kind=symmetric",), "serves nothing but `learner.advantage: gae`: `grpo` does not ask it"),
        (("critics.kind=asyppo", "learner.stream=true", "rollout.async_ratio=0"), "value the batch as a whole"),
        (("critics.kind=asyppo", "critics.tiny.heads=3"), "`critics.tiny.heads` (3) must be a multiple"),
        (("critics.kind=assyppo",), "Did you mean `asyppo`?"),
        (("critics.agreeing=1.2",), "`critics.agreeing` must be"),
        (("credit.share=1.4",), "`credit.share` must be"),
        (("credit.introduction=-0.1",), "`credit.introduction` must be"),
        (("credit.heads=0.6",), "`credit.heads` must be"),
        (("credit.windows.fai_from=20", "credit.windows.fai_to=10"), "`credit.windows.fai_from` (20) must not exceed"),
        (("credit.kind=local", "learner.objective=gspo"), "one ratio for all of them, under which only their mean"),
        (("credit.kind=random", "learner.objective=topr"), "take another objective than `topr`"),
        (
            ("credit.kind=local", "learner.stream=true", "rollout.async_ratio=0"),
            "`learner.stream` trains on groups as they come",
        ),
        (("credit.kind=coupled", "credit.lookback=16"), "`credit.lookback` (16) is longer than any response before"),
        (
            ("credit.kind=global", "credit.windows.fai_from=1024", "credit.windows.fai_to=2000"),
            "`credit.windows.fai_from` (1024) is longer than any response: a trajectory has at most 1024 tokens",
        ),
        (("learner.mismatch.floor=2", "learner.mismatch.cap=2"), "`mismatch.floor` (2.0) must be below"),
        (("learner.stream=true", "rollout.async_ratio=1"), "`learner.stream` is for synchronous training"),
        (
            ("learner.stream=true", "rollout.async_ratio=0", "learner.epochs=2"),
            "set `epochs` (2) and `minibatches` (1)",
        ),
        (
            ("learner.stream=true", "rollout.async_ratio=0", "learner.advantage=reinforce++"),
            "is normalised over the whole batch",
        ),
        (("rollout.group_size=1",), "`rollout.group_size` (1) must be at least 2"),
        (("policy.tiny.kv_heads=2",), "`policy.tiny.heads` (3) must be a multiple"),
        (("eval.splits=[]",), "`eval.splits` must name at least one split"),
    ],
)
def test_keys_that_do_not_fit_together_are_refused(overrides: tuple[str, ...], says: str) -> None:
    assert says in refused(*overrides)


@pytest.mark.parametrize("override", ["seed", "=3", "a..b=1", ".seed=1"])
def test_an_override_of_another_form_is_refused(override: str) -> None:
    assert f"`{override}` is not of the form `section.key=value`" in refused(override)


def test_all_mistakes_are_told_at_once() -> None:
    text = refused("seed=x", "learner.epochs=y")
    assert "`seed`" in text
    assert "`learner.epochs`" in text


def test_missing_recipe_lists_the_shipped_ones_and_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"no recipe `alfwrld`.*Did you mean `alfworld`\?.*Shipped: .*alfworld-smoke"):
        load_recipe(["alfwrld"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seed: [1\nname: x", "line 2"),
        ("seed: 1\nseed: 2", "line 2, column 1: `seed` is given twice"),
        ("- 1", "this is a list"),
        ("1: 2", "the key 1 is not text"),
        ("extends: 3", "`extends` must be"),
        ("seed: !!python/object:os.system x", "not valid YAML"),
        ("seed: 1\n---\nseed: 2", "not valid YAML"),
    ],
)
def test_a_broken_file_is_named_with_the_place(tmp_path: Path, text: str, says: str) -> None:
    file = write(tmp_path / "broken.yaml", text)
    with pytest.raises(RecipeError) as error:
        load_recipe([file])
    assert str(file) in str(error.value)
    assert says in str(error.value)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "binary.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe([file])


def test_an_empty_file_is_the_default_recipe(tmp_path: Path) -> None:
    assert load_recipe([write(tmp_path / "empty.yaml", "# nothing\n")]) == Recipe()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1E3", 1e3),
        ("on", "on"),
        ("no", "no"),
        ("012", 12),
        ("2024-01-01", "2024-01-01"),
        ("1_0", "1_0"),
    ],
)
def test_scalars_mean_what_they_look_like(text: str, value: object) -> None:
    assert strict_yaml.parse(text) == value


WORDS = st.text(max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(WORDS, inner), max_leaves=6)


@given(st.dictionaries(WORDS, TREES))
def test_dumped_yaml_reads_back_unchanged(data: dict[str, object]) -> None:
    assert strict_yaml.parse(strict_yaml.dump(data)) == data


def test_known_keys_reach_into_sections() -> None:
    assert {"seed", "policy.tiny.hidden_size", "learner.objective", "env.config"} <= set(known_keys(Recipe))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("env.name=alfwrld", "Did you mean 'alfworld'?"),
        ("env.name=nowhere:Family", "cannot be imported"),
        ("env.config.max_stps=3", "unknown key `env.config.max_stps`. Did you mean `env.config.max_steps`?"),
        ("env.config.max_steps=many", "`env.config.max_steps` must be"),
        ("env.config.objects=[6, 3]", "`env.config`: objects must be"),
    ],
)
def test_what_the_environment_does_not_know_is_refused(override: str, says: str) -> None:
    recipe = load_recipe(["alfworld"], [override])
    with pytest.raises(RecipeError) as error:
        check_environment(recipe)
    assert says in str(error.value)


@pytest.mark.parametrize("name", shipped_recipes())
def test_the_environment_of_every_shipped_recipe_is_accepted(name: str) -> None:
    if name == "alfworld-qwen":  # right, and its data is not on this machine
        with pytest.raises(EnvDataError, match="`official`, but neither"):
            check_environment(load_recipe([name]))
    else:
        check_environment(load_recipe([name]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rollout": {"async_ratio": -1}}, "async_ratio"),
        ({"rollout": {"redundancy": {"members": 9}}}, "more than the 32 sandboxes"),
        ({"rollout": {"redundancy": {"groups": 1}}}, "max_requeues"),
        ({"rollout": {"tail_batching": {"enabled": True}}}, "synchronous training"),
        ({"rollout": {"turn_barrier": True}}, "a whole batch step together"),
        ({"learner": {"stream": True}}, "synchronous training"),
    ],
)
def test_rollout_settings_that_exclude_each_other_are_refused_with_the_reason(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Recipe.model_validate(settings)


def test_a_recipe_that_leaves_alerts_alone_is_written_as_it_was_before_there_were_any(tmp_path: Path) -> None:
    assert "alerts" not in Recipe().model_dump(mode="json") and "alerts" not in dump_recipe(load_recipe(["alfworld"]))
    changed = load_recipe(["alfworld"], ["alerts.rules.stall.threshold=5", "alerts.webhook.url_variable=HOOK"])
    assert changed.alerts.rules.stall.threshold == 5
    assert load_recipe([write(tmp_path / "again.yaml", dump_recipe(changed))]) == changed


def test_an_unknown_rule_is_refused_with_the_nearest_known_one() -> None:
    assert "Did you mean `alerts.rules.stall`" in refused("alerts.rules.stal.enabled=false")
