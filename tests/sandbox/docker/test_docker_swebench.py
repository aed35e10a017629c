"""SWE-bench in containers: images by the published names, without their future, graded as in process sandboxes."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest
from containers import BASE
from private_daemon import PrivateDaemon

from rocknroll.envs.swebench import campaign, workplaces
from rocknroll.envs.swebench.building import build_image
from rocknroll.envs.swebench.campaign import Job, Record, Result, grade_all
from rocknroll.envs.swebench.cleaning import REPOSITORY
from rocknroll.envs.swebench.config import PlaceConfig, SWEBenchConfig
from rocknroll.envs.swebench.episode import Episode
from rocknroll.envs.swebench.family import gold_action
from rocknroll.envs.swebench.instance import Instance, instance_of
from rocknroll.envs.swebench.mini.rows import package_rows
from rocknroll.envs.swebench.protocol import SUBMISSION, as_action
from rocknroll.envs.swebench.workplaces import Workplaces
from rocknroll.sandbox.errors import RuntimeUnavailable
from rocknroll.sandbox.leased import LeasedSandbox

CONFIG = PlaceConfig(runtime="docker", image=BASE)
ROW = package_rows("rangeset")[0]
WITH_TREE = instance_of(ROW)
CONFTEST = """\
diff --git a/conftest.py b/conftest.py
new file mode 100644
--- /dev/null
+++ b/conftest.py
@@ -0,0 +1 @@
+1
"""


FUTURE = f"""\
cd /testbed && git reset -q --hard && git config user.name a && git config user.email b &&
git apply --index /gold.patch && rm /gold.patch &&
git commit -qm 'the fix' && git branch fixed && git tag -a v2 -m fixed &&
git update-ref refs/remotes/origin/main HEAD &&
git remote add origin https://example.invalid/x.git && git reset -q --hard {WITH_TREE.base_commit}
"""


@pytest.fixture(scope="module")
def published(client: docker.APIClient) -> Iterator[Instance]:
    """The instance without its tree, in an image by the published convention: with the fix in a later commit that has
    a branch, a tag, a remote and a reflog."""
    without_name = instance_of({**ROW, "image": None})
    others = {image["Id"] for image in client.images(name=REPOSITORY)}
    name = build_image(client, without_name, BASE)
    made = client.create_container(name, ["sh", "-c", FUTURE])["Id"]
    try:
        put_file(client, made, "gold.patch", WITH_TREE.gold_patch.encode())
        client.start(made)
        assert client.wait(made)["StatusCode"] == 0, client.logs(made)
        client.commit(made, *name.rsplit(":", 1))
    finally:
        client.remove_container(made, force=True)
    yield replace(without_name, tree=None)
    client.remove_image(name, force=True)
    for image in client.images(name=REPOSITORY):
        if image["Id"] not in others:
            for tag in image["RepoTags"] or ():
                client.remove_image(tag, force=True)


def put_file(client: docker.APIClient, container: str, name: str, content: bytes) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    client.put_archive(container, "/", buffer.getvalue())


async def graded(jobs: list[Job], config: PlaceConfig) -> dict[str, Result]:
    async with Workplaces(config, 4) as places:
        found = await grade_all(jobs, places, 2, Record(None), timeout_s=120, ask_anyway=True)
    return {result.name: result for result in found.values()}


def test_gold_is_resolved_and_nothing_else_is(client: docker.APIClient, published: Instance) -> None:
    for instance in (WITH_TREE, published):
        jobs = [
            Job("gold", instance, instance.gold_patch),
            Job("empty", instance, ""),
            Job("conftest", instance, CONFTEST),
        ]
        found = asyncio.run(graded(jobs, CONFIG))
        assert found["gold"].resolved and not found["gold"].cheating, found
        assert (found["empty"].resolved, found["empty"].why) == (False, "tests failed"), found
        assert (found["conftest"].resolved, found["conftest"].undone) == (False, ("conftest.py",)), found


def test_the_future_is_not_in_the_agents_image(client: docker.APIClient, published: Instance) -> None:
    async def scenario() -> None:
        async with Workplaces(CONFIG, 2) as places:
            episode = Episode(published, places, SWEBenchConfig(runtime="docker"), "t")
            await episode.reset()
            look = (
                "git log --all --format=%H | head -1; git for-each-ref; git reflog; git remote; git fsck --unreachable"
            )
            seen, *_ = await episode.step(as_action(look))
            assert published.base_commit in seen
            assert not {"fixed", "v2", "origin", "unreachable", "the fix"} & set(seen.replace("/", " ").split()), seen
            seen, *_ = await episode.step(as_action("git cat-file --batch-check --batch-all-objects | grep -c commit"))
            assert str(len(WITH_TREE.tree or {})) in seen.splitlines()
            seen, *_ = await episode.step(as_action("cat /sys/class/net/*/operstate; ls /sys/class/net; id -u; pwd"))
            assert "eth0" not in seen and "/testbed" in seen
            await episode.step(gold_action(published))
            _, reward, terminated, _, info = await episode.step(SUBMISSION)
            assert (reward, terminated, info["metrics"]["cheating"]) == (1.0, True, 0.0)
            await episode.close()

    asyncio.run(scenario())


def test_images_that_are_absent_or_of_another_history_are_named(client: docker.APIClient, published: Instance) -> None:
    absent = replace(published, id="nobody__x-1")
    other = replace(published, base_commit="0" * 40)
    found = asyncio.run(graded([Job("absent", absent, "x"), Job("other", other, "x")], CONFIG))
    assert found["absent"].error == "ImageNotFound" and "docker pull swebench/sweb.eval" in found["absent"].text
    assert found["other"].error == "RowError" and "base_commit" in found["other"].text
    pulled = asyncio.run(graded([Job("absent", absent, "x")], CONFIG.model_copy(update={"pull": True})))
    assert pulled["absent"].error == "ImageNotFound" and "could not be fetched" in pulled["absent"].text


def test_a_daemon_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")

    async def scenario() -> Any:
        with pytest.raises(RuntimeUnavailable) as refused:
            async with Workplaces(CONFIG, 2):
                pass
        return str(refused.value)

    assert "Docker" in asyncio.run(scenario())


def test_a_daemon_that_is_stopped_while_grading_gives_no_verdict(
    own_daemon: PrivateDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes its containers along, and further attempts find no daemon."""
    monkeypatch.setenv("DOCKER_HOST", own_daemon.url)
    monkeypatch.setattr(campaign, "BACKOFF_S", 0.0)
    monkeypatch.setattr(workplaces, "START_PATIENCE_S", 5.0)
    marker = ": '>>>>> Start"
    slow = replace(WITH_TREE, eval_script=WITH_TREE.eval_script.replace(marker, f"sleep 60\n{marker}"))
    begun = asyncio.Event()

    class Watched(Workplaces):
        @asynccontextmanager
        async def fresh(self, instance: Instance, owner: str) -> AsyncIterator[LeasedSandbox]:
            async with super().fresh(instance, owner) as sandbox:
                begun.set()
                yield sandbox

    async def scenario() -> Result:
        async with Watched(CONFIG, 4) as places:
            job = Job("gold", slow, slow.gold_patch)
            grading = asyncio.create_task(grade_all([job], places, 1, Record(None), timeout_s=120))
            await begun.wait()
            await asyncio.to_thread(own_daemon.end)
            try:
                (found,) = (await grading).values()
            finally:
                await asyncio.to_thread(own_daemon.start)
            return found

    found = asyncio.run(scenario())
    assert not found.resolved and not found.why
    assert found.error in ("SandboxLost", "LeaseLost", "LeaseTimeout"), found
