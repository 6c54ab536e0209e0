# SPDX-License-Identifier: Apache-2.0
"""A `transformers.Trainer` whose steps are Penstock's: the loop, the data, the schedule of rates and the checkpoints stay its own.

    trainer = penstock.hugging_face.Trainer(model, args, train_dataset=dataset, pipeline={"actors": 2, "schedule": "zb-h1", "microbatches": 8})
    trainer.train()
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import transformers
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from .arguments import COUNT
from .errors import PenstockError
from .ranks import RankTrainer
from .training import Trainer as Step
from .training import trainer as step_of

TAKEN = {"optimizer": "the Trainer's optimizer", "clip": "TrainingArguments.max_grad_norm", "seed": "TrainingArguments.seed",
         "loss": "the model's own loss", "autocast": "TrainingArguments.bf16", "backend": "threads, or the processes that a launcher started",
         "window": "1, as the Trainer's loop takes one step after the other"}


class Pipelined:
    """A mixin for `transformers.Trainer` and its subclasses: class Mine(penstock.hugging_face.Pipelined, transformers.Seq2SeqTrainer).

    `pipeline` are arguments of `penstock.trainer`: actors, schedule, microbatches, .... A step takes gradient_accumulation_steps batches of the
    loader as one, and cuts it into `microbatches`, by default as many as there are batches, or 8 where it is one. The optimizer is the one that
    the Trainer made. The trained values are in the module, and the optimizer's state in the optimizer, at evaluation, in checkpoints and
    after train(); between them in `step`, the `penstock.Trainer`, which is there while train() runs.

    Under torchrun each process is a device of the step, and for the Trainer all of them are one: each reads the same batches, of
    per_device_train_batch_size samples, evaluates all samples, and process 0 writes.

    Throws PenstockError, from train(), for what is not computed: GPUs, DeepSpeed, FSDP, fp16, a loss that is not the model's, and processes that are
    not as many as the pipeline's devices.
    """

    def __init__(self, *args: Any, pipeline: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        self.step: Step | RankTrainer | None = None
        self._pipeline, self._batches = {"reduction": "mean", **(pipeline or {})}, []
        for name in TAKEN.keys() & self._pipeline.keys():
            raise PenstockError(f'pipeline has "{name}"', [f"it is {TAKEN[name]}"], f"leave out {name}")
        self._processes = PartialState().num_processes
        with _one_process():
            super().__init__(*args, **kwargs)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        with _one_process():
            self._check()
            try:
                out = super().train(*args, **kwargs)
            except BaseException:
                with contextlib.suppress(*[PenstockError] if self._processes > 1 else []):  # other processes may not have come here
                    self._end()
                self.step = None
                raise
            self._end()
            return out

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with _one_process():
            return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        with _one_process():
            return super().predict(*args, **kwargs)

    def training_step(self, model: torch.nn.Module, inputs: Mapping[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """The loss of the whole step with the last of its batches, and zero before: the Trainer adds them up."""
        self._batches.append(dict(self._prepare_inputs(inputs)))
        if not self.accelerator.sync_gradients:
            return torch.zeros(())
        batch, self._batches = _joined(self._batches), []
        self.model.train()
        if num_items_in_batch is not None and self.model_accepts_loss_kwargs:
            batch[COUNT] = torch.tensor(float(num_items_in_batch), dtype=torch.float64)
        if self.step is None:
            self.step = self._begun(batch)
        if COUNT in batch and self._pipeline["reduction"] == "mean":  # a micro-batch's share, which is also right for what is not divided by it
            batch[COUNT] /= self.step.microbatches(batch)
        return self.step(batch)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        self._show()
        return super().evaluation_loop(*args, **kwargs)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        self._show(optimizer=True)  # which a checkpoint saves after the model
        super().save_model(*args, **kwargs)
        self._wait()

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        super()._save_checkpoint(*args, **kwargs)
        self._wait()  # another process may be the first to read it

    def _save_rng_state(self, output_dir: str) -> None:
        if self.args.should_save:  # all processes draw the same
            super()._save_rng_state(output_dir)

    def _wait(self) -> None:
        """While there is a step, all processes do what one does."""
        if self._processes > 1 and self.step is not None:
            torch.distributed.barrier()

    def _load_best_model(self) -> None:
        self._end()  # its values are read from a checkpoint, and nothing must be written over them
        super()._load_best_model()

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> float:
        return self.step.gradient_norm

    def _begun(self, batch: Mapping[str, Any]) -> Step | RankTrainer:
        """The step from the values that the module has, and the optimizer where it goes on from a checkpoint."""
        optimizer = _innermost(self.optimizer)
        batches = self.args.gradient_accumulation_steps
        cut = {"microbatches": batches} if batches > 1 and "plan" not in self._pipeline else {}
        step = step_of(self.model, batch, **{**cut, **self._pipeline}, optimizer=optimizer, clip=self.args.max_grad_norm, seed=self.args.seed,
                       backend="gloo" if self._processes > 1 else "threads")
        if optimizer.state:
            step.load_optimizer_state_dict(optimizer.state_dict())
        return step

    def _show(self, optimizer: bool = False) -> None:
        """The module, and the optimizer, get what the step has."""
        if self.step is None:
            return
        self.model.load_state_dict(self.step.state_dict())
        if optimizer:
            _innermost(self.optimizer).load_state_dict(self.step.optimizer_state_dict())

    def _end(self) -> None:
        self._show(optimizer=True)
        self.step, self._batches = None, []

    def _check(self) -> None:
        args, base = self.args, transformers.Trainer
        own_loss = type(self).compute_loss is not base.compute_loss or self.compute_loss_func is not None or self.label_smoother is not None
        for found, what, hint in (
                (self.is_deepspeed_enabled, "DeepSpeed", "leave out TrainingArguments.deepspeed; zero= of `pipeline` shares state"),
                (self.is_fsdp_enabled, "FSDP", "leave out TrainingArguments.fsdp; zero= of `pipeline` shares state"),
                (args.save_on_each_node and self._processes > 1, "save_on_each_node", "process 0 writes for all of them"),
                (args.device.type != "cpu", f"the device {args.device}", "TrainingArguments(use_cpu=True)"),
                (args.fp16 or self.accelerator.scaler is not None, "fp16", "bf16=True, or f32"),
                (own_loss, "a loss that is not the model's own (compute_loss, compute_loss_func, label_smoothing_factor)",
                 "give the model a forward that returns it, or write the loop around penstock.trainer(..., loss=...)"),
        ):
            if found:
                raise PenstockError(f"a Trainer with a pipeline does not run with {what}", hint=hint)


@contextlib.contextmanager
def _one_process() -> Iterator[None]:
    """For accelerate, and so for the Trainer, there is one process: it would give each other batches and wrap the module to sum gradients. Which one
    this is stays known, so that the first alone writes."""
    alone = {"num_processes": 1, "distributed_type": DistributedType.NO}
    states = [each._shared_state for each in (PartialState, AcceleratorState)]
    before = [{name: state[name] for name in alone if name in state} for state in states]
    try:
        for state, own in zip(states, before):
            state.update({name: alone[name] for name in own})
        yield
    finally:
        for state, own in zip(states, before):
            state.update(own)


class Trainer(Pipelined, transformers.Trainer):
    """`transformers.Trainer` with `pipeline`, as `Pipelined` says."""


def _innermost(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer of torch.optim in the one that accelerate made of it."""
    while not type(optimizer).__module__.startswith("torch.") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def _joined(batches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The batches as one, along dim 0. Throws PenstockError where they have tensors of different lengths or names."""
    if len(batches) == 1:
        return dict(batches[0])
    hint = "pad to one length, or take larger batches: per_device_train_batch_size for gradient_accumulation_steps"
    joined = {}
    for name, first in batches[0].items():
        parts = [batch.get(name) for batch in batches]
        shapes = [list(part.shape) if isinstance(part, torch.Tensor) else part for part in parts]
        if not isinstance(first, torch.Tensor) or first.dim() == 0:
            raise PenstockError(f'"{name}" cannot be joined: it is not a tensor of samples in each of {len(batches)} batches', hint=hint)
        if any(not isinstance(part, torch.Tensor) or part.shape[1:] != first.shape[1:] for part in parts):
            raise PenstockError(f'the batches of a step cannot be joined: "{name}" is of shapes {", ".join(map(str, shapes))}', hint=hint)
        joined[name] = torch.cat(parts)
    return joined
