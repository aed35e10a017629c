"""Continuous batching: which requests run, on which slots and weights, and what one step computes.

A step takes all requests that run, gathers their new tokens (a whole prompt, the observation of a
new turn, or the token sampled last) into one ragged forward pass per weight set, and samples for
those that are complete. Requests join and leave between any two steps. No threads here: everything
is called by the engine's worker, between two steps.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rocknroll.trainer.engines.base import EngineError, FinishReason, Generation, InFlight
from rocknroll.trainer.engines.forward import Forward
from rocknroll.trainer.engines.ragged import RaggedBatch, Row
from rocknroll.trainer.engines.requests import Run, Waiting
from rocknroll.trainer.engines.sampler import Drawn, draw_tokens
from rocknroll.trainer.engines.slots import MIN_SHARED, Slot, SlotTable
from rocknroll.trainer.engines.weights import WeightSet

PREFILL_TOKENS = 512
"""Context tokens computed in one pass at most, so that long prompts do not hold up requests that decode."""
PREFILL_CHUNK = 256
"""Context tokens of one request in one pass at most, so that a long prompt leaves room for short ones."""
WORTH_SHARING = 24
"""Fewer missing tokens are computed without looking whether another slot has them: most turns are that short."""


class Batcher:
    """The requests of one engine, from its inbox to their last token."""

    def __init__(self, forward: Forward, *, slots: int, max_length: int, version: int, exact: bool) -> None:
        self.counts: Counter[str] = Counter()
        self._store = forward.new_store(slots, max_length, exact)
        self._table = SlotTable(slots)
        self._newest = WeightSet(forward, version, generation=0)
        self._waiting: deque[Waiting] = deque()
        self._running: list[Run] = []

    @property
    def running(self) -> bool:
        """A step would have something to compute."""
        return bool(self._running)

    @property
    def idle(self) -> bool:
        return not (self._running or self._waiting)

    def add(self, asked: Waiting) -> None:
        self._waiting.append(asked)

    def release(self, trajectory_id: str) -> None:
        self._table.release(trajectory_id)

    def admit(self) -> None:
        """Give slots to waiting requests in their order, after those whose context is still in one.

        A request whose trajectory is still generating another stays behind.
        """
        still: deque[Waiting] = deque()
        for asked in sorted(self._waiting, key=lambda asked: not self._table.owns(asked.request.trajectory_id)):
            slot = self._table.claim(asked.request.trajectory_id)
            if slot is None:
                still.append(asked)
                continue
            self.counts["tokens_reused"] += slot.take(asked.prompt, self._newest.generation)
            self._running.append(Run(asked, slot, self._newest, asked.tree))
        self._waiting = still

    def abort(self, request_id: str) -> None:
        for run in self._running:
            if run.request.id == request_id:
                self._finish(run, "abort")
                return
        for asked in self._waiting:
            if asked.request.id == request_id:
                self._waiting.remove(asked)
                constrained = asked.request.choices is not None
                asked.reply.give(Generation((), (), (), "abort", () if constrained else None))
                return

    def update(self, state: Mapping[str, Any], version: int, in_flight: InFlight) -> None:
        """New weights; requests under way do what `in_flight` says, all others start on the new ones.

        Raises:
            ValueError: the state does not fit the model; nothing has changed.
        """
        begun = [run for run in self._running if run.begun]
        kept = begun if in_flight == "keep" else []
        before = self._newest
        self._newest = before.succeeded_by(state, version, keep=any(run.weights is before for run in kept))
        if in_flight == "abort":
            for run in begun:
                self._finish(run, "abort")
        for run in self._running:
            if run not in kept:
                run.weights = self._newest
                run.slot.forget(self._newest.generation)

    def fail_all(self, why: str) -> None:
        """The worker is at its end: nobody gets an answer any more."""
        for asked in (*self._waiting, *(run.asked for run in self._running)):
            asked.reply.fail(EngineError(why))

    def step(self) -> None:
        """One forward pass for each weight set that requests run on. A failed one costs its requests alone."""
        for run in list(self._running):
            self._advance_without_choice(run)
        for weights in dict.fromkeys(run.weights for run in self._running):
            runs = [run for run in self._running if run.weights is weights]
            try:
                self._pass(weights, runs)
            except Exception as error:
                # Out of memory, say. What the slots hold after half a pass is not trusted.
                for run in runs:
                    self._fail(run, f"a generation step failed: {type(error).__name__}: {error}")
        self.counts["steps"] += 1

    def _pass(self, weights: WeightSet, runs: Sequence[Run]) -> None:
        rows, complete = self._gather(runs)
        if not rows:
            return
        batch = RaggedBatch(rows, self._store)
        place = {row.slot: index for index, row in enumerate(batch.rows)}
        logits = weights.forward.logits(batch, batch.last[[place[run.slot.index] for run in complete]])
        for row in rows:
            self._table.slots[row.slot].cached = row.end
        if complete:
            drawn = draw_tokens(logits, [run.draw() for run in complete])
            for run, token in zip(complete, drawn, strict=True):
                self._add(run, token)

    def _advance_without_choice(self, run: Run) -> None:
        """Constrained decoding: tokens that have no alternative need no forward pass."""
        while run.tree is not None and len(run.tree) == 1 and run in self._running:
            (token,) = run.tree
            self._add(run, Drawn(token, 0.0, (token,)))

    def _add(self, run: Run, drawn: Drawn) -> None:
        if drawn.logprob != drawn.logprob or drawn.logprob == -torch.inf:
            self._fail(run, f"the weights of version {run.weights.version} give logits that are not numbers")
            return
        self.counts["tokens_generated"] += 1
        reason = run.add(drawn)
        if reason is not None:
            self._finish(run, reason)

    def _finish(self, run: Run, reason: FinishReason) -> None:
        self._running.remove(run)
        self._table.settle(run.request.trajectory_id)
        run.finish(reason)

    def _fail(self, run: Run, why: str) -> None:
        self._running.remove(run)
        run.slot.forget(run.weights.generation)
        self._store.clear(run.slot.index)
        self._table.settle(run.request.trajectory_id)
        run.asked.reply.fail(EngineError(why))

    def _gather(self, runs: Sequence[Run]) -> tuple[list[Row], list[Run]]:
        """Rows of the next forward pass, and the requests whose context is then complete."""
        rows: list[Row] = []
        complete: list[Run] = []
        budget = PREFILL_TOKENS
        filling: list[Slot] = []
        for run in runs:
            slot, count = run.slot, 1
            if slot.pending > 1:
                if budget == 0 or not self._share(slot, filling):
                    continue
                filling.append(slot)
                count = min(slot.pending, budget, PREFILL_CHUNK)
                budget -= count
                self.counts["tokens_prefilled"] += count
            run.begun = True
            rows.append(Row(slot.index, slot.cached, slot.tokens[slot.cached : slot.cached + count]))
            if count == slot.pending:
                complete.append(run)
        return rows, complete

    def _share(self, slot: Slot, filling: list[Slot]) -> bool:
        """Copy what another slot has of this context; false when it pays to wait for one that is being filled."""
        if slot.pending < WORTH_SHARING:
            return True
        donor = self._table.donor(slot)
        known = slot.cached if donor is None else donor[1]
        wanted = known + MIN_SHARED
        if len(slot.tokens) > wanted and any(other.tokens[:wanted] == slot.tokens[:wanted] for other in filling):
            return False
        if donor is not None:
            self._store.copy(donor[0].index, slot.index, known)
            self.counts["tokens_reused"] += known - slot.cached
            slot.cached = known
        return True
