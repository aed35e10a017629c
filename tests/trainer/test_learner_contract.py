"""What the learner takes for granted of TRL's and transformers' private parts; fails first when they move."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import cast

import played
import pytest
import torch
from transformers import Trainer
from transformers.masking_utils import create_causal_mask
from transformers.training_args import TrainingArguments
from trl.trainer import base_trainer
from trl.trainer.base_config import _BaseConfig
from trl.trainer.base_trainer import _BaseTrainer

from rocknroll.trainer.learner import Learner
from rocknroll.trainer.learner_section import LearnerSection
from rocknroll.trainer.packed_attention import boundary_mask, use_packed_attention
from rocknroll.trainer.stream import Stream
from rocknroll.trainer.training_arguments import training_arguments
from rocknroll.trainer.trl_compat import HOOKS


def test_the_base_classes_are_transformers_own_underneath() -> None:
    assert issubclass(_BaseTrainer, Trainer)
    assert issubclass(_BaseConfig, TrainingArguments)
    assert issubclass(Learner, _BaseTrainer)


@pytest.mark.parametrize("hook", HOOKS)
def test_every_overridden_method_exists_with_the_parameters_we_declare(hook: str) -> None:
    theirs = inspect.signature(getattr(_BaseTrainer, hook)).parameters
    ours = inspect.signature(getattr(Learner, hook)).parameters
    assert list(ours) == list(theirs)
    assert getattr(Learner, hook) is not getattr(_BaseTrainer, hook)


def test_every_hook_named_is_overridden_and_no_other() -> None:
    inherited = {name for name in vars(_BaseTrainer) | vars(Trainer) if not name.startswith("__")}
    overridden = {name for cls in (Learner, Learner.__mro__[1]) for name in vars(cls)} & inherited
    assert overridden - {"loss_is_scaled_for_ga", "_send_telemetry"} == set(HOOKS)


def test_making_a_learner_sends_no_telemetry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    monkeypatch.setattr(base_trainer, "send_telemetry", lambda **what: sent.append(what))
    monkeypatch.delenv("CI", raising=False)
    subject = Learner(
        model=played.tiny_qwen3(),
        tokenizer=None,
        stream=cast(Stream, None),
        section=LearnerSection(),
        run_dir=tmp_path,
        report_to=(),
    )
    assert sent == []
    _BaseTrainer._send_telemetry(subject)
    assert len(sent) == 1


def test_our_own_state_is_read_after_the_weights_and_before_training_begins() -> None:
    train, loop = inspect.getsource(Trainer.train), inspect.getsource(Trainer._inner_training_loop)
    assert "_load_from_checkpoint(" in train
    assert loop.index("_prepare_for_training(") < loop.index("on_train_begin(")
    assert "_load_optimizer_and_scheduler(" in inspect.getsource(Trainer._prepare_for_training)


def test_a_step_ends_before_logs_and_checkpoints() -> None:
    source = inspect.getsource(Trainer._run_epoch)
    places = [source.index(call) for call in ("_clip_grad_norm(", "optimizer.step()", "on_step_end(")]
    assert places == sorted(places)
    assert source.index("on_step_end(") < source.index("_maybe_log_save_evaluate(")
    assert "control.should_training_stop" in inspect.getsource(Trainer._inner_training_loop)


def test_checkpoints_go_where_get_output_dir_says() -> None:
    assert "self._get_output_dir(" in inspect.getsource(Trainer._save_checkpoint)


def test_a_four_dimensional_mask_reaches_attention_untouched() -> None:
    model = played.tiny_qwen3()
    use_packed_attention(model)
    table = boundary_mask(torch.tensor([0, 2, 5]))
    embeddings = torch.zeros(1, 5, 16)
    assert create_causal_mask(model.config, embeddings, table, None) is table


def test_the_arguments_step_save_and_log_only_when_told(tmp_path: Path) -> None:
    section = LearnerSection(iterations=5, epochs=2, minibatches=3, learning_rate=0.125, weight_decay=0.5)
    arguments = training_arguments(section, tmp_path, ("tensorboard",), seed=7, use_cpu=True)
    assert arguments.max_steps == 30
    assert (arguments.learning_rate, arguments.weight_decay, arguments.seed) == (0.125, 0.5, 7)
    assert (arguments.save_strategy, arguments.logging_strategy) == ("no", "no")
    assert not any((arguments.bf16, arguments.fp16, arguments.activation_checkpointing))
    assert not arguments.logging_nan_inf_filter
    assert arguments.report_to == []
