# SPDX-License-Identifier: Apache-2.0
"""The state that an optimiser keeps, in the form of torch.optim's state_dict()."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from .errors import PenstockError
from .optimisers import Kept, Optimiser


def state_dict(optimiser: Optimiser, read: Callable[[Iterable[str]], Mapping[str, torch.Tensor]]) -> dict[str, Any]:
    """As optimizer.state_dict() would be after these steps; `read` gives copies of the trainer's state by name."""
    steps = read(["step"])["step"].item()
    kept = {i: (name, optimiser.kept(name, group)) for i, name, group in _parameters(optimiser) if name and steps > 0}
    values = read([f"{ours}:{name}" for name, of in kept.values() for ours in of.tensors])
    shapes = {i: group["params"][i - group["first"]].shape for i, _, group in _parameters(optimiser)}

    def entry(i: int, name: str, of: Kept) -> dict[str, Any]:
        tensors = {theirs: values[f"{ours}:{name}"].reshape(of.like[theirs].shape if theirs in of.like else shapes[i])
                   for ours, theirs in of.tensors.items()}
        return {**{key: _steps_like(like, steps) for key, like in of.steps.items()}, **tensors, **of.others}
    state = {i: entry(i, *of) for i, of in kept.items()} | _of_others(optimiser)
    return {"state": {i: each for i, each in state.items() if each}, "param_groups": optimiser.torchs.state_dict()["param_groups"]}


def kept_types(optimiser: Optimiser) -> dict[str, torch.Tensor]:
    """Tensors of the dtypes and shapes of all that the trainer keeps of its parameters, by its names ("first:NAME"), and "step"."""
    found = {"step": torch.empty((), dtype=torch.int64, device="meta")}
    for i, name, group in _parameters(optimiser):
        if name is not None:
            kept, parameter = optimiser.kept(name, group), group["params"][i - group["first"]]
            found |= {f"{ours}:{name}": kept.like.get(theirs, parameter).detach() for ours, theirs in kept.tensors.items()}
    return found


def beside(optimiser: Optimiser) -> dict[str, Any]:
    """Gives what a checkpoint has of the optimizer itself beside `kept_types`: its class, its groups, and what it keeps of parameters that are not
    trained, by their numbers."""
    return {"name": type(optimiser.torchs).__name__, "groups": optimiser.torchs.state_dict()["param_groups"], "others": _of_others(optimiser)}


def take_beside(optimiser: Optimiser, found: Mapping[str, Any]) -> None:
    """The optimizer takes what `beside` gave. Throws PenstockError where it is of other parameters or settings."""
    others, groups = (found.get(name) if isinstance(found, Mapping) else None for name in ("others", "groups"))
    _check_form({"state": others, "param_groups": groups})
    _take_groups(optimiser, groups)
    parameters = [parameter for group in optimiser.torchs.param_groups for parameter in group["params"]]
    optimiser.torchs.state.update({parameter: dict(others[i]) for i, parameter in enumerate(parameters) if i in others})


def _of_others(optimiser: Optimiser) -> dict[int, Any]:
    """The optimizer's own state of parameters that are not trained, by their numbers."""
    return {i: optimiser.torchs.state[parameter] for i, name, group in _parameters(optimiser)
            if name is None and optimiser.torchs.state.get(parameter := group["params"][i - group["first"]])}


def _steps_like(like: Any, steps: int) -> Any:
    """The number as a tensor or number of this kind."""
    return torch.full_like(like, steps) if isinstance(like, torch.Tensor) else type(like)(steps)


def loaded(optimiser: Optimiser, state: Mapping[str, Any], done: int) -> dict[str, torch.Tensor]:
    """The trainer's state, by name, as `state` says; the optimizer's groups take its learning rates. `done`: steps that the trainer has done.

    Throws PenstockError for another number of groups or parameters, for settings that the trainer's program does not have, for a state that
    lacks something, and for parameters that have done different numbers of steps.
    """
    _check_form(state)
    _take_groups(optimiser, state["param_groups"])
    values, steps = {}, set()
    for i, name, group in _parameters(optimiser):
        entry, parameter = state["state"].get(i, {}), group["params"][i - group["first"]]
        if name is None:
            if entry:
                optimiser.torchs.state[parameter] = dict(entry)
            continue
        kept = optimiser.kept(name, group)
        for key in kept.steps:
            steps.add(int(entry.get(key, 0)))
        if kept.tensors and not kept.steps:
            steps.add(max(1, done) if entry else 0)  # how many is not known; the first may be another step than those behind it
        for ours, theirs in kept.tensors.items():
            value, like = entry.get(theirs), kept.like.get(theirs, parameter)
            if entry and theirs not in entry:
                raise PenstockError(f'the optimizer\'s state has no "{theirs}" of "{name}"',
                                    hint=f"it is not the state of this {type(optimiser.torchs).__name__}")
            if value is not None and not isinstance(value, torch.Tensor):
                raise PenstockError(f'"{theirs}" of "{name}" is {value!r} in the optimizer\'s state, no tensor')
            values[f"{ours}:{name}"] = torch.zeros(like.shape, dtype=like.dtype) if value is None else value.to("cpu", like.dtype)
    if len(steps) > 1:
        raise PenstockError("the optimizer's parameters have done different numbers of steps", [", ".join(map(str, sorted(steps)))],
                            "a trainer's step updates all of them")
    return values | {"step": torch.tensor(step) for step in steps}


def _check_form(state: Any) -> None:
    """Throws PenstockError for what no optimizer's state_dict() gives: states come from files."""
    def need(is_so: bool, what: str) -> None:
        if not is_so:
            raise PenstockError(f"this is no state_dict() of an optimizer: {what}",
                                hint="optimizer.state_dict(), or a trainer's optimizer_state_dict()")
    need(isinstance(state, Mapping) and isinstance(state.get("state"), Mapping) and isinstance(state.get("param_groups"), (list, tuple)),
         "it has no state and param_groups")
    for group in state["param_groups"]:
        need(isinstance(group, Mapping) and isinstance(group.get("params"), (list, tuple)), "one of its param_groups has no list of params")
        need(isinstance(group.get("lr", 0.0), (int, float, torch.Tensor)), f"its lr is {group.get('lr')!r}")
    for i, entry in state["state"].items():
        need(isinstance(entry, Mapping), f"the state of parameter {i} is no dict")
        for key, value in entry.items():
            need(value is None or isinstance(value, (bool, int, float, str, list, tuple)) or isinstance(value, torch.Tensor) and not value.is_meta,
                 f'"{key}" of parameter {i} is {type(value).__name__}, not a tensor or number with a value')
            steps = isinstance(value, (int, float)) or isinstance(value, torch.Tensor) and value.numel() == 1
            need(key != "step" or steps, f"the steps of parameter {i} are no number")


def _parameters(optimiser: Optimiser) -> Iterable[tuple[int, str | None, Mapping[str, Any]]]:
    """Each parameter's number, its name (None: it is not trained), and its group, with the number of the group's first parameter."""
    first = 0
    for group in optimiser.torchs.param_groups:
        for i, parameter in enumerate(group["params"], first):
            yield i, optimiser.names.get(id(parameter)), {**group, "first": first}
        first += len(group["params"])


def _take_groups(optimiser: Optimiser, groups: list[Mapping[str, Any]]) -> None:
    own = optimiser.torchs.param_groups
    sizes, theirs = ([len(group["params"]) for group in each] for each in (own, groups))
    if sizes != theirs:
        raise PenstockError(f"the optimizer's state is of {theirs} parameters, group by group, the trainer's optimizer has {sizes}")
    for mine, group in zip(own, groups):
        before, after = optimiser.settings_of(mine), optimiser.settings_of({**mine, **group})
        differing = [key for key in before if before[key] != after[key]]
        if differing:
            key = differing[0]
            raise PenstockError(f"the optimizer's state has {key} = {after[key]}, the trainer's program {before[key]}",
                                hint="make the trainer with an optimizer of these settings; learning rates alone are taken over")
    for mine, group in zip(own, groups):
        mine.update({key: value for key, value in group.items() if key != "params"})
