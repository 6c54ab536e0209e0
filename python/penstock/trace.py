# SPDX-License-Identifier: Apache-2.0
"""From a module and its call to what is exported of it: captured, read, checked, described, written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .arguments import Arguments
from .capture import Captured, capture
from .exported import Exported
from .header import Described, describe, state_name
from .joint import read_joint
from .marks import marks_of
from .refusals import check_joint, places_of_updates
from .sizes import Sizes
from .text import graph_text


def trace(module: torch.nn.Module, arguments: Arguments, loss: Callable | None, autocast: torch.dtype | None, reduction: str | None,
          dynamic: list[dict[int, Any]] | None, notes: Sequence[str]) -> Exported:
    """Exports the module called with `arguments`. `dynamic`: for each of their tensors the dims that vary."""
    captured = capture(module, arguments, loss, autocast, dynamic)
    joint, sizes = read_joint(captured.joint), Sizes()
    check_joint(captured.forward, joint, arguments.tensors)
    described = describe(type(module).__name__, captured, joint, arguments.tensors, sizes, reduction)
    text = graph_text(joint, marks_of(joint), described.inputs, described.outputs, sizes, captured.growth)
    places = {state_name(name): place for name, place in places_of_updates(captured.forward, joint).items()}
    return Exported(described.header, text, described.state, [*notes, *_notes(captured, described, arguments)], places)


def _notes(captured: Captured, described: Described, arguments: Arguments) -> list[str]:
    """Notes for the user: arguments that are not read, parameters that ask for a gradient and get none, losses that were added up."""
    read = {i["name"] for i in described.header["inputs"] if i["role"] in ("split", "whole")}
    unread = [f"the module does not read its argument {argument.name}" for argument in arguments.tensors if argument.name not in read]
    trained = {i["name"] for i in described.header["inputs"] if i.get("trained")}
    without = [state_name(name) for name, parameter in captured.parameters.items()
               if parameter.requires_grad and state_name(name) not in trained]
    notes = [f"the loss does not depend on {name}: it gets no gradient, as in PyTorch" for name in without]
    if captured.growth:
        notes += captured.growth.notes
    elif isinstance(described.header["samples"], int):
        notes.append("it cannot be told which numbers depend on how many samples there are: with twice as many, the module does not run, or by other ops")
    return unread + notes + captured.notes
