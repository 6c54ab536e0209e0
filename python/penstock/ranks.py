# SPDX-License-Identifier: Apache-2.0
"""Trainers whose devices are processes: rank 0 leads one, the others' devices do their part, and every rank gets what a call gives."""

from __future__ import annotations

import itertools
import json
import math
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from . import _core, checkpoints
from .calls import Calls
from .engine import Entered, told
from .errors import PenstockError
from .files import checked_ending, write_text
from .micro_batches import MicroBatches
from .optimisers import rates_of
from .placing import Plan
from .planned import Planned
from .prediction import Prediction
from .saved import DTYPES, NAMES
from .step_windows import rates_given
from .tables import Schedule, called
from .tensors import addresses, in_words, of_words, tensor_of

# These belong to the process, as the launcher's variables do, which are the same for all trainers in it. All ranks make their trainers in one
# order, so a number says which of them belong together. A session on rank 0 serves the store for those that begin while it is open, where no
# launcher does.
_numbers = itertools.count()
_open: weakref.WeakSet[Any] = weakref.WeakSet()


def ranks_for(plan: Plan | Planned, backend: str | None) -> Any:
    """The ranks of this process's launcher; None where the plan's devices are to be threads.

    Throws PenstockError where there are not as many processes as devices, or no launcher for the backends "gloo" and "nccl".
    """
    if backend not in (None, "threads", "gloo", "nccl"):
        raise PenstockError(f"there is no backend {backend!r}", ['there are "threads", "gloo" and "nccl"'])
    ranks = told(_core.ranks_from_environment) if backend != "threads" else None
    devices = plan.devices()
    if ranks is None and backend in ("gloo", "nccl"):
        raise PenstockError(f'backend="{backend}" takes a process for each device, and no launcher started this one',
                            hint=f"torchrun --nproc-per-node {devices} train.py")
    if ranks is None or (ranks.size == 1 and backend is None):
        return None
    if ranks.size != devices:
        sizes = [line.replace(" = ", "=") for line in plan.settings() if line.startswith(("actors", "data"))]
        raise PenstockError(f"there are {ranks.size} processes (WORLD_SIZE) for {devices} devices", [", ".join(sizes)] if sizes else [],
                            f'torchrun --nproc-per-node {devices} train.py, or backend="threads"')
    return ranks


def _session(ranks: Any, plan: Plan | Planned, deadline: float, threads: int, device: str, backend: str, fuse: bool) -> Any:
    ranks.attempt += f"/trainer {next(_numbers)}"
    ranks.store_runs = ranks.store_runs or bool(_open) or (torch.distributed.is_available() and torch.distributed.is_initialized())
    run = "\n".join(["[trainer]", *plan.settings()])
    session = told(lambda: _core.Session(ranks.size, deadline, threads, ranks, run, device, backend, fuse))
    _open.add(session)
    return session


class RankTrainer:
    """A `Trainer` of several processes, all of which make the same calls. Their results are the same on every rank.

    `steps` says how many it has done, `gradient_norm` the last one's, before clipping. `lead` makes the trainer of rank 0 on a session. The
    module's values are read there alone.
    """

    def __init__(self, lead: Callable[[Any], Any], module: torch.nn.Module, optimizer: torch.optim.Optimizer | None, loss: Callable | None,
                 whole: Iterable[str], plan: Plan | Planned, ranks: Any, threads: int, deadline: float, seed: int,
                 autocast: torch.dtype | None, device: str, backend: str, fuse: bool) -> None:
        self.module, self.plan, self.loss, self.autocast, self.seed, self.rank = module, plan, loss, autocast, seed, ranks.rank
        self.calls = Calls(module, loss, whole, plan.microbatches)
        self._optimizer = optimizer
        self._entered = Entered()
        self._session = _session(ranks, plan, deadline, threads, device, backend, fuse)
        weakref.finalize(self, _close, self._session, os.getpid())
        self._lead: Any = None
        self.steps, self.gradient_norm = 0, math.nan

        def make() -> str:
            self._lead = lead(self._session)
            return self._lead.explain()
        self._explained = self._led("penstock.trainer", make)
        self._program = self._session.program(0)

    def __repr__(self) -> str:
        return (f"<penstock trainer of {type(self.module).__name__}, rank {self.rank}: {self.plan.devices()} devices, schedule {called(self.plan.schedule)}, "
                f"{self.plan.microbatches} micro-batches, {self.steps} steps done>")

    # --- running

    def __call__(self, batch: Any) -> torch.Tensor:
        """One step on the batch, which is the same on every rank; the loss, a scalar on the CPU.

        Throws PenstockError, on every rank: a batch that does not fit, or that is another one on some rank; a rank that makes another call,
        failed or ended.
        """
        data = self._data("training", batch)
        loss, self.gradient_norm, self.steps = self._led("step(batch)", lambda: (self._lead(batch), self._lead.gradient_norm, self._lead.steps), data)
        if self._optimizer is not None:
            self._optimizer._opt_called = True  # torch.optim.lr_scheduler asks for it
        return loss

    def gradients(self, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss, and its gradient by each trained parameter; nothing is updated."""
        return self._led("gradients(batch)", lambda: self._lead.gradients(batch), self._data("gradients", batch))

    def evaluate(self, batch: Any) -> dict[str, torch.Tensor]:
        """The loss, and what else the module gives of the batch, as `Trainer.evaluate` says."""
        return self._led("evaluate(batch)", lambda: self._lead.evaluate(batch), self._data("evaluation", batch))

    # --- looking ahead: every rank has the first program

    def microbatches(self, batch: Any) -> int:
        """Into how many parts a step cuts this batch, as `Trainer.microbatches` says."""
        return self.calls.microbatches_of(batch, self.plan)

    def predict(self, device: str = "a100-80", link: str = "nvlink3", *, schedule: str | Path | Schedule | None = None) -> Prediction:
        """Predicts what a step of the example's shape takes by published figures; with another `schedule` a call that all ranks make."""
        program = self._program
        if schedule is not None:
            text = self._led(f"predict(schedule={str(schedule)!r})", lambda: str(self._lead.compiled(schedule)))
            program = told(lambda: _core.parse_program(text))
        return Prediction.of(told(lambda: program.predict(device, link)))

    def explain(self) -> str:
        """The stages, by the modules that begin them, and the table."""
        return self._explained

    def program(self) -> str:
        """The program of a step of the example's shape as text."""
        return str(self._program)

    def show(self, path: str | Path, device: str = "a100-80", link: str = "nvlink3") -> None:
        """Rank 0 writes the predicted timeline of a step as an HTML page, as `Trainer.show` says; the others write nothing."""
        checked_ending(path, "a page", ("html",))
        if self.rank == 0:
            write_text(path, self.predict(device, link).page(type(self.module).__name__))

    def _repr_html_(self) -> str:
        return self.predict()._repr_html_()

    # --- state

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by the names and in the order of module.state_dict(); tied ones are one tensor under each of their names."""
        return self._led("state_dict()", lambda: self._lead.state_dict())

    def parameter(self, name: str) -> torch.Tensor:
        """A copy of one parameter or buffer as it is now, or of what the optimiser keeps of it: "first:NAME", "second:NAME"."""
        return self._led(f"parameter({name!r})", lambda: self._lead.parameter(name))

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Sets parameters and buffers, by the module's names, to rank 0's values."""
        self._led("load_state_dict(state)", lambda: self._lead.load_state_dict(state))

    def save_pretrained(self, folder: str | Path, max_shard_size: int | str | None = None) -> None:
        """Rank 0 writes the folder, as `Trainer.save_pretrained` says."""
        self._led("save_pretrained(folder)", lambda: self._lead.save_pretrained(folder, max_shard_size))

    def save(self, folder: str | Path, *, keep: int | None = None, **parts: Any) -> Path:
        """Rank 0 writes a checkpoint, as `Trainer.save` says, with its own parts' states, which are those of all ranks."""
        return Path(self._led("save(folder)", lambda: str(self._lead.save(folder, keep=keep, **parts))))

    def restored(self, folder: str | Path, at: int | None, begin: bool, parts: Mapping[str, str],
                 load: Callable[[Mapping[str, Any]], None]) -> tuple[str, str, dict[str, torch.Tensor]]:
        """Rank 0 reads the checkpoint and gives its own parts their states, and all ranks get what `Trainer.restored` gives; the others' parts follow."""
        def work() -> Any:
            path, text, tensors = self._lead.restored(folder, at, begin, parts, load)
            types = json.dumps({name: [NAMES[tensor.dtype], list(tensor.shape)] for name, tensor in tensors.items()})
            return path, text, types, {name: in_words(tensor) for name, tensor in tensors.items()}, self._lead.steps
        path, text, types, words, self.steps = self._led(f"penstock.resume(at={at}, parts={sorted(parts)})", work)
        tensors = {name: of_words(words[name], DTYPES[dtype], shape) for name, (dtype, shape) in json.loads(types).items()}
        values = checkpoints.values_of(path, text, tensors) if path else {}
        if path and self.rank != 0:
            load(values)
        if path and self._optimizer is not None:
            groups = values["optimizer"]["groups"]
            for own, group in zip(self._optimizer.param_groups, groups, strict=True):
                own.update({key: value for key, value in group.items() if key != "params"})
        return path, text, tensors

    def optimizer_state_dict(self) -> dict[str, Any]:
        """As the optimizer's own state_dict() would be after these steps."""
        return self._led("optimizer_state_dict()", lambda: self._lead.optimizer_state_dict())

    def load_optimizer_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from rank 0's state_dict() of the optimizer; each rank's own optimizer takes its learning rates."""
        self._led("load_optimizer_state_dict(state)", lambda: self._lead.load_optimizer_state_dict(state))
        if self._optimizer is not None:
            for group, given in zip(self._optimizer.param_groups, state["param_groups"], strict=True):
                group["lr"] = given["lr"]

    def sync(self) -> None:
        """Gives every rank's module, where it is not on the meta device, and every rank's optimizer the trainer's values."""
        state = self.state_dict()
        if not any(tensor.is_meta for tensor in self.module.state_dict(keep_vars=True).values()):
            self.module.load_state_dict(state)
        if self._optimizer is not None:
            self._optimizer.load_state_dict(self.optimizer_state_dict())

    # --- inside

    def _data(self, kind: str, batch: Any) -> dict[str, torch.Tensor]:
        given = self.calls.given(batch, self.calls.tensors(batch), self.seed)
        if isinstance(batch, MicroBatches):
            given |= self._led("the counts of a step(batch)", lambda: self._lead.counts(kind, batch), given)
        return given if self._optimizer is None else given | rates_given(batch, rates_of(self._optimizer))

    def _led(self, call: str, work: Callable[[], Any], data: Mapping[str, torch.Tensor] | None = None) -> Any:
        """Gives every rank what `work` gives on rank 0: tensors, numbers and texts in dicts, lists and tuples. `data` is what steps in it read."""
        packed, kept = addresses(data or {})

        def packed_work() -> tuple[dict[str, Any], str]:
            values, form = pytree.tree_flatten(work())
            tensors = {str(id(value)): value for value in values if isinstance(value, torch.Tensor)}  # a tied one is sent once
            results, alive = addresses(tensors)
            kept.extend(alive)  # they have to live until they are sent
            others = [[str(id(value))] if isinstance(value, torch.Tensor) else value for value in values]
            return results, json.dumps([others, pytree.treespec_dumps(form)])
        with self._entered:
            results, text = told(lambda: self._session.together(call, packed, packed_work))
        received = {name: tensor_of(*value) for name, value in results.items()}
        values, form = json.loads(text)
        return pytree.tree_unflatten([received[value[0]] if isinstance(value, list) else value for value in values], pytree.treespec_loads(form))


def _close(session: Any, pid: int) -> None:
    """Ends the session, also at the interpreter's exit; a fork has no part in it."""
    if os.getpid() == pid:
        session.close()
