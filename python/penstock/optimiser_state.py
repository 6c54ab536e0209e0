"""The state that an optimiser keeps, in the form of torch.optim's state_dict()."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from .errors import PenstockError
from .optimisers import Optimiser

ADAM = {"first": "exp_avg", "second": "exp_avg_sq"}
MOMENTS = {"adamw": ADAM, "adam": ADAM, "sgd": {"first": "momentum_buffer"}, "nesterov": {"first": "momentum_buffer"}}


def state_dict(optimiser: Optimiser, read: Callable[[Iterable[str]], Mapping[str, torch.Tensor]]) -> dict[str, Any]:
    """As optimizer.state_dict() would be after these steps; `read` gives copies of the trainer's state by name."""
    moments = MOMENTS[optimiser.name]
    kept = {i: name for i, name, group in _parameters(optimiser) if name and (moments is ADAM or group.get("momentum", 0))}
    values = read([f"{ours}:{name}" for name in kept.values() for ours in moments])
    state = {i: {theirs: values[f"{ours}:{name}"] for ours, theirs in moments.items()} for i, name in kept.items()}
    if moments is ADAM:
        steps = read(["step"])["step"].float().reshape(())
        state = {i: {"step": steps.clone(), **entry} for i, entry in state.items()}
    return {"state": state, "param_groups": optimiser.torchs.state_dict()["param_groups"]}


def loaded(optimiser: Optimiser, state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The trainer's state, by name, as `state` says; the optimizer's groups take its learning rates.

    Throws PenstockError for another number of groups or parameters, for settings that the trainer's program does not have, for a state that
    lacks something, and for parameters that have done different numbers of steps.
    """
    _take_groups(optimiser, state["param_groups"])
    moments, values, steps = MOMENTS[optimiser.name], {}, set()
    for i, name, group in _parameters(optimiser):
        if name is None:
            continue
        entry, parameter = state["state"].get(i, {}), group["params"][i - group["first"]]
        steps.add(int(entry.get("step", 0)))
        for ours, theirs in moments.items():
            value = entry.get(theirs)
            if value is None and entry and moments is ADAM:
                raise PenstockError(f'the optimizer\'s state has no "{theirs}" of "{name}"', hint=f"it is not the state of a {optimiser.name}")
            zero = torch.zeros(parameter.shape, dtype=parameter.dtype)
            values[f"{ours}:{name}"] = zero if value is None else value.to("cpu", parameter.dtype)
    if len(steps) > 1:
        raise PenstockError("the optimizer's parameters have done different numbers of steps", [", ".join(map(str, sorted(steps)))],
                            "a trainer's step updates all of them")
    if moments is ADAM:
        values["step"] = torch.tensor(steps.pop())
    return values


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
