"""Who plays a task: the player of its domain, who shows it to the policy in that domain's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocknroll.envs.text import Task
from rocknroll.trainer.rollout.episode import Player
from rocknroll.trainer.trajectory import Trajectory


class DomainPlayers:
    """The players of a run by domain, as one; safe to use from many tasks at once."""

    def __init__(self, players: Mapping[str, Player]) -> None:
        self._players = players

    async def play(self, episode_id: str, group_id: str, task: Task, **how: Any) -> Trajectory:
        """See `Player.play`."""
        return await self._players[task.domain].play(episode_id, group_id, task, **how)
