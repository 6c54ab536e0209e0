"""Plans that planners make: which of a module's ops are a stage, on which devices, and the order of the work."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from . import _core
from .arguments import COUNT
from .calls import Calls
from .engine import told
from .errors import PenstockError
from .exports import Exports, shapes_of
from .files import read_text
from .optimisers import optimiser_of, parameters_by_id
from .placing import Plan
from .profiling import Profile
from .tables import Schedule, called
from .tensors import addresses

LARGEST = 128  # samples of a micro-batch that are tried without being asked for


@dataclass(frozen=True)
class Planned:
    """A plan that `plan` found: `trainer` takes it. `file` is the engine's; another `schedule` than the plan's own may order its stages."""

    file: Any
    clip: float = 0.0
    schedule: str | Path | Schedule | None = None

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
        """Writes the page."""
        Path(path).write_text(self.page())

    def _repr_html_(self) -> str:
        return (f"<pre>{html.escape(str(self))}</pre><iframe style='width:100%;height:30em;border:0' "
                f"srcdoc=\"{html.escape(self.page())}\"></iframe>")

    def save(self, path: str | os.PathLike) -> None:
        """Writes the plan as the file that `penstock plan --out` writes."""
        Path(path).write_text(self.file.json())

    @classmethod
    def load(cls, path: str | os.PathLike) -> Planned:
        """Reads what `save` or `penstock plan --out` wrote. Throws PenstockError where that is no plan."""
        return cls(told(lambda: _core.Plan(read_text(path), str(path))))

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


def plan(module: torch.nn.Module, batch: Any, *, cluster: str | os.PathLike | None = None, devices: int = 2, device: str | None = None,
         link: str = "nvlink3", profile: Profile | str | os.PathLike | None = None, planner: str = "best", memory: float | None = None,
         microbatches: int | Sequence[int] | None = None, seconds: float = 10.0, replicas: bool = True, nodes: int = 64, only: str = "",
         optimizer: torch.optim.Optimizer | None = None, loss: Callable | None = None, dynamic: bool | Mapping[str, Any] = True,
         whole: Iterable[str] = (COUNT,), clip: float = 0.0, autocast: torch.dtype | None = None) -> Planned:
    """Plans a training step of `module` on the batch: its stages, their devices and the order of the work. Nothing runs: module and batch
    may be on the meta device.

    It is planned for `devices` equal ones, `device` ("a100-80") by name, over `link`; or for a `cluster`, a TOML file (docs/planning.md), whose
    times are those of `device`, by default the one that the file names. Times are published figures, or with a `profile` (of
    `penstock.profile`, or its file) what this machine takes: the devices are then threads. `memory` limits each device's bytes.
    `microbatches`: into how many a step cuts the batch, of which each runs on one device of a stage, or several numbers to choose among; by
    default micro-batches have powers of two of samples. `replicas`: a stage may have several devices. `nodes`: the module's ops are at most so
    many groups. `only`: what planner degrees takes ("pipe=8,zero=1"). `optimizer`: AdamW unless it is given; the other arguments are
    `trainer`'s. `seconds` limits the search.

    Throws PenstockError: what `export` throws, an unknown planner or device, a file that is no cluster, a plan that fits no memory.
    """
    counts = _counts(module, batch, loss, whole, microbatches)
    target = _cluster(cluster, devices, device, link, profile)
    if memory is not None:
        target.limit_memory(float(memory))
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
    counts = [microbatches] if isinstance(microbatches, int) else list(microbatches)
    steps = steps_of(module, batch, counts, optimizer, loss, dynamic, whole, clip, autocast)
    given, kept = addresses(Calls(module, loss, whole, 1).tensors(batch))
    text = told(lambda: _core.measure(_core.planning_programs(steps, nodes), {}, given, rounds, True, threads, device, False))
    del kept
    return Profile(text)


def _counts(module: torch.nn.Module, batch: Any, loss: Callable | None, whole: Iterable[str], microbatches: int | Sequence[int] | None) -> list[int]:
    if isinstance(microbatches, int):
        return [microbatches]
    if microbatches is not None:
        return list(microbatches)
    calls = Calls(module, loss, whole, 1)
    samples = calls.samples(calls.tensors(batch))
    sizes = [2**i for i in range(LARGEST.bit_length()) if samples % 2**i == 0 and 2**i < samples]
    return [samples // size for size in sizes] or [1]


def _cluster(cluster: str | os.PathLike | None, devices: int, device: str | None, link: str, profile: Any) -> Any:
    if profile is not None:
        return Profile.of(profile).cluster(devices)
    if cluster is None:
        return told(lambda: _core.Cluster(devices, device or "a100-80", link))
    try:
        text = read_text(cluster)
    except OSError as error:
        raise PenstockError(f"the cluster {cluster} cannot be read: {error.strerror}", hint="the path of a TOML file: docs/planning.md says its keys") from None
    return told(lambda: _core.Cluster(text, str(cluster)))


def _only(only: str) -> str:
    """Equal groups that the engine can run of an exported module: its tensors stay whole, and no schedule gathers block by block."""
    return ",".join([*([only] if only else []), "tensor=1", "context=1", "by-block=0"])
