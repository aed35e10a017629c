"""Log-probabilities of action tokens under a model, as the sampler saw them.

The head runs at the positions that predict an action token and nowhere else. Logits are divided by
the sampling temperature; with constrained decoding the distribution is renormalised over the
allowed tokens. One path for every model and vocabulary: the model's own head with `logits_to_keep`,
so soft-capping and scaling of logits are the model's. (TRL's fused head scores every position on a
CPU and has no allowed sets.) The memory for logits is bounded by the size of a pass.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rocknroll.trainer.packed_attention import boundary_mask
from rocknroll.trainer.packing import NO_TOKEN, PackedPass


def action_logprobs(model: PreTrainedModel, packed: PackedPass, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of each action token's distribution, both [N], differentiable.

    float32, whatever narrower type the model computes in; float64 for a model in float64.

    The model must use packed attention (`use_packed_attention`).

    Raises:
        ValueError: an action token is not among its allowed tokens.
    """
    device = model.device
    output = model(
        input_ids=packed.token_ids.to(device),
        position_ids=packed.position_ids.to(device),
        attention_mask=boundary_mask(packed.boundaries),
        use_cache=False,
        logits_to_keep=packed.predict.to(device),
    )
    logits = output.logits[0].to(torch.promote_types(output.logits.dtype, torch.float32))
    if temperature != 1.0:
        logits = logits / temperature
    targets = packed.targets.to(device)
    if packed.allowed is None:
        return _score(logits, targets)
    return _score_allowed(logits, targets, packed.allowed.to(device))


def _score(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Of logits [N, V] and targets [N]."""
    logprobs = torch.log_softmax(logits, dim=-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, targets[:, None])[:, 0], entropy


def _score_allowed(logits: Tensor, targets: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """The same over `allowed` [N, K] alone."""
    real = allowed != NO_TOKEN
    chosen = allowed == targets[:, None]
    if not bool(chosen.any(dim=1).all()):
        missing = int(targets[~chosen.any(dim=1)][0])
        raise ValueError(f"token {missing} was sampled but is not among the tokens recorded as allowed there")
    kept = logits.gather(1, allowed.clamp(min=0)).masked_fill(~real, -torch.inf)
    logprobs = torch.log_softmax(kept, dim=-1)
    finite = logprobs.masked_fill(~real, 0.0)
    entropy = -(finite.exp() * finite).sum(-1)
    return finite.gather(1, chosen.to(torch.int8).argmax(dim=1, keepdim=True))[:, 0], entropy
