# SPDX-License-Identifier: Apache-2.0
"""Writing a folder as Hugging Face's `save_pretrained` does."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from . import saved
from .errors import PenstockError
from .pretrained import INDEX, ONE_FILE

SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def saved_names(module: torch.nn.Module) -> dict[str, str]:
    """The entries of state_dict() that save_pretrained writes, each under its own key: a tied tensor once, by the name that others are tied to."""
    own = module.state_dict(keep_vars=True)
    tied = set(getattr(module, "all_tied_weights_keys", None) or ())
    ignored = set(getattr(module, "_keys_to_ignore_on_save", None) or ())
    kept: dict[int, str] = {}
    for name, tensor in own.items():
        if name not in ignored and (id(tensor) not in kept or kept[id(tensor)] in tied and name not in tied):
            kept[id(tensor)] = name
    return {name: name for name in own if name in kept.values()}


def shards_of(sizes: Mapping[str, int], most: int | str) -> dict[str, str]:
    """The file of each key, as huggingface_hub cuts: in order, each file as full as `most` bytes ("5GB") allow; a larger tensor has its own."""
    limit, files, free = parse_size(most), [[]], parse_size(most)
    for key, size in sizes.items():
        if size > limit:
            files.insert(len(files) - 1, [key])
            continue
        if size > free:
            files.append([])
            free = limit
        files[-1].append(key)
        free -= size
    files = [file for file in files if file]
    if len(files) == 1:
        return dict.fromkeys(sizes, ONE_FILE)
    return {key: f"model-{i:05d}-of-{len(files):05d}.safetensors" for i, file in enumerate(files, 1) for key in file}


def parse_size(size: int | str) -> int:
    """Bytes. Throws PenstockError for what is no size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]B)", size.upper()) if isinstance(size, str) else None
    if found:
        return int(float(found[1]) * UNITS[found[2]])
    if isinstance(size, int) and size > 0:
        return size
    raise PenstockError(f"{size!r} is no size of a file", hint='bytes, or "5GB", "500MB"')


def write_folder(path: str | os.PathLike, files: Mapping[str, str], types: Mapping[str, torch.Tensor],
                 value: Callable[[str], torch.Tensor]) -> None:
    """Writes each key's tensor into its file: types[key] says dtype and shape, value(key) gives it when it is written. Other files that
    from_pretrained would read there go. Throws PenstockError for a dtype that the format has not, OSError."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    for file in dict.fromkeys(files.values()):
        saved.write(folder / file, {"format": "pt"}, {key: types[key] for key in files if files[key] == file}, value)
    for old in folder.iterdir():
        if (SHARD.fullmatch(old.name) or old.name in (ONE_FILE, INDEX)) and old.name not in files.values():
            old.unlink()
    if set(files.values()) != {ONE_FILE}:
        total = sum(types[key].numel() * types[key].element_size() for key in files)
        index = {"metadata": {"total_size": total}, "weight_map": dict(files)}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def write_config(path: str | os.PathLike, module: torch.nn.Module, dtype: torch.dtype | None) -> None:
    """Writes the module's config, where it has one that can be saved, and how it generates, as its save_pretrained does."""
    config = getattr(module, "config", None)
    if not hasattr(config, "save_pretrained"):
        return
    config = copy.deepcopy(config)
    config.architectures = [type(module).__name__]
    if dtype is not None:
        config.dtype = str(dtype).removeprefix("torch.")
    config.save_pretrained(path)
    if getattr(module, "generation_config", None) is not None and module.can_generate():
        module.generation_config.save_pretrained(path)
