"""Writing tasks that are made from a seed, for a judge to grade: a subject, a reader, a form, and a demand.

A task belongs to one split by what it is: a hash of its subject sets those of `unseen` apart, and a hash of the whole
task those of `seen`.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from rocknroll.envs.reasoning.config import SPLITS
from rocknroll.envs.reasoning.judge_config import JudgeConfig
from rocknroll.envs.reasoning.sources import share
from rocknroll.envs.text import EnvDataError

HELD_OUT = 0.15
"""Share of the subjects that is `unseen`, and of the remaining tasks that is `seen`."""

SUBJECTS = (
    "why the sky is blue",
    "how a bicycle stays upright",
    "what a virus is",
    "how bread rises",
    "why leaves change color",
    "what inflation is",
    "how a vaccine works",
    "why ice floats",
    "how a compass finds north",
    "what a prime number is",
    "how tides come about",
    "why we need sleep",
    "how a refrigerator cools",
    "what an algorithm is",
    "how bees make honey",
    "why metal feels colder than wood",
    "how a lock on a canal works",
    "what a black hole is",
    "how soap cleans",
    "why airplanes fly",
    "what democracy is",
    "how batteries store energy",
    "why we have leap years",
    "how glass is made",
    "what photosynthesis is",
    "how elevators stay safe",
    "why onions make us cry",
    "how search engines rank pages",
    "what a mortgage is",
    "how earthquakes happen",
    "why the moon has phases",
    "how a piano makes its sound",
    "what gravity does",
    "how rivers form valleys",
    "why salt melts ice",
    "how paper is recycled",
    "what a contract is",
    "how yeast differs from baking powder",
    "why stars twinkle",
    "how languages change",
)
READERS = (
    "a child of eight",
    "a curious adult",
    "a student of physics",
    "someone who learns English",
    "a busy manager",
)
FORMS = ("one sentence", "three sentences", "a short paragraph", "a list of three points", "a dialogue of four lines")
DEMANDS = ("Give one example", "Use no technical term", "Say what is often misunderstood", "End with a question")


@dataclass(frozen=True)
class WritingTask:
    """One task for a writer."""

    subject: str
    reader: str
    form: str
    demand: str

    @property
    def id(self) -> str:
        parts = (SUBJECTS.index(self.subject), READERS.index(self.reader))
        return "-".join(map(str, (*parts, FORMS.index(self.form), DEMANDS.index(self.demand))))

    @property
    def question(self) -> str:
        return f"Explain to {self.reader} {self.subject}, in {self.form}. {self.demand}."


def writing_tasks(config: JudgeConfig, split: str) -> tuple[WritingTask, ...]:
    """The tasks of a split, in an order that follows from the configuration alone.

    Raises:
        EnvDataError: there are not so many different ones.
    """
    wanted = {"train": config.train_tasks, "seen": config.seen_tasks, "unseen": config.unseen_tasks}[split]
    every = [WritingTask(*parts) for parts in itertools.product(SUBJECTS, READERS, FORMS, DEMANDS)]
    found = [task for task in every if split_of(task) == split]
    if len(found) < wanted:
        raise EnvDataError(
            f"there are {len(found)} different writing tasks for `{split}` where {wanted} are asked for: lower"
            f" `{split}_tasks`, or give `data`"
        )
    random.Random(f"judge {config.seed} {split}").shuffle(found)
    return tuple(found[:wanted])


def split_of(task: WritingTask) -> str:
    """Which split a task belongs to, in every configuration."""
    if share(task.subject) < HELD_OUT:
        return SPLITS[2]
    return SPLITS[1] if share(task.question) < HELD_OUT else SPLITS[0]
