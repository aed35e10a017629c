"""Injected faults: how often, how long, and always the same for the same seed."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import mean
from typing import Any

import gymnasium
import pytest

from rocknroll.envs import faulty
from rocknroll.envs.faulty import FAULT_SEED, FaultyEnv, InjectedFault
from rocknroll.envs.remote import RemoteEnv
from rocknroll.sandbox.errors import EnvError, EnvHung
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import EnvSpec, SandboxSpec

PLAYTHINGS = Path(__file__).parents[1] / "sandbox"
HANGS = "hangs"


class Counter(gymnasium.Env[int, int]):
    """Counts the actions it sees."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Discrete(10_000)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.seen = 0
        return 0, {"options": options}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.seen += 1
        return self.seen, 0.0, False, False, {}


class Hung(Exception):
    """Stands for a step that does not return."""


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was slept, in place of sleeping."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        if seconds == faulty.NAP_S:
            raise Hung
        slept.append(seconds)

    monkeypatch.setattr(faulty.time, "sleep", sleep)
    return slept


def make(**faults: float) -> FaultyEnv:
    return FaultyEnv(f"{__name__}:Counter", {}, faults)


def fates(env: FaultyEnv, steps: int, seed: object = 0) -> list[str]:
    """What became of each step of one episode."""
    env.reset(options={FAULT_SEED: seed})
    found = []
    for _ in range(steps):
        try:
            env.step(0)
            found.append("done")
        except InjectedFault:
            found.append("raised")
        except Hung:
            found.append(HANGS)
    return found


def test_without_faults_the_environment_is_what_it_was(waits: list[float]) -> None:
    env = make()
    assert env.reset(seed=1, options={"game": "a"}) == (0, {"options": {"game": "a"}})
    assert env.reset() == (0, {"options": None})
    assert env.step(0) == (1, 0.0, False, False, {})
    assert waits == []


def test_the_seed_of_the_faults_never_reaches_the_environment() -> None:
    assert make().reset(options={"game": "a", FAULT_SEED: "g0.0.0"})[1] == {"options": {"game": "a"}}


def test_steps_raise_and_hang_as_often_as_they_are_told(waits: list[float]) -> None:
    found = fates(make(error_rate=0.1, hang_rate=0.02), 20_000)
    for fate, rate in (("raised", 0.1), (HANGS, 0.02)):
        spread = math.sqrt(rate * (1 - rate) / len(found))
        assert abs(found.count(fate) / len(found) - rate) < 5 * spread


def test_a_failed_step_is_not_seen_by_the_environment(waits: list[float]) -> None:
    env = make(error_rate=0.5)
    done = fates(env, 200).count("done")
    assert env.unwrapped.seen == done < 200


def test_what_goes_wrong_follows_from_the_seed_of_the_episode(waits: list[float]) -> None:
    first, second = (
        make(error_rate=0.3, latency_s=1, latency_std_s=1),
        make(error_rate=0.3, latency_s=1, latency_std_s=1),
    )
    fates(first, 7, seed="another")  # an episode before leaves no trace
    waits.clear()
    assert fates(first, 50, seed="g0.0.0") == fates(second, 50, seed="g0.0.0")
    assert waits[:50] == waits[50:]
    assert fates(first, 50, seed="g0.0.0") != fates(first, 50, seed="g0.0.1")


def test_waits_are_normal_and_cut_off_at_zero(waits: list[float]) -> None:
    fates(make(latency_s=1.0, latency_std_s=1.0), 20_000)
    assert min(waits) >= 0
    # Mean of a normal truncated at 0: μ + σ·φ(μ/σ)/Φ(μ/σ), which is 1.2876 for μ = σ = 1.
    assert mean(waits) == pytest.approx(1.2876, abs=0.03)


def test_a_constant_wait_is_that_long(waits: list[float]) -> None:
    fates(make(latency_s=0.25), 3)
    assert waits == [0.25] * 3


def test_an_episode_is_slow_from_its_first_step_to_its_last(waits: list[float]) -> None:
    env = make(latency_s=1.0, slow_fraction=0.2, slow_factor=7.0)
    slow = 0
    for episode in range(500):
        waits.clear()
        fates(env, 4, seed=episode)
        assert waits in ([1.0] * 4, [7.0] * 4)
        slow += waits[0] == 7.0
    assert 60 <= slow <= 140


def test_faults_of_an_unknown_kind_are_refused() -> None:
    with pytest.raises(TypeError, match="eror_rate"):
        make(eror_rate=0.1)


@pytest.mark.asyncio
@pytest.mark.parametrize(("faults", "error"), [({"error_rate": 1.0}, EnvError), ({"hang_rate": 1.0}, EnvHung)])
async def test_faults_come_out_of_a_sandbox_as_the_real_ones_do(
    faults: dict[str, float], error: type[Exception]
) -> None:
    env = EnvSpec(
        entry_point=faulty.ENTRY_POINT,
        kwargs={"entry_point": "playthings:Plaything", "kwargs": {"greeting": "hi"}, "faults": faults},
        modules=("playthings",),
        python_path=(PLAYTHINGS,),
    )
    async with (
        Fleet(SandboxSpec(env=env), 1, ProcessRuntime()) as fleet,
        await fleet.lease("me") as sandbox,
    ):
        remote = RemoteEnv(sandbox, step_timeout_s=0.5)
        observation, info = await remote.reset(options={"game": "a", FAULT_SEED: 1})
        assert (observation, info["options"]) == ("hi", {"game": "a"})
        with pytest.raises(error):
            await remote.step("go")


@pytest.mark.asyncio
async def test_the_environment_inside_is_imported_once_for_all_sandboxes(tmp_path: Path) -> None:
    lines = [
        "import secrets, playthings",
        "TOKEN = secrets.token_hex()",
        "class Env(playthings.Plaything):",
        "    def reset(self, **given):",
        "        return TOKEN, super().reset(**given)[1]",
    ]
    (tmp_path / "stamped.py").write_text("\n".join(lines))
    env = EnvSpec(
        entry_point=faulty.ENTRY_POINT,
        kwargs={"entry_point": "stamped:Env", "kwargs": {}, "faults": {}},
        modules=("stamped",),
        python_path=(PLAYTHINGS, tmp_path),
    )
    async with (
        Fleet(SandboxSpec(env=env), 2, ProcessRuntime()) as fleet,
        await fleet.lease("one") as one,
        await fleet.lease("other") as other,
    ):
        first, second = [(await RemoteEnv(sandbox).reset())[0] for sandbox in (one, other)]
    assert first == second
