"""Training a module with pipeline parallelism: `trainer` gives a function of batches that does a whole step."""

from __future__ import annotations

import inspect
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from . import _core
from .arguments import named_arguments
from .errors import PenstockError
from .export import export
from .exported import Exported
from .optimisers import Optimiser, optimiser_of
from .prediction import Prediction
from .tensors import DTYPES, addresses, tensor_of


@dataclass(frozen=True)
class Plan:
    """How a step is cut and placed; the fields are `trainer`'s arguments."""

    actors: int = 2
    schedule: str | Path = "1f1b"
    chunks: int | None = None
    microbatches: int = 8
    split: Sequence[str] | None = None
    data: int = 1
    zero: int = 0
    recompute: bool = False
    clip: float = 0.0

    def table(self) -> Any:
        """The schedule's table."""
        if isinstance(self.schedule, Path) or "\n" in self.schedule or self.schedule.endswith(".csv"):
            path = Path(self.schedule)
            return _core.parse_schedule(path.read_text(), str(path))
        return _core.schedule(self.schedule, self.actors, self.microbatches // self.data, self.chunks_or_default())

    def chunks_or_default(self) -> int:
        if self.chunks is not None:
            return self.chunks
        return 2 if dict(_core.schedules()).get(self.schedule, False) else 1

    def stages(self) -> int:
        return self.actors * self.chunks_or_default()


def trainer(module: torch.nn.Module, example: Any, *, optimizer: torch.optim.Optimizer | None = None, loss: Callable | None = None,
            actors: int = 2, schedule: str | Path = "1f1b", chunks: int | None = None, microbatches: int = 8,
            split: Sequence[str] | None = None, data: int = 1, zero: int = 0, recompute: bool = False, clip: float = 0.0,
            dynamic: bool | Mapping[str, Any] = True, whole: Iterable[str] = ("num_items_in_batch",), threads: int = 1,
            deadline: float = 60.0, seed: int = 0) -> Trainer:
    """A training step of `module`, unmodified, over `actors` devices, each a thread of this process.

    `example` is a batch as steps will get it: a dict of the module's keyword arguments, a tuple of its arguments, or one tensor; with a
    `loss` that takes a target, (such inputs, target). Samples lie along dim 0 of all tensors but those that `whole` names; a step cuts them
    into `microbatches` equal parts. The loss is the module's, as `export` says, or loss(output) or loss(output, target).
    `schedule` is a name (`penstock.schedules()`) or the path of a table. `split` says where stages begin: paths of modules, for the second
    and each further one; without it they are cut evenly. Each actor has `chunks` of them. `data` devices share the micro-batches of each
    actor, and hold in shares what `zero` says (0 to 3). `recompute`: backward computes the forward again. `clip` limits the global norm of
    the gradients; 0 does not. Without an `optimizer` there are gradients alone (`Trainer.gradients`).

    Throws PenstockError for what cannot be exported, compiled or proven.
    """
    plan = Plan(actors, schedule, chunks, microbatches, split, data, zero, recompute, clip)
    return Trainer(module, example, optimizer, loss, plan, dynamic, frozenset(whole), threads, deadline, seed)


class Trainer:
    """A step of training: `trainer` makes it. Parameters and the optimiser's state live in it; `state_dict` gives them back."""

    def __init__(self, module: torch.nn.Module, example: Any, optimizer: torch.optim.Optimizer | None, loss: Callable | None, plan: Plan,
                 dynamic: bool | Mapping[str, Any], whole: frozenset[str], threads: int, deadline: float, seed: int) -> None:
        self.module, self.plan, self.loss, self.whole, self.seed = module, plan, loss, whole, seed
        self._takes_target = loss is not None and _takes_target(loss)
        self._dynamic = dynamic
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._schedule = _told(plan.table)
        self._exports: list[tuple[Exported, Any]] = []
        self._programs: dict[tuple, _Ready] = {}
        self.exported = self._export(example)
        self._state = self.exported.state
        trained = {i["name"] for i in self.exported.header["inputs"] if i.get("trained")}
        self.optimiser = self._optimiser(optimizer, trained) if optimizer else None
        self._session = _core.Session(plan.actors * plan.data, deadline, threads)
        self._ready("training" if optimizer else "gradients", example, self._tensors(example))
        self._set_state(self._read())
        self._seen = self._versions()

    # --- running

    def __call__(self, batch: Any) -> torch.Tensor:
        """One step on the batch; the loss, a scalar on the CPU. Throws PenstockError: a batch that does not fit, a device that failed."""
        if self.optimiser is None:
            raise PenstockError("the trainer has no optimizer", hint="penstock.trainer(..., optimizer=torch.optim.AdamW(...))")
        self._check_unchanged()
        return self._run("training", batch)["loss"]

    def gradients(self, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss, and its gradient by each trained parameter; nothing is updated."""
        outputs = self._run("gradients", batch)
        return outputs["loss"], {name.removeprefix("gradient:"): value for name, value in outputs.items() if name != "loss"}

    # --- looking ahead

    def predict(self, device: str = "a100-80", link: str = "nvlink3", *, schedule: str | Path | None = None) -> Prediction:
        """What a step of the example's shape takes by published figures of a device and of the links between them.

        With another `schedule` the step is compiled for that, and nothing else changes.
        """
        ready = next(iter(self._programs.values()))
        if schedule is None:
            return Prediction.of(_told(lambda: ready.program.predict(device, link)))
        plan = replace(self.plan, schedule=schedule)
        model = _told(lambda: self._model_of(*self._exports[0], self._parts, plan))
        return Prediction.of(_told(lambda: self._compile(ready.kind, model, plan, plan.table()).predict(device, link)))

    def explain(self) -> str:
        """The stages, by the modules that begin them, and the table."""
        stages = ", ".join(f"{i + 1} at {path}" for i, path in enumerate(self._begins))
        return f"stages: 0 at the start, {stages}\n{self._schedule}"

    def program(self) -> str:
        """The program of a step of the example's shape as text."""
        return str(next(iter(self._programs.values())).program)

    def show(self, path: str | Path, device: str = "a100-80", link: str = "nvlink3") -> None:
        """Writes the predicted timeline of a step as an HTML page."""
        Path(path).write_text(self.predict(device, link).page(type(self.module).__name__))

    def _repr_html_(self) -> str:
        return self.predict()._repr_html_()

    # --- state

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by the names and in the order of module.state_dict(); tied ones are one tensor under each of their names."""
        found = {name: self.parameter(name) for name in self._read()}
        for i in [*self.exported.header["inputs"], *self.exported.header["unread"]]:
            for alias in i.get("aliases", ()):
                found[alias] = found.get(i["name"], self._state.get(i["name"]))
        return {name: found.get(name, value.detach()) for name, value in self.module.state_dict(keep_vars=True).items()}

    def parameter(self, name: str) -> torch.Tensor:
        """A copy of one parameter or buffer as it is now, or of what the optimiser keeps of it: "first:NAME", "second:NAME"."""
        with self._entered():
            return tensor_of(*_told(lambda: self._session.state(name))).reshape(self._state[name].shape if name in self._state else -1)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Sets parameters and buffers, by the module's names. Throws PenstockError for names that there are not."""
        known = self._read()
        names = {alias: i["name"] for i in self.exported.header["inputs"] for alias in i.get("aliases", ())}
        read = {names.get(name, name): value for name, value in state.items() if names.get(name, name) in known}
        unknown = [name for name in state if name not in self.module.state_dict(keep_vars=True)]
        if unknown:
            raise PenstockError(f'the module has no state "{unknown[0]}"')
        self._set_state(read)
        self._seen = self._versions()

    # --- inside

    def _read(self) -> dict[str, torch.Tensor]:
        """The state that the graph reads."""
        names = [i["name"] for i in self.exported.header["inputs"] if i["role"] in ("parameter", "buffer")]
        return {name: self._state[name] for name in names}

    def _set_state(self, state: Mapping[str, torch.Tensor]) -> None:
        packed, kept = addresses(state)
        with self._entered():
            _told(lambda: self._session.set_state(packed))
        del kept

    def _versions(self) -> dict[str, int]:
        """How often each of the module's own tensors was written to."""
        return {name: tensor._version for name, tensor in self._read().items()}

    def _check_unchanged(self) -> None:
        """Throws PenstockError where the module's own tensors were changed to other values than the trainer's, as no step would see that."""
        versions = self._versions()
        changed = [name for name, version in versions.items() if self._seen[name] != version]
        for name in changed:
            if not torch.equal(self._state[name].detach().cpu(), self.parameter(name)):
                raise PenstockError(f'"{name}" of the module was changed since the trainer was made', ["steps train the trainer's own copy of it"],
                                    "step.load_state_dict(module.state_dict()) takes the module's values, module.load_state_dict(step.state_dict()) "
                                    "gives the trainer's")
        self._seen = versions

    def _entered(self) -> _Entered:
        return _Entered(self._lock, self._pid)

    def _optimiser(self, optimizer: torch.optim.Optimizer, trained: set[str]) -> Optimiser:
        names = {id(parameter): name for name, parameter in self.module.named_parameters() if name in trained}
        return optimiser_of(optimizer, names)

    def inputs(self, batch: Any) -> tuple[tuple, dict, Any]:
        """The batch as (args, kwargs, target) of the module."""
        target = None
        if self._takes_target:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise PenstockError("the batch is not (inputs, target), which the loss function takes")
            batch, target = batch
        if isinstance(batch, Mapping):
            return (), dict(batch), target
        return (tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)), {}, target

    def _tensors(self, batch: Any) -> dict[str, torch.Tensor]:
        args, kwargs, target = self.inputs(batch)
        named = named_arguments(self.module.forward, args, kwargs, target, self.whole)
        return {argument.name: argument.tensor for argument in named.tensors}

    def _part(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """One micro-batch's part of a tensor."""
        if name in self.whole:
            return tensor
        if tensor.dim() == 0 or tensor.shape[0] % self.plan.microbatches:
            raise PenstockError(f'"{name}" of shape {list(tensor.shape)} cannot be cut into {self.plan.microbatches} equal micro-batches',
                                hint="samples lie along dim 0; give a batch that is a multiple of the micro-batches")
        return tensor[: tensor.shape[0] // self.plan.microbatches]

    def _export(self, batch: Any) -> Exported:
        args, kwargs, target = self.inputs(batch)
        named = named_arguments(self.module.forward, args, kwargs, target, self.whole)
        parts = [self._part(argument.tensor, argument.name) for argument in named.tensors]
        args, kwargs, target = named.rebuild(parts)
        found = export(self.module, args, kwargs, loss=self.loss, target=target, dynamic=self._dynamic, whole=self.whole)
        self._exports.append((found, _told(lambda: _core.Exported(json.dumps(found.header), found.text))))
        return found

    def _ready(self, kind: str, batch: Any, tensors: Mapping[str, torch.Tensor]) -> _Ready:
        """The loaded program for batches of this shape, which is made if it is not there."""
        key = (kind, *((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()))
        if key not in self._programs:
            parts = {name: self._part(tensor, name) for name, tensor in tensors.items()}
            model = _told(lambda: self._model(batch, parts))
            program = _told(lambda: self._compile(kind, model, self.plan, self._schedule))
            name = f"{kind} {len(self._programs)}"
            _told(lambda: self._session.load(name, program))
            if not self._programs:
                self._parts, self._begins = parts, model.begins
            self._programs[key] = _Ready(name, kind, program, frozenset(port[0] for port in model.ports))
        return self._programs[key]

    def _model(self, batch: Any, parts: Mapping[str, torch.Tensor]) -> Any:
        """The model of micro-batches of these shapes, of an export that allows them, or of a new one."""
        for exported, core in self._exports:
            if (model := self._model_of(exported, core, parts, self.plan)) is not None:
                return model
        exported = self._export(batch)
        return self._model_of(exported, self._exports[-1][1], parts, self.plan)

    def _model_of(self, exported: Exported, core: Any, parts: Mapping[str, torch.Tensor], plan: Plan) -> Any:
        sizes = _sizes(exported, parts)
        if sizes is None:
            return None
        groups = [] if self.optimiser is None else [self.optimiser.group_of[i["name"]] for i in exported.header["inputs"] if i.get("trained")]
        model = _core.Model(core, sizes, list(plan.split or []), plan.stages(), groups)
        fits = all(name in parts and (DTYPES.get(parts[name].dtype), list(parts[name].shape)) == (dtype, shape) for name, dtype, shape in model.ports)
        return model if fits else None

    def _compile(self, kind: str, model: Any, plan: Plan, schedule: Any) -> Any:
        placed = (schedule, [plan.data] * plan.actors, plan.zero, plan.recompute)
        batch = model.samples * plan.microbatches
        if kind == "gradients":
            return _core.compile_gradients(model, batch, plan.microbatches, *placed)
        return _core.compile_training(model, batch, plan.microbatches, self.optimiser.name, self.optimiser.groups(), plan.clip, *placed)

    def _run(self, kind: str, batch: Any) -> dict[str, torch.Tensor]:
        """The outputs of a step on the batch."""
        tensors = self._tensors(batch)
        with self._entered():
            ready = self._ready(kind, batch, tensors)
            count = next(tensor.shape[0] for name, tensor in tensors.items() if name not in self.whole)
            given = {name: tensor for name, tensor in tensors.items() if name in ready.ports}
            given |= {"rows": torch.arange(count), "seed": torch.tensor(self.seed)}
            if kind == "training":
                given["learning_rates"] = self.optimiser.rates()
            packed, kept = addresses(given)
            report = _told(lambda: self._session.step(ready.name, packed, False))
            del kept  # they had to live until here
        return {name: tensor_of(*value) for name, value in report.outputs.items()}


@dataclass(frozen=True)
class _Ready:
    """A program that is loaded under a name, and the tensors of a batch that it reads."""

    name: str
    kind: str
    program: Any
    ports: frozenset[str]


class _Entered:
    """One call at a time, in the process that made the trainer."""

    def __init__(self, lock: threading.Lock, pid: int) -> None:
        self.lock, self.pid = lock, pid

    def __enter__(self) -> None:
        if os.getpid() != self.pid:
            raise PenstockError("the trainer belongs to another process", ["its devices are threads, which a fork does not take along"],
                                "make the trainer in the process that uses it")
        if not self.lock.acquire(blocking=False):
            raise PenstockError("a step is running", hint="wait until it ends before the next call")

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def schedules() -> list[str]:
    """The names of all schedules."""
    return [name for name, _ in _core.schedules()]


def _told(call: Callable[[], Any]) -> Any:
    """The call's result; an error of the engine as the package's own."""
    try:
        return call()
    except _core.Error as error:
        lines = str(error).split("\n")
        hint = next((line.strip().removeprefix("hint: ") for line in lines[1:] if line.strip().startswith("hint: ")), "")
        details = [line.strip() for line in lines[1:] if not line.strip().startswith("hint: ")]
        raise PenstockError(lines[0], details, hint) from None


def _takes_target(loss: Callable) -> bool:
    parameters = inspect.signature(loss.forward if isinstance(loss, torch.nn.Module) else loss).parameters.values()
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) >= 2


def _sizes(exported: Exported, tensors: Mapping[str, torch.Tensor]) -> dict[str, int] | None:
    """The sizes of the export's symbols in these tensors; None where it is not for them."""
    found = {}
    for name, symbol in exported.header["symbols"].items():
        argument, dim = symbol["name"].rsplit(".", 1)
        if argument not in tensors or tensors[argument].dim() <= int(dim):
            return None
        found[name] = tensors[argument].shape[int(dim)]
    return found if exported.fits(found) else None
