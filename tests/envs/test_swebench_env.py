"""SWE-bench as an environment, on real process sandboxes: rewards, limits, what the agent can see, broken sandboxes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import rocknroll.envs  # noqa: F401
from rocknroll.envs.registry import family
from rocknroll.envs.swebench import campaign
from rocknroll.envs.swebench.campaign import Job, Record, Result, grade_all
from rocknroll.envs.swebench.config import PlaceConfig, SWEBenchConfig
from rocknroll.envs.swebench.episode import Episode
from rocknroll.envs.swebench.family import SWEBenchEnv, SWEBenchFamily, gold_action
from rocknroll.envs.swebench.instance import Instance, RowError, instance_of
from rocknroll.envs.swebench.mini.rows import package_rows
from rocknroll.envs.swebench.protocol import SUBMISSION, as_action
from rocknroll.envs.swebench.workplaces import Workplaces
from rocknroll.envs.text import EnvDataError
from rocknroll.sandbox.errors import EnvError, SandboxError
from rocknroll.sandbox.leased import LeasedSandbox

INSTANCE = instance_of(package_rows("rangeset")[0])
GOLD = Job("gold", INSTANCE, INSTANCE.gold_patch)
Step = tuple[str, float, bool, bool, dict[str, Any]]


@pytest.fixture(scope="module")
def env() -> Iterator[SWEBenchEnv]:
    env = SWEBenchEnv({"max_turns": 3, "command_timeout_s": 5.0, "held_out": 0.0})
    yield env
    env.close()


def play(env: SWEBenchEnv, *actions: str) -> list[Step]:
    """Every step."""
    env.reset(seed=0, options={"task": INSTANCE.id})
    return [env.step(action) for action in actions]


def test_gold_is_worth_1_and_nothing_0(env: SWEBenchEnv) -> None:
    told, _ = env.reset(seed=0, options={"task": INSTANCE.id})
    assert told == INSTANCE.problem.strip()
    applied, (_, reward, terminated, truncated, info) = play(env, gold_action(INSTANCE), SUBMISSION)
    assert "<returncode>0</returncode>" in applied[0] and applied[1:4] == (0.0, False, False)
    assert (reward, terminated, truncated, info["won"], info["why"]) == (1.0, True, False, True, "resolved")
    assert info["metrics"]["cheating"] == 0
    assert {"reset_s", "commands_s", "grading_s"} <= set(info["metrics"])
    ((_, reward, terminated, _, info),) = play(env, SUBMISSION)
    assert (reward, terminated, info["won"], info["why"]) == (0.0, True, False, "empty patch")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(SUBMISSION)


def test_work_counts_when_turns_run_out(env: SWEBenchEnv) -> None:
    _, reward, terminated, truncated, info = play(env, gold_action(INSTANCE), "hm", as_action("ls"))[-1]
    assert (reward, terminated, truncated, info["won"]) == (1.0, False, True, True)


def test_actions_without_a_command_cost_a_turn(env: SWEBenchEnv) -> None:
    none, two, last = play(env, "no block", "```bash\nls\n```\n```bash\nls\n```", SUBMISSION)
    assert "exactly one" in none[0] and "exactly one" in two[0]
    assert none[4]["invalid_action"] and two[4]["invalid_action"]
    assert (last[1], last[4]["ended"]) == (0.0, "submitted")


def test_commands_are_stopped_and_their_output_is_cut(env: SWEBenchEnv) -> None:
    stopped, cut, _ = play(
        env, as_action("echo begun; sleep 60"), as_action("yes | head -c 99999; echo end"), SUBMISSION
    )
    assert "begun" in stopped[0] and "stopped after 5 s" in stopped[0]
    assert len(cut[0]) < 11_000 and "characters left out" in cut[0] and "end\n" in cut[0]


def test_what_the_agent_commits_and_deletes_is_in_the_patch(env: SWEBenchEnv) -> None:
    work = "git rm -q README.md; echo new > new.txt; git add -A; git -c user.name=a -c user.email=b commit -qm x"
    *_, info = play(env, as_action(f"{work}; echo later > later.txt"), SUBMISSION)[-1]
    assert all(f"b/{name}" in info["patch"] for name in ("new.txt", "later.txt"))
    assert "deleted file" in info["patch"]


def look(env: SWEBenchEnv, command: str) -> str:
    ((seen, *_),) = play(env, as_action(command))
    return seen


def test_the_agent_finds_neither_solutions_nor_tests(env: SWEBenchEnv) -> None:
    hidden = INSTANCE.fail_to_pass[0].rpartition("::")[2]
    assert "bugs.yaml" not in look(env, "find / -xdev -name bugs.yaml 2>/dev/null")
    assert "No module named 'rocknroll'" in look(env, "python3 -c 'import rocknroll'")
    assert (
        hidden
        not in look(env, f"grep -rls {hidden} . /tmp /usr/lib/python3 $PYTHONPATH | head -3; echo $?; true").split(
            "0\n"
        )[0]
    )
    assert str(Path(sys.prefix)) not in look(env, "cat /proc/self/mountinfo; env")


def test_the_history_ends_at_the_base_commit(env: SWEBenchEnv) -> None:
    seen = look(env, "git log --all --format=%H | head -1; git log --all --format=%H | wc -l; git fsck --unreachable")
    assert seen.splitlines()[2:4] == [INSTANCE.base_commit, str(len(INSTANCE.tree or {}))]
    assert "unreachable" not in seen


def test_the_agent_reaches_no_network(env: SWEBenchEnv) -> None:
    assert "unreachable" in look(env, "python3 -c \"import socket; socket.create_connection(('192.0.2.1', 80), 3)\"")


def test_it_is_registered() -> None:
    assert gymnasium.spec("rocknroll/SWEBench-v0").entry_point == SWEBenchFamily.entry_point


def test_splits_are_disjoint_and_exclusions_are_named() -> None:
    swe = family("swebench", {"held_out": 0.3})
    train, unseen = ({task.id for task in swe.tasks(split)} for split in ("train", "unseen"))
    assert train and unseen and not train & unseen
    assert {task.id for task in swe.tasks("seen")} == train
    fewer = family("swebench", {"held_out": 0.0, "exclude": [INSTANCE.id]})
    assert {task.id for task in fewer.tasks("train")} == (train | unseen) - {INSTANCE.id}
    assert fewer.content_key() != swe.content_key()
    with pytest.raises(EnvDataError, match="no instance nobody__x-1 to exclude"):
        family("swebench", {"exclude": ["nobody__x-1"]}).tasks("train")


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Breaking(Workplaces):
    """Kills the sandboxes of the next `kills` leases soon after they began."""

    kills = 0
    given = 0

    @asynccontextmanager
    async def fresh(self, instance: Instance, owner: str) -> AsyncIterator[LeasedSandbox]:
        async with super().fresh(instance, owner) as sandbox:
            self.given += 1
            if self.kills > 0:
                self.kills -= 1
                live = (await self._fleet(instance)).instance(sandbox.id)
                assert live is not None
                asyncio.get_running_loop().call_later(0.2, kill, live.pid)
            yield sandbox


async def grade_gold(places: Workplaces, record: Record) -> Result:
    return (await grade_all([GOLD], places, 1, record, timeout_s=60))[GOLD.key]


def test_a_sandbox_killed_while_grading_is_replaced() -> None:
    async def scenario() -> None:
        async with Breaking(PlaceConfig(), 4) as places:
            places.kills = 1
            found = await grade_gold(places, Record(None))
            assert found.resolved and not found.error, found
            assert places.given > 2

    asyncio.run(scenario())


def test_sandboxes_that_are_killed_every_time_give_no_verdict() -> None:
    async def scenario() -> None:
        async with Breaking(PlaceConfig(), 4) as places:
            places.kills = 100
            found = await grade_gold(places, Record(None))
            assert not found.resolved and not found.why
            assert found.error in ("SandboxLost", "LeaseLost"), found
            places.kills = 0
            episode = Episode(INSTANCE, places, SWEBenchConfig(), "t")
            await episode.reset()
            await episode.step(gold_action(INSTANCE))
            places.kills = 100
            with pytest.raises(SandboxError):
                await episode.step(SUBMISSION)
            await episode.close()

    asyncio.run(scenario())


class Full(Workplaces):
    """Gives sandboxes whose /tmp has no room left."""

    @asynccontextmanager
    async def fresh(self, instance: Instance, owner: str) -> AsyncIterator[LeasedSandbox]:
        async with super().fresh(instance, owner) as sandbox:
            await sandbox.exec("dd if=/dev/zero of=/tmp/fill bs=1M 2>/dev/null", timeout_s=60)
            yield sandbox


def test_a_full_disk_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "BACKOFF_S", 0.0)

    async def scenario() -> None:
        async with Full(PlaceConfig(), 4) as places:
            found = await grade_gold(places, Record(None))
            assert not found.resolved and not found.why and "space" in found.text.lower(), found

    asyncio.run(scenario())


def test_rows_that_cannot_be_played_cost_their_episode() -> None:
    async def scenario() -> None:
        async with Workplaces(PlaceConfig(), 2) as places:
            for broken, said in (
                (replace(INSTANCE, tree=None), "choose runtime docker"),
                (replace(INSTANCE, base_commit="0" * 40), "not its base_commit"),
            ):
                with pytest.raises(EnvError, match=said):
                    await Episode(broken, places, SWEBenchConfig(), "t").reset()
                with pytest.raises(RowError, match=said):
                    async with places.fresh(broken, "t"):
                        pass

    asyncio.run(scenario())


def test_records_are_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"

    async def scenario() -> None:
        async with Breaking(PlaceConfig(), 4) as places:
            first = await grade_gold(places, Record(path))
            given = places.given
            path.write_text(path.read_text() + '{"key": "cut o')
            assert await grade_gold(places, Record(path)) == first
            assert places.given == given

    asyncio.run(scenario())
    path.write_text("nonsense\n" + path.read_text())
    with pytest.raises(EnvDataError, match="line 1 is no result"):
        Record(path)
