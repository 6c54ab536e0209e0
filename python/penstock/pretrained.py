# SPDX-License-Identifier: Apache-2.0
"""Reading a folder of Hugging Face's `save_pretrained` for a module."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from . import saved
from .capture import first_names
from .errors import PenstockError
from .files import parse_json, read_text

INDEX = "model.safetensors.index.json"
ONE_FILE = "model.safetensors"
SHOWN = 20  # keys at most, in a message
# Buffers that older files have, and that modules compute today. `from_pretrained` passes over them where the module has such a buffer.
ONCE_SAVED = ("rotary_emb.inv_freq", "position_ids")


class Folder:
    """`tensors`: what the folder has for a module, by its keys, read from the files as it is used. `files`: the file of each key. `names`:
    its name in the module's state_dict(). `values`: a tensor for each name there."""

    def __init__(self, path: str | os.PathLike, module: torch.nn.Module) -> None:
        """Finds the module's tensors as `from_pretrained` does: tied ones may be there once, and the base model's prefix may be missing or too
        much. Throws PenstockError: a folder without safetensors files, shards that do not fit their index, names that are missing, keys that
        are none, another shape, keys that differ though the module ties them.
        """
        self.path = Path(path)
        self.tensors: dict[str, saved.Stored] = {}
        self.files: dict[str, str] = {}
        index = self._index()
        for file in sorted(set(index.values())) if index else [ONE_FILE]:
            if not (self.path / file).is_file():
                raise PenstockError(f"{self.path}: there is no {file}", [f"{INDEX} names it"], "fetch the folder again")
            found = saved.stored(self.path / file)[1]
            self.tensors |= found
            self.files |= dict.fromkeys(found, file)
        absent = [key for key, file in index.items() if self.files.get(key) != file]
        if absent:
            raise PenstockError(f'{self.path}: {index[absent[0]]} has no tensor "{absent[0]}"', [f"{INDEX} says that it is there"],
                                "fetch the folder again")
        self.names = self._names(module)
        self.values = self._values(module)

    def _names(self, module: torch.nn.Module) -> dict[str, str]:
        own = module.state_dict(keep_vars=True)
        prefix = getattr(module, "base_model_prefix", "") + "."
        found, unexpected = {}, []
        for key in self.tensors:
            name = next((name for name in (key, key.removeprefix(prefix), prefix + key) if name in own), None)
            if name:
                found[key] = name
            elif not _is_passed_over(key, module):
                unexpected.append(key)
        firsts = first_names(own.items())
        there = {firsts[name] for name in found.values()}
        missing = [name for name in own if firsts[name] not in there]
        if missing or unexpected:
            kind = type(module).__name__
            details = [f"{what}: {_shown(keys)}" for what, keys in (("missing", missing), ("not the module's", unexpected)) if keys]
            raise PenstockError(f"{self.path} does not have what {kind} needs", details,
                                f"if {kind}.from_pretrained reads it, it makes other tensors of these: take what it gives, without weights="
                                if missing and unexpected else "take the class whose save_pretrained wrote the folder")
        return found

    def _values(self, module: torch.nn.Module) -> dict[str, saved.Stored]:
        own = module.state_dict(keep_vars=True)
        firsts, of_first = first_names(own.items()), {}
        for key, name in self.names.items():
            tensor = self.tensors[key]
            if tensor.type.shape != own[name].shape:
                raise PenstockError(f'{self.path}: "{key}" is of shape {list(tensor.type.shape)}, the module\'s "{name}" of {list(own[name].shape)}',
                                    hint="make the module from the folder's config.json")
            other = of_first.setdefault(firsts[name], key)
            if other != key and not torch.equal(self.tensors[other].read(), tensor.read()):
                raise PenstockError(f'{self.path}: "{other}" and "{key}" differ, but the module ties them',
                                    hint="config.tie_word_embeddings = False keeps them apart")
        return {name: self.tensors[of_first[firsts[name]]] for name in own}

    def _index(self) -> dict[str, str]:
        """Each key's file as the index says; empty where there is no index and one file."""
        if not self.path.is_dir():
            raise PenstockError(f"{self.path} is no folder", hint="huggingface_hub.snapshot_download(...) gives the folder of a model by name")
        if (self.path / ONE_FILE).is_file():  # from_pretrained too takes it rather than shards
            return {}
        if (self.path / INDEX).is_file():
            return self._weight_map()
        others = sorted(file.name for file in self.path.iterdir() if file.suffix == ".bin")
        if others:
            raise PenstockError(f"{self.path} has its weights in {others[0]}, which is not read: unpickling such a file runs code from it",
                                hint="AutoModel.from_pretrained(folder).save_pretrained(folder) writes safetensors")
        raise PenstockError(f"{self.path} has neither {ONE_FILE} nor {INDEX}")

    def _weight_map(self) -> dict[str, str]:
        """Throws PenstockError also for a file elsewhere: a folder that came from others says what is read, and written when it is saved."""
        index = parse_json(read_text(self.path / INDEX), str(self.path / INDEX))
        files = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(files, dict) or not files or not all(isinstance(file, str) for file in files.values()):
            raise PenstockError(f"{self.path / INDEX} does not say which file has which tensor", hint="fetch the folder again")
        for key, file in files.items():
            if not file.endswith(".safetensors") or Path(file).name != file or "\0" in file:
                raise PenstockError(f'{self.path / INDEX}: {file!r}, where "{key}" should be, is no name of a safetensors file in the folder')
        return files


def _shown(keys: list[str]) -> str:
    return ", ".join(keys[:SHOWN]) + (f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else "")


def _is_passed_over(key: str, module: torch.nn.Module) -> bool:
    """Whether from_pretrained passes over a key that is none of the module's."""
    patterns = list(getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ())
    buffers = [name for name, _ in module.named_buffers()]
    patterns += [rf"(^|\.){re.escape(end)}$" for end in ONCE_SAVED if any(name.endswith(end) for name in buffers)]
    return any(re.search(pattern, key) for pattern in patterns)
