"""Bare process sandboxes: the interpreter is there, this package and its libraries are not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

import rocknroll
from rocknroll.sandbox.errors import RuntimeUnavailable, SpecInvalid
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes import job
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import EnvSpec, SandboxSpec

PYTHON = str(Path(sys.base_prefix) / "bin" / "python3")
PACKAGE = Path(rocknroll.__file__).parent
LOOK = f"{PYTHON} -c 'import sys; print(sys.path)'; {PYTHON} -c 'import rocknroll'; ls {PACKAGE}"


@pytest.mark.asyncio
@pytest.mark.parametrize("level", ["namespaces", "bubblewrap"])
@pytest.mark.parametrize("bare", [True, False])
async def test_nothing_of_the_package_is_visible(level: str, bare: bool, folder: Path) -> None:
    runtime = ProcessRuntime(level, folder=folder)  # type: ignore[arg-type]
    try:
        await runtime.isolation()
    except RuntimeUnavailable as refused:
        await runtime.close()
        pytest.skip(str(refused))
    async with Fleet(SandboxSpec(bare=bare), 1, runtime) as fleet, await fleet.lease("t") as sandbox:
        seen = await sandbox.exec(f"{LOOK} 2>&1")
        said = (seen.stdout + seen.stderr).decode()
        assert ("No module named 'rocknroll'" in said) == bare, said
        assert ("No such file or directory" in said) == bare
        assert str(Path(sys.prefix) / "lib") not in said
        await sandbox.upload(Path(job.__file__).parent, "copied")
        assert (await sandbox.exec("ls copied")).stdout


def test_an_environment_needs_the_package() -> None:
    with pytest.raises(ValidationError, match="leave one of the two out"):
        SandboxSpec(bare=True, env=EnvSpec(entry_point="a:B"))


def test_a_package_among_the_systems_files_cannot_be_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "base_prefix", str(Path(rocknroll.__file__).parent.parent))
    with pytest.raises(SpecInvalid, match="virtual environment"):
        job.check(SandboxSpec(bare=True))
