# SPDX-License-Identifier: Apache-2.0
"""Values of Python as JSON and tensors, and back: what a state_dict() gives, without pickle, so that nothing in a file is run."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from .errors import PenstockError

KIND = "kind"  # the key of an object in JSON that stands for what JSON has not
ARRAYS = "biufc"  # the kinds of arrays whose bytes are their values
CANNOT = "a checkpoint takes None, numbers, texts, bytes, lists, tuples, dicts, counters, tensors and arrays of numbers"


def packed(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """The value as json.dumps takes it; tensors and arrays in it go into `tensors`, under names that begin with `name`, which errors say too.

    Throws PenstockError for what is none of these.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return packed(value.item(), name, tensors)
    if isinstance(value, (list, tuple)):
        items = [packed(item, _inside(name, i), tensors) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {KIND: "tuple", "items": items}
    if isinstance(value, Mapping):
        items = [[packed(key, _inside(name, key), tensors), packed(item, _inside(name, key), tensors)] for key, item in value.items()]
        return {KIND: "counter" if isinstance(value, Counter) else "dict", "items": items}
    if isinstance(value, bytes):
        return {KIND: "bytes", "text": base64.b64encode(value).decode()}
    if isinstance(value, torch.Tensor) and not value.is_meta and value.layout == torch.strided:
        return {KIND: "tensor", "name": _kept(value.detach(), name, tensors)}
    if isinstance(value, np.ndarray) and value.dtype.kind in ARRAYS:
        content = torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8) if value.size else torch.empty(0, dtype=torch.uint8)
        return {KIND: "array", "name": _kept(content, name, tensors), "dtype": value.dtype.str, "shape": list(value.shape)}
    raise PenstockError(f'"{name}" is a {type(value).__module__}.{type(value).__name__}, which cannot be written', [CANNOT],
                        "give its state_dict() these kinds of values alone")


def _inside(name: str, key: Any) -> str:
    return f"{name}{key}" if name.endswith(":") else f"{name}.{key}"


def _kept(tensor: torch.Tensor, name: str, tensors: dict[str, torch.Tensor]) -> str:
    """The name under which the tensor is kept: keys such as 1 and "1" would have one."""
    while name in tensors:
        name += "'"
    tensors[name] = tensor
    return name


def unpacked(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Gives what `packed` was given. Throws PenstockError for a value that it does not give."""
    if isinstance(value, list):
        return [unpacked(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    try:
        return _of_kind(value, tensors)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise PenstockError(f"a state is malformed: {type(error).__name__}: {error} in {json.dumps(value)[:80]}") from None


def _of_kind(value: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Any:
    kind = value[KIND]
    if kind == "tuple":
        return tuple(unpacked(value["items"], tensors))
    if kind in ("dict", "counter"):
        pairs = {unpacked(key, tensors): unpacked(item, tensors) for key, item in value["items"]}
        return Counter(pairs) if kind == "counter" else pairs
    if kind == "bytes":
        return base64.b64decode(value["text"], validate=True)
    if kind == "tensor":
        return tensors[value["name"]]
    if kind == "array":
        dtype = np.dtype(value["dtype"])
        if dtype.kind not in ARRAYS:
            raise ValueError(f"dtype {dtype}")
        return np.frombuffer(tensors[value["name"]].numpy().tobytes(), dtype).reshape(value["shape"]).copy()
    raise ValueError(f"kind {kind!r}")
