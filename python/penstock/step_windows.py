# SPDX-License-Identifier: Apache-2.0
"""Several steps that one table orders, so that the pipeline is not drained between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from .errors import PenstockError
from .micro_batches import MicroBatches, name_in
from .optimisers import rates_of


class Window:
    """The batches of as many steps, all of one shape: `step(penstock.Window([batch, ...]))` does the steps and gives a loss for each.

    `rates`: the learning rates of each step, one for each group of the optimizer; None: all steps have those that the optimizer has.
    """

    def __init__(self, batches: Iterable[Any], rates: Sequence[Sequence[float]] | None = None) -> None:
        self._batches = list(batches)
        self.rates = None if rates is None else [torch.as_tensor(each, dtype=torch.float64).reshape(-1) for each in rates]
        if not self._batches:
            raise PenstockError("the window has no batch")
        if any(isinstance(batch, MicroBatches) for batch in self._batches):
            raise PenstockError("a window's batches are cut into equal micro-batches, and one is MicroBatches",
                                hint="give MicroBatches to a step by themselves")
        if self.rates is not None and len(self.rates) != len(self._batches):
            raise PenstockError(f"the window has {len(self._batches)} batches and learning rates for {len(self.rates)}",
                                hint="rates=[[0.1], [0.09]] for two steps")

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def __repr__(self) -> str:
        return f"Window of {len(self)}"

    def rates_or(self, usual: torch.Tensor) -> list[torch.Tensor]:
        """The rates of each step. Throws PenstockError where they are not as many as the usual ones, one for each group."""
        rates = [usual] * len(self) if self.rates is None else self.rates
        for number, each in enumerate(rates):
            if each.shape != usual.shape:
                raise PenstockError(f"step {number} of the window has {each.numel()} learning rates, the optimizer {usual.numel()} groups",
                                    hint="one for each group")
        return rates


def windows(batches: Iterable[Any], steps: int, scheduler: Any = None) -> Iterator[Window]:
    """The batches of a loader in windows of so many steps; the last may have fewer, and a batch of another shape begins a window of its own.

    `scheduler`, of torch.optim.lr_scheduler, is stepped behind each batch, so that each step of a window has the rates that a loop without windows
    would give it.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise PenstockError(f"windows of {steps!r} steps", hint="a whole number, at least 1")
    taken: list[Any] = []
    rates: list[list[float]] = []

    def window() -> Window:
        out = Window(taken, rates if scheduler is not None else None)
        taken.clear()
        rates.clear()
        return out
    for batch in batches:
        if taken and _shapes(batch) != _shapes(taken[0]):
            yield window()
        taken.append(batch)
        if scheduler is not None:
            rates.append(rates_of(scheduler.optimizer).tolist())
            scheduler.optimizer._opt_called = True  # the step comes with the window
            scheduler.step()
        if len(taken) == steps:
            yield window()
    if taken:
        yield window()


def rates_given(batch: Any, usual: torch.Tensor) -> dict[str, torch.Tensor]:
    """The learning rates as a training step on the batch reads them: of a window those of each step."""
    if not isinstance(batch, Window):
        return {"learning_rates": usual}
    each = batch.rates_or(usual)
    return {"learning_rates": each[0], **{name_in("learning_rates", step): rates for step, rates in enumerate(each)}}


def _shapes(batch: Any) -> list[Any]:
    leaves = pytree.tree_leaves(dict(batch) if isinstance(batch, Mapping) else batch)
    return [leaf.shape if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
