"""Rewards of code with the adaptive timeout against a fixed one of 30 s, on a mix with 5% endless answers.

Both sides grade the same answers to the same problems in the same order, in real sandboxes and real time, through the
grader that the code environment uses; only the bounds of the timeout differ. An answer's latency is from the moment
that it is handed in to its verdict, the wait for one of four sandboxes included, as in a run: an endless answer holds
up those behind it, too. `figures.run_s_…` are the executions alone. Right answers run for as long as a draw from a
log-normal distribution says; endless ones sleep for ever, so that neither side computes more than the other.

RollPacker (arXiv 2509.21009) has T = min(max(2 s, 1.5 · T_anchor), 30 s), where T_anchor is the longest right answer to
the problem so far. The first endless answers come before any right one has set an anchor, and wait for 30 s on both
sides: `figures.cold` says how many did.
"""

from __future__ import annotations

import reporting  # isort: skip  (first: it mends the import path)

import argparse
import asyncio
import random
import statistics
import sys
import time
from dataclasses import dataclass

from rocknroll.envs.reasoning.code_family import CodeFamily
from rocknroll.envs.reasoning.code_problem import Case, CodeProblem

FIXED_S = 30.0
ENDLESS_SHARE = 0.05
WRONG_SHARE = 0.35
MEDIAN_S, SIGMA = 0.1, 0.7
"""Of how long a right answer sleeps."""
SPACING_S = 0.5
"""Mean time from one answer to the next."""
SANDBOXES = 4

ENDLESS = "import time\nwhile True:\n    time.sleep(1)"
WRONG = "print(0)"
RIGHT = "import time\ntime.sleep({})\nprint(2 * int(input()))"


@dataclass(frozen=True)
class Answer:
    """One answer of the mix."""

    problem: CodeProblem
    source: str
    at_s: float
    """When it is handed in."""


@dataclass(frozen=True)
class Graded:
    """What became of it."""

    latency_s: float
    run_s: float
    timed_out: bool
    correct: bool


def mix(seed: int, problems: int, answers: int) -> list[Answer]:
    """Answers in the order of their time; exactly 5% of them never end."""
    rng = random.Random(seed)
    asked = [
        CodeProblem(f"p{i}", "program", "Double it.", (Case(f"{i}\n", str(2 * i)),)) for i in range(1, problems + 1)
    ]
    endless, wrong = round(ENDLESS_SHARE * answers), round(WRONG_SHARE * answers)
    sources = [ENDLESS] * endless + [WRONG] * wrong
    sources += [RIGHT.format(round(rng.lognormvariate(0, SIGMA) * MEDIAN_S, 4)) for _ in range(answers - len(sources))]
    rng.shuffle(sources)
    at_s, mixed = 0.0, []
    for number, source in enumerate(sources):
        mixed.append(Answer(asked[number % problems], source, at_s))
        at_s += rng.expovariate(1 / SPACING_S)
    return mixed


async def graded(answers: list[Answer], *, adaptive: bool) -> list[Graded]:
    """Hand the answers in at their times and wait for every verdict."""
    bounds = {"min_timeout_s": 2.0 if adaptive else FIXED_S, "max_timeout_s": FIXED_S}
    family = CodeFamily(
        {"train_exercises": 1, "seen_exercises": 0, "unseen_exercises": 0, "sandboxes": SANDBOXES, **bounds}
    )
    async with family.places(SANDBOXES) as places:
        began_s = time.perf_counter()

        async def one(answer: Answer) -> Graded:
            await asyncio.sleep(max(0.0, answer.at_s - (time.perf_counter() - began_s)))
            handed_in_s = time.perf_counter()
            grade = await places.grader.grade(answer.problem, answer.source, "benchmark")
            return Graded(time.perf_counter() - handed_in_s, grade.took_s, grade.timed_out, grade.correct)

        return await asyncio.gather(*(one(answer) for answer in answers))


def main() -> int:
    """Grade both ways for each seed and print the ratio of the mean latencies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="one seed of 60 answers")
    arguments = parser.parse_args()
    seeds, problems, count = (1, 6, 60) if arguments.quick else (3, 10, 200)
    fixed: list[list[Graded]] = []
    adaptive: list[list[Graded]] = []
    for seed in range(seeds):
        answers = mix(seed, problems, count)
        fixed.append(asyncio.run(graded(answers, adaptive=False)))
        adaptive.append(asyncio.run(graded(answers, adaptive=True)))
        print(f"seed {seed}: {_mean(fixed[-1]):.2f} s fixed, {_mean(adaptive[-1]):.2f} s adaptive", file=sys.stderr)
    ratios = [_mean(slow) / _mean(fast) for slow, fast in zip(fixed, adaptive, strict=True)]
    everyone = [one for side in adaptive for one in side]
    endless = round(ENDLESS_SHARE * count) * seeds
    figures = {
        "ratio_spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "latency_s_fixed": round(statistics.mean(map(_mean, fixed)), 3),
        "latency_s_adaptive": round(statistics.mean(map(_mean, adaptive)), 3),
        "run_s_fixed": round(statistics.mean(one.run_s for side in fixed for one in side), 3),
        "run_s_adaptive": round(statistics.mean(one.run_s for one in everyone), 3),
        "endless": endless,
        "cold": sum(one.timed_out and one.run_s > FIXED_S - 1 for one in everyone),
        "right_cut_off": sum(one.timed_out for one in everyone) - endless,
        "same_verdicts": [one.correct for side in fixed for one in side] == [one.correct for one in everyone],
        "answers": count * seeds,
        "problems": problems,
        "sandboxes": SANDBOXES,
    }
    reporting.emit(
        "adaptive_timeout", {"fixed_over_adaptive": round(statistics.median(ratios), 3)}, figures, arguments.json
    )
    return 0


def _mean(side: list[Graded]) -> float:
    return statistics.mean(one.latency_s for one in side)


if __name__ == "__main__":
    sys.exit(main())
