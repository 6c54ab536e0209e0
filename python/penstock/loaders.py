# SPDX-License-Identifier: Apache-2.0
"""Loaders that say where they are: an iterable of batches with a state, from which another process goes on with exactly the next batch."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils import worker as torch_worker

from .errors import PenstockError

log = logging.getLogger("penstock")
# Arguments of a DataLoader over an iterable data set that are taken on; the others are its data set, collate_fn and worker_init_fn.
MADE_WITH = ("batch_size", "num_workers", "pin_memory", "drop_last", "timeout", "multiprocessing_context", "generator", "prefetch_factor", "in_order")


class Resumable:
    """The batches of any iterable, epoch by epoch, with a `state_dict` that says which were taken: `resumable` makes it.

    Each `for` begins an epoch, the first one behind load_state_dict at the next batch of the epoch that was under way. `epoch` says which one it is
    or comes next, from 0; `taken` how many batches of it were read.
    """

    def __init__(self, batches: Iterable[Any], rank: int = 0, ranks: int = 1, count: bool = False) -> None:
        for name, value in (("rank", rank), ("ranks", ranks)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise PenstockError(f"{name}={value!r} is no whole number")
        if not 0 <= rank < ranks:
            raise PenstockError(f"rank={rank} of ranks={ranks}", hint="ranks are counted from 0")
        if not isinstance(batches, Iterable) or isinstance(batches, Iterator):
            raise PenstockError(f"a {type(batches).__name__} cannot be read anew from its begin",
                                ["a run that goes on reads the batches again, or asks for their state"],
                                "give what makes the iterator: a DataLoader, a list, a data set, an object with __iter__")
        self.epoch, self.taken = 0, 0
        self._batches, self._rank, self._ranks = batches, rank, ranks
        self._source = _Counted(batches) if count else _source_of(batches)
        self._begin: dict[str, Any] = {}  # what was drawn at random when the epoch began
        self._loaded: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        return len(self._batches) // self._ranks

    def __iter__(self) -> Iterator[Any]:
        """The batches of an epoch; of `ranks` that follow each other the one with the number `rank`, and none of a last few that are not enough
        for all."""
        loaded, now = self._loaded, None
        self.taken = 0
        for part in _with_epochs(self._batches):
            part.set_epoch(self.epoch)
        if loaded is None:
            self._begin = _drawn(self._batches)
        else:
            now, self._begin, self.taken = _drawn(self._batches)["random"], loaded["begin"], loaded["taken"]
            _draw_as(self._begin, self._batches)
        batches = self._source.begin(loaded["source"] if loaded else None, self.taken)
        self._loaded = None
        if now is not None:
            set_random_state(now)
        while True:
            together = list(itertools.islice(batches, self._ranks))
            if len(together) < self._ranks:
                break
            self.taken += self._ranks
            yield together[self._rank]
        self.epoch, self.taken = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Says where it is, in numbers, texts and tensors; all ranks say the same."""
        if self._loaded is not None:
            return dict(self._loaded)
        return {"epoch": self.epoch, "taken": self.taken, "begin": self._begin, "source": self._source.state(), "kind": self._source.kind,
                "loader": _known(self._batches)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next `for` goes on from there. Throws PenstockError for a state of another kind of loader and, within an epoch, of a loader with another
        batch size or length, whose batches hold other samples."""
        if not isinstance(state, Mapping) or not {"epoch", "taken", "begin", "source", "kind"} <= state.keys():
            raise PenstockError("this is no state of a penstock.resumable", hint="data.state_dict() gives one")
        if state["kind"] != self._source.kind:
            raise PenstockError(f"the state is of {state['kind']}, and this loader is {self._source.kind}",
                                hint="wrap a loader of the same kind: its data set, and how many workers it has")
        if state["taken"] % self._ranks:
            raise PenstockError(f"{state['taken']} batches were taken, which {self._ranks} ranks do not share equally")
        if state["taken"]:
            for part in _with_epochs(self._batches):
                part.set_epoch(state["epoch"])  # on which its length may depend
            _check_alike(state.get("loader") or {}, _known(self._batches), state["taken"])
        # Between two epochs nothing is under way, and the next one begins as any.
        self.epoch, self._loaded = state["epoch"], state if state["taken"] else None
        self.taken = state["taken"]


def resumable(batches: Iterable[Any], *, rank: int = 0, ranks: int = 1, count: bool = False) -> Resumable:
    """The batches of a loader, with a state for step.save(folder, data=data) and penstock.resume(folder, step, data=data).

    A loader or data set with state_dict and load_state_dict of its own is asked for them: one of `datasets`, torchdata's StatefulDataLoader, your own.
    A DataLoader over an iterable data set that has them keeps one state for each worker. Of all others (a DataLoader over a map, WebDataset, a
    list) batches are counted, and those that were taken are read again and passed over, which the logger "penstock" says: they have to come in
    the same order, so what is drawn at random is drawn again as the epoch's begin did. `count=True` counts where there is a state too: that of
    `datasets` does not hold what lies in the buffer of its shuffle(), whose samples would be lost.
    `set_epoch` of the loader, its sampler or its data set is called where there is one. Of a loader that all ranks have alike each takes its share
    with rank=RANK, ranks=WORLD_SIZE; a trainer's ranks take all batches, as each gives its trainer the same.
    """
    return Resumable(batches, rank, ranks, count)


def random_state() -> dict[str, Any]:
    """The state of this process's random numbers: PyTorch's, Python's and NumPy's."""
    return {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()}


def set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])


# --- where batches come from


class _Counted:
    """Batches that are read again and passed over."""

    kind = "counted"

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def begin(self, state: Any, taken: int) -> Iterator[Any]:
        if taken:
            log.info("%d batches of a %s are read again and passed over", taken, type(self._batches).__name__)
        batches = iter(self._batches)
        found = sum(1 for _ in itertools.islice(batches, taken))
        if found < taken:
            raise PenstockError(f"{taken} batches were taken, and this loader has only {found}", hint="wrap the loader that the state is of")
        return batches

    def state(self) -> None:
        return None


class _Own:
    """Batches that say themselves where they are."""

    kind = "a state of its own"

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def begin(self, state: Any, taken: int) -> Iterator[Any]:
        if state is not None:
            self._batches.load_state_dict(state)
        return iter(self._batches)

    def state(self) -> Any:
        return self._batches.state_dict()


class _Workers:
    """A DataLoader over a data set with a state, of which each worker has a copy: with each batch comes the state of the one that made it."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader, self._workers = loader, max(1, loader.num_workers)
        self.kind = f"a data set with a state in {self._workers} workers" if loader.num_workers else "a data set with a state"
        self._states: list[Any] = [None] * self._workers
        self._next = 0

    def begin(self, state: Any, taken: int) -> Iterator[Any]:
        self._states, self._next = (list(state["workers"]), state["next"]) if state else ([None] * self._workers, 0)
        samples = _Samples(self._loader.dataset, list(self._states), self._next)
        made = {name: getattr(self._loader, name) for name in MADE_WITH if hasattr(self._loader, name)}
        return self._read(iter(DataLoader(samples, collate_fn=_Collate(self._loader.collate_fn, samples),
                                          worker_init_fn=_Begin(self._loader.worker_init_fn, samples), **made)))

    def state(self) -> dict[str, Any]:
        return {"workers": list(self._states), "next": self._next}

    def _read(self, batches: Iterator[Any]) -> Iterator[Any]:
        for worker, state, batch in batches:
            self._states[worker], self._next = state, (worker + 1) % self._workers
            yield batch


class _Samples(IterableDataset):
    """The data set as a worker reads it, from its state on. The worker whose batch is the next one is the first that a loader asks, so numbers are
    shifted by `first`: `number` is the worker's as the data set knows it."""

    def __init__(self, dataset: Any, states: list[Any], first: int) -> None:
        super().__init__()
        self.dataset, self._states, self.first, self.number, self.in_worker, self._ended = dataset, states, first, 0, False, False

    def __iter__(self) -> Iterator[Any]:
        state = self._states[self.number]
        self._ended = state is not None and state["data"] is None
        if state is not None and not self._ended:
            self.dataset.load_state_dict(state["data"])
            if self.in_worker:
                set_random_state(state["random"])
        if not self._ended:
            yield from self.dataset
        self._ended = True

    def state(self) -> dict[str, Any]:
        """Says where the data set is; none behind its end, where its own state may be that of another begin."""
        return {"data": None if self._ended else self.dataset.state_dict(), "random": random_state() if self.in_worker else None}


class _Begin:
    """The first call in a worker: it takes its number, its seed and the data set as they are to the data set."""

    def __init__(self, users: Any, samples: _Samples) -> None:
        self._users, self._samples = users, samples

    def __call__(self, number: int) -> None:
        info = torch_worker._worker_info
        own = (number + self._samples.first) % info.num_workers
        self._samples.number, self._samples.in_worker = own, True
        seed = info.seed - number + own
        torch_worker._worker_info = replace(info, id=own, seed=seed, dataset=self._samples.dataset)
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(torch_worker._generate_state(info.seed - number, own))
        if self._users is not None:
            self._users(own)


class _Collate:
    """A batch with the number of its worker and the state behind it."""

    def __init__(self, collate: Any, samples: _Samples) -> None:
        self._collate, self._samples = collate, samples

    def __call__(self, samples: Any) -> tuple[int, Any, Any]:
        batch = self._collate(samples)
        return self._samples.number, self._samples.state(), batch


def _has_state(thing: Any) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def _source_of(batches: Any) -> Any:
    if _has_state(batches):
        return _Own(batches)
    if type(batches) is DataLoader and isinstance(batches.dataset, IterableDataset) and _has_state(batches.dataset):
        return _Workers(batches)
    return _Counted(batches)


# --- by what another loader is known

WORDS = {"batch_size": "batch_size={}", "drop_last": "drop_last={}", "samples": "a data set of {} samples", "batches": "{} batches"}


def _known(batches: Any) -> dict[str, Any]:
    """The loader's own facts of its batches, by the names of `WORDS`; None where it says nothing."""
    sizes = [getattr(part, "batch_size", None) for part in (batches, getattr(batches, "batch_sampler", None))]
    drop_last = getattr(batches, "drop_last", None)
    return {"batch_size": next((size for size in sizes if isinstance(size, int)), None), "drop_last": drop_last if isinstance(drop_last, bool) else None,
            "samples": _length(getattr(batches, "dataset", None)), "batches": _length(batches)}


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return None


def _check_alike(theirs: Mapping[str, Any], own: Mapping[str, Any], taken: int) -> None:
    """Throws PenstockError where the loader of a state, of whose batches some were taken, is known to be another one."""
    for name, words in WORDS.items():
        if None not in (theirs.get(name), own[name]) and theirs[name] != own[name]:
            raise PenstockError(f"the state is of a loader with {words.format(theirs[name])}, and this one has {words.format(own[name])}",
                                [f"its {taken} batches taken would be other samples here"],
                                "wrap a loader as the one that was saved; another one may take over between two epochs, from a state "
                                "that was saved behind the end of the for")
    if own["batches"] is not None and taken > own["batches"]:
        raise PenstockError(f"{taken} batches were taken, and this loader has only {own['batches']}", hint="wrap the loader that the state is of")


# --- what an epoch draws at random


def _with_epochs(batches: Any) -> list[Any]:
    parts = [batches, *(getattr(batches, name, None) for name in ("sampler", "batch_sampler", "dataset"))]
    found = [part for part in parts if callable(getattr(part, "set_epoch", None))]
    return found[:1] if found and found[0] is batches else found


def _generators(batches: Any) -> list[torch.Generator]:
    """The generators of a loader and of its samplers, each once."""
    holders = [batches, getattr(batches, "sampler", None), getattr(getattr(batches, "batch_sampler", None), "sampler", None)]
    found = [getattr(holder, "generator", None) for holder in holders]
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())


def _drawn(batches: Any) -> dict[str, Any]:
    return {"random": random_state(), "generators": [each.get_state() for each in _generators(batches)]}


def _draw_as(begin: Mapping[str, Any], batches: Any) -> None:
    set_random_state(begin["random"])
    generators = _generators(batches)
    if len(generators) != len(begin["generators"]):
        raise PenstockError(f"the epoch drew from {len(begin['generators'])} generators, and this loader has {len(generators)}",
                            hint="give its sampler a generator as the run did that wrote the state")
    for generator, state in zip(generators, begin["generators"]):
        generator.set_state(state)
