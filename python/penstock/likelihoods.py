# SPDX-License-Identifier: Apache-2.0
"""Language models by what they say of tokens: perplexity, of a trainer's step or of a module."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from .errors import PenstockError
from .evaluation import in_mode
from .losses import entries_of

IGNORED = -100
NEAR = 1e-3  # relative: how far the model's own loss may be from that of its logits, both rounded
NO_LOGITS = "a language model gives logits, [samples, length, vocabulary], as its entry \"logits\" or as its one output"


@dataclass(frozen=True)
class Perplexity:
    """The perplexity of a set, exp(loss); `loss`, the mean of the tokens' negative log-likelihoods in nats; and how many `tokens` count."""

    value: float
    loss: float
    tokens: int

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"perplexity {self.value:.4g}, loss {self.loss:.4f} over {self.tokens} tokens"


def perplexity(model: Any, batches: Iterable[Any], *, ignore_index: int = IGNORED, shift: bool | None = None) -> Perplexity:
    """The perplexity of batches under a trainer's parameters, `perplexity(step, loader)`, or a module's, in evaluation mode; nothing changes.

    A batch is one as for a step: a dict with "labels", or (inputs, targets). Targets that are `ignore_index` do not count; each of the others counts as
    much, in whichever batch it is. `shift`: whether the target of a place is the label of the next one, as for causal models of Hugging Face, which
    shift inside. Without it that is found by the model's own loss, which is the mean of one of both; where there is no such loss, as of a module
    with (inputs, targets), targets are at their places.

    A loss that is NaN gives a perplexity of NaN. Throws PenstockError for a model without logits, labels that do not go with them, no target that
    counts, and a loss of which neither holds.
    """
    if not (shift is None or isinstance(shift, bool)):
        raise PenstockError(f"shift={shift!r} is not what shift takes", hint="True, False or None, which finds it by the model's own loss")
    total, count = torch.zeros((), dtype=torch.float64), 0
    for batch in batches:
        outputs = outputs_of(model, batch)
        logits, targets = logits_in(outputs), _targets(batch)
        if not bool((targets != ignore_index).any()):
            continue
        shift = _found_shift(logits, targets, outputs.get("loss"), ignore_index) if shift is None else shift
        each, counts = _negative_log_likelihoods(logits, targets, ignore_index, shift)
        total, count = total + each.double().sum(), count + int(counts.sum())
    if count == 0:
        raise PenstockError("no target of these batches counts", [f"a target that is {ignore_index} is ignored"])
    loss = (total / count).item()
    return Perplexity(math.inf if loss >= 700 else math.exp(loss), loss, count)


def outputs_of(model: Any, batch: Any) -> dict[str, torch.Tensor]:
    """Gives by name what a trainer or a module makes of a batch in evaluation mode; one tensor is "output"."""
    if not isinstance(model, torch.nn.Module):
        if not hasattr(model, "evaluate"):
            raise PenstockError(f"a {type(model).__name__} is neither a trainer nor a module")
        return model.evaluate(batch)
    with in_mode(model, False), torch.no_grad():
        found = model(**batch) if isinstance(batch, Mapping) else model(batch[0] if isinstance(batch, (tuple, list)) else batch)
    return {"output": found} if isinstance(found, torch.Tensor) else entries_of(found)


def logits_in(outputs: Mapping[str, Any]) -> torch.Tensor:
    """The logits, [samples, length, vocabulary], in f32 at least. Throws PenstockError where there are none."""
    found = outputs.get("logits", outputs.get("output"))
    if not isinstance(found, torch.Tensor) or found.dim() != 3 or not found.is_floating_point():
        names = ", ".join(f"{name} {list(value.shape)}" for name, value in outputs.items() if isinstance(value, torch.Tensor))
        raise PenstockError("the model is no language model", [NO_LOGITS, f"it gives {names or 'no tensors'}"])
    return found if found.dtype in (torch.float32, torch.float64) else found.float()


def _targets(batch: Any) -> torch.Tensor:
    found = batch.get("labels") if isinstance(batch, Mapping) else batch[1] if isinstance(batch, (tuple, list)) and len(batch) == 2 else None
    if not isinstance(found, torch.Tensor):
        raise PenstockError("the batch has no targets", hint='give dicts with "labels", or (inputs, targets)')
    return found


def _negative_log_likelihoods(logits: torch.Tensor, targets: torch.Tensor, ignore_index: int, shift: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Gives the value of each target, [targets], zero where it is ignored, and whether it counts."""
    if targets.shape != logits.shape[:2]:
        raise PenstockError(f"targets of shape {list(targets.shape)} do not go with logits of shape {list(logits.shape)}",
                            hint="each place of the logits has one target")
    if shift:
        logits, targets = logits[:, :-1], targets[:, 1:]
    counts = targets != ignore_index
    wrong = targets[counts & ((targets < 0) | (targets >= logits.shape[-1]))]
    if wrong.numel():
        raise PenstockError(f"a target is {wrong[0].item()}, and the vocabulary has {logits.shape[-1]} tokens",
                            hint=f"ignore_index={wrong[0].item()} ignores it")
    each = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=ignore_index, reduction="none")
    return each, counts


def _found_shift(logits: torch.Tensor, targets: torch.Tensor, loss: Any, ignore_index: int) -> bool:
    """Whether the model's loss is that of shifted targets; False where it says none."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        return False
    means = []
    for shift in (True, False):
        each, counts = _negative_log_likelihoods(logits, targets, ignore_index, shift)
        means.append((each.double().sum() / counts.sum().clamp(min=1)).item())
    bound = max(NEAR, 4 * torch.finfo(loss.dtype).eps) * max(abs(loss.item()), 1.0)
    holds = [abs(mean - loss.item()) <= bound for mean in means]
    if any(holds) and not all(holds):
        return holds[0]
    if math.isnan(loss.item()):
        raise PenstockError("the model's loss is nan", ["that says nothing of whether targets are shifted"], "see that its parameters are finite; or give shift=")
    which = "both means" if all(holds) else "neither mean"
    raise PenstockError(f"the model's loss, {loss.item():.6g}, is {which} of its targets' negative log-likelihoods",
                        [f"that is {means[0]:.6g} with the targets of the next places, {means[1]:.6g} with those of their own"],
                        "shift=True or shift=False says which one holds; the rest of the loss does not count then")
