# SPDX-License-Identifier: Apache-2.0
"""The search for a table under costs, links and a limit of memory."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

from . import _core
from .costs import Costs, costs_of, numbers_of
from .engine import told
from .errors import PenstockError, check_is, check_whole
from .simulation import AnyCosts, _allowed, check_limit, check_size, search_numbers
from .tables import Schedule, checked_options
from .timeline import Timeline

if TYPE_CHECKING:
    from typing import Unpack

# A search does not count with these costs: its micro-batches are whole, and nothing disturbs them.
NOT_SEARCHED = ("slice_times", "straggler", "jitter", "seed", "atomic_pairs")


class FoundSchedule(Schedule):
    """A schedule that `search` found. `figures` are by the names of `penstock schedule search --json`."""

    figures: dict[str, Any]
    _costs: dict[str, Any]

    @property
    def makespan(self) -> float:
        """The time of its step, in the costs' unit."""
        return self.figures["makespan"]

    @property
    def bubble(self) -> float:
        """The share of the actors' time, 0 to 1, in which they do not compute."""
        return self.figures["bubble"]

    @property
    def lower_bound(self) -> float:
        """Proven: no table with one of the placements that were looked at takes less."""
        return self.figures["lower_bound"]

    @property
    def gap(self) -> float:
        """By which share it may be slower than possible: makespan / lower_bound - 1."""
        return self.figures["gap"]

    @property
    def optimal(self) -> bool:
        """Whether it is proven that no such table is faster."""
        return self.figures["optimal"]

    @property
    def found_by(self) -> str:
        """The schedule, heuristic or step of the search that found it."""
        return self.figures["found_by"]

    def simulate(self, costs: Any = None, **numbers: Any) -> Timeline:
        """Its step, under the costs that it was searched for unless others are given."""
        return super().simulate(self._costs if costs is None and not numbers else costs, **numbers)

    def __reduce__(self) -> tuple:
        return _found, (self.csv, self.name, self.figures, self._costs)

    def __repr__(self) -> str:
        proof = "optimal" if self.optimal else f"at most {100 * self.gap:.1f} % above the lower bound"
        return f"{super().__repr__()[:-1]}; makespan {self.makespan:.6g}, bubble {100 * self.bubble:.1f} %, {proof}>"


def search(*, actors: int = 2, microbatches: int = 8, chunks: int = 1, activation_limit: float | None = None, costs: AnyCosts | None = None,
           seconds: float = 10.0, allow: Sequence[str] | None = None, window: int = 1, staleness: int = 1, copies: int = 1, forward_only: bool = False,
           order_transfers: bool = False, search_seed: int = 0, **numbers: Unpack[Costs]) -> FoundSchedule:
    """The fastest table that is found for these costs and links, never slower than the fastest schedule by name that fits; as `penstock schedule search`.

    `activation_limit`: micro-batches' activations, of an actor's whole share, that an actor may hold at once. `allow`: what may keep the table within it, "recompute" and
    "offload"; without it, what has a time among the costs. `chunks`: stages of an actor. `window`: training steps in the table, undrained, whose parameters
    may be `staleness` updates late. `copies`: of a stage's parameters, 2 for tables in both directions. `order_transfers`: whether the table may say where
    sends and receives start. `seconds`: the most that it searches; what is found within them depends on `search_seed` alone.

    Throws PenstockError: numbers out of range, unknown costs, costs that searches do not count with, and a limit that no table keeps (with the smallest
    that would do).
    """
    given = costs_of(costs, numbers)
    unused = [name for name in NOT_SEARCHED if name in given]
    if unused:
        raise PenstockError(f"{unused[0]}={given[unused[0]]!r}: a search orders whole micro-batches that nothing disturbs", [],
                            f"leave out {unused[0]}; simulate takes it")
    Schedule("sequential", actors=actors, microbatches=microbatches, chunks=chunks, forward_only=forward_only)  # throws where these are wrong
    for name, value, least in (("window", window, 1), ("staleness", staleness, 0), ("copies", copies, 1)):
        check_whole(name, value, least)
    check_is("order_transfers", order_transfers, bool, "True or False")
    check_is("forward_only", forward_only, bool, "True or False")
    check_whole("search_seed", search_seed, 0, 2**63 - 1)
    check_is("seconds", seconds, Real, "the most that it searches")
    if not seconds > 0:
        raise PenstockError(f"seconds={seconds!r}", hint="the most that it searches, above 0")
    check_limit(activation_limit)
    check_size(actors, microbatches * window, chunks, "a smaller problem, whose table is then repeated")
    _check_window(window, copies=copies > 1, order_transfers=order_transfers, forward_only=forward_only)
    allowed = _allowed(allow, given)
    shape = {"actors": actors, "microbatches": microbatches, "chunks": chunks, "window": window, "forward_only": forward_only}
    engine = numbers_of(given, actors=actors, stages=actors * chunks)
    limits = search_numbers(activation_limit, allowed, copies=copies, staleness=staleness, order_transfers=order_transfers)
    table, figures = told(lambda: _core.search_table(checked_options(shape), limits, engine, float(seconds), search_seed))
    found = FoundSchedule._of(table, table_name(figures["found_by"]))
    found.figures, found._costs = {**figures, "activation_limit": activation_limit}, given
    return found


def _found(csv: str, name: str, figures: dict[str, Any], costs: dict[str, Any]) -> FoundSchedule:
    out = FoundSchedule.parse(csv, name)
    out.figures, out._costs = figures, costs
    return out


def table_name(found_by: str) -> str:
    return f"searched ({found_by})"


def _check_window(window: int, **unused: bool) -> None:
    """Throws PenstockError where a table for several steps is asked for what only tables of one have."""
    given = [name for name, is_given in unused.items() if is_given]
    if window > 1 and given:
        raise PenstockError(f"window={window} and {given[0]}: a table for several steps has none of that", hint=f"leave one of window and {given[0]} out")
