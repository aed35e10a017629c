"""A learner section in the words of transformers' Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import TrainerCallback
from transformers.integrations.integration_utils import TensorBoardCallback

from rocknroll.trainer.learner_section import LearnerSection
from rocknroll.trainer.trl_compat import StreamConfig

TENSORBOARD = "tensorboard"


def training_arguments(
    section: LearnerSection, run_dir: Path, report_to: Sequence[str], seed: int, *, use_cpu: bool, ranks: int = 1
) -> StreamConfig:
    """Arguments under which the Trainer steps when told and saves and logs only when told."""
    schedule = section.lr_schedule
    sharded = section.parallel == "fsdp2" and ranks > 1
    arguments = StreamConfig(
        output_dir=str(run_dir / "checkpoints"),
        max_steps=section.iterations * section.epochs * section.minibatches,
        learning_rate=section.learning_rate,
        lr_scheduler_type="constant_with_warmup" if schedule == "constant" else schedule,
        warmup_steps=section.warmup_steps,
        weight_decay=section.weight_decay,
        max_grad_norm=section.max_grad_norm,
        gradient_accumulation_steps=1,
        per_device_train_batch_size=1,
        seed=seed,
        use_cpu=use_cpu,
        bf16=False,
        activation_checkpointing=section.recompute and not sharded,
        ignore_data_skip=True,
        ddp_find_unused_parameters=False,
        fsdp=sharded or None,  # type: ignore[arg-type]  # text, as annotated, is deprecated
        fsdp_config={"version": 2, "state_dict_type": "FULL_STATE_DICT", "activation_checkpointing": section.recompute}
        if sharded
        else None,
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="no",
        report_to=[name for name in report_to if name != TENSORBOARD] or "none",
        disable_tqdm=True,
    )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # else the Trainer wraps the model in DataParallel
    return arguments


def tensorboard(run_dir: Path, report_to: Sequence[str]) -> list[TrainerCallback]:
    """TensorBoard in the run folder, where the recipe names it (transformers would look in the environment)."""
    if TENSORBOARD not in report_to:
        return []
    callback = TensorBoardCallback()
    callback.logging_dir = str(run_dir / TENSORBOARD)
    return [callback]
