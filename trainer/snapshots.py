"""Weights of the versions before the one being trained, for as long as their tokens may still arrive.

Only the correction of the engine's mismatch needs them (`objectives/mismatch.py`). They cost
`count` copies of the weights, and one model more to run them in.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from rocknroll.trainer.ranks import whole_state

FILE = "snapshots.safetensors"


class Snapshots:
    """The newest `count` versions that `keep` was called with."""

    def __init__(self, count: int, make_model: Callable[[], PreTrainedModel]) -> None:
        self.count = count
        self._make_model = make_model
        self._model: PreTrainedModel | None = None
        self._kept: dict[int, dict[str, Tensor]] = {}

    def keep(self, version: int, model: PreTrainedModel) -> None:
        """Copy the weights of `model`, which are those of `version`, and let go of the oldest beyond `count`."""
        if self.count:
            self._kept[version] = {name: tensor.detach().clone() for name, tensor in whole_state(model).items()}
        for old in sorted(self._kept)[: -self.count]:
            del self._kept[old]

    def weights(self, version: int) -> Mapping[str, Tensor] | None:
        """The state dict of `version`; None where it is not kept."""
        return self._kept.get(version)

    def model(self, version: int) -> PreTrainedModel:
        """A model with the weights of `version`; the same object each time, so use it before the next call.

        Raises:
            ValueError: that version is not kept.
        """
        if version not in self._kept:
            kept = ", ".join(str(v) for v in sorted(self._kept)) or "none"
            raise ValueError(
                f"A token was sampled by version {version}, whose weights are not kept any more (kept: {kept}), so"
                " `learner.mismatch` cannot score it. It is older than `rollout.async_ratio` allows, or comes from"
                " another run: train on such trajectories with `learner.mismatch.mode=off`."
            )
        if self._model is None:
            self._model = self._make_model()
        self._model.load_state_dict(self._kept[version])
        return self._model

    def save(self, folder: Path) -> None:
        """Write them into a checkpoint; nothing where nothing is kept."""
        tensors = {f"{version}/{name}": tensor for version, kept in self._kept.items() for name, tensor in kept.items()}
        if tensors:
            save_file(tensors, folder / FILE)

    def load(self, folder: Path) -> bool:
        """Take up what `save` wrote; False when the checkpoint has none."""
        if not (folder / FILE).exists():
            return False
        kept: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
        for key, tensor in load_file(folder / FILE).items():
            version, _, name = key.partition("/")
            kept[int(version)][name] = tensor
        self._kept = dict(kept)
        return True


def frozen(model: PreTrainedModel) -> PreTrainedModel:
    """A copy that never changes."""
    copied = copy.deepcopy(model)
    copied.requires_grad_(False)
    copied.train(False)
    return copied
