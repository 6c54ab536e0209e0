# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of `trainer`, their kinds and ranges, before anything is made of them."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch

from .errors import PenstockError
from .tables import Schedule
from .watch import check_kind

AT_LEAST = {"actors": 1, "chunks": 1, "microbatches": 1, "data": 1, "zero": 0, "threads": 1, "window": 1, "tensor": 1, "context": 1, "expert": 1, "seed": None}
AT_MOST = {"zero": 3}
OPTIONAL = ("actors", "microbatches", "window", "slices", "chunks", "split", "options", "layout", "dims", "mesh", "axes", "weights", "loss", "optimizer", "sequence")


def check_settings(module: Any, given: Mapping[str, Any]) -> None:
    """Throws PenstockError for an argument of the trainer that is of another kind than it says, or out of its range; `given` by name."""
    if not isinstance(module, torch.nn.Module):
        raise PenstockError(f"a {type(module).__name__} is no module", hint="the trainer takes a torch.nn.Module")
    check_kind(module)
    for name, value in given.items():
        if value is None and name in OPTIONAL:
            continue
        wanted = _wanted(name, value)
        if wanted:
            raise PenstockError(f"{name}={value!r} is not what {name} takes", hint=f"{name} is {wanted}")


def _wanted(name: str, value: Any) -> str | None:
    """The demand that the value does not meet, "a whole number from 1"; None where it meets all."""
    number = not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value)
    if name in AT_LEAST:
        least, most = AT_LEAST[name], AT_MOST.get(name)
        right = number and isinstance(value, numbers.Integral) and (least is None or value >= least) and (most is None or value <= most)
        return None if right else "a whole number" + ("" if least is None else f", at least {least}") + ("" if most is None else f" and at most {most}")
    right, text = {
        "recompute": (isinstance(value, bool) or value == "selective", 'True, False or "selective"'),
        "fuse": (isinstance(value, bool), "True or False"),
        "clip": (number and value >= 0, "a number that is not negative; 0 does not limit"),
        "deadline": (number and value > 0, "a number of seconds above 0"),
        "schedule": (isinstance(value, (str, Path, Schedule)), "a name of penstock.schedules(), a penstock.Schedule, the path of a table or of rules, or the text of rules"),
        "split": (isinstance(value, Mapping) or _are_texts(value), 'a list of paths of modules, ["layers.2"], or a split_spec'),
        "options": (_are_options(value), 'options of the schedule by name, numbers, lists of numbers, True or False: {"in_flight": 3}'),
        "layout": (isinstance(value, Mapping) and _are_texts([*value, *value.values()]), 'an axis by name of dim, {"heads": "tensor"}; "" leaves it whole'),
        "slices": (_are_whole(value if isinstance(value, (list, tuple)) else [value], 1), "how many slices, 4, or the proportions of their lengths, [5, 3, 2]"),
        "sequence": (isinstance(value, Mapping) and _are_texts([*value]) and _are_whole([*value.values()], 0), 'a dim by tensor of the batch, {"input_ids": 1}'),
        "mesh": (isinstance(value, Mapping), 'members by axis, {"data": 2, "tensor": 2}'),
        "axes": (isinstance(value, Mapping) and _are_texts([*value, *value.values()]), 'the axis by the name that it is to have, {"model": "tensor"}'),
        "dims": (isinstance(value, Mapping), "what penstock.dims gives"),
        "whole": (_are_texts(value), 'names of arguments, ("num_items_in_batch",)'),
        "dynamic": (isinstance(value, (bool, Mapping)), 'True, False or dims by argument, {"input_ids": (0, 1)}'),
        "weights": (isinstance(value, (str, Path)), "the path of a folder"),
        "device": (isinstance(value, str), 'the name of a device, "cpu"'),
        "loss": (callable(value), "a function of the module's output, or of that and the target"),
        "optimizer": (isinstance(value, torch.optim.Optimizer), "an optimizer of torch.optim"),
    }[name]
    return None if right else text


def _are_options(value: Any) -> bool:
    def is_number(each: Any) -> bool:
        return isinstance(each, numbers.Real) and abs(each) < 2**31

    return isinstance(value, Mapping) and all(
        isinstance(name, str) and (is_number(each) or (isinstance(each, (list, tuple)) and all(map(is_number, each)))) for name, each in value.items())


def _are_whole(values: Sequence[Any], least: int) -> bool:
    return bool(values) and all(isinstance(each, numbers.Integral) and not isinstance(each, bool) and each >= least for each in values)


def _are_texts(value: Any) -> bool:
    """Not a text itself, which is a sequence of letters."""
    return not isinstance(value, (str, bytes)) and isinstance(value, (Sequence, Set)) and all(isinstance(each, str) for each in value)
