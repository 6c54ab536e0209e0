# SPDX-License-Identifier: Apache-2.0
"""How tensors pass to the module _core and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .errors import PenstockError

DTYPES = {torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.int64: "i64", torch.int32: "i32",
          torch.bool: "bool"}
NAMED = {name: dtype for dtype, name in DTYPES.items()}

Address = tuple[str, list[int], int]


def addresses(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, Address], list[torch.Tensor]]:
    """Each tensor's dtype, shape and address, and the dense tensors on the CPU that lie there, which must live as long as the addresses are used."""
    out, kept = {}, []
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise PenstockError(f'"{name}" is of dtype {tensor.dtype}', [f"there are {', '.join(map(str, DTYPES))}"], "cast it before")
        dense = tensor.detach().to("cpu").contiguous()
        kept.append(dense)
        out[name] = (DTYPES[dense.dtype], list(dense.shape), dense.data_ptr())
    return out, kept


def shared_tensor(dtype: str, shape: list[int], memory: Any) -> torch.Tensor:
    """The tensor that lies in this memory, which it keeps."""
    return torch.frombuffer(memory, dtype=NAMED[dtype]).view(shape) if memory.nbytes else torch.empty(shape, dtype=NAMED[dtype])


def tensor_of(dtype: str, shape: list[int], data: bytearray) -> torch.Tensor:
    """The tensor of these bytes, without a copy."""
    if not data:
        return torch.empty(shape, dtype=NAMED[dtype])
    return torch.frombuffer(data, dtype=NAMED[dtype]).reshape(shape)


def in_words(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes as i32, padded: what passes has one of few dtypes."""
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return torch.cat([content, torch.zeros(-len(content) % 4, dtype=torch.uint8)]).view(torch.int32)


def of_words(words: torch.Tensor, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    """The tensor of which these are the bytes."""
    like = torch.empty(shape, dtype=dtype, device="meta")
    return words.view(torch.uint8)[:like.numel() * like.element_size()].clone().view(dtype).reshape(shape)
