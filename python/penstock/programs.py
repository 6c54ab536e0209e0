"""The programs of a trainer: one for each kind of step and shape of batch, made when the first such batch comes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import _core
from .calls import Calls
from .engine import told
from .evaluation import loss_with_outputs
from .exports import Exports
from .optimisers import Optimiser
from .placing import Plan
from .planned import Planned
from .state import State

log = logging.getLogger("penstock")


@dataclass(frozen=True)
class Ready:
    """A program that is loaded under a name, the tensors of a batch that it reads, and the modules at which its stages begin."""

    name: str
    kind: str
    program: Any
    ports: frozenset[str]
    begins: Sequence[str]


class Programs:
    """The loaded programs. Those of all kinds and shapes have one cut into stages, so that state stays where it is."""

    def __init__(self, calls: Calls, loss: Callable | None, exports: Exports, plan: Plan | Planned, table: Any,
                 optimiser: Optimiser | None, session: Any, state: State) -> None:
        self._calls, self._loss, self._exports, self._plan, self._table, self._optimiser = calls, loss, exports, plan, table, optimiser
        self._session, self._state = session, state
        self._evaluation: Exports | None = None
        self._begins = plan.split
        self._ready: dict[tuple, Ready] = {}

    def of(self, kind: str, batch: Any, tensors: Mapping[str, torch.Tensor]) -> Ready:
        """The loaded program of this kind ("training", "gradients", "evaluation") for batches of this shape; `tensors` are the batch's by name.

        Throws PenstockError for a batch that the plan cannot cut, and for what cannot be exported, compiled or proven.
        """
        key = (kind, *((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()))
        if key not in self._ready:
            begin = time.perf_counter()
            plan = self._plan.for_samples(self._calls.samples(tensors)).with_split(self._begins)
            exports = self._evaluated(batch) if kind == "evaluation" else self._exports
            model = exports.model(self._calls.cut_into(plan.microbatches), batch, plan, {} if kind == "evaluation" else self._groups())
            self._begins = model.begins
            table = self._table if plan.microbatches == self._plan.microbatches else plan.table()
            program = self._compile(kind, model, plan, table)
            name = f"{kind} {len(self._ready)}"
            told(lambda: self._session.load(name, program))
            self._state.adopt(exports)
            self._ready[key] = Ready(name, kind, program, frozenset(port[0] for port in model.ports), model.begins)
            shapes = ", ".join(f"{each} {list(tensor.shape)}" for each, tensor in tensors.items())
            log.info("program for %s of %s in %.1f s", kind, shapes, time.perf_counter() - begin)
        return self._ready[key]

    def scheduled(self, kind: str, schedule: Any) -> Any:
        """The program of the example's shape under another schedule, which is not loaded."""
        plan = self._plan.with_schedule(schedule)
        return self._compile(kind, self._exports.example_model(plan, self._groups()), plan, plan.table())

    def _groups(self) -> Mapping[str, int]:
        return self._optimiser.group_of if self._optimiser else {}

    def _evaluated(self, batch: Any) -> Exports:
        if self._evaluation is None:
            self._evaluation = self._exports.in_evaluation(self._calls, loss_with_outputs(self._loss), batch)
        return self._evaluation

    def _compile(self, kind: str, model: Any, plan: Plan | Planned, table: Any) -> Any:
        if kind == "training":
            return plan.compile(self._training_step(model, plan), table)
        make = _core.gradient_step if kind == "gradients" else _core.evaluation_step
        step = told(lambda: make(model, model.samples * plan.microbatches, plan.microbatches))

        def updating() -> Any:
            return self._training_step(self._exports.example_model(plan, self._groups()), plan)
        return plan.compile(step, table, updating if self._optimiser else None)

    def _training_step(self, model: Any, plan: Plan | Planned) -> Any:
        optimiser, batch = self._optimiser, model.samples * plan.microbatches
        return told(lambda: _core.training_step(model, batch, plan.microbatches, optimiser.name, optimiser.groups(), optimiser.texts(), plan.clip))
