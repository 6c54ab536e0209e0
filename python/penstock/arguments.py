# SPDX-License-Identifier: Apache-2.0
"""The call of a module: its tensors by name, and everything else, which is fixed when it is exported."""

from __future__ import annotations

import enum
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from .errors import PenstockError

COUNT = "num_items_in_batch"  # Hugging Face's argument for the number of targets of the whole batch
CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum)


@dataclass(frozen=True)
class Argument:
    """A tensor that the module is called with. `role`: "split" (cut along dim 0 into micro-batches) or "whole"."""

    name: str
    role: str
    tensor: torch.Tensor


@dataclass(frozen=True)
class Arguments:
    """A call's tensors in order, and `rebuild`, which makes (args, kwargs, target) of tensors in that order."""

    tensors: tuple[Argument, ...]
    rebuild: Callable[[Sequence[torch.Tensor]], tuple[tuple, dict, Any]]


def named_arguments(forward: Callable, args: Sequence, kwargs: Mapping, target: Any, whole: Iterable[str]) -> Arguments:
    """Names every tensor of the call by the argument that holds it and its place in it ("batch.0.image"); `target` by "target".

    Numbers that `whole` names become tensors without dims. Throws PenstockError: arguments that `forward` does not take, an object whose
    tensors cannot be seen, a name that two tensors have.
    """
    whole = frozenset(whole)
    leaves, spec = pytree.tree_flatten_with_path((tuple(args), dict(kwargs), target))
    names = _names(forward, tuple(args), dict(kwargs), [path for path, _ in leaves])
    values = [_value(name, value, name in whole) for name, (_, value) in zip(names, leaves)]
    at = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]
    repeated = [name for name, count in Counter(names[i] for i in at).items() if count > 1]
    if repeated:
        raise PenstockError(f'two tensors of the call are named "{repeated[0]}"', hint="rename a key of the nested argument")

    def rebuild(tensors: Sequence[torch.Tensor]) -> tuple[tuple, dict, Any]:
        given = list(values)
        for i, tensor in zip(at, tensors, strict=True):
            given[i] = tensor
        return pytree.tree_unflatten(given, spec)

    tensors = (Argument(names[i], "whole" if names[i] in whole else "split", _on_device(values[i])) for i in at)
    return Arguments(tuple(tensors), rebuild)


def check_whole(forward: Callable, arguments: Iterable[Argument], whole: Iterable[str]) -> None:
    """Throws PenstockError where `whole` names what is no tensor of this call and no argument of another."""
    names = [argument.name for argument in arguments]
    unknown = set(whole) - {COUNT, *names, *inspect.signature(forward).parameters}
    if unknown:
        raise PenstockError(f'whole names "{min(unknown)}", which is no argument', [f"arguments: {', '.join(names)}"])


def _on_device(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the CPU in place of one on the meta device: a module is traced as if it were there."""
    return torch.empty_like(tensor, device="cpu") if tensor.is_meta else tensor.detach()


def _names(forward: Callable, args: tuple, kwargs: dict, paths: list[tuple]) -> list[str]:
    try:
        signature = inspect.signature(forward)
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise PenstockError(f"the module cannot be called with these arguments: {error}",
                            hint="args=(...) and kwargs={...} are what you would call the module with") from None
    positional = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += [f"{parameter.name}.{i}" for i in range(len(args) - len(positional))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional.append(parameter.name)
    names = []
    for part, *rest in paths:
        place = [_key(key) for key in rest]
        head = "target" if part.idx == 2 else positional[int(place.pop(0))] if part.idx == 0 else place.pop(0)
        names.append(".".join([head, *place]))
    return names


def _key(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _value(name: str, value: Any, whole: bool) -> Any:
    if whole and isinstance(value, (int, float)) and not isinstance(value, bool):
        return torch.tensor(value)
    if isinstance(value, torch.Tensor) or isinstance(value, CONSTANTS):
        return value
    hint = "pass it as a plain dict: dict(batch)" if isinstance(value, Mapping) else \
        "pass its tensors, or tell PyTorch what it holds with torch.utils._pytree.register_pytree_node"
    rule = "arguments are tensors, numbers, texts and None, also in lists, tuples, dicts and dataclasses that PyTorch knows"
    raise PenstockError(f'argument "{name}" is a {type(value).__name__}: which tensors it holds cannot be seen', [rule], hint)
