"""The settings of the engine in a recipe. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from rocknroll.trainer.section import Cores, Section


class VLLMSection(Section):
    """vLLM servers: started and looked after by the run, or given by their addresses (docs/vllm.md)."""

    urls: tuple[str, ...] = ()
    """Servers that run already, one for each of `engine.replicas`; none: the run starts them."""
    where: Literal["auto", "here", "cluster"] = "auto"
    """Start them on this machine, or on nodes of the Ray cluster that `cluster.address` means; `auto`: there, if
    `cluster.devices.engine` gives them accelerators, and Ray knows which of them the learner has."""
    python: str | None = None
    """Interpreter of the environment that vLLM is installed in; where it is looked for: docs/vllm.md."""
    args: tuple[str, ...] = ()
    """Further arguments for the servers, `--gpu-memory-utilization=0.8` for example."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type the servers compute in; `policy.dtype` unless given."""
    eager: Literal["auto"] | bool = "auto"
    """Leave compilation and CUDA graphs out; `auto`: where vLLM is a build for CPUs, on which they cost a minute."""
    kv_cache_bytes: PositiveInt | None = None
    """Memory for contexts. Unless given: on a CPU what `engine.slots` contexts of `engine.max_length` need, on GPUs
    what vLLM finds free."""
    tensor_parallel_size: PositiveInt = 1
    start_timeout_s: PositiveFloat = 600.0
    """Until a started server answers."""
    generation_timeout_s: PositiveFloat = 300.0
    """A request that takes longer, waiting included, counts as hung: the server is replaced."""
    update_timeout_s: PositiveFloat = 300.0
    """A server that takes longer to change its weights is replaced."""
    probe: bool = True
    """After each update compare log-probabilities with a copy of the policy in the rollout process, because caches and
    heads that kept old weights are silent otherwise; costs its memory and one forward pass over 100 tokens."""

    @field_validator("urls")
    @classmethod
    def _are_addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{url!r} is no address of a server: write it like http://127.0.0.1:8000")
        return tuple(url.rstrip("/") for url in urls)


class EngineSection(Section):
    kind: Literal["local", "vllm"] = "local"
    """`local`: inside the rollout process; `vllm`: vLLM servers, as `engine.vllm` says."""
    replicas: PositiveInt = 1
    """Engines side by side, each with its own weights and `slots`."""
    restarts: NonNegativeInt = 3
    """Times that broken engines are replaced before the run gives up."""
    cores: Cores = None
    slots: PositiveInt = 32
    """Contexts held, and the most requests that run at once, in each engine."""
    max_length: PositiveInt = 4096
    """Tokens of context held for one trajectory; never more than the model's own limit."""
    threads: PositiveInt = 1
    bit_exact: Literal["auto"] | bool = "auto"
    """Compute so that tokens and log-probabilities are the same bit for bit whatever else is computed, which
    costs 14 to 20% of the engine's speed; `auto`: where `rollout.async_ratio` is 0. The local engine alone can."""
    vllm: VLLMSection = VLLMSection()

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        if self.bit_exact is True and self.threads > 1:
            raise ValueError(
                "`engine.bit_exact` needs `engine.threads` to be 1, because several threads cut sums at places that"
                " depend on what else is computed"
            )
        if self.kind == "local":
            if self.vllm != VLLMSection():
                raise ValueError(
                    "`engine.vllm` says how vLLM servers are used, and `engine.kind` is `local`, which uses none: set"
                    " `engine.kind` to `vllm`, or leave `engine.vllm` out"
                )
            return self
        if self.bit_exact is True:
            raise ValueError(
                "`engine.bit_exact` cannot be had from vLLM, whose results depend on what else is in a batch: take"
                " `engine.kind: local`, or leave `engine.bit_exact` out"
            )
        self._check_addresses()
        return self

    def _check_addresses(self) -> None:
        urls = self.vllm.urls
        if not urls:
            return
        if len(set(urls)) != len(urls):
            raise ValueError("`engine.vllm.urls` names a server twice: each has the weights of one engine")
        if len(urls) != self.replicas:
            raise ValueError(
                f"`engine.vllm.urls` has {len(urls)} servers for {self.replicas} engines (`engine.replicas`): set"
                f" `engine.replicas` to {len(urls)}, or name as many servers"
            )
        started = {
            name for name in ("where", "python", "args", "eager", "kv_cache_bytes", "dtype") if self._given(name)
        }
        if self.vllm.tensor_parallel_size > 1:
            started.add("tensor_parallel_size")
        if started or self.cores is not None:
            settings = [f"engine.vllm.{name}" for name in sorted(started)]
            if self.cores is not None:
                settings.append("engine.cores")
            names = ", ".join(f"`{name}`" for name in settings)
            raise ValueError(
                f"{names}: settings of servers that the run starts, and `engine.vllm.urls` names servers that run"
                " already: give those the settings when you start them, or leave `engine.vllm.urls` out"
            )

    def _given(self, name: str) -> bool:
        return bool(getattr(self.vllm, name) != VLLMSection.model_fields[name].default)
