# SPDX-License-Identifier: Apache-2.0
"""Schedules as tables in Python: by name with options, from files, or from lists of actions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core
from .costs import costs_of, numbers_of
from .engine import T, told
from .errors import PenstockError, check_is, did_you_mean
from .files import read_named, write_text

if TYPE_CHECKING:
    from typing import Self

    from .timeline import Timeline


class Action(NamedTuple):
    """One entry of a row. `kind` is "F", "B", "I", "W", "R", "U", "UNSHARD", ... (docs/glossary.md); `microbatch` None for kinds of none. `slice` and
    `block` are None where sequences are whole. So many micro-batches from `microbatch` on are taken `together`. `version`: of the parameters that it reads,
    None where the row says it, and predicted `ahead` updates later. A `fused` action may overlap with the next one of its row."""

    stage: int
    kind: str
    microbatch: int | None = None
    slice: int | None = None
    block: int | None = None
    together: int = 1
    version: int | None = None
    ahead: int = 0
    fused: bool = False

    def __str__(self) -> str:
        part = "".join(f".{number}" for number in (self.slice, self.block) if number is not None)
        read = "" if self.version is None else f"@{self.version}" + (f"+{self.ahead}" if self.ahead else "")
        return f"{self.stage}{part}{f'x{self.together}' if self.together > 1 else ''}{read}{self.kind}{'' if self.microbatch is None else self.microbatch}"


class Schedule:
    """A table: for each actor the ordered list of its actions. It does not change; equal ones have equal rows, whatever their names.

        Schedule("zb-h1", actors=4, microbatches=8)                       # a name of penstock.schedules(), with its options
        Schedule([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]])   # a list for each actor
        Schedule.read("mine.csv"), Schedule.read("mine.rules", actors=4)  # files
        Schedule.parse("0F0,0B0\\n1F0,1B0\\n")                              # their text

    Options of names and rules are those of `penstock schedule`: actors [2], microbatches [8], chunks, slices, window, group, in_flight, unit, transfers,
    split_backward, forward_only, ...; `options()` lists them. Rows have texts ("1F0"), `Action`s or tuples (stage, kind, microbatch).
    `feeds`, of rows: which stages feed which, [(0, 2), (1, 2)], where they are no chain. `name` is what messages and pictures call it.

    Throws PenstockError: an unknown name or option (the nearest is named), options that do not go together, text that is no action. Whether lists and
    files are a whole table is checked by `validate`, and wherever the table is simulated, trained by or saved.
    """

    def __init__(self, what: str | Iterable[Iterable[str | Action | tuple]], *, feeds: Iterable[tuple[int, int]] | None = None, name: str = "",
                 **options: Any) -> None:
        check_is("name", name, str, "a text")
        if isinstance(what, Schedule):
            name, what = name or what.name, what.rows
        if isinstance(what, str):
            if feeds is not None:
                raise PenstockError("feeds= is of rows", [f"{what!r} is taken as a name"], "Schedule([[...], [...]], feeds=[(0, 1)])")
            if "\n" in what or "," in what or what.endswith((".csv", ".rules")):
                raise PenstockError(f"{what!r} is no name of a schedule", [], "Schedule.read(path) reads a file, Schedule.parse(text) its text")
            given = checked_options(options)
            self._table = said(lambda: _core.schedule(what, given))
        else:
            if not isinstance(what, Iterable):
                raise PenstockError(f"{what!r} is no schedule", hint='a name, "1f1b", or a list of actions for each actor, [["0F0", "0B0"]]')
            if options:
                raise PenstockError(f"{next(iter(options))}={next(iter(options.values()))!r}: rows say themselves what a table has", [],
                                    "options are of names and of files of rules")
            edges = "" if feeds is None else ",".join(["#feeds", *(f"{a}>{b}" for a, b in feeds)]) + "\n"
            text = edges + "".join(",".join(_cells(row, number)) + "\n" for number, row in enumerate(what))
            self._table = told(lambda: _core.parse_schedule(text, name or "the rows"))
        if name:
            self._table = _core.named_schedule(self._table, name)

    @classmethod
    def _of(cls, table: Any, name: str = "") -> Self:
        """Wraps a table of the engine's."""
        out = cls.__new__(cls)
        out._table = _core.named_schedule(table, name) if name else table
        return out

    @classmethod
    def parse(cls, text: str, name: str = "", *, costs: Any = None, **options: Any) -> Self:
        """Reads the text of a CSV file, as str() gives it, or of rules ("penstock rules 1 ..."), which take options and make the table by their own times or, where
        they are given, by `costs` as `penstock.simulate` takes them. Throws PenstockError with row and cell, or line and column."""
        check_is("text", text, str, "that of a table or of rules")
        where = name or ("the rules" if _are_rules(text) else "the table")
        if _are_rules(text):
            given = checked_options(options)
            if costs is None:
                return cls._of(said(lambda: _core.schedule_by_rules(text, where, given)), name)
            numbers = numbers_of(costs_of(costs, {}), actors=given.get("actors", 2))
            return cls._of(said(lambda: _core.schedule_by_rules_and_costs(text, where, given, numbers)), name)
        if costs is not None:
            raise PenstockError(f"{where} is a table, which no costs change", hint="leave out costs, or simulate it under them")
        if options:
            raise PenstockError(f"{where} says itself how many actors, stages and micro-batches it has", [], f"leave out {', '.join(options)}")
        return cls._of(told(lambda: _core.parse_schedule(text, where)), name)

    @classmethod
    def read(cls, path: str | os.PathLike, *, costs: Any = None, **options: Any) -> Self:
        """Reads a file: a table as CSV, Penstock's or torch.distributed.pipelining's, or rules, which take options and costs as `parse` does. Throws
        PenstockError."""
        return cls.parse(read_named(path, 'a name is made by Schedule("1f1b", actors=4)'), str(path), costs=costs, **options)

    @staticmethod
    def options() -> list[str]:
        """The names of the options that schedules by name take; which of them one takes, `penstock.schedule_infos()` says."""
        return list(_core.schedule_option_names())

    # --- what it has

    def _facts(self) -> tuple:
        return _core.schedule_facts(self._table)

    @property
    def name(self) -> str:
        return self._facts()[0]

    @property
    def actors(self) -> int:
        """How many rows it has."""
        return self._facts()[1]

    @property
    def stages(self) -> int:
        """How many stages the model is cut into."""
        return self._facts()[2]

    @property
    def slices(self) -> int:
        """How many slices of each sequence go through a stage one after the other; 1: sequences are whole."""
        return self._facts()[3]

    @property
    def microbatches(self) -> int:
        """How many micro-batches all its steps have together."""
        return self._facts()[4]

    @property
    def steps(self) -> int:
        """For how many training steps it is (the option `window`)."""
        return self._facts()[5]

    @property
    def rows(self) -> list[list[str]]:
        """For each actor its actions as texts: "1F0"; "(0F3;1B2)OVERLAP_F_B" for a fused pair."""
        lines = [line for line in self.csv.splitlines() if not line.startswith("#")]
        return [line.split(",") if line else [] for line in lines]

    @property
    def actions(self) -> list[list[Action]]:
        """For each actor its actions."""
        whole = self.slices == 1
        of_stages = ("U", "UNSHARD", "RESHARD", "REDUCE_GRAD")

        def action(stage: int, kind: str, microbatch: int, slice_: int, block: int, together: int, version: int, ahead: int, fused: bool) -> Action:
            said_of = [None if number < 0 else number for number in (microbatch, block, version)]
            return Action(stage, kind, said_of[0], None if whole or kind in of_stages else slice_, said_of[1], together, said_of[2], ahead, fused)
        return [[action(*each) for each in row] for row in _core.schedule_actions(self._table)]

    @property
    def csv(self) -> str:
        """The table as CSV, a line for each actor; `parse` reads it back."""
        return str(self._table)

    # --- what it does

    def validate(self) -> Schedule:
        """The schedule itself. Throws PenstockError where it is no whole table (an action is missing or there twice) or could never end, with row, cell
        and the actions."""
        told(lambda: _core.validate_schedule(self._table))
        return self

    def simulate(self, costs: Any = None, **numbers: Any) -> Timeline:
        """`penstock.simulate` of this schedule."""
        from .simulation import simulate

        return simulate(self, costs, **numbers)

    def draw(self) -> str:
        """The table over time as text, a line for each actor, where F, I and W take one slot and B two."""
        return told(lambda: _core.draw_schedule(self.validate()._table))

    def save(self, path: str | os.PathLike, **how: Any) -> None:
        """Writes the table (`.csv`), or its timeline where F takes 1 and B 2, as `Timeline.save` does. Throws PenstockError for another ending."""
        if str(path).endswith(".csv"):
            if how:
                raise PenstockError(f"{next(iter(how))}= is of pictures, and {path} is a table", hint="x.svg or x.pdf")
            write_text(path, self.validate().csv)
            return
        self.simulate().save(path, **how)

    def _repr_svg_(self) -> str | None:
        """Its timeline where F takes 1 and B 2; None of what is no whole table: then a notebook shows its line of text."""
        try:
            return self.simulate().svg()
        except PenstockError:
            return None

    def __str__(self) -> str:
        return self.csv

    def __repr__(self) -> str:
        sliced = f" of {self.slices} slices" if self.slices > 1 else ""
        window = f", {self.steps} steps" if self.steps > 1 else ""
        return f"<penstock.Schedule {self.name or 'of rows'}: {self.actors} actors, {self.stages} stages{sliced}, {self.microbatches} micro-batches{window}>"

    def __eq__(self, other: object) -> bool:
        return self.csv == other.csv if isinstance(other, Schedule) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.csv)

    def __reduce__(self) -> tuple:
        return Schedule.parse, (self.csv, self.name)


def schedule_infos() -> list[dict[str, Any]]:
    """A row for each schedule by name: "name", "summary" (a line), "chunked" (whether it takes chunks), "takes" (other options of its own),
    "orders_slices" (whether it orders slices itself)."""
    columns = ("name", "summary", "chunked", "takes", "orders_slices")
    infos = [dict(zip(columns, row)) for row in _core.schedule_infos()]
    return [{**info, "takes": [flag.removeprefix("--").replace("-", "_") for flag in info["takes"]]} for info in infos]


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as the engine takes them: whole numbers, flags, lists of numbers; one number is a list where lists are taken. Throws PenstockError for
    names that there are not."""
    known = _core.schedule_option_names()
    out: dict[str, Any] = {"microbatches": 8}  # as `trainer` has them
    for name, value in options.items():
        if name not in known:
            raise PenstockError(f"schedules have no option {name!r}", [], did_you_mean(name, known) or f"there are {', '.join(known)}")
        value = value.tolist() if hasattr(value, "tolist") else value  # NumPy's
        if value is None:
            continue
        values = value if known[name] and isinstance(value, Sequence) and not isinstance(value, str) else [value]
        if not all(isinstance(each, Real) and abs(each) < 2**31 for each in values):
            wanted = "numbers below 2^31" if known[name] else "a number below 2^31, True or False where it is a flag"
            raise PenstockError(f"{name}={value!r} is not what {name} takes", hint=f"{name} is {wanted}")
        if known[name]:
            out[name] = [float(each) for each in values]
        elif isinstance(value, bool) or not hasattr(value, "__index__"):
            out[name] = value
        else:
            out[name] = value.__index__()
    return out


def said(call: Callable[[], T]) -> T:
    """The call's result; what an error says of flags is said of arguments."""
    try:
        return told(call)
    except PenstockError as error:
        raise PenstockError(without_flags(error.what), map(without_flags, error.details), without_flags(error.hint)) from None


def without_flags(text: str) -> str:
    """The text with options as arguments in place of flags: "--in-flight 3" is in_flight=3."""
    flags = "|".join(sorted((name.replace("_", "-") for name in _core.schedule_option_names()), key=len, reverse=True))
    return re.sub(rf"--({flags})\b(?: (\d[\d.,]*))?", lambda found: found[1].replace("-", "_") + (f"={found[2]}" if found[2] else ""), text)


def as_schedule(what: Any, **options: Any) -> Schedule:
    """A schedule of whatever names one: itself, a name, a path of a table or of rules, or rows."""
    if isinstance(what, Schedule):
        if options:
            raise PenstockError(f"{called(what)} is a table, which says itself how large it is", [], f"leave out {', '.join(options)}, or give its name")
        return what
    if isinstance(what, Path) or (isinstance(what, str) and what.endswith((".csv", ".rules"))):
        return Schedule.read(what, **options)
    return Schedule(what, **options)


def called(schedule: Any) -> str:
    """A schedule's name, path or text of rules, for messages."""
    return (schedule.name or repr(schedule)) if isinstance(schedule, Schedule) else str(schedule)


def _are_rules(text: str) -> bool:
    return text.lstrip().startswith("penstock rules")


def _cells(row: Iterable[Any], actor: int) -> list[str]:
    """The cells of an actor's row. Throws PenstockError for what is no action."""
    if isinstance(row, str) or not isinstance(row, Iterable):
        raise PenstockError(f"actor {actor} has the row {row!r}, a {type(row).__name__}", ["a row is a list of actions"], '["0F0", "0B0"]; Schedule.parse reads the text of a file')
    cells: list[str] = []
    fused: list[str] = []
    for cell in row:
        if isinstance(cell, tuple) and not isinstance(cell, Action):
            if not 2 <= len(cell) <= len(Action._fields):
                raise PenstockError(f"actor {actor}: {cell!r} is no action", hint='(stage, kind, microbatch): (0, "F", 3)')
            cell = Action(*cell)
        if not isinstance(cell, (str, Action)) or "," in str(cell) or "\n" in str(cell):
            raise PenstockError(f"actor {actor}: {cell!r} is no action", hint='"0F3", or (0, "F", 3)')
        fused.append(str(cell))
        if isinstance(cell, Action) and cell.fused:
            continue
        cells.append(fused[0] if len(fused) == 1 else f"({';'.join(fused)})OVERLAP_F_B")
        fused = []
    if fused:
        raise PenstockError(f"actor {actor}: its last action, {fused[-1]}, is fused with none behind it", hint="fused=True is of the first of a pair")
    return cells
