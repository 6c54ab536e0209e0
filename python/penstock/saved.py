# SPDX-License-Identifier: Apache-2.0
"""Tensors and texts as a file of safetensors, with checksums in its metadata where this package wrote it."""

from __future__ import annotations

import json
import math
import os
import stat
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .errors import PenstockError
from .files import parse_json

NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
ALIGNMENT = 64  # of the first tensor; the others lie one behind the other, the widest dtypes first
LONGEST = 100_000_000  # bytes of a header: the format's own limit
CHECKSUMS = "checksums"  # the metadata's key: {"metadata": CRC, "tensors": {name: CRC}}, each CRC-32 as eight hexadecimal digits
DAMAGED = "the file is damaged, or its values were changed by a program that kept the checksums in its metadata"


class Changed(PenstockError):
    """The file is another one than that which was opened."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, which is read when it is asked for: `type` is one of its dtype and shape, without values."""

    file: _Open
    name: str
    type: torch.Tensor
    begin: int  # in bytes, from the file's begin on
    checksum: str | None
    is_meta = False

    def numel(self) -> int:
        return self.type.numel()

    def element_size(self) -> int:
        return self.type.element_size()

    def read(self) -> torch.Tensor:
        """Throws PenstockError where the file was changed since it was opened, or is not what its checksum says."""
        content = torch.empty(self.numel() * self.element_size(), dtype=torch.uint8)
        self.file.read(self.begin, memoryview(content.numpy()))
        if self.checksum is not None and self.checksum != checksum_of(self.type, content):
            raise PenstockError(f'{self.file.path}: "{self.name}" is not what its checksum says', hint=DAMAGED)
        if self.type.dtype == torch.bool and bool((content > 1).any()):
            raise PenstockError(f'{self.file.path}: "{self.name}" has bytes that are neither true nor false')
        return content.view(self.type.dtype).view(self.type.shape)


def in_memory(tensor: torch.Tensor | Stored) -> torch.Tensor:
    return tensor.read() if isinstance(tensor, Stored) else tensor


def write(path: str | os.PathLike, metadata: Mapping[str, str], tensors: Mapping[str, torch.Tensor],
          value: Callable[[str], torch.Tensor] | None = None, mode: int = 0o666) -> None:
    """Writes a file that is there whole or not at all. With `value`, `tensors` say dtypes and shapes alone, and value(name) is what is
    written when it is its turn, so that they need not be in memory together. Throws PenstockError for a dtype that the format has not, OSError."""
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    for name, tensor in ordered:
        if tensor.dtype not in NAMES:
            raise PenstockError(f'"{name}" is a tensor of {tensor.dtype}, which safetensors cannot hold')
    checksums = {name: "0" * 8 for name, _ in ordered}  # the header is as long without them: they are known when all is written
    written = Path(f"{os.fspath(path)}.{os.getpid()}.part")
    try:
        written.unlink(missing_ok=True)
        with os.fdopen(os.open(written, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode), "wb") as file:
            file.write(_header(metadata, ordered, checksums))
            for name, tensor in ordered:
                tensor = value(name).to(tensor.dtype) if value else tensor
                content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                file.write(content.numpy().data)
                checksums[name] = checksum_of(tensors[name], content)
            file.seek(0)
            file.write(_header(metadata, ordered, checksums))
            file.flush()
            os.fsync(file.fileno())  # else a machine that loses its power may have the name without the content
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)


def _header(metadata: Mapping[str, str], ordered: list[tuple[str, torch.Tensor]], checksums: Mapping[str, str]) -> bytes:
    sums = json.dumps({"metadata": checksum_of_metadata(metadata), "tensors": checksums})
    header: dict[str, Any] = {"__metadata__": {**metadata, CHECKSUMS: sums}}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def checksum_of(type: torch.Tensor, content: torch.Tensor) -> str:
    """The checksum is of a tensor's type and bytes: a flip in the header that gives the same bytes another shape is found too."""
    kind = f"{NAMES[type.dtype]}[{','.join(map(str, type.shape))}]"
    return f"{zlib.crc32(content.numpy().data, zlib.crc32(kind.encode())):08x}"


def checksum_of_metadata(metadata: Mapping[str, str]) -> str:
    parts = (f"{key}\0{text}\0".encode() for key, text in sorted(metadata.items(), key=lambda item: item[0].encode()) if key != CHECKSUMS)
    return f"{zlib.crc32(b''.join(parts)):08x}"


def read(path: str | os.PathLike, sealed: bool = False) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Metadata and tensors. Throws PenstockError where the file is not safetensors, not what its checksums say or, if it must be `sealed`, has
    none; OSError."""
    metadata, tensors = stored(path, sealed)
    return metadata, {name: tensor.read() for name, tensor in tensors.items()}


def stored(path: str | os.PathLike, sealed: bool = False) -> tuple[dict[str, str], dict[str, Stored]]:
    """The same of tensors that are read when they are asked for. Files are read, not mapped: cutting a mapped file would end the process."""
    file = _Open(path)
    length = int.from_bytes(file.part(0, 8), "little") if file.size >= 8 else 0
    if not 2 <= length <= min(LONGEST, file.size - 8):
        raise file.damaged("this is no safetensors file")
    header = parse_json(bytes(file.part(8, length)), f"{path}: this is no safetensors file: its header")
    file.check(isinstance(header, dict), "its header is no object")
    metadata = header.pop("__metadata__", {})
    file.check(_are_texts(metadata), "its metadata are no texts")
    file.check(CHECKSUMS in metadata or not sealed, "it has no checksums")
    sums = _checksums(file, metadata, header)
    tensors = {name: _entry(file, name, entry, 8 + length, sums and sums[name]) for name, entry in header.items()}
    end = 8 + length
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.begin):
        file.check(tensor.begin == end or tensor.numel() == 0, f'"{tensor.name}" does not begin where the tensor before it ends')
        end += tensor.numel() * tensor.element_size()
    file.check(end == file.size, f"its tensors end at byte {end}, and it has {file.size}")
    return {key: text for key, text in metadata.items() if key != CHECKSUMS}, tensors


class _Open:
    """A file by its path, and what would show that it was changed."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)
        self.state = self._state(os.stat(self.path))
        if not stat.S_ISREG(os.stat(self.path).st_mode):
            raise PenstockError(f"cannot read {path}: it is no file")
        self.size = self.state[2]

    @staticmethod
    def _state(status: os.stat_result) -> tuple[int, ...]:
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def read(self, begin: int, out: memoryview) -> None:
        """Fills `out` with the bytes from `begin` on. Throws PenstockError where the file was changed."""
        with self.path.open("rb", buffering=0) as file:
            same = self._state(os.fstat(file.fileno())) == self.state
            file.seek(begin)
            while same and len(out) > 0:
                got = file.readinto(out)
                same, out = got > 0, out[got:]
        if not same:
            raise Changed(f"{self.path} was changed while it was read", hint="take a copy that stays as it is")

    def part(self, begin: int, size: int) -> bytearray:
        content = bytearray(size)
        self.read(begin, memoryview(content))
        return content

    def damaged(self, what: str) -> PenstockError:
        return PenstockError(f"{self.path}: {what}", hint="the file is damaged, cut off, or none of safetensors")

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            raise self.damaged(what)


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _are_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def type_of(dtype: Any, shape: Any) -> torch.Tensor | None:
    """A tensor on the meta device of a dtype and shape as a file says them; None for what is neither."""
    if not (isinstance(dtype, str) and dtype in DTYPES and isinstance(shape, list) and all(map(is_count, shape))):
        return None
    if math.prod(max(size, 1) for size in shape) >= 2**60:  # its bytes are no 64-bit number
        return None
    return torch.empty(shape, dtype=DTYPES[dtype], device="meta")


def _entry(file: _Open, name: str, entry: Any, data: int, checksum: str | None) -> Stored:
    file.check(isinstance(entry, dict) and entry.keys() >= {"dtype", "shape", "data_offsets"},
               f'the entry of "{name}" needs dtype, shape and data_offsets')
    if isinstance(entry["dtype"], str) and entry["dtype"] not in DTYPES:
        raise PenstockError(f'{file.path}: "{name}" is of dtype {entry["dtype"]}', [f"there are {', '.join(DTYPES)}"])
    type, offsets = type_of(entry["dtype"], entry["shape"]), entry["data_offsets"]
    file.check(type is not None, f'dtype or shape of "{name}" is none')
    file.check(isinstance(offsets, list) and len(offsets) == 2 and all(map(is_count, offsets)), f'data_offsets of "{name}" are no two numbers')
    begin, end = offsets
    file.check(end <= file.size - data and end - begin == type.numel() * type.element_size(),
               f'"{name}" spans bytes {begin} to {end}, which its type or the file has not')
    return Stored(file, name, type, data + begin, checksum)


def _checksums(file: _Open, metadata: Mapping[str, str], header: Mapping[str, Any]) -> dict[str, str] | None:
    """The checksum of each tensor; None where the file has none. Throws PenstockError where the metadata are not what theirs says."""
    if CHECKSUMS not in metadata:
        return None
    sums = parse_json(metadata[CHECKSUMS], f"{file.path}: its checksums")
    of_tensors = sums.get("tensors") if isinstance(sums, dict) else None
    if not _are_texts(of_tensors) or of_tensors.keys() != header.keys() or sums.get("metadata") != checksum_of_metadata(metadata):
        raise PenstockError(f"{file.path}: its header is not what its checksum says", hint=DAMAGED)
    return of_tensors
