"""`rock` from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rocknroll.sandbox.cli.exit_codes import ExitCode


def rock(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from rocknroll.sandbox.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=200, check=False
    )


def test_doctor_says_what_sandboxes_get() -> None:
    done = rock("doctor", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["isolation"]["level"] in ("namespaces", "bubblewrap", "plain")
    assert {"name", "ok", "found", "remedy"} <= set(report["checks"][0])
    assert "process runtime" in rock("doctor").stdout


@pytest.mark.slow
def test_bench_gives_the_figures_that_scripts_rely_on() -> None:
    done = rock("bench", "--runtime", "process", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    for name in ("start_cold", "lease_warm", "exec", "ping", "file_1mib", "recovery"):
        assert 0 < result["figures"][name]["p50"] <= result["figures"][name]["p95"]


def test_a_runtime_that_does_not_exist_is_a_usage_error() -> None:
    assert rock("bench", "--runtime", "moon").returncode == ExitCode.USAGE


def test_the_documented_exit_codes_are_those_of_the_code() -> None:
    text = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text()
    table = text.partition("<!-- exit codes -->")[2].partition("<!-- /exit codes -->")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    assert rows[2:] == [[str(code.value), code.name.lower(), code.meaning] for code in ExitCode]
