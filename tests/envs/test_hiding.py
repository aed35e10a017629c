"""Where process sandboxes would show what earns rewards, nothing that could be cheated is started."""

from __future__ import annotations

import pytest

from rocknroll.envs.hiding import hiding_runtime
from rocknroll.sandbox.errors import RuntimeUnavailable
from rocknroll.sandbox.runtimes.base import Isolation
from rocknroll.sandbox.runtimes.process import ProcessRuntime

pytestmark = pytest.mark.asyncio


async def test_a_machine_that_cannot_hide_files_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def shares_files(self: ProcessRuntime) -> Isolation:
        return Isolation("limits", ("processes",), ("files",), "no user namespaces", "apt-get install bubblewrap")

    monkeypatch.setattr(ProcessRuntime, "isolation", shares_files)
    with pytest.raises(RuntimeUnavailable, match="answers could be read: no user namespaces; apt-get install bubble"):
        await hiding_runtime("process", "test", "the answers could be read")


async def test_the_runtime_given_hides_files() -> None:
    runtime = await hiding_runtime("process", "test", "the answers could be read")
    try:
        assert "files" in (await runtime.isolation()).separated
    finally:
        await runtime.close()
