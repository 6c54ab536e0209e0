# SPDX-License-Identifier: Apache-2.0
"""Training a module with pipeline parallelism: `trainer` gives a function of batches that does a whole step."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from . import _core, checkpoints, optimiser_state
from .calls import Calls
from .named_dims import Dims, checked_dims
from .engine import Entered, told
from .errors import PenstockError
from .files import checked_ending, write_text
from .exports import Exports
from .loggers import logger_of
from .mesh import named_axes, sizes_of
from .micro_batches import MicroBatches, name_in
from .optimisers import Optimiser, optimiser_of, parameters_by_id
from .placing import Plan
from .planned import Planned
from .prediction import Prediction
from .pretrained import Folder
from .programs import Programs, Ready, steps_of
from .ranks import RankTrainer, ranks_for
from .loaders import random_state
from .settings import check_settings
from .splits import begins_of
from .stale import warn_where_stale
from .state import State
from .step_windows import Window, rates_given
from .tables import Schedule, called
from .tensors import addresses, tensor_of


def trainer(module: torch.nn.Module, example: Any, *, optimizer: torch.optim.Optimizer | None = None, loss: Callable | None = None,
            actors: int | None = None, schedule: str | Path | Schedule = "1f1b", chunks: int | None = None, microbatches: int | None = None,
            split: Sequence[str] | Mapping[str, Any] | None = None, data: int = 1, zero: int = 0, recompute: bool | str = False, clip: float = 0.0,
            options: Mapping[str, Any] | None = None, plan: Planned | None = None, dynamic: bool | Mapping[str, Any] = True, whole: Iterable[str] = ("num_items_in_batch",),
            threads: int = 1, deadline: float = 60.0, seed: int = 0, reduction: str | None = None, autocast: torch.dtype | None = None,
            weights: str | Path | None = None, log: Any = None, backend: str | None = None, device: str = "cpu",
            fuse: bool = False, window: int | None = None, tensor: int = 1, context: int = 1, expert: int = 1, layout: Mapping[str, str] | None = None,
            dims: Mapping[str, Dims] | None = None, mesh: Mapping[str, int] | None = None, axes: Mapping[str, str] | None = None,
            slices: int | Sequence[int] | None = None, sequence: Mapping[str, int] | None = None) -> Trainer | RankTrainer:
    """A training step of `module`, unmodified, over `actors` devices (2), each a thread of this process or, under torchrun, a process.

    `example` is a batch as steps will get it: a dict of the module's keyword arguments, a tuple of its arguments, or one tensor; with a
    `loss` that takes a target, (such inputs, target). Samples lie along dim 0 of all tensors but those that `whole` names; a step cuts them
    into `microbatches` (8) equal parts; a later batch that has none, such as a loader's last one, into fewer. The loss is the module's, as `export`
    says, or loss(output) or loss(output, target). `reduction`: how a batch's loss is made of its micro-batches', "mean" or "sum", which is
    for a module or loss function that adds up its samples' losses; "sum" if the module is given num_items_in_batch.
    `schedule` is a name (`penstock.schedules()`), a `penstock.Schedule`, which says actors, microbatches, window and slices itself, the path of a table,
    the path of rules (`.rules`) or their text. `split` says where stages
    begin: paths of modules, for the second and each further one, or a split_spec of torch.distributed.pipelining
    ({"layers.1": SplitPoint.BEGINNING}); without it they are cut evenly. Each actor has `chunks` of them; a table and rules say themselves how
    many. `options` are others that the schedule takes, by their keys in [pipeline] of a configuration:
    {"in_flight": 3, "split_backward": True}. `window` (1): for how many training steps the schedule makes its table, so that the pipeline is not drained
    between them: steps then come as `penstock.Window`, and of schedules such as pipedream read parameters that are some updates late
    (docs/pytorch_loops.md). `data` devices share the micro-batches of each actor, and hold in shares what `zero` says (0 to
    3). `tensor`, `context` and `expert`: members of axes over which the tensors of each of these devices are split: by `dims`, names of parameters'
    dims, as `penstock.dims` makes them, and `layout`, the axis of each name ({"heads": "tensor"}); without dims so that the least is sent.
    `mesh={"data": 2, "model": 2}` says all of these and `actors` (of the axis "pipe") at once, in the order of its axes, and `axes={"model": "tensor"}`
    gives axes names of your own.
    `slices` (1): into how many slices each sequence is cut, on which a stage works one after the other, or their lengths' proportions: a schedule that takes
    slices then fills the pipeline with few micro-batches (docs/pytorch.md). Tokens lie along dim 1 of the batch's first tensor, or as `sequence` says,
    {"input_ids": 1}; and none may need one behind it, so attention is causal.
    `recompute`: backward computes the forward again, or with "selective" of that what costs little for the bytes that it takes. `clip` limits the
    global norm of the gradients; 0 does not.
    `dynamic`: as `export` takes it; but with True the first export has the example's sizes, and the next one, when a batch of another shape
    comes, symbols for the dims in which batches differed.
    `plan`: what `penstock.plan` found, which says all of this but `clip`. `autocast=torch.bfloat16` computes as torch.autocast does, with
    parameters, gradients' sums and the optimiser's state as the module has them. Without an `optimizer` there are gradients alone
    (`Trainer.gradients`).
    `weights` is a folder of `save_pretrained`, whose tensors the training begins with; the module's own are not read, and may be on the meta
    device. `log`: a logger of penstock.loggers, any object with its log(step, values), a SummaryWriter, or a list of these; it is given the numbers
    of each step (docs/monitoring.md).

    `backend` is "threads", or "gloo" or "nccl": each device is one of the processes that torchrun, penstock launch or mpirun started, and all of
    them make the same trainer and the same calls with the same batches. "nccl" sends tensors from device to device, which are other than "cpu". Without
    it the launcher's variables say whether there are processes, which then send over Gloo.

    `device` is what all devices of this process compute on: "cpu"; "cuda", the process's own card, or "cuda:1", that one; or "standin", which
    behaves as a GPU does and is built with Penstock's tests. On the last two whole steps are recorded, the second of each shape, and then replayed. Modules, batches and results stay on the host.
    `fuse`, for these two: chains of elementwise ops, sums and casts are one generated kernel each (docs/gpu.md).

    Throws PenstockError for what cannot be exported, compiled or proven.
    """
    check_settings(module, {"optimizer": optimizer, "loss": loss, "actors": actors, "schedule": schedule, "chunks": chunks, "microbatches": microbatches,
                            "split": split, "data": data, "zero": zero, "recompute": recompute, "clip": clip, "options": options, "dynamic": dynamic, "whole": whole,
                            "threads": threads, "deadline": deadline, "seed": seed, "weights": weights, "device": device, "fuse": fuse,
                            "window": window, "tensor": tensor, "context": context, "expert": expert, "layout": layout, "dims": dims, "mesh": mesh, "axes": axes,
                            "slices": slices, "sequence": sequence})
    said = {name: value for name, value in (("actors", actors), ("microbatches", microbatches), ("window", window), ("slices", slices)) if value is not None}
    given = Plan(schedule=schedule, chunks=chunks, split=split, data=data, zero=zero, recompute=recompute, clip=clip, options=options or {}, tensor=tensor,
                 context=context, expert=expert, layout=layout or {}, dims=checked_dims(module, dims or {}), names=named_axes(axes or {}),
                 sequence=sequence or {}, **said)
    if mesh is not None:
        given = given.on_mesh(sizes_of(mesh, axes or {}), said)
        said = said | {"actors": given.actors}
    placed = given.of_table(said) if plan is None else _planned(plan, given, said)

    def make(session: Any = None) -> Trainer:
        return Trainer(module, example, optimizer, loss, placed, dynamic, frozenset(whole), threads, device, fuse, deadline, seed, reduction, autocast, weights, log,
                       lambda: session or told(lambda: _core.Session(placed.devices(), deadline, threads, device=device, fuse=fuse)))
    ranks = ranks_for(placed, backend)
    if not ranks:
        return make()
    return RankTrainer(make, module, optimizer, loss, whole, placed, ranks, threads, deadline, seed, autocast, device, backend or "gloo", fuse)


def _check_frequencies(text: str, microbatches: int) -> None:
    """Throws PenstockError where a gradient is divided by how often a row is read: each micro-batch would take its own number for the batch's."""
    by_frequency = re.search(r'^.*scale_grad_by_freq=true.*phase="backward".*$', text, re.MULTILINE)
    if by_frequency and microbatches > 1:
        origin = re.search(r'origin="([^"]*)"', by_frequency[0])
        raise PenstockError("an embedding with scale_grad_by_freq=True divides its gradient by how often the whole batch reads a row",
                            [*([f"in module {origin[1]}"] if origin else []), f"each of {microbatches} micro-batches knows only what it reads itself"],
                            "scale_grad_by_freq=False, or microbatches=1")


def _planned(plan: Planned, given: Plan, said: Collection[str]) -> Planned:
    """The plan with the limit of the gradients' norm. Throws PenstockError where more is given beside it."""
    unset = Plan()
    other = [field.name for field in fields(Plan) if field.name != "clip" and (field.name in said or getattr(given, field.name) != getattr(unset, field.name))]
    if other:
        raise PenstockError(f"plan= and {other[0]}={getattr(given, other[0])!r}", ["the plan says how the step is cut and placed"],
                            f"leave out {other[0]}, or plan with it")
    return replace(plan, clip=given.clip)


class Trainer:
    """A step of training: `trainer` makes it. Parameters and the optimiser's state live in it; `state_dict` gives them back.

    `steps` says how many it has done, `gradient_norm` the last one's, before clipping. The module and the optimizer stay as they are; `sync` gives
    them the trainer's values.

    A step that fails before a device writes state, as one with a bad label or token does, changes nothing: state can be read, and the next step may
    follow. Where one had begun to write, what it left is of no step, and is not given out. Ctrl-C gives up a step that has not begun to write; one
    that has is ended and counted, and the KeyboardInterrupt comes with the next call of step, `gradients` or `evaluate`. An interrupt after its end
    is the loop's own: a loop that goes on after one sets rates from `steps`.
    """

    def __init__(self, module: torch.nn.Module, example: Any, optimizer: torch.optim.Optimizer | None, loss: Callable | None, plan: Plan | Planned,
                 dynamic: bool | Mapping[str, Any], whole: frozenset[str], threads: int, device: str, fuse: bool, deadline: float, seed: int,
                 reduction: str | None, autocast: torch.dtype | None, weights: str | Path | None, writer: Any, session: Callable) -> None:
        self.module, self.loss, self.seed, self.autocast = module, loss, seed, autocast
        self.calls = Calls(module, loss, whole, plan.microbatches)
        self.calls.check_whole(example)
        self._done, self._late = _core.Count(), None  # _late: an interrupt that came while a step was writing
        self._before = 0  # steps that a checkpoint's run had done
        self.gradient_norm, self._log = math.nan, None if writer is None else logger_of(writer)
        self._entered = Entered()
        self._table = plan.table()
        folder = Folder(weights, module) if weights is not None else None
        self.exports = Exports(self.calls, loss, dynamic, autocast, example, reduction)
        self.plan = plan.with_split(begins_of(plan.split, self.exports.first))
        _check_frequencies(self.exports.first.text, self.plan.microbatches)
        self.optimiser = self._optimiser(optimizer) if optimizer else None
        self._session = session()
        self._state = State(module, self.exports, self._session, folder)
        self._programs = Programs(self.calls, loss, self.exports, self.plan, self._table, self.optimiser, self._session, self._state,
                                  deadline)
        windowed = optimizer is not None and self.plan.window > 1
        self._measuring, self._example = (threads, device, fuse), Window([example] * self.plan.window) if windowed else example
        self._trains = [(name, parameter, parameter.requires_grad) for name, parameter in module.named_parameters()]
        self._first = self._programs.of("training" if optimizer else "gradients", self._example, self.calls.tensors(example))
        if optimizer and optimizer.state:
            self._state.set(optimiser_state.loaded(self._optimised(), optimizer.state_dict(), 0))
        warn_where_stale(module, self)

    @property
    def steps(self) -> int:
        """The number of steps that it has done, those before a checkpoint that it was resumed from too."""
        return self._before + self._done.value

    def __repr__(self) -> str:
        return (f"<penstock trainer of {type(self.module).__name__}: {self.plan.devices()} devices, schedule {called(self.plan.schedule)}, "
                f"{self.plan.microbatches} micro-batches, {self.steps} steps done>")

    # --- running

    def __call__(self, batch: Any) -> torch.Tensor:
        """One step on the batch, or on `MicroBatches`; the loss, a scalar on the CPU. On a `Window` as many steps as it has batches; their losses.

        Throws PenstockError: a batch that does not fit, a device that failed.
        """
        optimiser = self._optimised()
        with self._entered:
            self._state.check_unchanged()
        outputs, report = self._run("training", batch)
        optimiser.torchs._opt_called = True  # torch.optim.lr_scheduler asks for it
        steps = steps_of(batch)
        by_step = [{name: outputs[name_in(name, step) if steps > 1 else name] for name in ("loss", "gradient_norm", "learning_rate")}
                   for step in range(steps)]
        self.gradient_norm = by_step[-1]["gradient_norm"].item()
        if self._log is not None:
            measured = _measured(report, len(by_step), self.calls.sizes(batch))
            for number, values in enumerate(by_step, self.steps - len(by_step) + 1):
                self._log.log(number, {name: value.item() for name, value in values.items()} | measured)
        return torch.stack([values["loss"] for values in by_step]) if isinstance(batch, Window) else outputs["loss"]

    def gradients(self, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss, and its gradient by each trained parameter; nothing is updated."""
        outputs, _ = self._run("gradients", batch)
        return outputs["loss"], {name.removeprefix("gradient:"): value for name, value in outputs.items() if name != "loss"}

    def evaluate(self, batch: Any) -> dict[str, torch.Tensor]:
        """The loss, and what else the module gives of the batch (logits), as in evaluation mode: no dropout, stored statistics. Nothing changes.

        Names are those of the module's output, "output" where a loss function takes a tensor. What has no samples along dim 0 is left out, and so
        is all but the loss where the loss function is a module with tensors of its own. The batch is one as for a step. The first one of a
        shape is exported anew, as an evaluated module is another. Throws PenstockError as a step does.
        """
        outputs, _ = self._run("evaluation", batch)
        loss = outputs["loss_sum"] / outputs["count"].clamp(min=1)
        return {"loss": loss, **{name.removeprefix("output:"): value for name, value in outputs.items() if name.startswith("output:")}}

    # --- looking ahead

    def microbatches(self, batch: Any) -> int:
        """Into how many parts a step cuts this batch: the plan's, or of a batch that these do not divide, fewer."""
        return self.calls.microbatches_of(batch, self.plan)

    def predict(self, device: str = "a100-80", link: str = "nvlink3", *, schedule: str | Path | Schedule | None = None) -> Prediction:
        """Predicts what a step of the example's shape takes by published figures of a device and of the links between them; with device="here" by what
        this machine takes, measured now on parameters of zero.

        With another `schedule` the step is compiled for that, and nothing else changes.
        """
        program = self._first.program if schedule is None else self.compiled(schedule)
        return self._predicted(program, device, link)

    def compiled(self, schedule: str | Path | Schedule) -> Any:
        """The program of a step of the example's shape under another schedule."""
        return self._programs.scheduled(self._first.kind, schedule)

    def explain(self) -> str:
        """The stages, by the modules that begin them, what is split along which axis, and the table."""
        return f"{self.plan.stages_text(self._first.begins)}\n{self._programs.split_text()}{self._table}"

    def program(self) -> str:
        """The program of a step of the example's shape as text."""
        return str(self._first.program)

    def show(self, path: str | Path, device: str = "a100-80", link: str = "nvlink3") -> None:
        """Writes the predicted timeline of a step as an HTML page, `.html`. Throws PenstockError for another ending, and where it cannot be written."""
        checked_ending(path, "a page", ("html",))
        write_text(path, self.predict(device, link).page(type(self.module).__name__))

    def _repr_html_(self) -> str:
        return self.predict()._repr_html_()

    # --- state

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by the names and in the order of module.state_dict(); tied ones are one tensor under each of their names."""
        with self._entered:
            return self._state.all()

    def parameter(self, name: str) -> torch.Tensor:
        """One parameter or buffer, or what the optimiser keeps of it: "first:NAME", "second:NAME" of AdamW, Adam and SGD, "square_avg:NAME"
        of others by their own names. It is the device's own memory where one device of this process has all of it, and a copy where several
        have pieces (zero=1 to 3).

        In the device's memory it shows what each step leaves, and what is written to it is what the next step reads; a second call gives the
        same tensor. It stays valid when the trainer is gone. Another batch's program may move a state: the tensor follows, but parts that were
        taken of it (`[0]`, `.view(-1)`) keep the old values then.
        """
        with self._entered:
            return self._state.view(name)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Sets parameters and buffers, by the module's names. Throws PenstockError for names that there are not."""
        with self._entered:
            self._state.load(state)

    def save_pretrained(self, folder: str | Path, max_shard_size: int | str | None = None) -> None:
        """Writes a folder that `from_pretrained` reads: safetensors, an index where there are several files, the module's config.

        Keys, dtypes and files are those of the folder that the trainer's `weights` came from. Without one, keys and dtypes are those of the
        module's own save_pretrained, in files of at most `max_shard_size` ("5GB"), which may be given in both cases.
        """
        with self._entered:
            self._state.save_pretrained(folder, max_shard_size)

    def save(self, folder: str | Path, *, keep: int | None = None, **parts: Any) -> Path:
        """Writes a checkpoint, FOLDER/step-NUMBER.safetensors, from which `penstock.resume` goes on, to the bit under the same plan.

        It has parameters, buffers, what the optimizer keeps, learning rates, the number of steps, and the state of this process's random numbers.
        `parts` are the loop's: anything with state_dict and load_state_dict of numbers, texts and tensors, such as scheduler=scheduler and
        data=penstock.resumable(loader). The file is there whole or not at all. `keep`: as many of the newest stay; None: all.

        Throws PenstockError for parameters that are not finite, a part without a state, and a folder that has a later checkpoint.
        """
        with self._entered:
            optimiser = self.optimiser
            kept, trained, read = optimiser_state.kept_types(optimiser) if optimiser else {}, set(self.exports.trained), self._state.reader()
            texts = {"steps": self.steps, "seed": self.seed, "model": type(self.module).__name__, "kept": list(kept), "parts": checkpoints.states_of(parts),
                     "classes": {name: checkpoints.class_of(part) for name, part in parts.items()},
                     "optimizer": optimiser_state.beside(optimiser) if optimiser else None, "random": random_state()}

            def value(name: str) -> torch.Tensor:
                found = read(name)
                if name in trained and not bool(found.isfinite().all()):
                    raise PenstockError(f'"{name}" is not finite after step {self.steps}: no checkpoint is written', hint="those before it stay as they are")
                return found
            return checkpoints.write(folder, texts, self._state.types() | kept, value, keep)

    def restored(self, folder: str | Path, at: int | None, begin: bool, parts: Mapping[str, str],
                 load: Callable[[Mapping[str, Any]], None]) -> tuple[str, str, dict[str, torch.Tensor]]:
        """The trainer takes what a checkpoint has of it; the file's path, and its texts and their tensors, for `penstock.resume`, which see. The path
        is empty where there is none and it may `begin`. `parts`: their classes, "" of one that is left; load(values) gives them their states before the
        trainer changes."""
        with self._entered:
            if begin and not checkpoints.numbers_of(Path(folder)):
                return "", "", {}
            found = checkpoints.opened(folder, at)
            values, optimiser = found.values, self.optimiser
            kept, types = set(values["kept"]), self._state.types()
            checkpoints.check_parts(found.path, values["parts"], values.get("classes") or {}, parts)
            own = {name: tensor for name, tensor in found.tensors.items() if name not in kept}
            checkpoints.check_same(found.path, "another model", own, types, f"make the trainer with the {values['model']} that was saved")
            if values["seed"] != self.seed:
                raise PenstockError(f"{found.path} was drawn with seed={values['seed']}, this trainer has seed={self.seed}",
                                    hint=f"penstock.trainer(..., seed={values['seed']})")
            if optimiser is not None:
                theirs = {name: tensor for name, tensor in found.tensors.items() if name in kept}
                checkpoints.check_same(found.path, "another optimizer", theirs, optimiser_state.kept_types(optimiser),
                                       f"it was saved with {(values['optimizer'] or {}).get('name', 'none')}, and this trainer has {type(optimiser.torchs).__name__}")
            load(values)
            if optimiser is not None:
                optimiser_state.take_beside(optimiser, values["optimizer"])
            self._state.take(found.tensors if optimiser else own)
            self._before = values["steps"] - self._done.value
            checkpoints.set_aside(found)
            return str(found.path), found.text, dict(found.loop)

    def optimizer_state_dict(self) -> dict[str, Any]:
        """As the optimizer's own state_dict() would be after these steps, so that PyTorch can go on."""
        with self._entered:
            return optimiser_state.state_dict(self._optimised(), self._state.copies)

    def load_optimizer_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state_dict() of the optimizer, PyTorch's or a trainer's: moments, steps and learning rates.

        Throws PenstockError for one of other parameters, and for settings beside the learning rates that are not the trainer's.
        """
        with self._entered:
            self._state.set(optimiser_state.loaded(self._optimised(), state, self.steps))

    def sync(self) -> None:
        """Gives the module the trainer's parameters and buffers, and the optimizer what is kept of them, as they are now. Throws PenstockError for a
        module on the meta device."""
        with self._entered:
            self._state.give(self.steps)
        if self.optimiser is not None:
            self.optimiser.torchs.load_state_dict(self.optimizer_state_dict())

    def is_stale(self) -> bool:
        """Whether steps were done since the module was given the trainer's values, or others. False while a call runs."""
        return not self._entered.lock.locked() and self._state.is_newer(self.steps)

    # --- inside

    def _optimised(self) -> Optimiser:
        if self.optimiser is None:
            raise PenstockError("the trainer has no optimizer", hint="penstock.trainer(..., optimizer=torch.optim.AdamW(...))")
        return self.optimiser

    def _predicted(self, program: Any, device: str, link: str) -> Prediction:
        if device != "here":
            return Prediction.of(told(lambda: program.predict(device, link)))
        given, kept = addresses(self._given(self._first, self._example, self.calls.tensors(self._example)))
        costs = told(lambda: _core.measure([program], {}, given, 10, False, *self._measuring))
        del kept
        return Prediction.of(told(lambda: program.predict(costs)))

    def counts(self, kind: str, batch: MicroBatches) -> dict[str, torch.Tensor]:
        """The numbers by which the losses of a step on these micro-batches divide, as the step's program reads them."""
        tensors = self.calls.tensors(batch)
        return self._programs.of(kind, batch, tensors).counts(tensors)

    def _given(self, ready: Ready, batch: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors that a step reads beside its state."""
        found = self.calls.given(batch, tensors, self.seed) | ready.counts(tensors)
        found |= rates_given(batch, self.optimiser.rates()) if ready.kind == "training" else {}
        # What no step of a window reads is as it would be of one step.
        return {name: found[name] if list(found[name].shape) == shape else found.get(name_in(name, 0), found[name])
                for name, shape in ready.ports.items() if name in found}

    def _optimiser(self, optimizer: torch.optim.Optimizer) -> Optimiser:
        return optimiser_of(optimizer, *parameters_by_id(self.module, set(self.exports.trained)))

    def _check_trained(self) -> None:
        """Throws PenstockError where a parameter was frozen or unfrozen since the trainer was made."""
        changed = [name for name, parameter, trained in self._trains if parameter.requires_grad != trained]
        if changed:
            now = dict(self.module.named_parameters())[changed[0]].requires_grad
            raise PenstockError(f'requires_grad of "{changed[0]}" was set to {now} since the trainer was made',
                                ["what is trained is part of the trainer's programs", f"{len(changed)} of {len(self._trains)} parameters were changed"],
                                "step.sync() gives the module the trainer's values; then make a new trainer of it")

    def _check_late(self) -> None:
        """Throws what a signal handler threw while a step could not be given up."""
        if self._late is not None:
            late, self._late = self._late, None
            raise late

    def _run(self, kind: str, batch: Any) -> tuple[dict[str, torch.Tensor], Any]:
        """The outputs of a step on the batch, and what was measured of it."""
        self._check_late()
        if kind != "evaluation":
            self._check_trained()
        tensors = self.calls.tensors(batch)
        with self._entered:
            ready = self._programs.of(kind, batch, tensors)
            self._state.before_step()
            packed, kept = addresses(self._given(ready, batch, tensors))
            with self.exports.with_reasons():
                report, self._late = told(lambda: self._session.step(ready.name, packed, False, self._done if kind == "training" else None, steps_of(batch)))
            del kept  # they had to live until here
            self._state.after_step()
        if kind != "training":
            self._check_late()
        return {name: tensor_of(*value) for name, value in report.outputs.items()}, report


def _measured(report: Any, steps: int, sizes: Mapping[str, int]) -> dict[str, float]:
    """Gives what is logged of the time and memory of a call that did so many steps: seconds of each, samples and tokens (`sizes`) in a second, the share of
    the devices' time in which they did not compute, and the bytes of the device that had most at its peak."""
    seconds = report.seconds
    rates = {f"{name}_per_second": size / seconds for name, size in sizes.items()} if seconds > 0 else {}
    bubble = {"bubble": max(0.0, 1 - sum(report.busy) / (len(report.busy) * seconds))} if report.busy and seconds > 0 else {}
    return {"seconds": seconds / steps, **rates, **bubble, **({"peak_bytes": float(max(report.memory))} if report.memory else {})}
