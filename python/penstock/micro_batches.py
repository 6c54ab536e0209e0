# SPDX-License-Identifier: Apache-2.0
"""A batch whose micro-batches have shapes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from . import _core
from .engine import told
from .errors import PenstockError
from .tensors import addresses, tensor_of


class MicroBatches:
    """A batch that is given micro-batch by micro-batch, each of shapes of its own: `step(penstock.MicroBatches([batch, ...]))`.

    Each one is what a batch is, with all of its samples. Where the module's loss divides by a number that the data says, as the mean over the
    targets that count does, it divides by that of all micro-batches together; any other loss is the mean over the samples of all.
    """

    def __init__(self, batches: Iterable[Any], table: Any = None, samples: Sequence[Sequence[int]] | None = None, seconds: float | None = None,
                 peak: float | None = None) -> None:
        """The rest is what a batch planner says of them: the engine's `table`, by which they run; which of the batch's samples each has; how many `seconds` the
        table takes; and the most tokens that live on a stage, `peak`. Without a table the trainer's schedule makes one."""
        self._batches, self.table, self.samples, self.seconds, self.peak = list(batches), table, samples, seconds, peak
        if not self._batches:
            raise PenstockError("there are no micro-batches")

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def __repr__(self) -> str:
        return f"MicroBatches of {len(self)}"


def name_in(name: str, microbatch: int) -> str:
    """The program's name of a tensor of one micro-batch."""
    return f"{name}.{microbatch}"


class Counter:
    """Finds the numbers by which the loss divides, in a step of its own on a device of its own."""

    def __init__(self, models: Sequence[Any], constants: Callable[[Iterable[str]], Mapping[str, torch.Tensor]], deadline: float) -> None:
        """`models`: of each micro-batch. `constants` gives tensors of the state by name."""
        step = told(lambda: _core.counting_step(models))
        self._inputs, self._constants = step.inputs, constants
        self._session = told(lambda: _core.Session(1, deadline, 1))
        told(lambda: self._session.load("counts", _core.compile(step, _core.schedule("1f1b", {"actors": 1, "microbatches": 1}), _core.CompileOptions())))

    def of(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The ports "count.0", ... of a step on these tensors."""
        given = {name: tensors[name] for name in self._inputs if name in tensors}
        packed, kept = addresses(given | self._constants(name for name in self._inputs if name not in tensors))
        report, late = told(lambda: self._session.step("counts", packed))
        del kept
        if late is not None:
            raise late
        return {name: tensor_of(*value) for name, value in report.outputs.items()}
