"""New weights as they arrive from the learner: a safetensors file that is read only by who needs the tensors.

An engine of this process reads it like any state dict; a server of its own is told the path. Imports no torch.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any


class WeightsFile(Mapping[str, Any]):
    """A state dict in a file: tensors by name, each read when it is asked for.

    The learner may write the next version in its place once tensors were read: what is open stays as it was.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._opened.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """By name, from the file's header alone."""
        return {name: tuple(self._opened.get_slice(name).get_shape()) for name in self}

    def kept_as(self, path: Path) -> WeightsFile:
        """The same weights under a name of their own, which lasts when the learner writes the next version."""
        partial = path.with_name(f"{path.name}.partial")
        partial.unlink(missing_ok=True)
        try:
            os.link(self.path, partial)
        except OSError:  # another file system, or one without links
            shutil.copyfile(self.path, partial)
        return WeightsFile(partial.replace(path))

    @cached_property
    def _opened(self) -> Any:
        from safetensors import safe_open

        return safe_open(str(self.path), framework="pt")

    @cached_property
    def _names(self) -> dict[str, None]:
        return dict.fromkeys(self._opened.keys())


def files_of(folder: Path) -> list[WeightsFile]:
    """The weights of a saved model, in as many files as it has."""
    return [WeightsFile(path) for path in sorted(folder.glob("*.safetensors"))]
