# SPDX-License-Identifier: Apache-2.0
"""The costs of a table's actions and links, as one plain dict for all functions that simulate, compare and search tables."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from . import _core
from .engine import told
from .errors import PenstockError, did_you_mean
from .profiling import Profile


class Costs(TypedDict, total=False):
    """A dict of what things take; what it does not name has the value in brackets. Times are in any one unit, and of one micro-batch in an actor's
    whole share of the stages, as in `penstock simulate`, whose flags these are. Another dict is made of one as of any: `{**costs, "latency": 0.5}`.
    """

    forward: float  # time of F [1]
    backward: float  # of B, the whole backward [input + weight, or 2]
    input: float  # of I, the gradients of inputs [half of backward]
    weight: float  # of W, the gradients of weights [half of backward]
    recompute: float  # of R [forward]
    offload: float  # to copy a micro-batch's activations to host memory, or back [0]
    kept: float  # part, 0 to 1, of a micro-batch's activations that R and offloading leave there [0]
    gather: float  # to gather an actor's share of parameters; where it is given, parameters are sharded
    reduce: float  # to reduce the gradients of an actor's share, beside `gather` [0]
    parameters: float  # what an actor's share of parameters counts, in activations of a micro-batch [0]
    per_stage: bool  # whether all these are of each stage, and not of an actor's whole share [False]
    latency: float  # of every link, in the times' unit [0]
    bandwidth: float  # bytes per unit of time of every link, beside `bytes` [unlimited]
    bytes: float  # of one transfer of a whole micro-batch, beside a bandwidth [0]
    links: Mapping[tuple[int, int], Mapping[str, float]]  # links that differ, both directions: {(2, 3): {"latency": 1.0, "bandwidth": 10.0}}
    stage_times: Sequence[float]  # how the times of stages compare, one for each [alike]
    slice_times: Sequence[float]  # how the times of each stage's slices compare [alike]
    straggler: Mapping[int, float]  # actors that take so much longer: {2: 1.5} [none]
    jitter: float  # each time is up to this part longer or shorter, 0 up to 1 [0]
    seed: int  # of the jitter [0]
    atomic_pairs: bool  # whether a fused pair begins and ends as one [one runs after the other]
    measured: str | os.PathLike | Profile  # a file that `penstock profile` wrote, in place of the times; everything is then in seconds
    backend: str  # whose measured links count: "threads", "gloo" ["threads"]


TIMES = ("forward", "backward", "input", "weight")  # measured costs have these themselves
NUMBERS = (*TIMES, "recompute", "offload", "kept", "gather", "reduce", "parameters", "latency", "bandwidth", "bytes", "jitter")
LISTS = ("stage_times", "slice_times")
FLAGS = ("per_stage", "atomic_pairs")


def costs_of(costs: Costs | Mapping[str, Any] | str | os.PathLike | Profile | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The costs with what is `given` beside them in place of their own; a path or a `Profile` are measured costs. Throws PenstockError for a name that
    there is not, for one that both have, and for a value of another kind or out of its range."""
    if isinstance(costs, (str, os.PathLike, Profile)):
        costs = {"measured": costs}
    if costs is not None and not isinstance(costs, Mapping):
        raise PenstockError(f"costs={costs!r}: a {type(costs).__name__} says nothing of costs", hint='penstock.Costs(forward=1, backward=2), or the path of a profile')
    merged = {name: plain(value) for name, value in {**(costs or {}), **given}.items() if value is not None}
    for name, value in merged.items():
        if name not in Costs.__annotations__:
            raise PenstockError(f"there are no costs {name!r}", [], did_you_mean(name, Costs.__annotations__) or f"there are {', '.join(Costs.__annotations__)}")
        _check(name, value)
    _check_together(merged)
    return merged


def numbers_of(costs: Mapping[str, Any], *, actors: int | None = None, stages: int | None = None, slices: int | None = None) -> Any:
    """The engine's form of checked costs, for a table of so many actors, stages and slices where these are known. Throws PenstockError where they do not
    fit these."""
    out = _core.TableNumbers()
    for name in (*NUMBERS, *FLAGS, "seed", "backend"):
        if name in costs:
            setattr(out, name, costs[name])
    for name, count in (("stage_times", stages), ("slice_times", slices)):
        if name in costs:
            values = [float(value) for value in costs[name]]
            if count is not None and len(values) != count:
                raise PenstockError(f"{name} has {len(values)} times, and the table {count} {name.removesuffix('_times')}s", hint="give one for each")
            setattr(out, name, values)
    out.links = [_core.NumberedLink(*_actors(pair, actors), link.get("latency"), link.get("bandwidth")) for pair, link in costs.get("links", {}).items()]
    if costs.get("straggler"):
        out.slowdown = _slowdown(costs["straggler"], actors)
    if "measured" in costs:
        file = costs["measured"]
        profile = Profile.of(file)
        told(lambda: out.measure(profile.text, "the profile" if isinstance(file, Profile) else str(file)))
    return out


def plain(value: Any) -> Any:
    """An array's numbers as a list, a number of NumPy's as Python's, and all else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _check(name: str, value: Any) -> None:
    number = not isinstance(value, bool) and isinstance(value, numbers.Real) and not math.isnan(value)
    right, wanted = True, ""
    if name == "bandwidth":
        right, wanted = number and value > 0, "bytes per unit of time, above 0"
    elif name == "jitter":
        right, wanted = number and 0 <= value < 1, "a share of each time: 0 or above, below 1"
    elif name == "kept":
        right, wanted = number and 0 <= value <= 1, "a part of a micro-batch's activations, from 0 to 1"
    elif name in NUMBERS:
        right, wanted = number and 0 <= value < math.inf, "a finite number, 0 or above"
    elif name in FLAGS:
        right, wanted = isinstance(value, bool), "True or False"
    elif name in LISTS:
        right, wanted = _are_times(value), "a list of finite numbers, 0 or above and one of them above 0"
    elif name == "seed":
        right, wanted = number and isinstance(value, numbers.Integral) and 0 <= value < 2**64, "a whole number, 0 or above and below 2^64"
    elif name == "links":
        right, wanted = _are_links(value), 'links by their two actors, {(2, 3): {"latency": 1.0, "bandwidth": 10.0}}'
    elif name == "straggler":
        right, wanted = isinstance(value, Mapping) and all(_is_above_0(factor) for factor in value.values()), "a factor above 0 by actor, {2: 1.5}"
    elif name == "backend":
        right, wanted = isinstance(value, str), 'the name of a backend, "threads" or "gloo"'
    if not right:
        raise PenstockError(f"{name}={value!r} is not what {name} takes", hint=f"{name} is {wanted}")


def _check_together(costs: Mapping[str, Any]) -> None:
    bandwidth = "bandwidth" in costs or any("bandwidth" in link for link in costs.get("links", {}).values())
    if bandwidth and "bytes" not in costs:
        raise PenstockError("a bandwidth says nothing without bytes", hint="bytes= of a transfer of one micro-batch")
    if "bytes" in costs and not bandwidth and "measured" not in costs:
        raise PenstockError("bytes say nothing without a bandwidth", hint="bandwidth= of every link, in bytes per unit of time")
    if "reduce" in costs and "gather" not in costs:
        raise PenstockError("reduce says nothing without gather", hint="gather= the time to gather an actor's share of parameters, 0 if it is nothing")
    doubled = [name for name in (*TIMES, "per_stage", *LISTS) if name in costs] if "measured" in costs else []
    if doubled:
        raise PenstockError(f"measured costs say what each stage takes, and {doubled[0]}={costs[doubled[0]]!r} is given too", hint=f"leave out {doubled[0]} or measured")


def _is_above_0(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Real) and 0 < value < math.inf


def _are_times(value: Any) -> bool:
    return (isinstance(value, Sequence) and not isinstance(value, str) and any(map(_is_above_0, value))
            and all(_is_above_0(each) or (isinstance(each, numbers.Real) and each == 0) for each in value))


def _are_links(value: Any) -> bool:
    def is_link(link: Any) -> bool:
        return isinstance(link, Mapping) and set(link) <= {"latency", "bandwidth"} and all(
            isinstance(each, numbers.Real) and each >= 0 and (name == "latency" or each > 0) for name, each in link.items())

    return isinstance(value, Mapping) and all(isinstance(pair, tuple) and len(pair) == 2 and is_link(link) for pair, link in value.items())


def _actors(pair: tuple[int, int], actors: int | None) -> tuple[int, int]:
    for actor in pair:
        _check_actor(f"links={{{pair}: ...}}", actor, actors)
    if pair[0] == pair[1]:
        raise PenstockError(f"links={{{pair}: ...}}: a link is between two actors")
    return pair


def _slowdown(straggler: Mapping[int, float], actors: int | None) -> list[float]:
    for actor in straggler:
        _check_actor(f"straggler={{{actor!r}: {straggler[actor]}}}", actor, actors)
    return [float(straggler.get(actor, 1)) for actor in range(actors or 1 + max(straggler))]


def _check_actor(where: str, actor: Any, actors: int | None) -> None:
    if not isinstance(actor, numbers.Integral) or actor < 0 or (actors is not None and actor >= actors):
        raise PenstockError(f"{where}: there is no actor {actor!r}", hint=f"there are 0 to {actors - 1}" if actors else "actors are numbered from 0")
