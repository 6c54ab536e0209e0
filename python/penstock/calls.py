# SPDX-License-Identifier: Apache-2.0
"""How a module is called with a batch, and with one of its micro-batches."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from .arguments import Arguments, check_whole, named_arguments
from .errors import PenstockError
from .micro_batches import MicroBatches, name_in
from .step_windows import Window


class Calls:
    """The calls of one module: what a batch's tensors are named, and which of them are cut into how many micro-batches."""

    def __init__(self, module: torch.nn.Module, loss: Callable | None, whole: Iterable[str], microbatches: int) -> None:
        self.module, self.loss, self.whole, self.microbatches = module, loss, frozenset(whole), microbatches
        self.takes_target = loss is not None and _takes_target(loss)

    def cut_into(self, microbatches: int) -> Calls:
        """The same calls with batches that are cut into so many micro-batches."""
        return Calls(self.module, self.loss, self.whole, microbatches)

    def inputs(self, batch: Any) -> tuple[tuple, dict, Any]:
        """The batch as (args, kwargs, target) of the module. Throws PenstockError for a batch without the target that the loss takes."""
        target = None
        if self.takes_target:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise PenstockError("the batch is not (inputs, target), which the loss function takes")
            batch, target = batch
        if isinstance(batch, Mapping):
            return (), dict(batch), target
        return (tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)), {}, target

    def named(self, batch: Any) -> Arguments:
        """The batch's tensors by their names, as `named_arguments` gives them."""
        args, kwargs, target = self.inputs(batch)
        return named_arguments(self.module.forward, args, kwargs, target, self.whole)

    def tensors(self, batch: Any) -> dict[str, torch.Tensor]:
        """The same without their places in the call; of each micro-batch by itself, where those have shapes of their own. Of a window, the first
        step's: all of its steps have these shapes."""
        if isinstance(batch, Window):
            return self.tensors(next(iter(batch)))
        if not isinstance(batch, MicroBatches):
            return {argument.name: argument.tensor for argument in self.named(batch).tensors}
        out: dict[str, torch.Tensor] = {}
        for j, part in enumerate(batch):
            for name, tensor in self.tensors(part).items():
                given = out.setdefault(name if name in self.whole else name_in(name, j), tensor)
                if given is not tensor and not torch.equal(given, tensor):
                    raise PenstockError(f'"{name}" is not cut into micro-batches, and is another one in micro-batch {j} than in those before',
                                        hint="give all of them the same, that of all micro-batches together")
        return out

    def check_whole(self, batch: Any) -> None:
        """Throws PenstockError where `whole` names what is no tensor of this batch and no argument that another may have."""
        check_whole(self.module.forward, self.named(batch).tensors, self.whole)

    def micro_batch(self, batch: Any, times: int = 1) -> tuple[tuple, dict, Any]:
        """The first micro-batch as (args, kwargs, target) of the module; with its samples so many times."""
        named = self.named(batch)

        def part(name: str, tensor: torch.Tensor) -> torch.Tensor:
            own = self.part(name, tensor)
            return own if times == 1 or name in self.whole else torch.cat([own] * times)
        return named.rebuild([part(argument.name, argument.tensor) for argument in named.tensors])

    def part(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The first micro-batch's part of a tensor. Throws PenstockError where there are not equally many samples in each."""
        if name in self.whole:
            return tensor
        if tensor.dim() > 0 and tensor.shape[0] == 0:
            raise PenstockError(f'"{name}" of shape {list(tensor.shape)} has no samples',
                                hint="samples lie along dim 0; give a batch with a sample or more for each micro-batch")
        if tensor.dim() == 0 or tensor.shape[0] % self.microbatches:
            alike = tensor.dim() == 0 or tensor.shape[0] == 1  # for all samples, such as positions [1, S]
            raise PenstockError(f'"{name}" of shape {list(tensor.shape)} cannot be cut into {self.microbatches} equal micro-batches',
                                hint=f'where it is the same for all samples, whole=("{name}",) hands it whole to each micro-batch' if alike else
                                "samples lie along dim 0; give a batch that is a multiple of the micro-batches")
        return tensor[: tensor.shape[0] // self.microbatches]

    def parts(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Each tensor's part of the first micro-batch."""
        return {name: self.part(name, tensor) for name, tensor in tensors.items()}

    def samples(self, tensors: Mapping[str, torch.Tensor]) -> int:
        """How many samples the batch has."""
        return next(tensor.shape[0] for name, tensor in tensors.items() if name not in self.whole)

    def microbatches_of(self, batch: Any, plan: Any) -> int:
        """The number of micro-batches into which the plan cuts the batch; of MicroBatches how many they are."""
        return len(batch) if isinstance(batch, MicroBatches) else plan.for_samples(self.samples(self.tensors(batch))).microbatches

    def sizes(self, batch: Any) -> dict[str, int]:
        """The number of samples of the batch, of all micro-batches or of a window's steps together, and of tokens, padding among them, where its first
        tensor is a text's: whole numbers [samples, length]."""
        parts = list(batch) if isinstance(batch, (MicroBatches, Window)) else [batch]
        firsts = [next(tensor for name, tensor in self.tensors(part).items() if name not in self.whole) for part in parts]
        texts = all(first.dim() == 2 and first.dtype in (torch.int64, torch.int32) for first in firsts)
        return {"samples": sum(first.shape[0] for first in firsts), **({"tokens": sum(first.numel() for first in firsts)} if texts else {})}

    def given(self, batch: Any, tensors: Mapping[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
        """All that a step is given of the batch: its tensors, the numbers of its samples ("rows") and the seed of what is drawn."""
        if isinstance(batch, Window):
            return self._given_window(batch, seed)
        if not isinstance(batch, MicroBatches):
            return {**tensors, "rows": torch.arange(self.samples(tensors)), "seed": torch.tensor(seed)}
        samples: dict[str, int] = {}  # by the micro-batch's number
        for name, tensor in tensors.items():
            if name not in self.whole:
                samples.setdefault(name.rpartition(".")[2], tensor.shape[0])
        ends = itertools.accumulate(samples.values())
        rows = {name_in("rows", int(j)): torch.arange(end - samples[j], end) for j, end in zip(samples, ends, strict=True)}
        return {**tensors, **rows, "seed": torch.tensor(seed)}

    def _given_window(self, window: Window, seed: int) -> dict[str, torch.Tensor]:
        """Joins the tensors of a window: those that are cut into micro-batches stand one step behind the other, those that a step reads whole have
        its number. Throws PenstockError where a step's tensors are of other shapes than the first one's."""
        steps = [self.given(batch, self.tensors(batch), seed) for batch in window]
        seed_of_all = steps[0].pop("seed")
        out = {}
        for name, first in steps[0].items():
            each = [step.get(name) for step in steps]
            for number, tensor in enumerate(each):
                if tensor is None or (tensor.shape, tensor.dtype) != (first.shape, first.dtype):
                    there = "not there" if tensor is None else f"of shape {list(tensor.shape)} and type {tensor.dtype}"
                    raise PenstockError(f'"{name}" is {there} in step {number} of the window, in step 0 of shape {list(first.shape)} and type {first.dtype}',
                                        hint="a window's batches are alike; penstock.windows(loader, steps) begins a new one where they differ")
            out[name] = first if name in self.whole else torch.cat(each)
            out |= {name_in(name, number): tensor for number, tensor in enumerate(each)}
        return out | {"seed": seed_of_all}


def _takes_target(loss: Callable) -> bool:
    try:
        parameters = inspect.signature(loss.forward if isinstance(loss, torch.nn.Module) else loss).parameters.values()
    except ValueError:
        return False  # a function without a signature, such as torch.sum
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) >= 2
