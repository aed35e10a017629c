"""The policy that servers must serve: what is checked of a server, of new weights, and of what it computes by them.

One for all servers of a run. What a server got wrong it does not say (a cache or a head that kept the old weights
gives fluent tokens), so after each update a few of its log-probabilities are compared with the policy's own.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from rocknroll.trainer.engines.base import EngineError, Sampling
from rocknroll.trainer.engines.slots import shared_prefix
from rocknroll.trainer.engines.vllm.client import Answer, Client, ServerRefused
from rocknroll.trainer.engines.vllm.installation import check_version
from rocknroll.trainer.engines.vllm.server import WORKER_EXTENSION
from rocknroll.trainer.engines.weights_file import WeightsFile, files_of
from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.render import PolicyError

PROBE_TOKENS = 8
PROBE_PROMPT = 96
"""Long enough to fill blocks of the prefix cache: what they kept of older weights is seen."""
TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2}
"""Mean difference of the probe's log-probabilities by type. Measured against other kernels on CPUs: 7e-7 and 2e-3;
a head or cache of other weights is off by 0.08 and more."""
COMPARED_TOKENS = 64
"""Tokens of the vocabulary that two tokenizers are compared by."""
HEAD = "lm_head.weight"
NEEDED = ("/inference/v1/generate", "/pause", "/start_weight_update", "/collective_rpc", "/reset_prefix_cache")
SHARED_MEMORY = Path("/dev/shm")


class ServedPolicy:
    """A policy in a folder, as it is and as it changes.

    Args:
        folder: the saved model that servers begin with.
        tokenizer: the learner's.
        dtype: what servers compute in.
        model: the same policy in this process, for the probe; None: no probe. It is changed with each update.
        version: of the folder's weights.

    Raises:
        PolicyError: the folder has no weights in safetensors.
    """

    def __init__(self, folder: Path, tokenizer: Any, dtype: str, model: Any | None, version: int = 0) -> None:
        self.files = [file.path for file in files_of(folder)]
        if not self.files:
            raise PolicyError(
                f"{folder} has no safetensors, from which vLLM servers read weights: save the model again."
            )
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.vocabulary = int(config.get("text_config", config)["vocab_size"])
        self._shapes = {name: shape for file in files_of(folder) for name, shape in file.shapes().items()}
        self._folder = folder
        self._tokenizer = tokenizer
        self._tolerance = TOLERANCE[dtype]
        self._model = model
        self._version = version
        """Of the model's weights."""
        self._changing = asyncio.Lock()

    async def examine(self, client: Client) -> int:
        """See that a server is one that can be worked with; the longest context that it takes.

        Raises:
            EngineError: it is of another version, was started without what is needed, or has another tokenizer.
        """
        try:
            check_version(await client.version(), f"the server at {client.where}")
        except RecipeError as error:
            raise EngineError(str(error)) from error
        if missing := [route for route in NEEDED if await client.lacks(route)]:
            raise EngineError(
                f"the vLLM server at {client.where} lacks {', '.join(missing)}: start it with VLLM_SERVER_DEV_MODE=1 in"
                " its environment and with --enable-scale-out (docs/vllm.md has the whole command)."
            )
        try:
            worker = await client.worker()
        except ServerRefused as error:
            raise EngineError(
                f"the workers of the vLLM server at {client.where} do not know rocknroll's weight transfer ({error}):"
                f" start it with --worker-extension-cls {WORKER_EXTENSION} (docs/vllm.md has the whole command)."
            ) from error
        if worker["backend_in_use"] != worker["backend"]:
            raise EngineError(
                f"the vLLM server at {client.where} takes weights by `{worker['backend_in_use']}`: start it with"
                f" --weight-transfer-config '{json.dumps({'backend': worker['backend']})}'."
            )
        if worker["logprobs_mode"] != "processed_logprobs":
            raise EngineError(
                f"the vLLM server at {client.where} reports `{worker['logprobs_mode']}`, which are not those of the"
                " distribution that is sampled: start it with --logprobs-mode processed_logprobs."
            )
        if worker["vocabulary"] != self.vocabulary:
            raise EngineError(
                f"the vLLM server at {client.where} serves a model of {worker['vocabulary']} tokens, and the policy"
                f" ({self._folder}) has {self.vocabulary}: let it serve the policy."
            )
        await self._compare_tokenizers(client)
        return await client.max_length()

    @contextmanager
    def placed(self, state: Mapping[str, Any]) -> Iterator[Sequence[Path]]:
        """The files that a server reads `state` from.

        Raises:
            ValueError: names or shapes are not the policy's.
        """
        if isinstance(state, WeightsFile):
            self._check(state.shapes())
            yield [state.path]
            return
        self._check({name: tuple(tensor.shape) for name, tensor in state.items()})
        where = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        with tempfile.TemporaryDirectory(prefix="rocknroll-", dir=where) as folder:
            path = Path(folder) / "weights.safetensors"
            save_file({name: tensor.detach().contiguous().clone() for name, tensor in state.items()}, path)
            yield [path]

    async def follow(self, state: Mapping[str, Any], version: int) -> None:
        """Take over the weights that servers get, for the probe."""
        if self._model is None:
            return
        async with self._changing:
            if self._version != version:
                await asyncio.to_thread(self._load, state)
                self._version = version

    async def probe(self, client: Client, version: int) -> None:
        """Compare what a server computes with the policy's own, where its copy is of the server's `version`.

        Raises:
            EngineError: they differ.
        """
        if self._model is None or self._version != version:
            return
        pick = random.Random(0)
        length = min(PROBE_PROMPT, int(self._model.config.max_position_embeddings) - PROBE_TOKENS)
        prompt = [pick.randrange(self.vocabulary) for _ in range(length)]
        answer = await client.generate("probe", prompt, Sampling(max_tokens=PROBE_TOKENS, seed=0), None)
        if not answer.token_ids:
            raise EngineError(f"the vLLM server at {client.where} generated nothing when it was probed")
        off = await asyncio.to_thread(self._difference, prompt, answer)
        if not off <= self._tolerance:
            raise EngineError(
                f"the vLLM server at {client.where} does not compute what version {version} of the policy computes:"
                f" log-probabilities of {len(answer.token_ids)} tokens are off by {off:.3g} on average, and"
                f" {self._tolerance:g} is what types and kernels explain. Its weights or cache are of another version."
            )

    def _check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        unknown = sorted(shapes.keys() - self._shapes.keys() - {HEAD})
        missing = sorted(self._shapes.keys() - shapes.keys() - {HEAD})
        if unknown or missing:
            raise ValueError(f"the new weights do not fit the model: unknown {unknown[:3]}, missing {missing[:3]}")
        for name, shape in self._shapes.items():
            if name in shapes and shapes[name] != shape:
                raise ValueError(f"the new weight {name} has shape {list(shapes[name])}, not {list(shape)}")

    async def _compare_tokenizers(self, client: Client) -> None:
        size = len(self._tokenizer)
        special = set(self._tokenizer.all_special_ids)
        ids = [token for token in range(0, size, max(1, size // COMPARED_TOKENS)) if token not in special]
        text = self._tokenizer.decode(ids)
        ours, theirs = self._tokenizer.encode(text, add_special_tokens=False), await client.tokenize(text)
        if ours != theirs:
            same = shared_prefix(ours, theirs, min(len(ours), len(theirs)))
            raise EngineError(
                f"the vLLM server at {client.where} has another tokenizer than the learner ({self._folder}): of a text"
                f" of {len(ours)} tokens they agree on the first {same}. Let it serve the learner's model and"
                " tokenizer."
            )

    def _load(self, state: Mapping[str, Any]) -> None:
        from rocknroll.trainer.engines.forward import load_weights

        load_weights(self._model, state)

    def _difference(self, prompt: list[int], answer: Answer) -> float:
        assert self._model is not None
        tokens = torch.tensor([[*prompt, *answer.token_ids]], device=self._model.device)
        with torch.inference_mode():
            logits = self._model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        expected = torch.log_softmax(logits, -1)[range(len(answer.token_ids)), list(answer.token_ids)].cpu()
        return float((expected - torch.tensor(answer.logprobs)).abs().mean())
