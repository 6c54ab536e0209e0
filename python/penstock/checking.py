# SPDX-License-Identifier: Apache-2.0
"""Whether a plan computes what PyTorch computes, and how schedules compare."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .draws import SameDraws
from .errors import PenstockError
from .losses import call_model, find_loss
from .placing import schedules
from .prediction import Prediction
from .tables import Schedule
from .training import trainer


@dataclass(frozen=True)
class Comparison:
    """How far a plan's loss and gradients are from autograd's: relative differences, the gradients' in the norm over all of them."""

    loss: float
    gradients: float
    worst: str  # the parameter whose gradient is farthest from autograd's
    worst_difference: float

    def __str__(self) -> str:
        return f"loss {self.loss:.1e}, gradients {self.gradients:.1e}, the farthest {self.worst} {self.worst_difference:.1e}"


class Ranking(dict[str, Prediction]):
    """Predictions by the schedule's name, the fastest first; as text a line each."""

    def __str__(self) -> str:
        width = max(map(len, self), default=0)
        return "\n".join(f"{name:{width}}  {prediction}" for name, prediction in self.items())

    __repr__ = __str__


def check(module: torch.nn.Module, batch: Any, *, microbatches: int | None = None, in_parts: bool | None = None, **plan: Any) -> Comparison:
    """Compares the loss and the gradients of a plan (`trainer`'s arguments) with autograd's on the same batch.

    `microbatches`: 4, where neither a plan nor a `Schedule` says how many.

    Autograd runs the module on the whole batch or, `in_parts`, on one micro-batch after the other, whose mean it takes. That is right for a
    module in which a sample's loss depends on the others of its micro-batch: without being told it is done where there are batch norms, but
    a loss that compares samples (CLIP's) must be named. Dropout drops the same elements in both. Throws PenstockError for other random ops, and
    what `trainer` throws.
    """
    said = "plan" in plan or isinstance(plan.get("schedule"), Schedule)
    parts = {} if said and microbatches is None else {"microbatches": 4 if microbatches is None else microbatches}
    step = trainer(module, batch, **parts, **plan)
    loss, gradients = step.gradients(batch)
    their_loss, theirs = _autograd(step, module, batch, step.plan.microbatches if _in_parts(module, in_parts) else 1)
    differences = {name: (gradients[name].double() - theirs[name].double()).norm() for name in gradients}
    norm = torch.stack([theirs[name].double().norm() for name in gradients]).norm()
    worst = max(differences, key=lambda name: differences[name])
    return Comparison(float((loss.double() - their_loss.double()).abs() / their_loss.double().abs().clamp(min=1e-30)),
                      float(torch.stack(list(differences.values())).norm() / norm.clamp(min=1e-30)), worst,
                      float(differences[worst] / norm.clamp(min=1e-30)))


def compare(module: torch.nn.Module, batch: Any, *, names: list[str] | None = None, device: str = "a100-80", link: str = "nvlink3",
            **plan: Any) -> Ranking:
    """Predicts the module's step under each schedule, by published figures of a device and of the links: a ranking by name, the fastest first.

    `names`: all that take the plan's sizes unless they are given. The module is exported once; nothing runs. `plan` are `trainer`'s
    arguments.
    """
    step = trainer(module, batch, schedule=plan.pop("schedule", "1f1b"), **plan)
    found = {}
    for name in names or schedules():
        try:
            found[name] = step.predict(device, link, schedule=name)
        except PenstockError:
            if names:
                raise
    return Ranking(sorted(found.items(), key=lambda entry: entry[1].seconds))


def _in_parts(module: torch.nn.Module, told: bool | None) -> bool:
    return told if told is not None else any(isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.training for part in module.modules())


def _autograd(step: Any, module: torch.nn.Module, batch: Any, parts: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of the parts in turn, their mean or sum as the step makes it, and its gradients by autograd, on a copy of the module."""
    twin = copy.deepcopy(module)
    total, shares = None, parts if step.exports.first.header["loss"] == "mean" else 1
    for part in range(parts):
        def cut(tensor: torch.Tensor, part: int = part) -> torch.Tensor:
            size = tensor.shape[0] // parts if tensor.dim() else 0
            return tensor[part * size: (part + 1) * size] if tensor.dim() else tensor
        args, kwargs, target = step.calls.inputs(tree_map_only(torch.Tensor, cut, batch) if parts > 1 else batch)
        samples = step.calls.samples(step.calls.tensors(batch)) // parts
        with SameDraws(samples, part * samples, step.seed, parts == step.plan.microbatches):
            loss = find_loss(call_model(twin, args, kwargs, step.loss, target, step.autocast))[0] / shares
        total = loss if total is None else total + loss
    total.backward()
    return total.detach(), {name: parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
                            for name, parameter in twin.named_parameters()}
