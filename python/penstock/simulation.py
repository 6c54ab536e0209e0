# SPDX-License-Identifier: Apache-2.0
"""Simulated steps of tables, and tables compared: by hand, all of them, or over ranges of options."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

from . import _core
from .costs import Costs, costs_of, numbers_of, plain
from .engine import told
from .errors import PenstockError, check_is, did_you_mean
from .profiling import Profile
from .rows import Rows
from .tables import Schedule, as_schedule, checked_options, schedule_infos, without_flags
from .timeline import Timeline

if TYPE_CHECKING:
    from typing import Unpack

AnyCosts = Costs | Mapping[str, Any] | str | os.PathLike | Profile
AnySchedule = Schedule | str | os.PathLike | Iterable[Iterable[Any]]
LARGEST = 1 << 14  # actors x micro-batches x chunks


def simulate(schedule: AnySchedule, costs: AnyCosts | None = None, **numbers: Unpack[Costs]) -> Timeline:
    """The step of a table over time, under costs and links: `simulate(schedule, forward=1, backward=3, latency=0.5)`, or a dict of them, `penstock.Costs`,
    shared by several calls; numbers beside it go before its own. The path of what `penstock profile` measured is costs too, in seconds.

    `schedule` is a `Schedule`, a name (with two actors and eight micro-batches), a path, or rows. A path of rules makes its table by measured costs.
    Figures are those of `penstock simulate`, to the bit.

    Throws PenstockError: a table that is not whole or could never end, unknown costs (the nearest are named) and what they do not fit.
    """
    given = costs_of(costs, numbers)
    measured = "measured" in given and isinstance(schedule, (str, os.PathLike)) and str(schedule).endswith(".rules")
    table = Schedule.read(schedule, costs=given) if measured else as_schedule(schedule)
    engine = numbers_of(given, actors=table.actors, stages=table.stages, slices=table.slices)
    step = told(lambda: _core.simulate_table(table._table, engine))
    return Timeline(step.timeline, step.figures, step.explain, Schedule._of(step.schedule))


def compare_schedules(schedules: Iterable[AnySchedule] | None = None, *, actors: int = 2, microbatches: int = 8, chunks: int = 1,
                      activation_limit: float | None = None, allow: Sequence[str] | None = None, costs: AnyCosts | None = None,
                      **numbers: Unpack[Costs]) -> Rows:
    """Schedules side by side under the same costs and links, the fastest first; then those beyond the memory limit, then those that were refused.

    `schedules`: names and tables; without them all that there are by name, each with the options of its own that a search tries, of which `chunks` (stages of
    an actor) are 2 or 1 where it does not take those asked for. Names and rules are made for so many `actors` and `microbatches`; a table of another size is
    a refused row, as other work does not compare.
    `activation_limit`: micro-batches' activations, of an actor's whole share, that an actor may hold at once. `allow`: what may keep a table within it,
    "recompute" and "offload"; without it, what has a time among the costs.

    A row has "name", "title" (with options), "chunks", "makespan", "bubble", "peak_live" (of the fullest actor), "transfers", "copies" (of each stage's
    parameters), "fits", "refused" (why there is no such table, else ""), and "schedule". `rows.best()["schedule"]` trains.

    It is not called `compare`, which holds a module's schedules against each other by PyTorch's graphs (`penstock.compare`).
    Throws PenstockError for a name that there is not and as `simulate` does.
    """
    given = costs_of(costs, numbers)
    allowed = _allowed(allow, given)
    check_limit(activation_limit)
    if schedules is None:
        check_size(actors, microbatches, chunks, 'compare_schedules(["1f1b", "zb-h1"], ...) looks at these alone')
    shape = {"actors": actors, "microbatches": microbatches}
    Schedule("sequential", actors=actors, microbatches=microbatches, chunks=chunks)  # throws where these are wrong
    tables = [table for what in ([None] if schedules is None else _as_list(schedules)) for table in _tables(what, shape, chunks)]
    rows = [_row(*table, given, activation_limit, allowed) for table in tables]
    return Rows(sorted(rows, key=lambda row: (bool(row["refused"]), not row["fits"], row["makespan"] or 0.0, row["peak_live"] or 0.0)))


def sweep(schedules: AnySchedule | Sequence[AnySchedule], *, costs: AnyCosts | None = None, **axes: Any) -> Rows:
    """The figures of schedules over ranges of options and of costs: `sweep(["1f1b", "zb-h1"], actors=[2, 4, 8], microbatches=[8, 16], latency=[0, 0.5])`.

    Each axis is an option of schedules by name or a number of `Costs`; a list is its values, anything else one value (of options that are lists themselves
    give a list of lists). Rows are in the order of the axes, the last varies fastest. A row has "name", each axis, "makespan", "bubble", "lower_bound",
    "busy" and "peak_live" (of the busiest and the fullest actor), "refused" (why there is no such table, else "") and "schedule".

    Throws PenstockError for an axis that there is not (the nearest is named), and for names that there are not.
    """
    options, given = set(_core.schedule_option_names()), set(Costs.__annotations__)
    for axis in axes:
        if axis not in options | given:
            raise PenstockError(f"there is nothing called {axis!r} to sweep over", ["axes are options of schedules, and costs"],
                                did_you_mean(axis, options | given) or f"options: {', '.join(sorted(options))}")
    base = costs_of(costs, {})
    values = [value if isinstance(value, (list, tuple, range)) else [value] for value in map(plain, axes.values())]
    out = Rows()
    for what in _as_list(schedules):
        _check_name(what)
        for point in itertools.product(*values):
            chosen = dict(zip(axes, point))
            own = {name: value for name, value in chosen.items() if name in options}
            out.append({"name": _name(what), **chosen, **_figures(what, own, {**base, **{name: value for name, value in chosen.items() if name in given}})})
    return out


def _figures(what: AnySchedule, options: Mapping[str, Any], costs: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one point; costs that are wrong are an error, options that a schedule does not take a row."""
    given = costs_of(None, costs)
    try:
        table = as_schedule(what, **options)
    except PenstockError as error:
        return {"makespan": None, "bubble": None, "lower_bound": None, "busy": None, "peak_live": None, "refused": error.what, "schedule": None}
    step = simulate(table, given)
    return {"makespan": step.makespan, "bubble": step.bubble, "lower_bound": step.lower_bound, "busy": max(step.busy), "peak_live": max(step.peak_live),
            "refused": "", "schedule": table}


def _as_list(schedules: Any) -> list[Any]:
    """Rows of one table are a list too, of lists."""
    if not isinstance(schedules, (Iterable, os.PathLike, Schedule)):
        raise PenstockError(f"{schedules!r} names no schedules", hint='a list of names and tables, ["1f1b", "zb-h1"]')
    single = isinstance(schedules, (str, os.PathLike, Schedule)) or all(isinstance(each, (list, tuple)) and each and not isinstance(each[0], (list, tuple))
                                                                       for each in schedules)
    return [schedules] if single else list(schedules)


def _name(what: Any) -> str:
    return what.name if isinstance(what, Schedule) else str(what) if isinstance(what, (str, os.PathLike)) else "rows"


def _check_name(what: Any) -> None:
    names = [info["name"] for info in schedule_infos()]
    if isinstance(what, str) and what not in names and not what.endswith((".csv", ".rules")):
        raise PenstockError(f"there is no schedule {what!r}", [], did_you_mean(what, names) or "penstock.schedules() lists them")


def check_size(actors: Any, microbatches: Any, chunks: Any, hint: str) -> None:
    """Throws PenstockError where all schedules by name together would be too large to look at: they take some seconds at this size."""
    numbers = [number for number in (actors, microbatches, chunks) if isinstance(number, int)]
    if math.prod(numbers) > LARGEST:
        raise PenstockError(f"a table of {actors} actors, {microbatches} micro-batches and {chunks} chunks is too large for all schedules by name",
                            [f"the product may be up to {LARGEST}"], hint)


def check_limit(activation_limit: Any) -> None:
    if activation_limit is not None and (isinstance(activation_limit, bool) or not isinstance(activation_limit, Real) or not activation_limit > 0):
        raise PenstockError(f"activation_limit={activation_limit!r}", hint="micro-batches' activations that an actor holds, above 0; None does not limit")


def _allowed(allow: Sequence[str] | None, costs: Mapping[str, Any]) -> tuple[str, ...]:
    """The means by which a table may be kept within a limit of memory."""
    if allow is None:
        return tuple(name for name in ("recompute", "offload") if name in costs)
    check_is("allow", allow, Iterable, '"recompute", "offload", or a list of these')
    for name in [allow] if isinstance(allow, str) else allow:
        if name not in ("recompute", "offload"):
            raise PenstockError(f"allow has {name!r}", [], did_you_mean(name, ("recompute", "offload")) or 'it may have "recompute" and "offload"')
    return (allow,) if isinstance(allow, str) else tuple(allow)


def search_numbers(activation_limit: float | None, allowed: Sequence[str], **limits: Any) -> Any:
    """The engine's form of the limits of tables, and of what may keep them: checked already."""
    out = _core.SearchNumbers()
    out.activation_limit = math.inf if activation_limit is None else float(activation_limit)
    out.recompute, out.offload = "recompute" in allowed, "offload" in allowed
    for name, value in limits.items():
        setattr(out, name, value)
    return out


def _tables(what: Any, shape: Mapping[str, int], chunks: int) -> list[tuple[str, str, int, Schedule | None, str]]:
    """(name, title, chunks, table, why there is none) of a name, of None: all names, or of a table."""
    if what is not None:
        _check_name(what)
    if what is not None and not (isinstance(what, str) and not what.endswith((".csv", ".rules"))):
        return [_own_table(what, shape, chunks)]
    found: dict[str, list] = {}
    refused: dict[str, list] = {}
    for tried in dict.fromkeys((chunks, 2, 1)):
        now: dict[str, list] = {}
        for name, title, table, why in _core.registered_tables(checked_options({**shape, "chunks": tried})):
            title = without_flags(title)
            if why:
                refused.setdefault(name, [(name, title, tried, None, without_flags(why))])
            elif name not in found:
                now.setdefault(name, []).append((name, title, tried, Schedule._of(table), ""))
        found |= now
    every = [each for rows in found.values() for each in rows] + [each for name, rows in refused.items() if name not in found for each in rows]
    own = [each for each in every if what is None or each[0] == what]
    return own or [(what, what, chunks, None, "it orders slices: give a Schedule with slices=")]


def _own_table(what: Any, shape: Mapping[str, int], chunks: int) -> tuple[str, str, int, Schedule | None, str]:
    """The same of a table; one of another size does other work, whose time says nothing beside the others'."""
    rules = isinstance(what, (str, os.PathLike)) and str(what).endswith(".rules")
    table = as_schedule(what, **({**shape, "chunks": chunks} if rules else {})).validate()
    sizes = {"actors": table.actors, "microbatches": table.microbatches}
    counts = [f"{number} {one if number == 1 else more}" for number, (one, more) in zip(sizes.values(), (("actor", "actors"), ("micro-batch", "micro-batches")))]
    why = f"it is for {' and '.join(counts)}; compare it by actors={table.actors}, microbatches={table.microbatches}"
    same = all(sizes[name] == number for name, number in shape.items())
    return table.name, table.name or "rows", max(1, table.stages // table.actors), table if same else None, "" if same else why


def _row(name: str, title: str, chunks: int, table: Schedule | None, refused: str, costs: Mapping[str, Any], limit: float | None,
         allowed: Sequence[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "title": title, "chunks": chunks, "makespan": None, "bubble": None, "peak_live": None, "transfers": None,
                           "copies": None, "fits": False, "refused": refused, "schedule": table}
    if table is None:
        return row
    try:
        engine = numbers_of(costs, actors=table.actors, stages=table.stages, slices=table.slices)
        relieved = _relieved(table, engine, limit, allowed)
        step = told(lambda: _core.simulate_table(relieved._table, engine))
    except PenstockError as error:
        if "measured" not in costs:
            raise
        return {**row, "refused": error.what}  # a profile lacks its tasks
    kinds = [action.kind for actor in relieved.actions for action in actor]
    for kind, word in (("R", "recomputed"), ("OFFLOAD", "offloaded")):
        if relieved is not table and kind in kinds:
            row["title"] += f", {kinds.count(kind)} {word}"
    peak = max(step.figures["peak_live"])
    homes = {(action.stage, action.slice, action.block, number) for number, actor in enumerate(table.actions) for action in actor}
    parts = {home[:3] for home in homes}
    return {**row, "makespan": step.figures["makespan"], "bubble": step.figures["bubble"], "peak_live": peak, "transfers": step.transfers,
            "copies": len(homes) / max(1, len(parts)), "fits": limit is None or peak <= limit * (1 + 1e-9), "schedule": relieved}


def _relieved(table: Schedule, engine: Any, limit: float | None, allowed: Sequence[str]) -> Schedule:
    """The table with recomputation or offloading of what it holds beyond the limit, where that is allowed and helps."""
    if limit is None or not allowed or table.steps > 1:
        return table
    found = told(lambda: _core.relieved(table._table, search_numbers(limit, allowed), engine))
    return table if found is None else Schedule._of(found)
