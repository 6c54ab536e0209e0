# SPDX-License-Identifier: Apache-2.0
"""Plans that planners make: which of a module's ops are a stage, on which devices, and the order of the work."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from . import _core
from .arguments import COUNT
from .calls import Calls
from .clusters import Cluster, cluster_of
from .engine import told
from .errors import PenstockError, check_is, check_whole, did_you_mean
from .exports import Exports, shapes_of
from .files import checked_ending, checked_path, read_named, read_text, write_text
from .optimisers import optimiser_of, parameters_by_id
from .placing import Plan
from .profiling import Profile
from .rows import Rows
from .tables import Schedule, called
from .tensors import addresses
from .timeline import Timeline

LARGEST = 128  # samples of a micro-batch that are tried without being asked for


@dataclass(frozen=True)
class Planned:
    """A plan that `plan` found: `trainer` takes one of a module, `penstock train --plan` the saved one of a configuration. `file` is the engine's; another
    `schedule` than the plan's own may order its stages."""

    file: Any
    clip: float = 0.0
    schedule: str | Path | Schedule | None = None
    explained: Any = field(default=None, compare=False, repr=False)  # the engine's, where the plan was found here and of a file

    split = None  # the plan marks the stages
    window = 1

    def in_slices(self) -> int:
        return 1

    def sequence_of(self, parts: Mapping[str, torch.Tensor]) -> dict[str, int]:
        return {}

    @property
    def microbatches(self) -> int:
        """Into how many parts a step cuts its batch."""
        return self.file.microbatches

    @property
    def seconds(self) -> float:
        """Predicted, of a step."""
        return self.file.predicted_time

    @property
    def memory(self) -> tuple[int, ...]:
        """Bytes of each device: where memory was limited, of the step's program, else as the planner counts them."""
        return tuple(int(size) for size in self.file.peak_bytes)

    @property
    def predicted_time(self) -> float:
        """Seconds of a step; the same as `seconds`."""
        return self.file.predicted_time

    @property
    def lower_bound(self) -> float:
        """Seconds that no plan of any planner can beat; 0: not known."""
        return self.file.lower_bound

    @property
    def peak_bytes(self) -> list[float]:
        """The most memory that each device of the cluster holds at once, in bytes."""
        return self.file.peak_bytes

    @property
    def bottleneck(self) -> float:
        """The planner's own objective, in seconds: of most planners what the slowest stage or link takes (docs/planning.md)."""
        return _core.plan_facts(self.file)[2]

    @property
    def optimal(self) -> bool:
        """Whether the step takes its lower bound, so that no plan's is shorter."""
        return _core.plan_facts(self.file)[3]

    @property
    def planner(self) -> str:
        """The planner that found it."""
        return self.file.planner

    @property
    def order(self) -> Schedule:
        """The order of the work, a `Schedule` of the plan's stages."""
        return Schedule._of(self.file.schedule, f"{self.planner}'s plan of {_core.plan_facts(self.file)[0]}")

    @property
    def timeline(self) -> Timeline | None:
        """The simulated step in seconds; None of plans of equal groups, and where it is very long."""
        found = _core.plan_timeline(self.file)
        return None if found is None else Timeline(found)

    def rows(self) -> Rows:
        """A row for each stage: "name", "nodes" (how many), "devices" (their numbers, "0-3"), "device_count", "micro_batch" (samples), "forward" and "backward"
        (seconds of one of these), "bytes" (of each device at most), "recomputed" (how many of its nodes)."""
        return Rows(_core.plan_stages(self.file))

    def explain(self) -> str:
        """A text that says what holds the step up, the next best plan, and what a larger cluster would give. It plans these anew, which takes about twice the seconds of
        planning. Throws PenstockError for a plan of a module, of equal groups, or one that was read: their costs are not at hand."""
        if self.explained is None or self.planner == "degrees":
            raise PenstockError("the costs of this plan are not at hand", ["plans of graphs' files and of configurations have them, as they are found"],
                                "penstock plan ... --explain")
        bottleneck, detail, following, changes = told(self.explained.explain)
        lines = [f"Bottleneck: {bottleneck}; {detail}."]
        lines.append(f"Next best plan: {following[0]}, {following[1]:.6g} s." if following else "No planner has another plan.")
        lines += [f"With {what} a step takes {refused or f'{seconds:.6g} s'}." for what, seconds, refused in changes]
        return "\n".join(lines) + "\n"

    def svg(self) -> str:
        """The stages and what flows between them, with the step below where it was simulated."""
        return told(lambda: _core.plan_svg(self.file))

    def __str__(self) -> str:
        devices = self.file.devices
        shared = f", which hold state in shares (ZeRO {self.file.zero})" if self.file.zero > 0 else ""
        again = ", forwards computed again for backwards" if self.file.recomputes else ""
        each = devices[0] if len(set(devices)) == 1 else devices
        actors = f"{len(devices)} actor{'s' if len(devices) > 1 else ''}"
        return f"{self.file}\n{actors} of {each} device{'s' if each != 1 else ''} each{shared}{again}\n"

    def page(self, title: str = "") -> str:
        """The stages and, where the planner simulated it, the step as an HTML page that needs nothing else."""
        return told(lambda: self.file.page(title))

    def show(self, path: str | os.PathLike) -> None:
        """Writes the page, `.html`. Throws PenstockError for another ending, and where it cannot be written."""
        checked_ending(path, "a page", ("html",))
        write_text(path, self.page())

    def _repr_html_(self) -> str:
        return (f"<pre>{html.escape(str(self))}</pre><iframe style='width:100%;height:30em;border:0' "
                f"srcdoc=\"{html.escape(self.page())}\"></iframe>")

    def save(self, path: str | os.PathLike) -> None:
        """Writes a picture of the plan (`.svg`, `.html`, `.txt`), or the plan itself (`.json`), as the file that `penstock plan --out` writes. Its step as a
        picture for paper: `plan.timeline.save("x.pdf")`. Throws PenstockError for another ending, and where it cannot be written."""
        if checked_path(path).suffix in (".pdf", ".png"):
            raise PenstockError(f"{path}: a plan is drawn as .svg or .html", hint=f'plan.timeline.save("{path}") draws its step, plan.order its table')
        pictures = {"svg": self.svg, "html": self.page, "txt": self.__str__, "json": self.file.json}
        write_text(path, pictures[checked_ending(path, "a plan", tuple(pictures))]())

    @classmethod
    def load(cls, path: str | os.PathLike) -> Planned:
        """Reads what `save` or `penstock plan --out` wrote. Throws PenstockError where that is no plan."""
        text = read_named(path, "plan.save(path) writes one")
        return cls(told(lambda: _core.Plan(text, str(path))))

    # --- what a trainer asks of a plan

    def stages(self) -> int:
        return 1  # that the module is cut into before the plan marks its own

    def devices(self) -> int:
        return sum(self.file.devices)

    def table(self) -> Any:
        """The table of the plan or of the other schedule, for its stages."""
        if self.file.schedule.steps > 1:
            raise PenstockError(f"the plan is for {self.file.schedule.steps} training steps at once", ["a trainer runs plans of one step"],
                                "penstock train --plan FILE, or schedule= and window= in place of plan=")
        if self.schedule is None:
            return self.file.schedule
        stages, actors = len(self.file.stages), len(self.file.devices)
        if len(set(self.file.devices)) > 1:
            raise PenstockError(f'schedule "{called(self.schedule)}" cannot order this plan', [f"its actors have {self.file.devices} devices"],
                                "stages with as many devices each: plan(..., replicas=False)")
        return Plan(actors, self.schedule, stages // actors, self.file.table_microbatches).table()

    def settings(self) -> list[str]:
        return [f"plan = {self.file.json()!r}", f"clip = {self.clip!r}", f"schedule = {self.schedule.csv if isinstance(self.schedule, Schedule) else self.schedule!r}"]

    def with_schedule(self, schedule: str | Path | Schedule) -> Planned:
        return replace(self, schedule=schedule)

    def with_split(self, begins: Sequence[str]) -> Planned:
        return self

    def for_steps(self, steps: int) -> Planned:
        return self if steps == 1 else Plan().for_steps(steps)  # which says why not

    def for_samples(self, samples: int) -> Planned:
        return self  # its stages are of one size of micro-batch

    def for_classes(self, microbatches: int) -> Planned:
        raise PenstockError("the plan is one of equal micro-batches", ["these have shapes of their own"], "give actors=, schedule= and split= in place of plan=")

    def placed(self, step: Any, model: Any) -> tuple[Any, str]:
        return None, ""  # the plan says it

    def compile(self, step: Any, table: Any, options: Any) -> Any:
        return self.compile_beside(step, table, options, None)

    def compile_beside(self, step: Any, table: Any, options: Any, updating: Callable[[], Any] | None) -> Any:
        other = updating() if updating else None
        return told(lambda: _core.compile_plan(step, self.file, None if self.schedule is None else table, other))

    def stages_text(self, begins: Sequence[str]) -> str:
        return str(self)


def planners() -> list[str]:
    """The names of all planners."""
    return _core.planners()


def plan(module: torch.nn.Module | str | os.PathLike, batch: Any = None, *,
         cluster: Cluster | Mapping[str, Any] | str | os.PathLike | None = None, devices: int | None = None, device: str | None = None,
         link: str = "nvlink3", profile: Profile | str | os.PathLike | None = None, planner: str = "best", memory: float | None = None,
         microbatches: int | Sequence[int] | None = None, seconds: float = 10.0, replicas: bool = True, nodes: int = 64, only: str = "",
         optimizer: torch.optim.Optimizer | None = None, loss: Callable | None = None, dynamic: bool | Mapping[str, Any] = True,
         whole: Iterable[str] = (COUNT,), clip: float = 0.0, autocast: torch.dtype | None = None, samples: int | None = None, sizes: Sequence[int] = (),
         settings: Mapping[str, Any] | None = None) -> Planned:
    """Plans a training step of `module` on the batch: its stages, their devices and the order of the work. Nothing runs: module and batch
    may be on the meta device.

    It is planned for `devices` equal ones (2, where a module is planned), `device` ("a100-80") by name, over `link`; or for a `cluster`, a dict
    (`penstock.Cluster`) or a TOML file (docs/planning.md), whose times are those of `device`, by default the one that the file names. Times are published figures, or with a `profile` (of
    `penstock.profile`, or its file) what this machine takes: the devices are then threads. `memory` limits each device's bytes.
    `microbatches`: into how many a step cuts the batch, of which each runs on one device of a stage, or several numbers to choose among; by
    default micro-batches have powers of two of samples. `replicas`: a stage may have several devices. `nodes`: the module's ops are at most so
    many groups. `only`: what planner degrees takes ("pipe=8,zero=1"). `optimizer`: AdamW unless it is given; the other arguments are
    `trainer`'s. `seconds` limits the search.

    In place of a module there may be what `penstock plan` takes: the path of a graph with costs, of a configuration (`.toml`), or the name of one of the
    program's models. Then `devices` or `cluster` must be given, and there is no batch, but `samples` of a step (as the file says), `sizes` of micro-batches in
    samples to choose from, and of a configuration `settings` by key: {"model.layers": 8}. Cluster, planner, device, memory, seconds, replicas, nodes and only are the same.

    Throws PenstockError: what `export` throws, an unknown planner or device, a file that is no cluster, a plan that fits no memory.
    """
    for name, text in (("planner", planner), ("link", link), ("only", only), ("device", "" if device is None else device)):
        check_is(name, text, str, "a text")
    for name, number in (("seconds", seconds), ("memory", 0 if memory is None else memory)):
        check_is(name, number, Real, "a number")
    check_is("replicas", replicas, bool, "True or False")
    check_whole("nodes", nodes, 1)
    check_is("sizes", sizes, Iterable, "a list of numbers of samples")
    check_is("settings", settings, (Mapping, type(None)), 'values by key, {"model.layers": 8}')
    if isinstance(module, (str, os.PathLike)):
        _check_unused(f"{module} is no module", {"batch": batch, "profile": profile, "microbatches": microbatches, "optimizer": optimizer, "loss": loss,
                                                 "autocast": autocast, "clip": clip or None})
        for name, number in [*([] if samples is None else [("samples", samples)]), *(("sizes", size) for size in sizes)]:
            check_whole(name, number, 1)

        def target() -> Any:
            if cluster is None and devices is None:
                raise PenstockError(f"for how many devices is {module} planned?", hint="devices=N, or cluster= a dict or a file")
            return _limited(cluster_of(cluster, devices, device, link), memory)
        return _plan_of_file(module, target, planner=planner, device=device or "", only=only, seconds=float(seconds), replicas=replicas, nodes=nodes,
                             samples=0 if samples is None else int(samples), sizes=[int(size) for size in sizes],
                             settings={key: _setting(value) for key, value in (settings or {}).items()})
    devices = 2 if devices is None else devices
    if batch is None:
        raise PenstockError("a module is planned for a batch, and there is none", hint="penstock.plan(module, batch), as steps will get it")
    _check_unused("a module is planned for its batch", {"samples": samples, "sizes": sizes or None, "settings": settings})
    counts = _counts(module, batch, loss, whole, microbatches)
    target = _limited(Profile.of(profile).cluster(devices) if profile is not None else cluster_of(cluster, devices, device, link), memory)
    steps = steps_of(module, batch, counts, optimizer, loss, dynamic, whole, clip, autocast)
    costs = Profile.of(profile).text if profile is not None else None
    found = told(lambda: _core.plan_steps(type(module).__name__, steps, target, planner, device or target.published or "a100-80", costs, seconds,
                                          microbatches is None, replicas, nodes, _only(only)))
    return Planned(found, clip)


def steps_of(module: torch.nn.Module, batch: Any, counts: Sequence[int], optimizer: torch.optim.Optimizer | None, loss: Callable | None,
             dynamic: bool | Mapping[str, Any], whole: Iterable[str], clip: float, autocast: torch.dtype | None) -> list[Any]:
    """The engine's training steps on the batch in so many micro-batches each, of as few exports as there can be."""
    all_calls = [Calls(module, loss, whole, count) for count in sorted(counts)]  # the largest micro-batch first: its sizes vary
    all_calls[0].check_whole(batch)
    coming = [shapes_of(calls.parts(calls.tensors(batch))) for calls in all_calls[1:]]
    exports = Exports(all_calls[0], loss, dynamic, autocast, batch, coming=coming)
    trained = set(exports.trained)
    optimiser = optimiser_of(optimizer, *parameters_by_id(module, trained)) if optimizer else None
    how = (optimiser.name, optimiser.groups(), optimiser.texts()) if optimiser else ("adamw", [], {})
    out = []
    for calls in all_calls:
        model = exports.model(calls, batch, Plan(actors=1), optimiser.group_of if optimiser else {})
        out.append(told(lambda: _core.training_step(model, model.samples * calls.microbatches, calls.microbatches, *how, clip)))
    return out


def profile(module: torch.nn.Module, batch: Any, *, microbatches: int | Sequence[int] = 8, rounds: int = 10, threads: int = 1, nodes: int = 64,
            optimizer: torch.optim.Optimizer | None = None, loss: Callable | None = None, dynamic: bool | Mapping[str, Any] = True,
            whole: Iterable[str] = (COUNT,), clip: float = 0.0, autocast: torch.dtype | None = None,
            device: str = "cpu") -> Profile:
    """Measures what `plan(module, batch, profile=...)` counts with, for the same arguments: it runs `rounds` steps on one `device` (as `trainer`
    has it) with a stage for each merged node, on zeros in place of parameters, and messages between two. Throws PenstockError as `plan`."""
    check_whole("rounds", rounds, 1)
    check_whole("threads", threads, 1)
    counts = _counts(module, batch, loss, whole, microbatches)
    steps = steps_of(module, batch, counts, optimizer, loss, dynamic, whole, clip, autocast)
    given, kept = addresses(Calls(module, loss, whole, 1).tensors(batch))
    text = told(lambda: _core.measure(_core.planning_programs(steps, nodes), {}, given, rounds, True, threads, device, False))
    del kept
    return Profile(text)


def _counts(module: torch.nn.Module, batch: Any, loss: Callable | None, whole: Iterable[str], microbatches: int | Sequence[int] | None) -> list[int]:
    if microbatches is not None:
        counts = list(microbatches) if isinstance(microbatches, Sequence) and not isinstance(microbatches, str) else [microbatches]
        for count in counts:
            check_whole("microbatches", count, 1)
        return counts
    calls = Calls(module, loss, whole, 1)
    samples = calls.samples(calls.tensors(batch))
    sizes = [2**i for i in range(LARGEST.bit_length()) if samples % 2**i == 0 and 2**i < samples]
    return [samples // size for size in sizes] or [1]


def _limited(cluster: Any, memory: float | None) -> Any:
    if memory is not None:
        cluster.limit_memory(float(memory))
    return cluster


def _check_unused(why: str, arguments: Mapping[str, Any]) -> None:
    """Throws PenstockError where an argument is given that is of the other kind of what is planned."""
    for name, value in arguments.items():
        if value is not None:
            raise PenstockError(f"{why}, and {name} is given", [], f"leave out {name}")


def _plan_of_file(what: str | os.PathLike, target: Callable[[], Any], **request: Any) -> Planned:
    """Plans a graph's file, a configuration or a model by its name, for the cluster that `target` gives."""
    asked, path = _core.PlanRequest(), str(what)
    named = path in _core.model_names()
    text = "" if named or path.endswith(".toml") else _graph_text(path)
    asked.what, asked.cluster = path, target()
    for name, value in request.items():
        setattr(asked, name, value)
    if named or path.endswith(".toml"):
        found = told(lambda: _core.plan_of_config(named, asked))
    else:
        if request["settings"]:
            raise PenstockError(f"{path} is taken as a graph, and settings are of configurations", hint="leave out settings")
        found = told(lambda: _core.plan_of_graph(text, asked))
    return Planned(found.file, explained=found)


def _graph_text(path: str) -> str:
    try:
        return read_text(path)
    except OSError as error:
        models = _core.model_names()
        raise PenstockError(f"{path!r} is neither a file that can be read nor a model: {error.strerror}", [f"models: {', '.join(models)}"],
                            did_you_mean(path, models)) from None


def _setting(value: Any) -> str:
    """A value as a configuration has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _only(only: str) -> str:
    """Equal groups that the engine can run of an exported module: its tensors stay whole, and no schedule gathers block by block."""
    return ",".join([*([only] if only else []), "tensor=1", "context=1", "by-block=0"])
