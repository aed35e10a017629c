"""Which engine serves which episode. Pure; load is counted in episodes that started and have not ended.

With prompt replication the members of a group are placed one by one, so that the G answers of a prompt are
G independent requests on whatever engines are least busy; without it they share the group's engine (and the
context that it has cached). Source: ROLL Flash (arXiv 2510.11345), prompt replication.
"""

from __future__ import annotations


class Placement:
    """Chooses among `engines` engines; ties go to the lowest number."""

    def __init__(self, engines: int, replicate_prompts: bool) -> None:
        self._load = [0] * engines
        self._replicate_prompts = replicate_prompts

    def of_group(self) -> int:
        """The engine of a group that is being admitted."""
        return self._load.index(min(self._load))

    def start(self, group_engine: int) -> int:
        """The engine of a member that starts now, from here on counted as its load."""
        engine = self.of_group() if self._replicate_prompts else group_engine
        self._load[engine] += 1
        return engine

    def end(self, engine: int) -> None:
        """An episode on `engine` ended or was cut off."""
        self._load[engine] -= 1
