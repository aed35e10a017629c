"""A vLLM server that is ours: its command line, its environment, its log and its end.

It listens on a Unix socket in a folder that nobody else may enter, because the routes that change weights run
whatever they are told. `keeper.py` ends it with this process, however that ends.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rocknroll.trainer.engine_section import EngineSection
from rocknroll.trainer.engines.devices import visible
from rocknroll.trainer.engines.vllm.client import Behind
from rocknroll.trainer.engines.vllm.installation import Installation

HERE = Path(__file__).resolve().parent
KEEPER = HERE / "keeper.py"
PLUGIN = HERE / "plugin"
WORKER_EXTENSION = "rocknroll_vllm.WorkerExtension"
TRANSFER = {"backend": "path"}
LAST_LINES = 15
BLOCK_TOKENS = 32
"""Tokens of a block of the prefix cache on CPUs, where it is a multiple of this: turns are short."""
SPARE_BLOCKS = 8
STEP_TOKENS = 4096
"""Tokens that a step computes at most, on CPUs, unless a context is longer."""
TRAINERS_OWN = ("PYTHONHOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
"""What is meant for the trainer's Python alone. Without bytecode each of three processes compiles torch and vLLM."""
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT


@dataclass(frozen=True)
class Serving:
    """What a server is to serve, beside what the recipe's section says."""

    model: Path
    """A saved model with its tokenizer."""
    dtype: str
    max_length: int


class Started(Protocol):
    """A server that the run has started, here or elsewhere."""

    @property
    def address(self) -> Path | Behind:
        """Where it is, or will be, asked."""

    @property
    def ended(self) -> bool:
        """Whether it is gone; asked often."""

    def last_words(self) -> str:
        """What its log ends with."""

    def stop(self) -> None:
        """Kill it, and wait until that is done; safe to call twice."""


class Server:
    """A started server process.

    Raises:
        OSError: it cannot be started at all.
    """

    def __init__(
        self,
        section: EngineSection,
        serving: Serving,
        installation: Installation,
        cores: Sequence[int] | None,
        log: Path | None = None,
        devices: Sequence[int] | None = None,
    ) -> None:
        """`devices`: the accelerators it gets; None: all that this process sees."""
        self._folder = Path(tempfile.mkdtemp(prefix="vllm-"))
        self.address = self._folder / "http.sock"
        self.log = log or self._folder / "server.log"
        held_to = ",".join(map(str, cores or ()))
        served = command_line(section, serving, installation, self.address)
        command = [sys.executable, "-I", str(KEEPER), held_to, *served]
        environment = environment_of(section, installation, devices)
        # Its processes leave their sockets behind; the paths of sockets are short.
        environment.setdefault("VLLM_RPC_BASE_PATH", str(self._folder))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log_file:
            self._keeper = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log_file,
                stderr=log_file,
                env=environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the process that leads the server's group."""
        return self._keeper.pid

    @property
    def ended(self) -> bool:
        """Whether the server is gone."""
        # It is not reaped before `stop`, so that its group is still known by its id.
        return self._keeper.returncode is not None or bool(os.waitid(os.P_PID, self.pid, _LOOK))

    def last_words(self) -> str:
        """The end of its log, in one paragraph."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return "it left no log"
        told = [line.strip() for line in lines if line.strip()][-LAST_LINES:]
        return f"the end of its log: {' | '.join(told)}" if told else "its log is empty"

    def stop(self) -> None:
        """Kill it and everything it started, and wait until that is done; safe to call twice."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        if self._keeper.returncode is None:
            with suppress(ProcessLookupError):  # the keeper does it, unless it was killed itself
                os.killpg(self.pid, signal.SIGKILL)
        self._keeper.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def command_line(section: EngineSection, serving: Serving, installation: Installation, socket: Path) -> list[str]:
    """How the server is started."""
    settings = section.vllm
    eager = installation.cpu if settings.eager == "auto" else settings.eager
    memory = settings.kv_cache_bytes
    if memory is None and installation.cpu:
        memory = cache_bytes(serving, section.slots)
    return [
        str(installation.python),
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--uds", str(socket)),
        *server_arguments(str(serving.model), section.slots, serving.max_length),
        *("--dtype", serving.dtype),
        *("--tensor-parallel-size", str(settings.tensor_parallel_size)),
        *(["--enforce-eager"] if eager else []),
        *([] if memory is None else ["--kv-cache-memory-bytes", str(memory)]),
        *(cpu_arguments(serving.max_length) if installation.cpu else []),
        *settings.args,
    ]


def cpu_arguments(max_length: int) -> list[str]:
    """What a build for CPUs needs besides.

    A prompt that is computed in pieces ends it when its request has a seed (0.32: "CPU Generator does not use
    offset"), so prompts are computed whole.
    """
    return [
        *("--block-size", str(BLOCK_TOKENS)),
        "--no-enable-chunked-prefill",
        *("--max-num-batched-tokens", str(max(max_length, STEP_TOKENS))),
    ]


def server_arguments(model: str, slots: int, max_length: int) -> list[str]:
    """What every server needs, whoever starts it."""
    return [
        *("--model", model),
        # One more than there are slots: the probe does not wait until a request ends.
        *("--max-num-seqs", str(slots + 1)),
        *("--max-model-len", str(max_length)),
        *("--logprobs-mode", "processed_logprobs"),
        *("--generation-config", "vllm"),
        "--enable-scale-out",
        "--enable-prompt-tokens-details",
        "--enable-prefix-caching",
        "--disable-uvicorn-access-log",
        *("--weight-transfer-config", json.dumps(TRANSFER)),
        *("--worker-extension-cls", WORKER_EXTENSION),
    ]


def environment_of(
    section: EngineSection, installation: Installation, devices: Sequence[int] | None = None
) -> dict[str, str]:
    """This process's environment, with what the server needs in it and nothing that is for the trainer's Python."""
    inherited = {name: value for name, value in os.environ.items() if name not in TRAINERS_OWN}
    ours = {
        "PYTHONPATH": str(PLUGIN),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(section.threads),
    }
    if installation.cpu:
        # Compiled, even what is eager otherwise needs a C++ compiler at the first request.
        ours["TORCHDYNAMO_DISABLE"] = "1"
        # Left to itself every server binds its threads to the same cores, as many as it finds.
        ours["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    if devices is not None:
        ours["CUDA_VISIBLE_DEVICES"] = visible(devices)
    return {**inherited, **ours}


def cache_bytes(serving: Serving, slots: int) -> int:
    """Memory that `slots` whole contexts need, in blocks, with a few to spare."""
    config = json.loads((serving.model / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config", config)
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    size = 4 if serving.dtype == "float32" else 2
    token_bytes = 2 * int(config["num_hidden_layers"]) * int(heads) * int(width) * size
    blocks = slots * -(-serving.max_length // BLOCK_TOKENS) + SPARE_BLOCKS
    return blocks * BLOCK_TOKENS * token_bytes
