"""Training a module with pipeline parallelism: `trainer` gives a function of batches that does a whole step."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from . import _core
from .calls import Calls
from .engine import told
from .errors import PenstockError
from .exports import Exports
from .optimisers import Optimiser, optimiser_of
from .plan import Plan
from .prediction import Prediction
from .tensors import addresses, tensor_of


def trainer(module: torch.nn.Module, example: Any, *, optimizer: torch.optim.Optimizer | None = None, loss: Callable | None = None,
            actors: int = 2, schedule: str | Path = "1f1b", chunks: int | None = None, microbatches: int = 8,
            split: Sequence[str] | None = None, data: int = 1, zero: int = 0, recompute: bool = False, clip: float = 0.0,
            dynamic: bool | Mapping[str, Any] = True, whole: Iterable[str] = ("num_items_in_batch",), threads: int = 1,
            deadline: float = 60.0, seed: int = 0, autocast: torch.dtype | None = None) -> Trainer:
    """A training step of `module`, unmodified, over `actors` devices, each a thread of this process.

    `example` is a batch as steps will get it: a dict of the module's keyword arguments, a tuple of its arguments, or one tensor; with a
    `loss` that takes a target, (such inputs, target). Samples lie along dim 0 of all tensors but those that `whole` names; a step cuts them
    into `microbatches` equal parts. The loss is the module's, as `export` says, or loss(output) or loss(output, target).
    `schedule` is a name (`penstock.schedules()`) or the path of a table. `split` says where stages begin: paths of modules, for the second
    and each further one; without it they are cut evenly. Each actor has `chunks` of them. `data` devices share the micro-batches of each
    actor, and hold in shares what `zero` says (0 to 3). `recompute`: backward computes the forward again. `clip` limits the global norm of
    the gradients; 0 does not. `autocast=torch.bfloat16` computes as torch.autocast does, with parameters, gradients' sums and the
    optimiser's state as the module has them. Without an `optimizer` there are gradients alone (`Trainer.gradients`).

    Throws PenstockError for what cannot be exported, compiled or proven.
    """
    plan = Plan(actors, schedule, chunks, microbatches, split, data, zero, recompute, clip)
    return Trainer(module, example, optimizer, loss, plan, dynamic, frozenset(whole), threads, deadline, seed, autocast)


class Trainer:
    """A step of training: `trainer` makes it. Parameters and the optimiser's state live in it; `state_dict` gives them back."""

    def __init__(self, module: torch.nn.Module, example: Any, optimizer: torch.optim.Optimizer | None, loss: Callable | None, plan: Plan,
                 dynamic: bool | Mapping[str, Any], whole: frozenset[str], threads: int, deadline: float, seed: int,
                 autocast: torch.dtype | None) -> None:
        self.module, self.plan, self.loss, self.seed = module, plan, loss, seed
        self.calls = Calls(module, loss, whole, plan.microbatches)
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._schedule = plan.table()
        self.exports = Exports(self.calls, loss, dynamic, autocast, example)
        self._state = self.exports.first.state
        self.optimiser = self._optimiser(optimizer) if optimizer else None
        self._session = _core.Session(plan.actors * plan.data, deadline, threads)
        self._programs: dict[tuple, _Ready] = {}
        self._first = self._ready("training" if optimizer else "gradients", example, self.calls.tensors(example))
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
        if schedule is None:
            return Prediction.of(told(lambda: self._first.program.predict(device, link)))
        plan = replace(self.plan, schedule=schedule)
        program = self._compile(self._first.kind, self.exports.example_model(plan, self._groups()), plan, plan.table())
        return Prediction.of(told(lambda: program.predict(device, link)))

    def explain(self) -> str:
        """The stages, by the modules that begin them, and the table."""
        stages = ", ".join(f"{i + 1} at {path}" for i, path in enumerate(self._first.begins))
        return f"stages: 0 at the start, {stages}\n{self._schedule}"

    def program(self) -> str:
        """The program of a step of the example's shape as text."""
        return str(self._first.program)

    def show(self, path: str | Path, device: str = "a100-80", link: str = "nvlink3") -> None:
        """Writes the predicted timeline of a step as an HTML page."""
        Path(path).write_text(self.predict(device, link).page(type(self.module).__name__))

    def _repr_html_(self) -> str:
        return self.predict()._repr_html_()

    # --- state

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by the names and in the order of module.state_dict(); tied ones are one tensor under each of their names."""
        found = {name: self.parameter(name) for name in self.exports.state}
        for alias, name in self.exports.aliases.items():
            found[alias] = found.get(name, self._state.get(name))
        return {name: found.get(name, value.detach()) for name, value in self.module.state_dict(keep_vars=True).items()}

    def parameter(self, name: str) -> torch.Tensor:
        """A copy of one parameter or buffer as it is now, or of what the optimiser keeps of it: "first:NAME", "second:NAME"."""
        with self._entered():
            return tensor_of(*told(lambda: self._session.state(name))).reshape(self._state[name].shape if name in self._state else -1)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Sets parameters and buffers, by the module's names. Throws PenstockError for names that there are not."""
        aliases, known = self.exports.aliases, set(self.exports.state)
        read = {aliases.get(name, name): value for name, value in state.items() if aliases.get(name, name) in known}
        unknown = [name for name in state if name not in self.module.state_dict(keep_vars=True)]
        if unknown:
            raise PenstockError(f'the module has no state "{unknown[0]}"')
        self._set_state(read)
        self._seen = self._versions()

    # --- inside

    def _read(self) -> dict[str, torch.Tensor]:
        """The module's own tensors that the graph reads."""
        return {name: self._state[name] for name in self.exports.state}

    def _set_state(self, state: Mapping[str, torch.Tensor]) -> None:
        packed, kept = addresses(state)
        with self._entered():
            told(lambda: self._session.set_state(packed))
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

    def _optimiser(self, optimizer: torch.optim.Optimizer) -> Optimiser:
        trained = set(self.exports.trained)
        return optimiser_of(optimizer, {id(parameter): name for name, parameter in self.module.named_parameters() if name in trained})

    def _groups(self) -> Mapping[str, int]:
        return self.optimiser.group_of if self.optimiser else {}

    def _ready(self, kind: str, batch: Any, tensors: Mapping[str, torch.Tensor]) -> _Ready:
        """The loaded program for batches of this shape, which is made if it is not there."""
        key = (kind, *((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()))
        if key not in self._programs:
            model = self.exports.model(batch, self.calls.parts(tensors), self.plan, self._groups())
            program = self._compile(kind, model, self.plan, self._schedule)
            name = f"{kind} {len(self._programs)}"
            told(lambda: self._session.load(name, program))
            self._programs[key] = _Ready(name, kind, program, frozenset(port[0] for port in model.ports), model.begins)
        return self._programs[key]

    def _compile(self, kind: str, model: Any, plan: Plan, schedule: Any) -> Any:
        batch, parts = model.samples * plan.microbatches, plan.microbatches
        placed = (schedule, [plan.data] * plan.actors, plan.zero, plan.recompute)
        if kind == "gradients":
            return told(lambda: _core.compile_gradients(model, batch, parts, *placed))
        optimiser = self.optimiser
        return told(lambda: _core.compile_training(model, batch, parts, optimiser.name, optimiser.groups(), plan.clip, *placed))

    def _run(self, kind: str, batch: Any) -> dict[str, torch.Tensor]:
        """The outputs of a step on the batch."""
        tensors = self.calls.tensors(batch)
        with self._entered():
            ready = self._ready(kind, batch, tensors)
            given = {name: tensor for name, tensor in tensors.items() if name in ready.ports}
            given |= {"rows": torch.arange(self.calls.samples(tensors)), "seed": torch.tensor(self.seed)}
            if kind == "training":
                given["learning_rates"] = self.optimiser.rates()
            packed, kept = addresses(given)
            report = told(lambda: self._session.step(ready.name, packed, False))
            del kept  # they had to live until here
        return {name: tensor_of(*value) for name, value in report.outputs.items()}


@dataclass(frozen=True)
class _Ready:
    """A program that is loaded under a name, the tensors of a batch that it reads, and the modules at which its stages begin."""

    name: str
    kind: str
    program: Any
    ports: frozenset[str]
    begins: Sequence[str]


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
