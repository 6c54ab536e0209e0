# SPDX-License-Identifier: Apache-2.0
"""Which numbers in a module's ops depend on how many samples it is called with, where sizes are no symbols."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.fx import Node
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from .arguments import Argument
from .errors import PenstockError
from .places import place_now, shown_module

NUMBERS = frozenset(("Tensor", "Optional[Tensor]", "number", "Optional[number]", "float", "Optional[float]"))  # types of arguments that may be such
RANGES = frozenset(("arange", "linspace"))  # their numbers are sizes
LIFT = torch.ops.aten.lift_fresh.default  # what torch.tensor(...) becomes
FEW = 16  # a larger constant is a table, not a number
SAMPLES = "samples lie along dim 0 of what is cut into micro-batches: another batch has others there"
FIRST = "give samples first: batch_first=True, or x.transpose(0, 1) of the batch here and back again in the module's forward"
CONSTANT = "a tensor that the module makes of numbers, by torch.tensor(...), has others for other samples: each micro-batch takes its own"
Number = tuple[str, str, float]  # an op, its argument, and the number that this one is


class Growth:
    """Says what a number of an op becomes for twice as many samples; `notes` tell the user of numbers that are of no op."""

    def __init__(self, once: Sequence[Number], twice: Sequence[Number], notes: Sequence[str]) -> None:
        self.notes = list(notes)
        self._found: dict[Any, set[float]] = {}
        for (op, argument, number), (_, _, grown) in zip(once, twice):
            for key in ((op, argument, number), number):
                self._found.setdefault(key, set()).add(grown)
            if op == "lift_fresh" and number != grown and CONSTANT not in self.notes:
                self.notes.append(CONSTANT)

    def twice(self, node: Node, argument: str, number: float) -> float:
        """The number itself where it does not depend on the samples; nan where that cannot be told, as several are equal."""
        op = _plain(node.target)
        found = self._found.get((op, argument, number)) or self._found.get(number, {number})
        return number if op in RANGES else next(iter(found)) if len(found) == 1 else float("nan")


def growth(module: torch.nn.Module, paths: Mapping[int, str], arguments: Sequence[Argument]) -> Growth | None:
    """Calls the module twice on tensors without values: as many samples as the arguments have, and twice as many. None: it does not take
    these, or its ops are others then. Throws PenstockError where it reads along the samples as along a sequence: of one sample, the graph
    does not tell that dim from others of one place."""
    state = (*module.parameters(), *module.buffers())
    mode = next((tensor.fake_mode for tensor in state if isinstance(tensor, FakeTensor)), None) or FakeTensorMode()
    try:
        once = _recorded(module, arguments, Recorder(mode, paths), 1)
        twice = _recorded(module, arguments, Recorder(mode, paths, once), 2)
    except PenstockError:
        raise
    except Exception:  # whatever a module throws that is not made for so many samples
        return None
    alike = [number[:2] for number in once.numbers] == [number[:2] for number in twice.numbers]
    return Growth(once.numbers, twice.numbers, twice.notes) if alike else None


def _recorded(module: torch.nn.Module, arguments: Sequence[Argument], recorder: Recorder, times: int) -> Recorder:
    with recorder.mode, recorder:
        tensors = [_tensor(argument, times) for argument in arguments]
        split = [tensor for argument, tensor in zip(arguments, tensors) if argument.role == "split"]
        recorder.keep(split)
        recorder.samples = split[0].shape[0]
        hook = register_module_forward_pre_hook(recorder.begin)
        try:
            module(*tensors)
        finally:
            hook.remove()
    return recorder


def _tensor(argument: Argument, times: int) -> torch.Tensor:
    shape = list(argument.tensor.shape)
    if argument.role == "split":
        shape[0] *= times
    return torch.empty(shape, dtype=argument.tensor.dtype)


def _plain(op: Any) -> str:
    return op.overloadpacket.__name__.rstrip("_")


class Recorder(TorchDispatchMode):
    """Keeps the numbers that ops are given, and those that constants are made of; and the lengths of sequences. Tensors with values are
    replaced by ones without, so that nothing is computed and no buffer moves."""

    def __init__(self, mode: FakeTensorMode, paths: Mapping[int, str], before: Recorder | None = None) -> None:
        """`before`: of a call with other samples."""
        super().__init__()
        self.mode, self.paths, self.before = mode, paths, before
        self.samples = 0
        self.numbers: list[Number] = []
        self.notes: list[str] = []
        self.lengths: list[tuple[str, int]] = []
        self.shapes: list[list[torch.Size]] = []  # of what is not made of the samples
        self.of_samples: set[int] = set()  # ids of what is made of the samples
        self.of_sizes: set[int] = set()  # what is not, but has another shape for other samples
        self.kept: list[torch.Tensor] = []  # so that no id is another tensor's later

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function is LIFT:
            with unset_fake_temporarily():
                self.numbers += [("lift_fresh", "self", float(value)) for value in args[0].flatten().tolist()] if args[0].numel() <= FEW else []
            return function(*args)
        args, given = tree_map_only(torch.Tensor, self.without_values, (args, kwargs or {}))
        for i, argument in enumerate(function._schema.arguments):
            value = args[i] if i < len(args) else given.get(argument.name)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and str(argument.type) in NUMBERS:
                self.numbers.append((_plain(function), argument.name, float(value)))
        results = function(*args, **given)
        if any(id(value) in self.of_samples for value in tree_leaves((args, given))):
            self.keep(tree_leaves(results))
        else:
            self.made(function, tree_leaves((args, given)), results)
        if function is torch.ops.aten.slice.Tensor and id(args[0]) not in self.of_samples:
            size = results.shape[args[1] if len(args) > 1 else 0]
            of_table = size == self.samples and id(args[0]) not in self.of_sizes
            self.length("takes as many places of what the module holds as there are samples" if of_table else "slices", size)
        if function.__name__.startswith("_scaled_dot_product"):
            self.length("attends", args[1].shape[-2])
        return results

    def begin(self, part: torch.nn.Module, args: tuple) -> None:
        """Before a module runs."""
        if isinstance(part, torch.nn.RNNBase) and args and isinstance(args[0], torch.Tensor):
            self.length(f"runs its {type(part).__name__}", args[0].shape[1 if part.batch_first and args[0].dim() == 3 else 0], part)

    def keep(self, tensors: Iterable[Any]) -> None:
        self.kept += (found := [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)])
        self.of_samples |= {id(tensor) for tensor in found}

    def made(self, function: Any, operands: Sequence[Any], results: Any) -> None:
        """Takes note of results that are not made of the samples. A tensor with a place for each sample, and then added up, is a number of the micro-batch's."""
        tensors = [value for value in tree_leaves(results) if isinstance(value, torch.Tensor)]
        self.shapes.append([tensor.shape for tensor in tensors])
        same = self.before is None or self.before.shapes[len(self.shapes) - 1:len(self.shapes)] == self.shapes[-1:]
        if tensors and same and not self.notes and any(id(value) in self.of_sizes for value in operands):
            place = ", ".join(["", *place_now(self.paths)[:1]])
            self.notes.append(f"{function}{place}: a number is made of as many places as there are samples: each micro-batch makes its own")
        self.of_sizes |= set() if same else {id(tensor) for tensor in tensors}
        self.kept += tensors

    def length(self, what: str, size: int, part: torch.nn.Module | None = None) -> None:
        before = next(iter(self.before.lengths[len(self.lengths):] if self.before else ()), (what, size))
        self.lengths.append((what, size))
        if before[0] == what != "slices" and before[1] != size:
            place = [shown_module(part, self.paths)] if part else place_now(self.paths)
            raise PenstockError(f"the module {what} along dim 0 of the batch's tensors", [*place, SAMPLES], FIRST)

    def without_values(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self.mode.from_tensor(tensor)
