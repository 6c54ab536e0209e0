"""What an optimiser of torch.optim is to Penstock: its name, and the settings of each of its groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .errors import PenstockError

# Settings that must have these values: nothing else is computed.
FIXED = {"amsgrad": False, "maximize": False, "differentiable": False, "dampening": 0}


@dataclass
class Optimiser:
    """An optimiser that a training step does. `group_of` gives the group of each parameter, by name."""

    name: str
    torchs: torch.optim.Optimizer
    group_of: dict[str, int]
    names: Mapping[int, str]  # of the trained parameters, by their ids

    def groups(self) -> list[dict[str, float]]:
        """The settings of each group but its learning rate, which each step is given anew."""
        return [_settings(group) for group in self.torchs.param_groups]

    def settings_of(self, group: Mapping) -> dict[str, Any]:
        """The settings of a group beside its learning rates, all that a program is made for."""
        return {**_settings(group), "nesterov": bool(group.get("nesterov")), **{key: group.get(key, value) for key, value in FIXED.items()}}

    def rates(self) -> torch.Tensor:
        """The learning rates of the groups as they are now: schedulers of torch.optim.lr_scheduler change them."""
        return rates_of(self.torchs)


def rates_of(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    return torch.tensor([float(group["lr"]) for group in optimizer.param_groups], dtype=torch.float32)


def optimiser_of(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> Optimiser:
    """`names`: of the trained parameters, by their ids. Throws PenstockError for an optimiser or a setting that no step computes, and for
    parameters that are not the module's or have no group."""
    name = _name(optimizer)
    group_of = {}
    for number, group in enumerate(optimizer.param_groups):
        for key, value in FIXED.items():
            if group.get(key, value) != value:
                raise PenstockError(f"{type(optimizer).__name__} with {key}={group[key]!r} is not supported", hint=f"use {key}={value!r}")
        for parameter in group["params"]:
            if id(parameter) in names:
                group_of[names[id(parameter)]] = number
            elif parameter.requires_grad:
                raise PenstockError(f"the optimizer has a parameter of shape {list(parameter.shape)} that is not trained here",
                                    hint="make the optimizer of module.parameters()")
    without = [name for name in names.values() if name not in group_of]
    if without:
        raise PenstockError(f'the optimizer does not have the parameter "{without[0]}"',
                            [f"{len(without)} of {len(names)} trained parameters are missing"],
                            "freeze what is not to be trained: parameter.requires_grad_(False)")
    if len({_kind(name, group) for group in optimizer.param_groups}) > 1:
        raise PenstockError("the optimizer's groups differ in more than numbers", hint="use one setting of nesterov for all groups")
    return Optimiser(_kind(name, optimizer.param_groups[0]), optimizer, group_of, names)


def _name(optimizer: torch.optim.Optimizer) -> str:
    for kind, name in ((torch.optim.AdamW, "adamw"), (torch.optim.Adam, "adam"), (torch.optim.SGD, "sgd")):
        if type(optimizer) is kind:
            return name
    raise PenstockError(f"the optimizer {type(optimizer).__name__} is not supported", ["there are AdamW, Adam and SGD of torch.optim"],
                        "train with one of these")


def _kind(name: str, group: Mapping) -> str:
    if name == "adam" and group.get("decoupled_weight_decay"):
        return "adamw"
    return "nesterov" if group.get("nesterov") else name


def _settings(group: Mapping) -> dict[str, float]:
    beta1, beta2 = group.get("betas", (0.0, 0.0))
    return {"beta1": float(beta1), "beta2": float(beta2), "eps": float(group.get("eps", 0.0)), "weight_decay": float(group["weight_decay"]),
            "momentum": float(group.get("momentum", 0.0))}
