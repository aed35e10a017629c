"""Step time and memory of the learner with two mini-critics (AsyPPO), with one as large as the policy, and without.

Each kind trains the same policy on the same batches in a process of its own, in turns: the whole learner with its
optimisers, one step per batch. A step is everything between a batch's arrival and its publication: critics' learning
and values, advantages, the policy's forward, backward and update. Memory is the process's peak above what it was with
everything imported and nothing made, in processes of their own in which the C library hands back at once what is freed:
what it keeps otherwise depends on chance (`memory_as_timed_mib`). The ratios are of medians over steps or processes.
"""

from __future__ import annotations

import reporting  # isort: skip  (first: it mends the import path)

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from rocknroll.trainer.critics_section import CriticsSection, MiniModel
from rocknroll.trainer.learner import Batch, Learner
from rocknroll.trainer.learner_section import LearnerSection
from rocknroll.trainer.policy import build_tokenizer, make_tiny
from rocknroll.trainer.tiny_model import TinyModel
from rocknroll.trainer.trajectory import NO_VERSION, Group, Outcome, Trajectory, Turn

POLICY = TinyModel(hidden_size=512, layers=8, heads=8, kv_heads=4, head_dim=64, intermediate_size=1536)
MINI = MiniModel(hidden_size=192, layers=4, heads=4, kv_heads=2, head_dim=48, intermediate_size=576)
SMALL = {"layers": 3}
"""What the short form changes of both."""
GROUPS, MEMBERS, PROMPT, ANSWER = 2, 4, 64, 256
PASS_TOKENS = 1024
HAND_BACK = {"MALLOC_MMAP_THRESHOLD_": str(256 * 1024)}
"""What makes glibc give freed blocks back to the system."""

KINDS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"kind": "none"},
    "symmetric": {"kind": "symmetric", "first_steps": 0},
    "asyppo": {"kind": "asyppo", "first_steps": 0},
}


class Batches:
    """A stream of random answers."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def start(self) -> None: ...

    def next_batch(self, version: int) -> Batch:
        rng = np.random.default_rng(version)
        return Batch(tuple(self._group(rng, f"{version}.{i}") for i in range(GROUPS)))

    def ready_groups(self, version: int, seen: int) -> Sequence[Group]:
        return ()

    def publish(self, version: int, state: Mapping[str, torch.Tensor]) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def stop(self) -> None: ...

    def _group(self, rng: np.random.Generator, name: str) -> Group:
        mask = np.arange(PROMPT + ANSWER) >= PROMPT
        members = tuple(
            Trajectory(
                id=f"{name}/{i}",
                group_id=name,
                task_id=name,
                task_kind="",
                token_ids=rng.integers(5, self._vocabulary, len(mask)).astype(np.int32),
                action_mask=mask,
                logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
                versions=np.where(mask, 0, NO_VERSION).astype(np.int32),
                turns=(Turn(PROMPT, len(mask), float(rng.integers(2)) + i % 2, True),),
                outcome=Outcome.COMPLETED,
                success=False,
            )
            for i in range(MEMBERS)
        )
        return Group(name, name, members)


def train(kind: str, iterations: int, quick: bool) -> None:
    """What a process of one kind runs; prints its figures."""
    torch.set_num_threads(1)
    before = reporting.peak_mib()
    changed = SMALL if quick else {}
    tokenizer = build_tokenizer([f"w{'o' * n}rd" for n in range(500)])
    model = make_tiny(POLICY.model_copy(update=changed), tokenizer, 0)
    settings = {**KINDS[kind], "tiny": MINI.model_copy(update={"layers": 2} if quick else {})}
    with tempfile.TemporaryDirectory() as folder:
        learner = Learner(
            model=model,
            tokenizer=tokenizer,
            stream=Batches(len(tokenizer)),
            section=LearnerSection(
                iterations=iterations, advantage="grpo" if kind == "grpo" else "gae", pass_tokens=PASS_TOKENS
            ),
            run_dir=Path(folder),
            report_to=(),
            critics=CriticsSection.model_validate(settings),
            checkpoint_every=10**6,
        )
        learner.learn()
        rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    steps = [row["learner/prepare_s"] + row["learner/train_s"] for row in rows[1:]]
    parameters = sum(p.numel() for p in model.parameters())
    print(json.dumps({"steps": steps, "peak_mib": reporting.peak_mib() - before, "policy_parameters": parameters}))


def measured(kind: str, iterations: int, quick: bool, environment: Mapping[str, str]) -> dict[str, Any]:
    """The figures of a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--kind", kind, "--iterations", str(iterations)]
    command += ["--quick"] if quick else []
    output = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    found: dict[str, Any] = json.loads(output.stdout.splitlines()[-1])
    print(f"{kind:<10} {statistics.median(found['steps']):.2f} s a step, {found['peak_mib']:.0f} MiB", file=sys.stderr)
    return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="smaller models and one round")
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--iterations", type=int, default=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.kind:
        train(arguments.kind, arguments.iterations, arguments.quick)
        return 0
    rounds = 1 if arguments.quick else 2
    taken: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    handing_back: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            taken[kind].append(measured(kind, arguments.iterations, arguments.quick, {}))
            handing_back[kind].append(measured(kind, 2, arguments.quick, HAND_BACK)["peak_mib"])
    step_s = {kind: statistics.median(s for one in runs for s in one["steps"]) for kind, runs in taken.items()}
    memory = {kind: statistics.median(peaks) for kind, peaks in handing_back.items()}
    ratios = {
        "memory_asyppo_over_symmetric": memory["asyppo"] / memory["symmetric"],
        "step_asyppo_over_symmetric": step_s["asyppo"] / step_s["symmetric"],
        "memory_asyppo_over_grpo": memory["asyppo"] / memory["grpo"],
        "step_asyppo_over_grpo": step_s["asyppo"] / step_s["grpo"],
    }
    figures = {
        "step_s": {kind: round(s, 3) for kind, s in step_s.items()},
        "step_s_spread": {
            kind: [round(f([s for one in runs for s in one["steps"]]), 3) for f in (min, max)]
            for kind, runs in taken.items()
        },
        "memory_mib": {kind: round(mib, 1) for kind, mib in memory.items()},
        "memory_as_timed_mib": {kind: [round(one["peak_mib"], 1) for one in runs] for kind, runs in taken.items()},
        "policy_parameters": taken["grpo"][0]["policy_parameters"],
        "rounds": rounds,
        "steps": rounds * (arguments.iterations - 1),
        "tokens_per_batch": GROUPS * MEMBERS * (PROMPT + ANSWER),
    }
    reporting.emit("critics", {name: round(ratio, 3) for name, ratio in ratios.items()}, figures, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
