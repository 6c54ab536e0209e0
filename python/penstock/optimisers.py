# SPDX-License-Identifier: Apache-2.0
"""Penstock's view of an optimiser of torch.optim: its name, and the settings of each of its groups."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .errors import PenstockError
from .optimiser_step import MANNERS, Kept, Update, updates_of
from .quiet import internals_quiet

log = logging.getLogger("penstock")

# Settings with which a row of the program's optimisers is the optimiser's step.
FIXED = {"amsgrad": False, "maximize": False, "differentiable": False, "dampening": 0}
ADAM = Kept({"first": "exp_avg", "second": "exp_avg_sq"}, {"step": torch.zeros(())}, {}, {})
MOMENTUM = Kept({"first": "momentum_buffer"}, {}, {}, {})
NOTHING = Kept({}, {}, {}, {})


@dataclass(frozen=True)
class Row:
    """How PyTorch's optimiser of a class is one of the program's: the row's name, and what is kept of a parameter, both by the settings of a group."""

    name: Callable[[Mapping[str, Any]], str]
    kept: Callable[[Mapping[str, Any]], Kept]


ROWS = {
    torch.optim.AdamW: Row(lambda group: "adamw", lambda group: ADAM),
    torch.optim.Adam: Row(lambda group: "adamw" if group.get("decoupled_weight_decay") else "adam", lambda group: ADAM),
    torch.optim.SGD: Row(lambda group: "nesterov" if group.get("nesterov") else "sgd", lambda group: MOMENTUM if group.get("momentum", 0) else NOTHING),
}


@dataclass
class Optimiser:
    """An optimiser that a training step does. `group_of` gives the group of each parameter, by name; `updates` its update, where no row of the
    program's optimisers is that."""

    name: str
    torchs: torch.optim.Optimizer
    group_of: dict[str, int]
    names: Mapping[int, str]  # of the trained parameters, by their ids
    updates: Mapping[str, Update]
    skipped: list[str]  # the module's parameters that get no gradient: the optimizer leaves them, and what it keeps of them, as they are
    _settings: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self._settings = [self.settings_of(group) for group in self.torchs.param_groups]

    def groups(self) -> list[dict[str, float]]:
        """The settings that the program's ops take of each group; an exported update takes none."""
        return [_numbers({} if self.updates else group) for group in self.torchs.param_groups]

    def texts(self) -> dict[str, str]:
        """The graphs of the updates, by parameter."""
        return {name: update.text for name, update in self.updates.items()}

    def kept(self, name: str, group: Mapping[str, Any]) -> Kept:
        """The state that is kept of a parameter of this group."""
        return self.updates[name].kept if self.updates else ROWS[type(self.torchs)].kept(group)

    def settings_of(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a group beside its learning rate, all that a program is made for."""
        return {key: group.get(key, value) for key, value in self.torchs.defaults.items() if key != "lr" and key not in MANNERS}

    def rates(self) -> torch.Tensor:
        """The learning rates of the groups as they are now: schedulers of torch.optim.lr_scheduler change them.

        Throws PenstockError where another setting has changed since the trainer was made.
        """
        for number, (before, group) in enumerate(zip(self._settings, self.torchs.param_groups)):
            now = self.settings_of(group)
            if now != before:
                key = next(key for key in before if now[key] != before[key])
                raise PenstockError(f"{key} of the optimizer's group {number} was changed from {before[key]} to {now[key]}",
                                    ["the trainer's programs are made for its settings; learning rates alone may change"],
                                    "give a scheduler that cycles momentum cycle_momentum=False" if key in ("momentum", "betas") else
                                    f"set {key} back, or make a trainer for the new one: load_optimizer_state_dict takes this one's state on")
        return rates_of(self.torchs)


def rates_of(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    return torch.tensor([float(group["lr"]) for group in optimizer.param_groups], dtype=torch.float64)


def parameters_by_id(module: torch.nn.Module, trained: set[str]) -> tuple[dict[int, str], dict[int, str]]:
    """The names of the trained parameters, and those of the others."""
    names: tuple[dict[int, str], dict[int, str]] = {}, {}
    for name, parameter in module.named_parameters():
        names[name not in trained][id(parameter)] = name
    return names


def optimiser_of(optimizer: torch.optim.Optimizer, names: Mapping[int, str], others: Mapping[int, str]) -> Optimiser:
    """`names`: of the trained parameters, by their ids; `others`: of the module's other ones, which no loss reaches. Throws PenstockError for an
    optimiser whose step cannot be exported, and for parameters that are not the module's or have no group."""
    group_of, skipped = {}, []
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) in names:
                group_of[names[id(parameter)]] = number
            elif id(parameter) in others:
                skipped += [others[id(parameter)]] if parameter.requires_grad else []
            elif parameter.requires_grad:
                raise PenstockError(f"the optimizer has a parameter of shape {list(parameter.shape)} that is not trained here",
                                    hint="make the optimizer of module.parameters()")
    without = [name for name in names.values() if name not in group_of]
    if without:
        raise PenstockError(f'the optimizer does not have the parameter "{without[0]}"',
                            [f"{len(without)} of {len(names)} trained parameters are missing"],
                            "freeze what is not to be trained: parameter.requires_grad_(False)")
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise PenstockError(f"the optimizer {type(optimizer).__name__} has hooks on its step, which no device calls", hint="remove the hooks")
    name = _name(optimizer)
    if skipped:
        log.info("no loss reaches %s: the optimizer skips %s, as PyTorch's does", ", ".join(skipped), "it" if len(skipped) == 1 else "them")
    with internals_quiet():
        updates = {} if name else updates_of(optimizer, names)
    return Optimiser(name or "exported", optimizer, group_of, names, updates, skipped)


def _name(optimizer: torch.optim.Optimizer) -> str | None:
    """The row of the program's optimisers that is the step of all groups; None: there is none."""
    row, groups = ROWS.get(type(optimizer)), optimizer.param_groups
    found = {row.name(group) for group in groups} if row else set()
    fixed = all(group.get(key, value) == value for group in groups for key, value in FIXED.items())
    return found.pop() if fixed and len(found) == 1 else None


def _numbers(group: Mapping[str, Any]) -> dict[str, float]:
    beta1, beta2 = group.get("betas", (0.0, 0.0))
    return {"beta1": float(beta1), "beta2": float(beta2), **{key: float(group.get(key, 0.0)) for key in ("eps", "weight_decay", "momentum")}}
