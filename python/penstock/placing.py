# SPDX-License-Identifier: Apache-2.0
"""How a step is cut and placed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import _core
from .named_dims import Dims, axes_of
from .engine import told
from .errors import PenstockError
from .files import read_named
from .mesh import SPLITTING
from .tables import Schedule, called


NAMES = "penstock.schedules() lists the names; another text is the path of a table or of rules"


@dataclass(frozen=True)
class Plan:
    """How a step is cut and placed; the fields are `trainer`'s arguments."""

    actors: int = 2
    schedule: str | Path | Schedule = "1f1b"
    chunks: int | None = None
    microbatches: int = 8
    split: Sequence[str] | Mapping[str, Any] | None = None
    data: int = 1
    zero: int = 0
    recompute: bool | str = False
    clip: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    window: int = 1
    tensor: int = 1
    context: int = 1
    expert: int = 1
    layout: Mapping[str, str] = field(default_factory=dict)
    dims: Mapping[str, Dims] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)  # the user's, by axis
    order: Sequence[str] = SPLITTING  # of the axes over which tensors are split: the last varies fastest
    slices: int | Sequence[int] = 1  # of each sequence: how many, or lengths in these proportions
    sequence: Mapping[str, int] = field(default_factory=dict)  # by tensor of the batch, along which of its dims tokens lie

    def on_mesh(self, sizes: Mapping[str, int], said: Collection[str]) -> Plan:
        """The plan with as many actors and members of axes as a mesh says, in its order. Throws PenstockError where they are given otherwise too, `said`
        by the user or not as they are by default."""
        unset = Plan()
        for argument in sizes:
            if argument in said or getattr(self, argument) != getattr(unset, argument):
                raise PenstockError(f"mesh= and {argument}={getattr(self, argument)} both say how many members an axis has", [], f"leave out {argument}")
        return replace(self, **sizes, order=tuple(axis for axis in sizes if axis in SPLITTING))

    def of_table(self, said: Collection[str]) -> Plan:
        """The plan with the sizes of a `Schedule`, which has them itself. Throws PenstockError where others are given; `said` are those that the user
        gave."""
        if not isinstance(self.schedule, Schedule):
            return self
        table = self.schedule.validate()
        sizes = {"actors": table.actors, "microbatches": table.microbatches // table.steps * self.data, "window": table.steps}
        for name, number in sizes.items():
            if name in said and getattr(self, name) != number:
                raise PenstockError(f"{name} is {getattr(self, name)}, and {called(table)} is a table of {number}", ["a Schedule says itself how large it is"],
                                    f"leave out {name}")
        return replace(self, **sizes, slices=self.slices if "slices" in said else table.slices)

    def table(self) -> Any:
        """The schedule's table, for a window of steps. Throws PenstockError: no such schedule, or none of these sizes."""
        sizes = {"actors": self.actors, "microbatches": self.microbatches // self.data, "chunks": self.chunks_or_default()}
        for name in self.options:
            if name in sizes or name in ("window", "slices"):
                raise PenstockError(f"options={{{name!r}: ...}}: {name} is an argument of its own", [], f"{name}={self.options[name]!r}")
        if self._is_table():
            if self.options:
                raise PenstockError(f"{called(self.schedule)} is a table: it takes no {next(iter(self.options))}", [], "leave out options")
            table = self._read_table()
            if table.actors != self.actors:
                raise PenstockError(f"{called(self.schedule)} is a table of {table.actors} actors, and actors is {self.actors}", ["each row is an actor"],
                                    f"actors={table.actors}")
            return self._of_window(table)
        if self.microbatches % self.data:
            raise PenstockError(f"data={self.data}: {self.data} devices share the micro-batches of a step, and {self.microbatches} cannot be shared equally", [],
                                f"microbatches={-(-self.microbatches // self.data) * self.data}")
        options = {**self.options, **sizes, **{name: number for name, number in (("window", self.window), ("slices", self.in_slices())) if number > 1}}
        if self._is_rules():
            text, name = (self.schedule, "the rules") if self._is_text() else (read_named(self.schedule, NAMES), str(self.schedule))
            return self._of_window(told(lambda: _core.schedule_by_rules(text, name, options)))
        return self._of_window(told(lambda: _core.schedule(self.schedule, options)))

    def _read_table(self) -> Any:
        if isinstance(self.schedule, Schedule):
            return self.schedule.validate()._table
        path = Path(self.schedule)
        text = read_named(path, NAMES)
        return told(lambda: _core.parse_schedule(text, str(path)))

    def _of_window(self, table: Any) -> Any:
        kinds = {action[1] for row in _core.schedule_actions(table) for action in row}
        if "F" in kinds and not kinds & {"B", "I", "W"}:
            raise PenstockError(f"{called(self.schedule)} is a table for validation: it has forwards alone", ["a trainer's steps and gradients need backwards"],
                                "leave out forward_only; step.evaluate(batch) takes the forwards of the trainer's own table")
        if table.slices != self.in_slices():
            raise PenstockError(f"{called(self.schedule)} is a table for {table.slices} slices of each sequence, and slices is {self.in_slices()}", [],
                                f"slices={table.slices}")
        if table.steps != self.window:
            raise PenstockError(f"{called(self.schedule)} is a table for {table.steps} training steps, and window is {self.window}", [], f"window={table.steps}")
        return table

    def in_slices(self) -> int:
        """How many slices of a sequence a stage works on one after the other."""
        return self.slices if isinstance(self.slices, int) else len(self.slices)

    def lengths(self) -> list[int]:
        """The slices' lengths, in proportion; none: they are equal."""
        return [] if isinstance(self.slices, int) else list(self.slices)

    def sequence_of(self, parts: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """Along which dim of these tensors, a micro-batch's, tokens lie: as the user says, or dim 1 of the first. None where sequences are whole."""
        if self.in_slices() == 1:
            return {}
        return dict(self.sequence) or {next(iter(parts)): 1}

    def _is_text(self) -> bool:
        """Whether the schedule is the text of rules, which has lines; no name has."""
        return isinstance(self.schedule, str) and "\n" in self.schedule

    def _is_rules(self) -> bool:
        return not isinstance(self.schedule, Schedule) and (self._is_text() or str(self.schedule).endswith(".rules"))

    def _is_table(self) -> bool:
        return isinstance(self.schedule, Schedule) or (not self._is_rules() and (isinstance(self.schedule, Path) or self.schedule.endswith(".csv")))

    def chunks_or_default(self) -> int:
        if self.chunks is not None:
            return self.chunks
        return 2 if dict(_core.schedules()).get(self.schedule, False) else 1

    def stages(self) -> int:
        if self.chunks is None and (self._is_table() or self._is_rules()):
            return self.table().stages
        return self.actors * self.chunks_or_default() + len(self.options.get("frozen", ()))  # these are in front of the trained ones

    def devices(self) -> int:
        """How many the step runs on."""
        return self.actors * self.data * self.tensor * self.context * self.expert

    def settings(self) -> list[str]:
        """All that processes which train by the plan must have alike, a line each."""
        return [f"{name} = {value.csv if isinstance(value, Schedule) else value!r}" for name, value in vars(self).items()]

    def with_schedule(self, schedule: str | Path | Schedule) -> Plan:
        return replace(self, schedule=schedule)

    def with_split(self, begins: Sequence[str]) -> Plan:
        return replace(self, split=begins)

    def for_steps(self, steps: int) -> Plan:
        """The plan for a window of so many steps, fewer than its own where a loader ends. Throws PenstockError where it has none."""
        if steps > self.window:
            raise PenstockError(f"the window has {steps} batches, and the trainer's window is {self.window}",
                                hint=f"penstock.windows(loader, {self.window})" if self.window > 1 else f"penstock.trainer(..., window={steps})")
        if self._is_table() and steps != self.window:
            raise PenstockError(f"{steps} steps, and the table {called(self.schedule)} is one of {self.window}", [], f"a window of {self.window} batches")
        return replace(self, window=steps)

    def for_samples(self, samples: int) -> Plan:
        """The plan, or for a batch that it cannot cut, such as a loader's last one, the plan of as many micro-batches as divide both."""
        parts = math.gcd(samples, self.microbatches)
        return self if self._is_table() or parts % self.data else replace(self, microbatches=parts)

    def for_classes(self, microbatches: int) -> Plan:
        """The plan for so many micro-batches of shapes of their own. Throws PenstockError where it has none."""
        if self.in_slices() > 1:
            raise PenstockError(f"slices={self.slices}: slices are of sequences of one length", ["micro-batches of shapes of their own have others"],
                                "slices=1, or batches whose micro-batches are alike")
        if self.data > 1:
            raise PenstockError(f"data={self.data}: {self.data} devices would share each micro-batch", ["micro-batches of shapes of their own go to one device each"],
                                "data=1, or batches whose micro-batches are alike")
        if self._is_table() and (microbatches != self.microbatches or self.window > 1):
            raise PenstockError(f"{microbatches} micro-batches, and the table {called(self.schedule)} is one of {self.microbatches}")
        return replace(self, microbatches=microbatches, window=1)

    def compile_classes(self, classes: Sequence[Any], shape_class: Sequence[int], table: Any, options: Any) -> Any:
        """The program of steps of one micro-batch each; `shape_class`: which of them each micro-batch of the table has."""
        return told(lambda: _core.compile_classes(classes, shape_class, table, options))

    def placed(self, step: Any, model: Any) -> tuple[Any, str]:
        """The options with which all programs are compiled, of the engine's first step and its model, and what they say of axes: along one
        without dims what is split is found for this step. Throws PenstockError where nothing can be split."""
        recompute = "inputs" if self.recompute is True else self.recompute or "none"
        options = _core.CompileOptions([self.data] * self.actors, self.zero, getattr(_core.Recompute, recompute))
        axes = axes_of({axis: getattr(self, axis) for axis in self.order}, self.names, self.layout, self.dims)
        return options, told(lambda: options.split(step, model, axes, self.dims)) if axes else ""

    def compile(self, step: Any, table: Any, options: Any) -> Any:
        """The program of a training step of the engine whose stages are marked; `options`: what `placed` gave. Throws PenstockError where it cannot
        be placed so."""
        return told(lambda: _core.compile(step, table, options))

    def compile_beside(self, step: Any, table: Any, options: Any, updating: Callable[[], Any] | None) -> Any:
        """The program of a step that updates nothing; `updating` gives another step, which updates the state that this one reads: each device holds
        what it holds in that one."""
        other = updating() if updating and self.zero else None
        return told(lambda: _core.compile_beside(step, table, options, other))

    def stages_text(self, begins: Sequence[str]) -> str:
        """The stages, which begin at these modules."""
        return "stages: " + ", ".join(["0 at the start", *(f"{i + 1} at {path}" for i, path in enumerate(begins))])


def schedules() -> list[str]:
    """The names of all schedules."""
    return [name for name, _ in _core.schedules()]
