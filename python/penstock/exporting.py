# SPDX-License-Identifier: Apache-2.0
"""Exporting a module: `export` gives its joint forward and backward graph as text, and its state by name."""

from __future__ import annotations

import keyword
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from .arguments import COUNT, Argument, Arguments, check_whole, named_arguments
from .cache import Unknown, export_key
from .errors import PenstockError
from .exported import Exported
from .kept import chosen_place, kept_or_made
from .losses import check_loss
from .places import user_name
from .quiet import internals_quiet
from .watch import check_hooks, check_kind


AUTO = "auto"  # the bounds of a dim in `dynamic` that varies where the module allows it
EVALUATION = "the module is in evaluation mode: without dropout, and with stored statistics; module.train() changes it"


def export(module: torch.nn.Module, args: Sequence = (), kwargs: Mapping[str, Any] | None = None, *, loss: Callable | None = None,
           target: Any = None, dynamic: bool | Mapping[str, Any] = False, whole: Iterable[str] = (COUNT,),
           reduction: str | None = None, autocast: torch.dtype | None = None, cache: str | os.PathLike | None = None) -> Exported:
    """Exports `module`, called as module(*args, **kwargs), unmodified and without running it: its values are not read.

    The loss is what the module returns: a scalar, or the entry or attribute "loss" of it, or the first of a tuple; several scalars in a
    dict or list are added. Or `loss`: a function of the module's output, and of `target` where it is given, which returns that.
    Tensors are cut along dim 0, the samples, into micro-batches, except those that `whole` names, which each micro-batch reads whole.
    `dynamic`: True lets all sizes of tensors vary where the module allows it, and says in `notes` where not; {"input_ids": (0, 1)} lets
    these dims vary, {"input_ids": {1: (2, 512)}} within bounds, {"input_ids": {1: "auto"}} where the module allows it; False none. Sizes that
    vary make the export of a deep module take several times as long.
    `reduction`: how a batch's loss is made of its micro-batches', "mean" or "sum"; "sum" if the module is given num_items_in_batch, by
    which it divides itself.
    `autocast`: torch.bfloat16 exports the module as it runs under torch.autocast; a `loss` function gets its output in f32.
    `cache`: a folder where exports are kept, and found again while the module's code, attributes and call are the same; "off": none; None: the one that
    the environment's PENSTOCK_CACHE names, or the user's own. It is the user's alone: one that others own or may write to is refused.

    The module may be on the meta device, and in training or evaluation mode, which it is exported in. Throws PenstockError for what cannot
    be exported, naming the module, the op and the line.
    """
    if not isinstance(module, torch.nn.Module):
        raise PenstockError(f"a {type(module).__name__} is no module", hint="export takes a torch.nn.Module")
    if reduction not in (None, "mean", "sum"):
        raise PenstockError(f'there is no reduction "{reduction}"', hint='"mean" or "sum"')
    if autocast not in (None, torch.bfloat16):
        raise PenstockError(f"autocast to {autocast} is not supported", hint="torch.bfloat16, or None")
    check_kind(module)
    check_loss(loss, target)
    _check_names(module)
    _check_memory(module)
    check_hooks(module)
    whole = tuple(whole)
    arguments = named_arguments(module.forward, args, kwargs or {}, target, whole)
    check_whole(module.forward, arguments.tensors, whole)
    _check_samples(arguments.tensors)

    def make() -> Exported:
        return _export(module, arguments, loss, autocast, reduction, dynamic)

    place = chosen_place(cache)
    if place is None:
        return make()
    try:
        key = export_key(module, loss, (tuple(args), dict(kwargs or {}), target), (dynamic, whole, reduction, autocast))
    except Unknown as unknown:
        exported = make()
        if place.named:
            exported.notes.append(f"not kept in the cache, as no key can say what it depends on: {unknown}")
        return exported
    own = {user_name(name): tensor.detach() for name, tensor in tensors_of(module, loss).items()}
    return kept_or_made(place, key, own, make)


def _export(module: torch.nn.Module, arguments: Arguments, loss: Callable | None, autocast: torch.dtype | None, reduction: str | None,
            dynamic: bool | Mapping[str, Any]) -> Exported:
    with internals_quiet():
        from .leftovers import forgotten
        from .trace import trace  # PyTorch's tracing takes more than a second to load

    notes = [] if module.training else [EVALUATION]
    step = (module, arguments, loss, autocast, reduction)
    with internals_quiet(), forgotten():
        if not dynamic:
            return trace(*step, None, notes)
        if dynamic is True:
            dynamic = {argument.name: dict.fromkeys(range(argument.tensor.dim()), AUTO) for argument in arguments.tensors}
        dims = _dims(arguments.tensors, dynamic)
        if any(hint is not torch.export.Dim.AUTO for of_one in dims for hint in of_one.values()):
            return trace(*step, dims, notes)
        try:
            return trace(*step, dims, notes)
        except PenstockError as error:
            varying = error
        exported = trace(*step, None, notes)
        exported.notes.append(f"all sizes are fixed: {varying.what}")
        return exported


def _check_names(module: torch.nn.Module) -> None:
    for name, _ in (*module.named_modules(), *module.named_parameters(), *module.named_buffers()):
        word = next(filter(keyword.iskeyword, name.split(".")), None)
        if word:
            raise PenstockError(f'"{name}" cannot be exported: "{word}" is a word of Python, and PyTorch writes such names as code',
                                hint=f'rename it, "{word}_" for instance')


def _check_memory(module: torch.nn.Module) -> None:
    """Two tensors of a module may be one, which is one state; two that only share memory would be two states."""
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.layout == torch.strided and tensor.numel() > 0:
            begin = tensor.storage_offset() * tensor.element_size()
            length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
            spans.setdefault(tensor.untyped_storage()._cdata, []).append((begin, begin + length * tensor.element_size(), name))
    for of_storage in spans.values():
        of_storage.sort()
        for (_, end, first), (begin, _, second) in zip(of_storage, of_storage[1:]):
            if begin < end:
                raise PenstockError(f'"{first}" and "{second}" share memory, but are two tensors',
                                    hint="tie them: other.weight = one.weight makes them one parameter")


def _check_samples(arguments: Sequence[Argument]) -> None:
    split = [argument for argument in arguments if argument.role == "split"]
    if not split:
        raise PenstockError("the module is called without a tensor that could be cut into micro-batches",
                            hint="tensors of the batch are arguments, samples along dim 0")
    for argument in split:
        if argument.tensor.dim() > 0 and argument.tensor.shape[0] == 0:
            raise PenstockError(f'argument "{argument.name}" of shape {list(argument.tensor.shape)} has no samples',
                                hint="samples lie along dim 0; give a batch with one or more")
        if argument.tensor.dim() == 0 or argument.tensor.shape[0] != split[0].tensor.shape[0]:
            odd, other = (split[0], argument) if _has_no_samples(split[0], argument) else (argument, split[0])
            raise PenstockError(f'argument "{odd.name}" cannot be cut into micro-batches along dim 0',
                                [f"it has shape {list(odd.tensor.shape)}, \"{other.name}\" has {list(other.tensor.shape)}"],
                                f'samples lie along dim 0 of all; whole=("{odd.name}",) hands it whole to each micro-batch')


def _has_no_samples(argument: Argument, beside: Argument) -> bool:
    """Whether of two arguments it is this one that is the same for all samples, such as positions of shape [1, S] or [S] beside tokens [B, S]."""
    return beside.tensor.dim() > 0 and (argument.tensor.shape[0] == 1 or argument.tensor.dim() < beside.tensor.dim())


def _dims(arguments: Sequence[Argument], dynamic: Mapping[str, Any]) -> list[dict[int, Any]]:
    unknown = dynamic.keys() - {argument.name for argument in arguments}
    if unknown:
        raise PenstockError(f'dynamic names "{min(unknown)}", which is no argument',
                            [f"arguments: {', '.join(argument.name for argument in arguments)}"])
    def hint(bounds: Any) -> Any:
        return torch.export.Dim.AUTO if bounds == AUTO else torch.export.Dim.DYNAMIC(min=bounds[0], max=bounds[1])

    given = {name: {dim: hint(bounds) for dim, bounds in dims.items()} if isinstance(dims, Mapping) else
             dict.fromkeys(dims, torch.export.Dim.DYNAMIC) for name, dims in dynamic.items()}
    samples = next((dims[0] for dims in given.values() if 0 in dims), None)  # of one split tensor, then of all
    return [{**({0: samples} if samples and argument.role == "split" else {}), **given.get(argument.name, {})} for argument in arguments]


def tensors_of(model: torch.nn.Module, loss: Any) -> dict[str, torch.Tensor]:
    """Parameters, then buffers, by the names that they have in the traced module."""
    both = torch.nn.ModuleDict({"model": model, **({"loss": loss} if isinstance(loss, torch.nn.Module) else {})})
    return dict(both.named_parameters()) | dict(both.named_buffers())
