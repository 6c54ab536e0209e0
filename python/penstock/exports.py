# SPDX-License-Identifier: Apache-2.0
"""A module's exports: one at first, and another for each kind of batch that none before it fits.

Symbols for sizes make an export several times as long: of a conv net, minutes. So the first one has the example's sizes as numbers, unless
other shapes are known to come, and the next one symbols for the dims in which batches differed until then, and for the samples.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from . import _core
from .calls import Calls
from .engine import told
from .errors import PenstockError
from .evaluation import in_mode
from .exporting import AUTO, export
from .exported import Exported, with_constants_named
from .placing import Plan
from .splits import modules_of
from .tensors import DTYPES

log = logging.getLogger("penstock")
BY_THEMSELVES = "the samples of each micro-batch are read by themselves"  # in notes of the engine
OUTSIDE = re.compile("index.*out of (bounds|range)")


class Exports:
    """`first` is the example's; all others have the same parameters."""

    Shapes = Mapping[str, tuple[int, ...]]  # of a micro-batch's tensors, by name

    def __init__(self, calls: Calls, loss: Callable | None, dynamic: bool | Mapping[str, Any], autocast: torch.dtype | None, example: Any,
                 reduction: str | None = None, training: bool | None = None, constants: str = "", order: Sequence[str] = (),
                 coming: Sequence[Shapes] = ()) -> None:
        """`training`: the mode in which the module is exported; None: the one that it is in. `constants` begins the names of tensors that the
        exports make of constants, which are those of one export alone. `order`: the modules of the export by which stages begin, as they ran,
        where these exports are others. `coming`: shapes of other micro-batches, as far as they are known. The other arguments are `trainer`'s."""
        self._loss, self._dynamic, self.autocast, self._reduction = loss, dynamic, autocast, reduction
        self._training, self._constants, self._order = training, constants, list(order)
        self._all: list[tuple[Exported, Any]] = []
        self._seen: list[Exports.Shapes] = []  # of the batches that exports were made for
        self._tried: list[dict] = []  # the dims that were symbols, as `export` takes them
        self._fixed = False  # the module fixed all of them once
        self._example = calls.parts(calls.tensors(example))
        self.first = self._add(calls, example, coming)
        self.trained = [i["name"] for i in self.first.header["inputs"] if i.get("trained")]
        self.state = [i["name"] for i in self.first.header["inputs"] if i["role"] in ("parameter", "buffer")]
        self.aliases = {alias: i["name"] for i in [*self.first.header["inputs"], *self.first.header["unread"]] for alias in i.get("aliases", ())}

    def __len__(self) -> int:
        return len(self._all)

    def model(self, calls: Calls, batch: Any, plan: Plan, group_of: Mapping[str, int], in_classes: bool = False) -> Any:
        """The engine's model of the batch's micro-batches, of an export that allows their shapes or of a new one. `group_of`: the optimiser's
        group of each trained parameter, by name; empty where there is no optimiser. `in_classes`: whether other micro-batches of the step have
        other shapes. Throws PenstockError as `export` does."""
        parts = calls.parts(calls.tensors(batch))
        for exported, core in self._all:
            if (model := _model_of(exported, core, parts, plan, group_of, in_classes, self._order)) is not None:
                return model
        self._add(calls, batch)
        return _model_of(*self._all[-1], parts, plan, group_of, in_classes, self._order)

    def models(self, calls: Calls, batches: Sequence[Any], plan: Plan, group_of: Mapping[str, int]) -> list[Any]:
        """The same of each of several that are the classes of one step: of one export, where one allows all their shapes."""
        parts = [calls.parts(calls.tensors(batch)) for batch in batches]

        def of(exported: Exported, core: Any) -> list[Any]:
            return [_model_of(exported, core, each, plan, group_of, in_classes=True, order=self._order) for each in parts]
        for exported, core in self._all:
            if None not in (found := of(exported, core)):
                return found
        if len(batches) > 1 and self._dynamic is True and self._varying(calls, shapes := [shapes_of(each) for each in parts]) not in self._tried:
            self._add(calls, batches[0], shapes)
            if None not in (found := of(*self._all[-1])):
                return found
        return [self.model(calls, batch, plan, group_of, in_classes=True) for batch in batches]

    @contextlib.contextmanager
    def with_reasons(self) -> Iterator[None]:
        """Around a step: where an index of its data is of no place in a micro-batch, the error says which ops read samples by themselves."""
        try:
            yield
        except PenstockError as error:
            known = dict.fromkeys(note for exported, _ in self._all for note in exported.notes if BY_THEMSELVES in note)
            if not known or not OUTSIDE.search(error.what):
                raise
            raise PenstockError(error.what, [*error.details, *known], "where the data's numbers count the samples of the whole batch, hand what they "
                                "are read of whole to each micro-batch, whole=(name,), or take microbatches=1") from None

    def state_of_all(self) -> dict[str, torch.Tensor]:
        """The module's own tensors, and constants, that the graphs of any of the exports read, by name."""
        return {i["name"]: exported.state[i["name"]] for exported, _ in self._all for i in exported.header["inputs"]
                if i["role"] in ("parameter", "buffer")}

    def in_evaluation(self, calls: Calls, loss: Callable | None, example: Any) -> Exports:
        """Exports of the module as it is evaluated, with another loss function, which gives more."""
        return Exports(calls, loss, self._dynamic, self.autocast, example, self._reduction, training=False, constants="evaluation.",
                       order=modules_of(self.first))

    def example_model(self, plan: Plan, group_of: Mapping[str, int]) -> Any:
        """The same of the example's shape."""
        return _model_of(*self._all[0], self._example, plan, group_of)

    def _add(self, calls: Calls, batch: Any, coming: Sequence[Shapes] = ()) -> Exported:
        shapes = [shapes_of(calls.parts(calls.tensors(batch))), *coming]
        dynamic = self._varying(calls, shapes) if self._dynamic is True else self._dynamic
        self._seen.append(shapes[0])
        begin = time.perf_counter()
        if dynamic:
            log.info("exporting %s with sizes that vary, which takes longer: %s", type(calls.module).__name__, dynamic)
        found = self._export(calls, batch, dynamic)
        if dynamic and self._dynamic is True:
            self._tried.append(dynamic)
            self._fixed |= not found.header["symbols"]
        first_of_one = found.header["samples"] == 1 and all(exported.header["samples"] != 1 for exported, _ in self._all)
        if first_of_one and calls.microbatches > 1 and not self._constants:
            found.notes += [note for note in self._notes_of_two(calls, batch) if note not in found.notes]
        if self._all or self._constants:
            found = with_constants_named(found, f"{self._constants}{len(self._all)}")
        log.info("exported %s in %.1f s%s", found.header["model"], time.perf_counter() - begin, "".join(f"; {note}" for note in found.notes))
        self._all.append((found, told(lambda: _core.Exported(json.dumps(found.header), found.text))))
        return found

    def _export(self, calls: Calls, batch: Any, dynamic: Any, times: int = 1) -> Exported:
        args, kwargs, target = calls.micro_batch(batch, times)
        whole = calls.whole & calls.tensors(batch).keys()  # a batch may leave an argument out
        with in_mode(calls.module, self._training):
            return export(calls.module, args, kwargs, loss=self._loss, target=target, dynamic=dynamic, whole=whole,
                          reduction=self._reduction, autocast=self.autocast)

    def _notes_of_two(self, calls: Calls, batch: Any) -> list[str]:
        """The engine's notes on micro-batches of two samples: in a graph of one sample its dim is not told from others of one place, nor a
        mean over it from what it is of. Throws PenstockError where it refuses those."""
        try:
            found = self._export(calls, batch, False, times=2)
        except PenstockError:
            return []  # the module is not made for so many, as a note of the export says
        core = told(lambda: _core.Exported(json.dumps(found.header), found.text))
        return told(lambda: _core.Model(core, {}, [], 1, [], False, [], {})).notes

    def _varying(self, calls: Calls, shapes: Sequence[Shapes]) -> dict[str, dict[int, str]]:
        """The dims of the first shapes in which any of these, or of those until now, differ and, if there are such, the samples; none where the
        module fixed all such dims before."""
        others = [*shapes, *self._seen]

        def differs(name: str, dim: int, size: int) -> bool:
            return any(dim < len(other.get(name, ())) and other[name][dim] != size for other in others)
        out = {name: {dim: AUTO for dim, size in enumerate(shape) if differs(name, dim, size)} for name, shape in shapes[0].items()}
        if self._fixed or not any(out.values()):
            return {}
        return {name: dims | ({} if name in calls.whole else {0: AUTO}) for name, dims in out.items()}


def shapes_of(tensors: Mapping[str, torch.Tensor]) -> Exports.Shapes:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _model_of(exported: Exported, core: Any, parts: Mapping[str, torch.Tensor], plan: Plan, group_of: Mapping[str, int],
              in_classes: bool = False, order: Sequence[str] = ()) -> Any:
    """The model; None where the export is not for tensors of these shapes."""
    sizes = _sizes(exported, parts)
    if sizes is None:
        return None
    groups = [group_of[i["name"]] for i in exported.header["inputs"] if i.get("trained")] if group_of else []
    try:
        model = told(lambda: _core.Model(core, sizes, list(plan.split or []), plan.stages(), groups, in_classes, list(order), plan.sequence_of(parts)))
    except PenstockError as error:
        raise _with_place(error, exported) from None
    fits = all(name in parts and (DTYPES.get(parts[name].dtype), list(parts[name].shape)) == (dtype, shape) for name, dtype, shape in model.ports)
    if fits:
        exported.notes += [note for note in model.notes if note not in exported.notes]
    return model if fits else None


def _with_place(error: PenstockError, exported: Exported) -> PenstockError:
    """The refusal of a buffer with the module and the line that update it, and a way out for those that a module keeps for itself."""
    place = next((place for name, place in exported.places.items() if error.what.startswith(f'buffer "{name}" ')), None)
    if place is None:
        return error
    known = [detail for detail in error.details if not any(line.startswith("in module") and line.removeprefix("in module ") in detail for line in place)]
    module = [] if any(line.startswith("in ") for line in place) else [f"in the {exported.header['model']} itself"]
    return PenstockError(error.what, [*known, *module, *place], f"{error.hint}; or update it between steps, by step.parameter(name) or step.load_state_dict, and "
                                                       "leave it as it is within one: where it is updated in training alone, .eval() of that part")


def _sizes(exported: Exported, tensors: Mapping[str, torch.Tensor]) -> dict[str, int] | None:
    """The sizes of the export's symbols in these tensors; None where it is not for them."""
    found = {}
    for name, symbol in exported.header["symbols"].items():
        argument, dim = symbol["name"].rsplit(".", 1)
        if argument not in tensors or tensors[argument].dim() <= int(dim):
            return None
        found[name] = tensors[argument].shape[int(dim)]
    return found if exported.fits(found) and exported.takes(shapes_of(tensors)) else None
