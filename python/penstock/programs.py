# SPDX-License-Identifier: Apache-2.0
"""The programs of a trainer: one for each kind of step and shape of batch, made when the first such batch comes."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from . import _core
from .calls import Calls
from .engine import told
from .errors import PenstockError
from .evaluation import loss_with_outputs
from .exports import Exports
from .micro_batches import Counter, MicroBatches
from .optimisers import Optimiser
from .placing import Plan
from .planned import Planned
from .state import State
from .step_windows import Window

log = logging.getLogger("penstock")

HINTS = {"gradients": "step.gradients(batch)", "evaluation": "step.evaluate(batch)"}
KEPT = 16  # programs of each kind, those used last


@dataclass(frozen=True)
class Ready:
    """A program that is loaded under a name, the tensors that it reads beside its state, and the modules at which its stages begin."""

    name: str
    kind: str
    program: Any
    ports: Mapping[str, Sequence[int]]  # their shapes
    begins: Sequence[str]
    counter: Counter | None = None  # of what the loss divides by, where micro-batches have shapes of their own
    over: int | None = None  # likewise, by how many samples

    def counts(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The ports of what the loss divides by; none where the step finds that by itself."""
        found = self.counter.of(tensors) if self.counter else {}
        return found if self.over is None else {**found, "count": torch.tensor(self.over)}


class Programs:
    """The loaded programs. Those of all kinds and shapes have one cut into stages, so that state stays where it is."""

    def __init__(self, calls: Calls, loss: Callable | None, exports: Exports, plan: Plan | Planned, table: Any,
                 optimiser: Optimiser | None, session: Any, state: State, deadline: float) -> None:
        self._calls, self._loss, self._exports, self._plan, self._table, self._optimiser = calls, loss, exports, plan, table, optimiser
        self._session, self._state, self._deadline = session, state, deadline
        self._evaluation: Exports | None = None
        self._placed: tuple[Any, str] | None = None  # Plan.placed
        self._begins = plan.split
        self._ready: dict[tuple, Ready] = {}  # those used last are last
        self._numbers = itertools.count()

    def of(self, kind: str, batch: Any, tensors: Mapping[str, torch.Tensor]) -> Ready:
        """The loaded program of this kind ("training", "gradients", "evaluation") for batches of this shape; `tensors` are the batch's by name.

        Throws PenstockError for a batch that the plan cannot cut, and for what cannot be exported, compiled or proven.
        """
        key = (kind, isinstance(batch, MicroBatches), steps_of(batch), str(getattr(batch, "table", None)), _shapes(tensors))
        if key in self._ready:
            self._ready[key] = self._ready.pop(key)
        else:
            self._make_room(kind)
            begin = time.perf_counter()
            self._ready[key] = self._of_classes(kind, batch) if isinstance(batch, MicroBatches) else self._of_equal(kind, batch, tensors)
            shapes = ", ".join(f"{each} {list(tensor.shape)}" for each, tensor in tensors.items())
            log.info("program for %s of %s in %.1f s", kind, shapes, time.perf_counter() - begin)
        return self._ready[key]

    def _make_room(self, kind: str) -> None:
        """Unloads the program of this kind that was not used for longest, where there are as many as are kept. One of each kind stays, and with it
        the state that no other kind has."""
        keys = [key for key in self._ready if key[0] == kind]
        for key in keys[:max(0, len(keys) + 1 - KEPT)]:
            told(lambda key=key: self._session.unload(self._ready[key].name))
            del self._ready[key]

    def _of_equal(self, kind: str, batch: Any, tensors: Mapping[str, torch.Tensor]) -> Ready:
        if isinstance(batch, Window) and kind != "training":
            raise PenstockError(f"a window is of training steps; for {kind} there is one batch at a time", hint=f"{HINTS[kind]} for each batch of it")
        plan = self._plan.for_samples(self._calls.samples(tensors)).with_split(self._begins)
        if kind == "training":
            plan = plan.for_steps(steps_of(batch))
        first = next(iter(batch)) if isinstance(batch, Window) else batch
        exports = self._evaluated(batch) if kind == "evaluation" else self._exports
        table = self._table if (plan.microbatches, plan.window) == (self._plan.microbatches, self._plan.window) else plan.table()

        def ready(parts: int) -> Ready:
            model = exports.model(self._calls.cut_into(parts), first, plan, {} if kind == "evaluation" else self._groups())
            return self._loaded(kind, exports, model, self._compile(kind, model, plan, table, parts))
        if table.together > 1:  # stages take as many of the table's micro-batches at once, which not all modules allow
            try:
                return ready(plan.microbatches // table.together)
            except PenstockError as error:
                log.info("stages that take several micro-batches together run them one after the other: %s", error)
        return ready(plan.microbatches)

    def _of_classes(self, kind: str, batch: MicroBatches) -> Ready:
        if kind == "evaluation":
            raise PenstockError("micro-batches of shapes of their own are not evaluated together", hint="evaluate each of them: step.evaluate(batch)")
        plan = self._plan.for_classes(len(batch)).with_split(self._begins)
        calls = self._calls.cut_into(1)
        shapes = [_shapes(calls.tensors(part)) for part in batch]
        first = {shape: part for shape, part in reversed(list(zip(shapes, batch, strict=True)))}
        kinds = list(dict.fromkeys(shapes))
        models = dict(zip(kinds, self._exports.models(calls, [first[kind] for kind in kinds], plan, self._groups()), strict=True))
        each = [models[shape] for shape in shapes]
        if each[0].carries:
            raise PenstockError("the module's buffers are decaying averages over micro-batches, as those of batch norms",
                                ["micro-batches of shapes of their own do not have them"], "give batches whose micro-batches are alike")
        make = _core.gradient_step if kind == "gradients" else self._training_step_of
        classes = [told(lambda model=model: make(model, model.samples, 1)) for model in models.values()]
        table = plan.table() if batch.table is None else batch.table
        program = plan.compile_classes(classes, [list(models).index(shape) for shape in shapes], table, self._options(classes[0], each[0]))
        counter = Counter(each, self._state.copies, self._deadline) if each[0].counts else None
        over = 1 if self._exports.first.header["loss"] == "sum" else sum(model.samples for model in each)
        return replace(self._loaded(kind, self._exports, each[0], program), counter=counter, over=over)

    def _loaded(self, kind: str, exports: Exports, model: Any, program: Any) -> Ready:
        self._begins = model.begins
        name = f"{kind} {next(self._numbers)}"
        told(lambda: self._session.load(name, program))
        self._state.adopt(exports)
        return Ready(name, kind, program, program.data, model.begins)

    def scheduled(self, kind: str, schedule: Any) -> Any:
        """The program of the example's shape under another schedule, which is not loaded."""
        plan = self._plan.with_schedule(schedule)
        return self._compile(kind, self._exports.example_model(plan, self._groups()), plan, plan.table(), plan.microbatches)

    def _groups(self) -> Mapping[str, int]:
        return self._optimiser.group_of if self._optimiser else {}

    def _evaluated(self, batch: Any) -> Exports:
        if self._evaluation is None:
            self._evaluation = self._exports.in_evaluation(self._calls, loss_with_outputs(self._loss), batch)
        return self._evaluation

    def _compile(self, kind: str, model: Any, plan: Plan | Planned, table: Any, parts: int) -> Any:
        """The program of a step that is cut into `parts` micro-batches."""
        if kind == "training":
            step = self._training_step(model, parts)
            return plan.compile(self._in_slices(step, model, table), table, self._options(step, model))
        make = _core.gradient_step if kind == "gradients" else _core.evaluation_step
        step = told(lambda: make(model, model.samples * parts, parts))

        def updating() -> Any:
            example = self._exports.example_model(plan, self._groups())
            return self._in_slices(self._training_step(example, plan.microbatches), example, table)
        return plan.compile_beside(self._in_slices(step, model, table), table, self._options(step, model), updating if self._optimiser else None)

    def _in_slices(self, step: Any, model: Any, table: Any) -> Any:
        """The step in the slices of the table's stages."""
        return step if table.slices == 1 else told(lambda: _core.in_slices(step, table, self._options(step, model), self._plan.lengths()))

    def _options(self, step: Any, model: Any) -> Any:
        """The options of all programs: the first step's."""
        if self._placed is None:
            self._placed = self._plan.placed(step, model)
        return self._placed[0]

    def split_text(self) -> str:
        """A text that says what lies along the axes over which tensors are split."""
        return self._placed[1] if self._placed else ""

    def _training_step(self, model: Any, parts: int) -> Any:
        return told(lambda: self._training_step_of(model, model.samples * parts, parts))

    def _training_step_of(self, model: Any, batch: int, microbatches: int) -> Any:
        optimiser = self._optimiser
        return _core.training_step(model, batch, microbatches, optimiser.name, optimiser.groups(), optimiser.texts(), self._plan.clip)


def steps_of(batch: Any) -> int:
    """How many steps of training the batch is for."""
    return len(batch) if isinstance(batch, Window) else 1


def _shapes(tensors: Mapping[str, torch.Tensor]) -> tuple:
    return tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items())
