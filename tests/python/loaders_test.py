# SPDX-License-Identifier: Apache-2.0
"""Loaders go on with exactly the next sample, none lost or twice: over random stops, workers and ranks.

usage: loaders_test.py
"""

import json
import random
import unittest

import numpy as np
import torch
from evaluate import drawn_seed, sampled  # finds the package
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset, get_worker_info
from zoo import have

import penstock
from penstock import PenstockError
from penstock.plain_values import packed, unpacked


class Shards(IterableDataset):
    """Samples of shards of unequal lengths, each worker with its own, shuffled in a buffer: a stream with a state, as one of `datasets` is."""

    def __init__(self, shards=5, noise=False):
        super().__init__()
        self.shards = [[10 * shard + i for i in range(3 + 2 * shard % 7)] for shard in range(shards)]
        self.noise, self.epoch, self.place = noise, 0, (0, 0)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info else (0, 1)
        own = self.shards[number::workers]
        begin, self.place = self.place, (0, 0)
        for s in range(begin[0], len(own)):
            order = np.random.RandomState(100 * self.epoch + s).permutation(len(own[s]))
            for i in range(begin[1] if s == begin[0] else 0, len(own[s])):
                self.place = (s, i + 1)
                yield own[s][order[i]] + (torch.rand(1).item() + random.random() + np.random.rand() if self.noise else 0)
        self.place = (0, 0)

    def state_dict(self):
        return {"place": list(self.place), "epoch": self.epoch}

    def load_state_dict(self, state):
        self.place, self.epoch = tuple(state["place"]), state["epoch"]


class Tar:
    """An iterable of dicts from shards, without a state, as of WebDataset."""

    def __init__(self, shards=3):
        self.shards, self.epoch = shards, 0

    def __iter__(self):
        names = [f"{shard}-{i}" for shard in range(self.shards) for i in range(4)]
        random.shuffle(names)
        yield from ({"__key__": name, "x": torch.rand(1).item()} for name in names)


def numbers(batch):
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def epochs(data, count):
    """All batches of so many epochs, each with its epoch."""
    found = []
    while data.epoch < count:
        epoch = data.epoch
        found += [(epoch, numbers(batch)) for batch in data]
    return found


def written(state):
    """The state as a checkpoint has it."""
    tensors = {}
    return unpacked(json.loads(json.dumps(packed(state, "data", tensors))), tensors)


class Case(unittest.TestCase):
    def check(self, make, stops=3, **given):
        """Stops behind any batches, goes on in new loaders where other numbers were drawn meanwhile, and gets what one run gets."""
        rng = random.Random(drawn_seed() + stops)
        for _ in range(stops):
            torch.manual_seed(5), random.seed(5), np.random.seed(5)
            whole = epochs(penstock.resumable(make(), **given), 2)
            torch.manual_seed(5), random.seed(5), np.random.seed(5)
            data, found, state = penstock.resumable(make(), **given), [], None
            stop = sorted(rng.sample(range(1, len(whole) + 1), min(3, len(whole))))
            while data.epoch < 2:
                epoch = data.epoch
                for batch in data:
                    found.append((epoch, numbers(batch)))
                    if stop and len(found) == stop[0]:
                        state = stop.pop(0) and (written(data.state_dict()), random.getstate(), torch.get_rng_state(), np.random.get_state())
                        break
                if state:
                    torch.manual_seed(rng.randrange(99))
                    data = penstock.resumable(make(), **given)
                    data.load_state_dict(state[0])
                    random.setstate(state[1]), torch.set_rng_state(state[2]), np.random.set_state(state[3])
                    state = None
            self.assertEqual(found, whole)
            self.assertGreater(len(whole), 3)
        return whole


class Exact(Case):
    def test_maps_and_samplers(self):
        samples = TensorDataset(torch.arange(23))
        self.check(lambda: DataLoader([torch.tensor(i) for i in range(23)], batch_size=4, shuffle=True))
        self.check(lambda: DataLoader(list(range(23)), batch_size=4, sampler=RandomSampler(samples, generator=torch.Generator().manual_seed(3))))
        self.check(lambda: DataLoader(list(range(23)), batch_size=4, shuffle=True, num_workers=2), stops=1)
        self.check(lambda: [1, 2, 3, 4, 5])

    def test_draws_of_the_samples(self):
        """Draws of the main process go on too."""
        class Noisy(torch.utils.data.Dataset):
            def __len__(self):
                return 9

            def __getitem__(self, i):
                return i + torch.rand(1).item() + random.random() + np.random.rand()
        self.check(lambda: DataLoader(Noisy(), batch_size=2, shuffle=True))
        self.check(Tar)
        self.check(lambda: DataLoader(Shards(noise=True), batch_size=2))

    def test_streams_with_a_state(self):
        self.check(Shards)
        self.check(lambda: DataLoader(Shards(), batch_size=3))
        self.check(lambda: DataLoader(Shards(), batch_size=None))
        whole = self.check(lambda: DataLoader(Shards(), batch_size=4, drop_last=True))
        self.assertEqual({len(batch) for _, batch in whole}, {4})

    def test_workers_have_states_of_their_own(self):
        """Each with draws of its own; all samples come once in an epoch, in the same order."""
        for workers in sampled((2, 3), 1):
            whole = self.check(lambda workers=workers: DataLoader(Shards(), batch_size=2, num_workers=workers), stops=2)
            for epoch in range(2):
                self.assertEqual(sorted(i for e, batch in whole if e == epoch for i in batch), sorted(sum(Shards().shards, [])))
        self.check(lambda: DataLoader(Shards(noise=True), batch_size=2, num_workers=2), stops=1)

    def test_nothing_is_read_again(self):
        """A stream with a state begins where it was."""
        read = []

        class Counting(Shards):
            def __iter__(self):
                for value in super().__iter__():
                    read.append(value)
                    yield value
        data = penstock.resumable(DataLoader(Counting(), batch_size=2))
        first = [numbers(batch) for batch, _ in zip(data, range(3))]
        state = written(data.state_dict())
        read.clear()
        data = penstock.resumable(DataLoader(Counting(), batch_size=2))
        data.load_state_dict(state)
        following = numbers(next(iter(data)))
        self.assertEqual(read, following)
        self.assertNotIn(following, first)

    def test_ranks_have_shares(self):
        """Together they have each batch once, but for the last few; the state of one is that of all."""
        def of(make):
            return [self.check(make, stops=1, rank=rank, ranks=3) for rank in range(3)]
        for make in (lambda: DataLoader(Shards(), batch_size=2), lambda: list(range(17))):
            shares, whole = of(make), epochs(penstock.resumable(make()), 2)
            self.assertEqual(len({len(share) for share in shares}), 1)
            for epoch in range(2):
                all_of = [batch for e, batch in whole if e == epoch]
                together = [batch for row in zip(*[[b for e, b in share if e == epoch] for share in shares]) for batch in row]
                self.assertEqual(together, all_of[:len(all_of) // 3 * 3])
        states = []
        for rank in range(3):
            data = penstock.resumable(DataLoader(Shards(), batch_size=2), rank=rank, ranks=3)
            torch.manual_seed(0)
            next(iter(data))
            states.append(data.state_dict()["source"])
        self.assertEqual(states[0], states[1])
        self.assertEqual(states[0], states[2])

    def test_a_for_that_was_left_begins_the_epoch_again(self):
        data = penstock.resumable(DataLoader(Shards(), batch_size=2))
        first = numbers(next(iter(data)))
        self.assertEqual(next(iter(epochs(data, 1)))[1][:0], [])
        self.assertEqual((data.epoch, data.taken), (1, 0))
        self.assertEqual(len(penstock.resumable([1, 2, 3])), 3)
        self.assertEqual(len(first), 2)

    def test_the_end_of_an_epoch(self):
        """Saved behind the last batch, but before the loop has asked for another, the epoch goes on with none."""
        data = penstock.resumable([1, 2, 3])
        for batch in data:
            state = written(data.state_dict())
        self.assertEqual(written(data.state_dict())["taken"], 0)
        again = penstock.resumable([1, 2, 3])
        again.load_state_dict(state)
        self.assertEqual(written(again.state_dict())["taken"], 3)
        self.assertEqual((list(again), again.epoch, list(again)), ([], 1, [1, 2, 3]))

    @unittest.skipUnless(have("datasets"), "datasets is not installed")
    def test_of_datasets(self):
        import datasets

        def stream():
            return datasets.IterableDataset.from_generator(samples_of, gen_kwargs={"shards": [0, 1, 2, 3]})
        for workers in (0, 2):
            with self.subTest(workers=workers):
                self.check(lambda workers=workers: DataLoader(stream(), batch_size=3, num_workers=workers, collate_fn=collate), stops=1)
        self.check(lambda: DataLoader(stream().shuffle(seed=1, buffer_size=5), batch_size=3, collate_fn=collate), stops=1, count=True)


def samples_of(shards):
    for shard in shards:
        yield from ({"x": 10 * shard + i} for i in range(5 + shard))


def collate(samples):
    return [sample["x"] for sample in samples]


class Said(unittest.TestCase):
    def test_what_is_passed_over(self):
        data = penstock.resumable([1, 2, 3])
        next(iter(data))
        again = penstock.resumable([1, 2, 3])
        again.load_state_dict(data.state_dict())
        with self.assertLogs("penstock", "INFO") as kept:
            self.assertEqual(next(iter(again)), 2)
        self.assertEqual(kept.output, ["INFO:penstock:1 batches of a list are read again and passed over"])

    def test_refusals(self):
        def refused(text, call):
            with self.assertRaisesRegex(PenstockError, text):
                call()
        refused("a generator cannot be read anew from its begin\n.*\n  hint: give what makes the iterator", lambda: penstock.resumable(i for i in range(3)))
        refused("a int cannot be read anew", lambda: penstock.resumable(3))
        refused("rank=3 of ranks=3", lambda: penstock.resumable([1], rank=3, ranks=3))
        refused("ranks=2.0 is no whole number", lambda: penstock.resumable([1], ranks=2.0))
        refused("this is no state of a penstock.resumable", lambda: penstock.resumable([1]).load_state_dict({"epoch": 1}))
        data = penstock.resumable([1, 2, 3, 4])
        next(iter(data))
        refused("the state is of counted, and this loader is a data set with a state", lambda: penstock.resumable(DataLoader(Shards())).load_state_dict(data.state_dict()))
        refused("1 batches were taken, which 2 ranks do not share equally", lambda: penstock.resumable([1], ranks=2).load_state_dict(data.state_dict()))
        other = penstock.resumable(DataLoader([1, 2, 3, 4], generator=torch.Generator()))
        other.load_state_dict(data.state_dict())
        refused("the epoch drew from 0 generators, and this loader has 1", lambda: next(iter(other)))
        refused("the epoch drew from 0 generators", lambda: next(iter(other)))  # and not a new epoch without a word

    def test_another_loader(self):
        """A count of batches says nothing in a loader that cuts or has other samples."""
        def taken(batches, count=2):
            data = penstock.resumable(batches)
            for _ in zip(range(count), data):
                pass
            return written(data.state_dict())

        def loader(samples=32, batch_size=8, **given):
            return DataLoader(list(range(samples)), batch_size=batch_size, **given)

        class Stream:
            def __init__(self, count):
                self.count = count

            def __iter__(self):
                return iter(range(self.count))

        class Growing(torch.utils.data.Sampler):
            """The batches of its epoch, one more in each."""

            epoch = 0

            def set_epoch(self, epoch):
                self.epoch = epoch

            def __iter__(self):
                return iter([i] for i in range(len(self)))

            def __len__(self):
                return 3 + self.epoch
        state = taken(loader(batch_size=16), 1)
        for other, text in ((loader(), "loader with batch_size=16, and this one has batch_size=8\n.*\n  hint: wrap a loader as"), (loader(33, 16), "data set of 32 samples, and .* 33 samples"),
                            (loader(batch_size=16, drop_last=True), "drop_last=False, and this one has drop_last=True"), ([1, 2, 3], "2 batches, and this one has 3")):
            with self.assertRaisesRegex(PenstockError, text):
                penstock.resumable(other).load_state_dict(state)
        with self.assertRaisesRegex(PenstockError, "batch_size=3, and this one has batch_size=2"):
            penstock.resumable(DataLoader(Shards(), batch_size=2)).load_state_dict(taken(DataLoader(Shards(), batch_size=3)))
        with self.assertRaisesRegex(PenstockError, "3 batches were taken, and this loader has only 2"):
            penstock.resumable([1, 2]).load_state_dict({**taken([1, 2, 3, 4], 3), "loader": None})  # as older states are
        data = penstock.resumable(Stream(2))
        data.load_state_dict(taken(Stream(5), 3))
        for _ in range(2):
            with self.assertRaisesRegex(PenstockError, "3 batches were taken, and this loader has only 2"):
                next(iter(data))
        between = penstock.resumable(loader(batch_size=16))
        list(between)
        data = penstock.resumable(loader())
        data.load_state_dict(written(between.state_dict()))
        self.assertEqual((data.epoch, len(list(data))), (1, 4))
        data = penstock.resumable(DataLoader(list(range(9)), batch_sampler=Growing()))
        list(data), next(iter(data))
        again = penstock.resumable(DataLoader(list(range(9)), batch_sampler=Growing()))
        again.load_state_dict(written(data.state_dict()))
        self.assertEqual(len(list(again)), 3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
