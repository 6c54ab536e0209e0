# SPDX-License-Identifier: Apache-2.0
"""The random draws of a step, for PyTorch: eager ops get the masks that the devices draw by counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import _core
from .errors import PenstockError


class SameDraws(TorchDispatchMode):
    """While it is entered, dropout and bernoulli_ drop what a trainer's `gradients` drops of these samples.

    `samples` of the batch begin with number `first`; `whole`: they are all that a micro-batch has, so that one draw may be for all of them.
    """

    def __init__(self, samples: int, first: int, seed: int, whole: bool) -> None:
        super().__init__()
        self._samples, self._first, self._seed, self._whole, self._number = samples, first, seed, whole, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name, kwargs = func._schema.name, kwargs or {}
        if name == "aten::native_dropout":
            x, p = args[:2]
            kept = self._kept(x.shape, p)
            return x * kept / (1 - p), kept
        if func is torch.ops.aten.bernoulli_.float:
            return args[0].copy_(self._kept(args[0].shape, 1 - (args[1] if len(args) > 1 else kwargs.get("p", 0.5))))
        if func is torch.ops.aten.bernoulli.p:
            return self._kept(args[0].shape, 1 - args[1]).to(args[0].dtype)
        if torch.Tag.nondeterministic_seeded in func.tags and _probability(func, args, kwargs) != 0:
            raise PenstockError(f"{name} draws other numbers here than in PyTorch", hint="compare without it: module.eval(), or a probability of 0")
        return func(*args, **kwargs)

    def _kept(self, shape: Sequence[int], p: float) -> torch.Tensor:
        """The mask of the next random op."""
        number, self._number = self._number, self._number + 1
        by_sample = len(shape) > 0 and shape[0] > 0 and shape[0] % self._samples == 0
        if not by_sample and not self._whole:
            raise PenstockError(f"a draw of shape {list(shape)} is one for each micro-batch",
                                hint="in_parts=True runs one micro-batch after the other")
        rows = self._samples if by_sample else 1
        width = torch.Size(shape).numel() // rows
        kept = _core.kept(p, width, self._first, rows, self._seed, 0, number)
        return torch.frombuffer(kept, dtype=torch.bool).reshape(shape) if kept else torch.empty(shape, dtype=torch.bool)


def _probability(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The probability with which the op drops elements; None where it draws and says none."""
    for argument, value in zip(func._schema.arguments, [*args, *[None] * len(func._schema.arguments)]):
        if argument.name in ("p", "dropout_p"):
            given = kwargs.get(argument.name, value)
            return argument.default_value if given is None else given
    return None
