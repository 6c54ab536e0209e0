"""How a step is cut and placed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import _core
from .engine import told
from .errors import PenstockError
from .files import read_text


@dataclass(frozen=True)
class Plan:
    """How a step is cut and placed; the fields are `trainer`'s arguments."""

    actors: int = 2
    schedule: str | Path = "1f1b"
    chunks: int | None = None
    microbatches: int = 8
    split: Sequence[str] | Mapping[str, Any] | None = None
    data: int = 1
    zero: int = 0
    recompute: bool = False
    clip: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)

    def table(self) -> Any:
        """The schedule's table. Throws PenstockError: no such schedule, or none of these sizes."""
        sizes = {"actors": self.actors, "microbatches": self.microbatches // self.data, "chunks": self.chunks_or_default()}
        for name in self.options:
            if name in sizes:
                raise PenstockError(f"options={{{name!r}: ...}}: {name} is an argument of its own", [], f"{name}={self.options[name]!r}")
        if self._is_table():
            if self.options:
                raise PenstockError(f"{self.schedule} is a table: it takes no {next(iter(self.options))}", [], "leave out options")
            path = Path(self.schedule)
            table = told(lambda: _core.parse_schedule(read_text(path), str(path)))
            if table.actors != self.actors:
                raise PenstockError(f"{path} is a table of {table.actors} actors, and actors is {self.actors}", ["each row is an actor"],
                                    f"actors={table.actors}")
            return self._of_one_step(table)
        if self.microbatches % self.data:
            raise PenstockError(f"data={self.data}: {self.data} devices share the micro-batches of a step, and {self.microbatches} cannot be shared equally", [],
                                f"microbatches={-(-self.microbatches // self.data) * self.data}")
        options = {**self.options, **sizes}
        if self._is_rules():
            text, name = (self.schedule, "the rules") if self._is_text() else (read_text(self.schedule), str(self.schedule))
            return self._of_one_step(told(lambda: _core.schedule_by_rules(text, name, options)))
        return self._of_one_step(told(lambda: _core.schedule(self.schedule, options)))

    def _of_one_step(self, table: Any) -> Any:
        if table.steps > 1:
            raise PenstockError(f"{self.schedule} is a table for {table.steps} training steps", ["a trainer is given one batch after the other"],
                                "a table for one step, or penstock train with a configuration")
        return table

    def _is_text(self) -> bool:
        """Whether the schedule is the text of rules, which has lines; no name has."""
        return isinstance(self.schedule, str) and "\n" in self.schedule

    def _is_rules(self) -> bool:
        return self._is_text() or str(self.schedule).endswith(".rules")

    def _is_table(self) -> bool:
        return not self._is_rules() and (isinstance(self.schedule, Path) or self.schedule.endswith(".csv"))

    def chunks_or_default(self) -> int:
        if self.chunks is not None:
            return self.chunks
        return 2 if dict(_core.schedules()).get(self.schedule, False) else 1

    def stages(self) -> int:
        if self.chunks is None and (self._is_table() or self._is_rules()):
            return self.table().stages
        return self.actors * self.chunks_or_default()

    def devices(self) -> int:
        """How many the step runs on."""
        return self.actors * self.data

    def settings(self) -> list[str]:
        """All that processes which train by the plan must have alike, a line each."""
        return [f"{name} = {value!r}" for name, value in vars(self).items()]

    def with_schedule(self, schedule: str | Path) -> Plan:
        return replace(self, schedule=schedule)

    def with_split(self, begins: Sequence[str]) -> Plan:
        return replace(self, split=begins)

    def for_samples(self, samples: int) -> Plan:
        """The plan, or for a batch that it cannot cut, such as a loader's last one, the plan of as many micro-batches as divide both."""
        parts = math.gcd(samples, self.microbatches)
        return self if self._is_table() or parts % self.data else replace(self, microbatches=parts)

    def for_classes(self, microbatches: int) -> Plan:
        """The plan for so many micro-batches of shapes of their own. Throws PenstockError where it has none."""
        if self.data > 1:
            raise PenstockError(f"data={self.data}: {self.data} devices would share each micro-batch", ["micro-batches of shapes of their own go to one device each"],
                                "data=1, or batches whose micro-batches are alike")
        if self._is_table() and microbatches != self.microbatches:
            raise PenstockError(f"{microbatches} micro-batches, and the table {self.schedule} is one of {self.microbatches}")
        return replace(self, microbatches=microbatches)

    def compile_classes(self, classes: Sequence[Any], shape_class: Sequence[int], table: Any) -> Any:
        """The program of steps of one micro-batch each; `shape_class`: which of them each micro-batch of the table has."""
        return told(lambda: _core.compile_classes(classes, shape_class, table, _core.CompileOptions(recompute=self.recompute)))

    def compile(self, step: Any, table: Any, updating: Callable[[], Any] | None = None) -> Any:
        """The program of a step of the engine whose stages are marked; `updating` gives another step, which updates the state that this one reads:
        each device holds what it holds in that one. Throws PenstockError where it cannot be placed so."""
        other = updating() if updating and self.zero else None
        return told(lambda: _core.compile(step, table, _core.CompileOptions([self.data] * self.actors, self.zero, self.recompute), other))

    def stages_text(self, begins: Sequence[str]) -> str:
        """The stages, which begin at these modules."""
        return "stages: " + ", ".join(["0 at the start", *(f"{i + 1} at {path}" for i, path in enumerate(begins))])


def schedules() -> list[str]:
    """The names of all schedules."""
    return [name for name, _ in _core.schedules()]
