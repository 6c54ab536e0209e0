# SPDX-License-Identifier: Apache-2.0
"""A module as it is evaluated: without dropout, with stored statistics, and with what it gives beside its loss."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .losses import call_loss, entries_of


@contextlib.contextmanager
def in_mode(module: torch.nn.Module, training: bool | None) -> Iterator[None]:
    """The module in training or evaluation mode; None: in the one that it is in. Every part is as it was afterwards."""
    before = [(part, part.training) for part in module.modules()]
    try:
        if training is not None:
            module.train(training)
        yield
    finally:
        for part, mode in before:
            part.training = mode


def loss_with_outputs(loss: Callable | None) -> Callable | None:
    """A loss function that gives the module's outputs too, a tensor as "output". One that has tensors of its own stays as it is, as the export
    knows these by it."""
    if loss is None or isinstance(loss, torch.nn.Module) and loss.state_dict():
        return loss

    def both(output: Any, target: Any = None) -> dict[str, Any]:
        named = {"output": output} if isinstance(output, torch.Tensor) else entries_of(output)
        return {**named, "loss": call_loss(loss, output, target)}
    return both
