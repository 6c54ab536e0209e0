"""An exported module as a file: safetensors, with the header and the graph's text as its metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from .errors import PenstockError

NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
ALIGNMENT = 64  # of the first tensor; the others lie one behind the other, the widest dtypes first


def write(path: str | os.PathLike, metadata: dict[str, str], tensors: Mapping[str, torch.Tensor],
          value: Callable[[str], torch.Tensor] | None = None) -> None:
    """Writes a file that is there whole or not at all. With `value`, `tensors` say dtypes and shapes alone, and value(name) is what is
    written when it is its turn, so that they need not be in memory together. Throws PenstockError for a dtype that the format has not, OSError."""
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in ordered:
        if tensor.dtype not in NAMES:
            raise PenstockError(f'"{name}" is a tensor of {tensor.dtype}, which safetensors cannot hold')
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    written = Path(f"{os.fspath(path)}.{os.getpid()}.part")
    try:
        with written.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name, tensor in ordered:
                tensor = value(name).to(tensor.dtype) if value else tensor
                file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)


def read(path: str | os.PathLike) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Metadata and tensors, which are read from the file as they are used. Throws PenstockError where the file is not safetensors."""
    path = Path(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= size - 8:
            raise PenstockError(f"{path}: this is no safetensors file")
        try:
            header = json.loads(file.read(length))
        except ValueError:
            raise PenstockError(f"{path}: this is no safetensors file") from None
    content = torch.UntypedStorage.from_file(str(path), False, size)
    content = torch.empty(0, dtype=torch.uint8).set_(content)
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            if entry["dtype"] not in DTYPES:
                raise PenstockError(f'{path}: "{name}" is of dtype {entry["dtype"]}', [f"there are {', '.join(DTYPES)}"])
            tensors[name] = _tensor(content[begin:end], DTYPES[entry["dtype"]], entry["shape"])
    return header.get("__metadata__", {}), tensors


def _tensor(content: torch.Tensor, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    aligned = content if content.storage_offset() % dtype.itemsize == 0 else content.clone()
    return aligned.view(dtype).view(shape)
