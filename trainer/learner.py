"""The learner: TRL's base trainer over a live stream of trajectory groups.

get_batch → advantages, proximal and reference log-probabilities → epochs × minibatches optimiser
steps → publish, once per policy version. One dataloader item is everything one optimiser step
needs; packed passes are looped inside the step and weighed by the token weights of the whole step,
so how a step is cut into passes changes nothing. From transformers' Trainer come optimiser,
schedule, clipping, trackers and checkpoints; a resumed run continues bit by bit. With several ranks each
runs this very code over its share of a step's trajectories (`ranks.py`); rank 0 alone has the stream and writes.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PrinterCallback, TrainerCallback
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from rocknroll.trainer.checkpoint import (
    CheckpointError,
    newest_checkpoint,
    promote,
    read_state,
    write_state,
)
from rocknroll.trainer.comparisons import Comparisons
from rocknroll.trainer.credit.assignment import Credit
from rocknroll.trainer.credit.section import CreditSection
from rocknroll.trainer.critics import Critics
from rocknroll.trainer.critics_section import CriticsSection
from rocknroll.trainer.errors import LearnerDiverged
from rocknroll.trainer.experience import Experience, Minibatch, learnable
from rocknroll.trainer.insights import write_insights
from rocknroll.trainer.intake import Intake
from rocknroll.trainer.interrupts import interruptible
from rocknroll.trainer.iteration_record import IterationRecord
from rocknroll.trainer.learner_section import LearnerSection
from rocknroll.trainer.metrics_log import MetricsLog
from rocknroll.trainer.packed_attention import use_packed_attention
from rocknroll.trainer.passes import Passes
from rocknroll.trainer.policy import save_policy
from rocknroll.trainer.preparation import Preparation
from rocknroll.trainer.ranks import Ranks, whole_state
from rocknroll.trainer.stream import Batch, Stream, StreamStopped
from rocknroll.trainer.training_arguments import tensorboard, training_arguments
from rocknroll.trainer.trl_compat import StreamTrainer, disable_dropout_in_model

__all__ = ["Batch", "Learner", "Stream", "StreamStopped"]

SHARDED_FILE = "pytorch_model_fsdp.bin"
"""What accelerate calls the weights of a model that FSDP has sharded."""


class Learner(StreamTrainer):
    """Trains `model` in place on what `stream` gives, for `section.iterations` policy versions.

    Files in `run_dir`: `metrics.jsonl`, `insights/`, `checkpoints/`, `tensorboard/`.
    """

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        tokenizer: Any,
        stream: Stream,
        section: LearnerSection,
        run_dir: Path,
        report_to: Sequence[str] = ("tensorboard",),
        seed: int = 0,
        temperature: float = 1.0,
        checkpoint_every: int = 20,
        on_iteration: Callable[[Mapping[str, float]], None] | None = None,
        num_groups: int = 0,
        max_staleness: int = 0,
        credit: CreditSection | None = None,
        critics: CriticsSection | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """`num_groups` of a batch are needed for `section.stream`, and `max_staleness`, the most versions that a token
        may be behind, for `section.mismatch`. `ranks`: as which of several this is made, within `ranks.joined`.

        Raises:
            ValueError: `section.stream` without `num_groups`.
        """
        if section.stream and not num_groups:
            raise ValueError("a learner that trains on groups as they come needs to know how many a batch has")
        self.section = section
        self.version = 0
        self._policy = model
        self._stream = stream
        self._run_dir = run_dir
        self._checkpoint_every = checkpoint_every
        self._on_iteration = on_iteration
        self._num_groups = num_groups
        self._ranks = ranks or Ranks()
        self._intake = Intake(stream, self._ranks)
        self._passes = Passes(section, temperature, self._ranks)
        self._metrics = MetricsLog(run_dir / "metrics.jsonl")
        self._current: Experience | None = None
        self._record = IterationRecord()
        self._staging: Path | None = None
        self._saved_step = -1
        self._whole: Mapping[str, Tensor] | None = None
        """The trained weights, where the model itself has but a shard of them."""
        disable_progress_bar()
        use_packed_attention(model)
        disable_dropout_in_model(model)
        assigns = Credit(credit, model, seed) if credit is not None and credit.kind != "none" else None
        self._comparisons = Comparisons(model, section, self._passes, max_staleness, assigns)
        self._critics = None
        if critics is not None and critics.kind != "none":
            self._critics = Critics(
                critics,
                model,
                tokenizer,
                learning_rate=section.learning_rate,
                pass_tokens=section.pass_tokens,
                seed=seed,
                ranks=self._ranks,
            )
        self._preparation = Preparation(section, self._comparisons, self._critics, seed)
        super().__init__(
            model=model,
            args=training_arguments(
                section, run_dir, report_to, seed, use_cpu=model.device.type == "cpu", ranks=self._ranks.size
            ),
            processing_class=tokenizer,
            callbacks=[_Flow(self), *tensorboard(run_dir, report_to)],
        )
        self.remove_callback(PrinterCallback)
        if self.accelerator.num_processes != self._ranks.size:
            raise NotImplementedError(
                f"The environment speaks of {self.accelerator.num_processes} processes, and the learner has"
                f" {self._ranks.size} ranks: start `roll` without torchrun, and set `learner.ranks`"
            )

    # The four calls a run makes.

    def learn(self, *, resume: bool = False) -> bool:
        """Train to the last iteration; True when it was reached, False when `request_stop` ended it before.

        Ctrl-C lets the optimiser step in hand finish, writes a checkpoint, and then raises; rank 0 decides for all.

        Raises:
            KeyboardInterrupt: after that checkpoint was written.
            CheckpointError: `resume`, and there is no usable checkpoint.
            LearnerDiverged: a loss or gradient is not finite.
        """
        torch.set_num_threads(self.section.threads)
        heeding = interruptible(self.request_stop, lambda: self._intake.waiting) if self._ranks.leads else nullcontext()
        with heeding as interrupted:
            try:
                self._train(newest_checkpoint(self._checkpoints) if resume else None)
            finally:
                self._stream.stop()
        if interrupted is not None and interrupted.is_set():
            raise KeyboardInterrupt
        return self.version >= self.section.iterations

    def request_stop(self) -> None:
        """End after the optimiser step in hand, with a checkpoint; from any thread.

        A learner that waits for a batch ends when that batch arrives or the stream raises StreamStopped.
        """
        self._intake.request_stop()

    def save_policy(self, folder: Path) -> None:
        """Write model and tokenizer as a folder that `load_policy` reads."""
        save_policy(self._policy, self.processing_class, folder, self._whole)

    def _train(self, checkpoint: Path | None) -> None:
        if checkpoint is not None and (checkpoint / SHARDED_FILE).exists() is not self.is_fsdp_enabled:
            raise CheckpointError(
                f"{checkpoint} was written {'without' if self.is_fsdp_enabled else 'with'} `learner.parallel: fsdp2`,"
                " whose weights and optimiser lie in other files: resume with the `parallel` of the start"
            )
        if checkpoint is not None and (version := read_state(checkpoint).version) >= self.section.iterations:
            # The Trainer would train one more step.
            self._policy.load_state_dict(type(self._policy).from_pretrained(checkpoint).state_dict())
            self.version = version
            self._stream.publish(version, self._policy.state_dict())
            return
        self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        if self.is_fsdp_enabled:
            self._whole = whole_state(self._policy)

    # What transformers' Trainer asks for.

    def get_train_dataloader(self) -> Any:
        """The live stream as it is: accelerate's loaders would fetch one batch ahead, and wait for it for ever."""
        return _Minibatches(self)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Loss of one minibatch (sum over its packed passes); gradients are accumulated into `model`."""
        experience = self._current
        assert experience is not None
        minibatch: Minibatch = inputs["minibatch"]
        began = time.perf_counter()
        if experience.streamed_loss is None:
            total = self._accumulate(model, experience, minibatch.members, minibatch.weights)
        else:
            total = _divide_gradients(model, minibatch.normaliser, experience.streamed_loss)
        self._record.train_s += time.perf_counter() - began
        return total

    def _accumulate(
        self, model: Any, experience: Experience, members: Sequence[int], weights: NDArray[np.float64]
    ) -> Tensor:
        """Add the gradient of the weighted loss of these members; returns that loss, of all ranks together."""
        model.train()
        total = torch.zeros((), device=self.args.device)
        credit = self._comparisons.in_step(experience)
        syncing = self._syncing(model)
        for loss in self._passes.losses(model, experience, members, weights, self._record, credit, syncing):
            # DDP and FSDP2 average over the ranks, and what is wanted is the sum.
            self.accelerator.backward(loss * self._ranks.size)
            total = total + loss.detach()
        total = self._ranks.total(total)
        if not math.isfinite(total.item()):
            raise self._diverged("loss", total.item())
        return total

    def _syncing(self, model: Any) -> Callable[[bool], AbstractContextManager[Any]]:
        """Within which a pass is made: DDP exchanges gradients in the last one alone; FSDP2 in each, since gradients
        that wait would be whole."""
        if self._ranks.size == 1 or self.is_fsdp_enabled:
            return lambda final: nullcontext()
        return lambda final: nullcontext() if final else self.accelerator.no_sync(model)

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Clips, and refuses to let a broken gradient reach the optimiser."""
        norm = super()._clip_grad_norm(model)  # type: ignore[no-untyped-call]
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        if not math.isfinite(float(norm)):
            raise self._diverged("gradient norm", float(norm))
        return norm

    def _diverged(self, what: str, value: float) -> LearnerDiverged:
        return LearnerDiverged(
            f"The {what} is {value} at policy version {self.version}, optimiser step {self.state.global_step}. The "
            "weights of the step before are intact; lower `learner.learning_rate` and resume from the last checkpoint."
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """One row per iteration, to `metrics.jsonl`, the trackers and `on_iteration`; not the Trainer's summary."""
        if "train_runtime" in logs:
            return
        record, self._record = self._record, IterationRecord()
        record.wait_s = self._intake.take_waited_s()
        of_ranks = self._ranks.collected(record.tokens)
        if not self._ranks.leads:
            return
        row = {"iteration": float(self.version), **logs, **record.metrics(of_ranks)}
        super().log(dict(row), start_time)
        self._metrics.append(row)
        if self._on_iteration is not None:
            self._on_iteration(row)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._staging) if self._staging is not None else str(super()._get_output_dir(trial))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """The learner's state and transformers' files, staged and then renamed into place."""
        self._staging = self._checkpoints / "staging"
        staged = self._staging / f"checkpoint-{self.state.global_step}"
        try:
            if self._ranks.leads:
                self._stage(staged)
            self._ranks.wait()
            super()._save_checkpoint(model, trial)
            self._ranks.wait()
        finally:
            self._staging = None
        if self._ranks.leads:
            promote(staged, self._checkpoints)
            shutil.rmtree(staged.parent)
        self._saved_step = self.state.global_step

    def _stage(self, staged: Path) -> None:
        """The learner's own part of a checkpoint."""
        shutil.rmtree(staged.parent, ignore_errors=True)
        write_state(staged, self.version, self._stream.state_dict(), self._current)
        self._comparisons.save(staged)
        if self._critics is not None:
            self._critics.save(staged)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Also takes up the learner's own state: it runs once, after the weights are in place."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        state = read_state(Path(checkpoint))
        self.version = state.version
        self._stream.load_state_dict(state.stream)
        self._comparisons.load(Path(checkpoint), state.version)
        if self._critics is not None:
            self._critics.load(Path(checkpoint))
        if self._ranks.leads:
            self._metrics.keep_until(state.version)
        if state.pending is not None:
            self._current = self._preparation.restored(state.pending, state.version)

    # What the flow of batches needs.

    @property
    def _checkpoints(self) -> Path:
        return self._run_dir / "checkpoints"

    def minibatches(self) -> Iterator[Minibatch]:
        """Minibatches of the batch in hand, then of every batch to come; ends with the last iteration or the stream."""
        while self.version < self.section.iterations:
            if self._current is None:
                try:
                    self._current = self._receive()
                except (StreamStopped, KeyboardInterrupt):
                    self._intake.request_stop()
                    return
            yield self._current.minibatches[self._current.steps_done]

    def _receive(self) -> Experience:
        """Wait for the next batch and compute what its steps need from forward passes of the weights as they are."""
        loss, seen = self._accumulate_as_groups_come() if self.section.stream else (None, [])
        batch = self._intake.next_batch(self.version)
        as_streamed = sorted(group.id for group in batch.groups) == sorted(seen)
        if loss is not None and not as_streamed:
            # Others finished in time to be taken instead: train on what the batch is.
            self._policy.zero_grad()
            self._record.discard()
        experience = self._prepared(batch, score=not as_streamed)
        if self._comparisons.in_step(experience) is None:
            self._note_insights(experience)
        experience.streamed_loss = loss if as_streamed else None
        self._comparisons.keep(self.version)
        return experience

    def _note_insights(self, experience: Experience) -> None:
        if self._ranks.leads:
            write_insights(self._run_dir / "insights", experience.version + 1, experience)

    def _accumulate_as_groups_come(self) -> tuple[Tensor, list[str]]:
        """Gradients of the groups of the next batch while the rest is being played, before normalisation.

        Returns the sum of their losses and the groups' ids. Passes never mix groups, so how many come at a time
        changes nothing.
        """
        total, seen = torch.zeros((), device=self.args.device), list[str]()
        try:
            while len(seen) < self._num_groups:
                ready = self._intake.ready_groups(self.version, len(seen))
                for group in ready[: self._num_groups - len(seen)]:
                    part = self._prepared(Batch((group,)))
                    began = time.perf_counter()
                    (step,) = part.minibatches
                    total = total + self._accumulate(self._policy, part, step.members, step.base)
                    self._record.train_s += time.perf_counter() - began
                    seen.append(group.id)
        except (StreamStopped, KeyboardInterrupt):
            self._policy.zero_grad()
            raise
        return total, seen

    def _prepared(self, batch: Batch, *, score: bool = True) -> Experience:
        """The batch ready to train on; `score`: with the log-probabilities that its losses compare."""
        began = time.perf_counter()
        experience = self._preparation.prepared(batch, self.version, score=score)
        self._record.prepare_s += time.perf_counter() - began
        return experience

    def begin(self, resumed: bool) -> None:
        """Before the first step: the reference policy, the engine's weights, the rollouts."""
        self._comparisons.begin(self._checkpoints, resumed, write=self._ranks.leads)
        if resumed:
            self._stream.publish(self.version, self._comparisons.published(self.version))
        self._stream.start()
        self._ranks.wait()  # rank 0 may have waited for the rollouts

    def after_step(self, control: Any) -> None:
        """Count the step; after a batch's last one publish, log and perhaps save."""
        experience = self._current
        assert experience is not None
        experience.steps_done += 1
        if experience.steps_done == len(experience.minibatches):
            self._current = None
            self.version += 1
            if (credit := self._comparisons.in_step(experience)) is not None:
                experience.metrics |= credit.metrics()
                self._note_insights(experience)
            began = time.perf_counter()
            self._stream.publish(self.version, whole_state(self._policy))
            self._record.publish_s += time.perf_counter() - began
            self._ranks.wait()  # rank 0 may have waited for the engine
            if self._critics is not None:
                self._critics.after_policy(learnable(Batch(experience.groups)), self.version - 1)
            self._record.batch = experience.metrics
            control.should_log = True
            last = self.version == self.section.iterations
            control.should_save = last or self.version % self._checkpoint_every == 0
        if self._intake.stopping():
            control.should_save = control.should_training_stop = True

    def after_stream(self, control: Any) -> None:
        """When the stream gave no more: end, and save what no step has saved."""
        if self._intake.stopping():
            control.should_training_stop = True
            control.should_save = self.state.global_step != self._saved_step


class _Minibatches:
    """The learner's minibatches as what the Trainer takes for a dataloader; it has no length."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def __iter__(self) -> Iterator[dict[str, Minibatch]]:
        return ({"minibatch": minibatch} for minibatch in self._learner.minibatches())


class _Flow(TrainerCallback):
    """Tells the learner where the Trainer is."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._learner.begin(resumed=state.global_step > 0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._learner.after_step(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._learner.after_stream(control)


def _divide_gradients(model: nn.Module, normaliser: int, loss: Tensor) -> Tensor:
    """Turn sums over a step into its update: gradients in place, and the loss; sums of nothing stay 0."""
    divisor = max(1, normaliser)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(divisor)
    return loss / divisor
