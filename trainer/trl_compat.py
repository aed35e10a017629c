"""The one place that imports private names of TRL, and what is relied on there.

`_BaseTrainer` is transformers' Trainer plus `loss_is_scaled_for_ga`, a model card and telemetry;
telemetry is switched off here. `_BaseConfig` is TrainingArguments with other defaults.
tests/trainer/test_learner_contract.py checks every name below, so an upgrade that moves one fails
there first. Importing this module takes seconds: only the learner does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate import DistributedType, PartialState
from accelerate.utils import FullyShardedDataParallelPlugin
from trl.trainer.base_config import _BaseConfig
from trl.trainer.base_trainer import _BaseTrainer
from trl.trainer.utils import disable_dropout_in_model

__all__ = ["StreamConfig", "StreamTrainer", "disable_dropout_in_model"]

HOOKS = (
    "get_train_dataloader",
    "training_step",
    "log",
    "floating_point_ops",
    "_get_output_dir",
    "_save_checkpoint",
    "_load_optimizer_and_scheduler",
    "_clip_grad_norm",
    "create_accelerator_and_postprocess",
)
"""Methods of the trainer that the learner overrides; each must exist with the parameters the learner declares."""

if TYPE_CHECKING:
    from transformers import Trainer, TrainingArguments

    StreamConfig = TrainingArguments
    _Parent = Trainer
else:
    StreamConfig = _BaseConfig
    _Parent = _BaseTrainer


class StreamTrainer(_Parent):
    """TRL's base trainer for data that comes from a live stream."""

    loss_is_scaled_for_ga = True
    """The learner normalises over the whole optimiser step itself; nothing may divide again."""

    def _send_telemetry(self) -> None:
        """Nothing leaves this machine."""

    def create_accelerator_and_postprocess(self) -> None:
        """Also shards on CPUs where that is asked for: accelerate knows how, and yet takes DDP there without a word."""
        super().create_accelerator_and_postprocess()
        if self.args.fsdp_plugin_args is not None and not self.is_fsdp_enabled:
            state = self.accelerator.state
            state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            self.is_fsdp_enabled = True

    def floating_point_ops(self, inputs: Any) -> int:
        """Unknown: a minibatch is no dict of tensors, from which transformers could tell."""
        return 0
