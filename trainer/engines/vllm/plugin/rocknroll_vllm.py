"""What a vLLM worker needs of rocknroll: weights from a file, by vLLM's own weight transfer.

Runs in vLLM's environment, where the rest of rocknroll need not be installed: this folder goes on its PYTHONPATH
and `--worker-extension-cls rocknroll_vllm.WorkerExtension` makes every worker import it, which registers the
backend that `--weight-transfer-config '{"backend": "path"}'` names. Imports torch and vLLM alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "path"
HEAD = "lm_head.weight"


@dataclass
class PathInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing: whoever can read the files needs no rendezvous."""


@dataclass
class PathUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Safetensors files that every worker can read; together they hold the whole model."""

    paths: list[str]


class PathTransfer(WeightTransferEngine):  # type: ignore[misc]
    """Reads each tensor from the page cache (or /dev/shm) straight into the model."""

    init_info_cls = PathInit
    update_info_cls = PathUpdate

    def init_transfer_engine(self, init_info: PathInit) -> None:
        """Nothing to prepare."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: PathUpdate) -> None:
        self.model.load_weights(self._tensors(update_info.paths))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        self._repack_tied_head()

    def shutdown(self) -> None:
        """Nothing is held between updates."""

    def _tensors(self, paths: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
        tied = bool(getattr(self.model_config.hf_text_config, "tie_word_embeddings", False))
        for path in paths:
            with safe_open(path, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 (no mapping)
                    if not (tied and name == HEAD):
                        yield name, opened.get_tensor(name)

    def _repack_tied_head(self) -> None:
        """On CPUs a head that is tied to the embedding serves from a packed copy, which a reload leaves as it was."""
        head = getattr(self.model, "lm_head", None)
        tied = bool(getattr(self.model_config.hf_text_config, "tie_word_embeddings", False))
        if self.device.type == "cpu" and tied and head is not None:
            head.quant_method.process_weights_after_loading(head)


class WorkerExtension:
    """Mixed into vLLM's worker; its methods can be called by `/collective_rpc`."""

    vllm_config: Any

    def rocknroll_worker(self) -> dict[str, Any]:
        """What the engine checks before it asks for anything."""
        model, transfer = self.vllm_config.model_config, self.vllm_config.weight_transfer_config
        return {
            "backend": BACKEND,
            "backend_in_use": None if transfer is None else transfer.backend,
            "logprobs_mode": str(model.logprobs_mode),
            "vocabulary": int(model.hf_text_config.vocab_size),
        }


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, PathTransfer)
