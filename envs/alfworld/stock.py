"""TextWorld's own environment behind the engine's face, for comparison and for doubters."""

from __future__ import annotations

import hashlib
from typing import Any

import textworld

from rocknroll.envs.alfworld import package
from rocknroll.envs.alfworld.engine import Frame, relevant_predicates, state_hash
from rocknroll.envs.alfworld.game import Game, broken
from rocknroll.envs.alfworld.grammar import compiled, without_task
from rocknroll.envs.alfworld.progress import progress, read_goal
from rocknroll.envs.alfworld.translation import TRANSLATOR, translate


class StockEngine:
    """`PddlEnv` in the package's `AlfredDemangler`, as the official loader makes it."""

    def __init__(self) -> None:
        from textworld.envs.pddl import PddlEnv

        infos = textworld.EnvInfos(won=True, admissible_commands=True)
        self.environment: Any = package.stock().AlfredDemangler(PddlEnv(infos))
        self._game: Game | None = None

    def load(self, game: Game) -> None:
        data = {"pddl_domain": game.domain, "pddl_problem": game.problem, "grammar": game.grammar}
        try:
            with TRANSLATOR:
                self.environment.load(data)
                translation = translate(game.domain, game.problem)
                reads = compiled(without_task(game.grammar)[0], translation.types).reads
        except Exception as error:
            raise broken(game.path, f"TextWorld does not load it ({type(error).__name__}: {error})") from error
        self._problem = hashlib.blake2b(game.problem.encode(), digest_size=12).hexdigest()
        self._relevant = relevant_predicates(translation, reads)
        self._goal = read_goal(game.problem)
        self._game = game

    def reset(self) -> Frame:
        with TRANSLATOR:
            state = self.environment.reset()
        return self._frame(state, admitted=True)

    def step(self, command: str) -> Frame:
        admitted = command.strip() in self._commands
        with TRANSLATOR:
            state, _, _ = self.environment.step(command)
        return self._frame(state, admitted)

    def close(self) -> None:
        self.environment.close()

    def _frame(self, state: Any, admitted: bool) -> Frame:
        self._commands = tuple(state["admissible_commands"])
        facts = [(fact.name, tuple(argument.name for argument in fact.arguments)) for fact in state["_facts"]]
        return Frame(
            text=state["feedback"],
            commands=self._commands,
            won=bool(state["won"]),
            admitted=admitted,
            state_hash=state_hash(self._problem, facts, self._relevant),
            progress=progress(self._goal, facts) if self._goal is not None else 0.0,
        )
