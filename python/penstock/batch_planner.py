# SPDX-License-Identifier: Apache-2.0
"""Batches of samples that have lengths of their own, each cut into micro-batches and ordered by a planner."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from . import _core
from .engine import told
from .errors import PenstockError
from .micro_batches import MicroBatches

LEAST = {"fixed": 0, "linear": 1e-9, "quadratic": 1e-9, "memory": 0, "round": 1, "candidates": 1, "seed": 0}
WHOLE = ("round", "candidates", "seed")


class BatchPlanner:
    """Cuts each batch of a loader into micro-batches of few padding, and finds their order:

        planner = penstock.BatchPlanner(step, "dynapipe", collate=collator)
        for samples in DataLoader(dataset, batch_size=16, collate_fn=list):
            loss = step(planner(samples))

    The loss and its gradients are those of all samples together, as `MicroBatches` says.
    """

    def __init__(self, step: Any, planner: str = "dynapipe", *, collate: Callable[[list], Any], length: Callable[[Any], int | tuple[int, int]] | None = None,
                 fixed: float = 0.5, linear: float = 33.0, quadratic: float = 5e4, memory: float = 0.0, round: int = 8, candidates: int = 50,
                 split_backward: bool = False, recompute: bool = False, seed: int = 0) -> None:
        """`step`: the trainer, each of whose actors has one stage. `planner`: "dynapipe" or "searched" (docs/batches.md). `collate` makes a batch
        of the module's of a list of samples, padded to their longest. `length` gives a sample's tokens, or (input, target) for an encoder and a
        decoder; without it they are those of its "input_ids".

        A micro-batch of n samples of s tokens counts fixed + n (s / linear + s^2 / quadratic) milliseconds on a stage; lengths count as
        multiples of `round`. `memory`: tokens that live on a stage at once; 0 does not limit. `candidates`: tables that "searched" tries for a
        batch; `split_backward`, `recompute`: what its tables, and those of "dynapipe", may do. Throws PenstockError for a planner of other
        batches, and for a trainer that runs no such tables.
        """
        self._numbers = {"fixed": fixed, "linear": linear, "quadratic": quadratic, "memory": memory, "round": round, "candidates": candidates, "seed": seed}
        for name, value in self._numbers.items():
            whole = name in WHOLE
            if isinstance(value, bool) or not isinstance(value, numbers.Integral if whole else numbers.Real) or not math.isfinite(value) or value < LEAST[name]:
                raise PenstockError(f"{name}={value!r} is not what {name} takes", hint=f"a {'whole ' if whole else ''}number, at least {LEAST[name]}")
        told(lambda: _core.check_batch_planner(planner))
        _check_plan(step.plan)
        self.planner, self._actors, self._collate, self._length = planner, step.plan.actors, collate, length or _tokens
        self._may = (bool(split_backward), bool(recompute))

    def __call__(self, samples: Sequence[Any]) -> MicroBatches:
        """The samples of one step in the planned micro-batches. Throws PenstockError for a sample without a length, and for one that does not keep
        the limit of memory by itself."""
        samples = list(samples)
        lengths = [self._pair(number, sample) for number, sample in enumerate(samples)]
        found, table, seconds, peak = told(lambda: _core.plan_batch(self.planner, [(a, b or 0) for a, b in lengths], any(b is not None for _, b in lengths),
                                                                    self._actors, {name: float(value) for name, value in self._numbers.items()}, *self._may))
        return MicroBatches([self._collate([samples[i] for i in part]) for part in found], table, found, seconds, peak)

    def batches(self, loader: Iterable[Sequence[Any]]) -> Iterator[MicroBatches]:
        """Each batch of the loader, a list of samples, planned."""
        return map(self, loader)

    def _pair(self, number: int, sample: Any) -> tuple[int, int | None]:
        found = self._length(sample)
        pair = (*found, None)[:2] if isinstance(found, (tuple, list)) else (found, None)
        if not all(each is None or (isinstance(each, numbers.Integral) and not isinstance(each, bool)) for each in pair) or pair[0] is None:
            raise PenstockError(f"sample {number} has length {found!r}", hint="length gives a number of tokens, or (input, target)")
        return int(pair[0]), None if pair[1] is None else int(pair[1])


def _tokens(sample: Any) -> int:
    try:
        return len(sample["input_ids"])
    except (TypeError, KeyError, IndexError):
        raise PenstockError(f'a sample is a {type(sample).__name__}, which has no "input_ids"', hint="length=lambda sample: ..., its number of tokens") from None


def _check_plan(plan: Any) -> None:
    plan.for_classes(plan.microbatches)  # throws where it has no micro-batches of shapes of their own
    if frozen := plan.options.get("frozen"):
        raise PenstockError(f"the trainer's table has {len(frozen)} frozen in front of the trained stages, and a planned batch has a stage for each actor", [],
                            "leave out frozen: the forwards of frozen stages then stand in their actors' rows as others do")
    if plan.stages() != plan.actors:
        raise PenstockError(f"the trainer has {plan.stages()} stages on {plan.actors} actors, and a planned batch has a stage for each actor", [],
                            "chunks=1 and a schedule of one chunk: the order of each batch is planned anyway")
