# SPDX-License-Identifier: Apache-2.0
"""penstock batch: the published values of every algorithm, instance by instance, and what is wrong with bad instances."""

import json
import unittest

from support import ProgramTest, run

QUARTER = {"linear": 4, "quadratic": 1024}  # t = fixed + n (s/4 + s^2/1024)
TEN = {"lengths": [100, 96, 64, 60, 33, 32, 17, 16, 8, 8], "fixed": 10, **QUARTER}
TWELVE = {"lengths": [512, 500, 260, 250, 130, 120, 60, 50, 40, 30, 20, 10], "fixed": 20, **QUARTER}
PAIRS = [[700, 60], [40, 35], [230, 6], [75, 3], [60, 2], [45, 40], [690, 75], [220, 8]]
BACKBONE = {"layers": [3, 1, 4, 1, 5, 9, 2, 6], "stages": 4, "microbatches": 4}
LANES = {"lanes": [1, 1, 1, 4, 5], "batches": 10}
TABLES = {"tables": [[1000, 2, 4], [400, 2, 2]], "batch": 4, "bandwidth": [48, 48], "memory": [9000, 9000], "dense": [5, 0]}
WINDOW = {"embed": 2, "dense": 8, "gradient": 2}
SEVEN_TWO = {"forward": [3, 7, 2], "input": [0, 7, 2], "weight": [3, 7, 2]}
ONES = {"actors": 4, "forward": [1] * 8}
EIGHT = {"actors": 4, "forward": [5, 1, 1, 4, 2, 2, 1, 3], "sizes": [5, 1, 1, 4, 2, 2, 1, 3]}
FALLING = [4, 4, 2, 2, 1, 1]
FLEXSP = {"a1": 5e-6, "a2": 0.18, "a3": 2, "beta": 100, "capacity": 10000}
ON_8 = {"devices": 8, "bandwidth": {"2": 20, "4": 10, "8": 5}, **FLEXSP}
ON_16 = {"devices": 16, "bandwidth": {"2": 20, "4": 10, "8": 5, "16": "5/2"}, **FLEXSP}
SIX = [4, 3, 2, 1, 1, 1]
SLICES = {"fixed": 0.3, "per_token": 0.1, "per_pair": 0.02}
MODULES = {"actors": 2, "images": [4, 1], "part": 2, "backbone": 2, "layers": 2}
ROOM = {"actors": 4, "chunks": [3, 2, 1], "layers": 8, "full": 6, "saved_per_layer": 2}

# The kind, the instance, and some of the answer.
PUBLISHED = [
    ("cut", {**TEN, "actors": 4}, {"objective": 5707 / 16, "t_max": 745 / 16, "sum": 217, "begins": [0, 1, 2, 3, 4, 7]}),
    ("cut", {**TEN, "actors": 4, "replicas": 2}, {"objective": 3971 / 16, "t_max": 745 / 16, "sum": 217, "begins": [0, 1, 2, 3, 4, 7]}),
    ("cut", {**TEN, "actors": 1}, {"objective": 3209 / 16, "t_max": 665 / 8, "sum": 3209 / 16, "begins": [0, 2, 4, 7]}),
    ("cut", {**TEN, "actors": 4, "interval": 5}, {"objective": 357, "t_max": 50, "sum": 207, "begins": [0, 1, 2, 4, 7]}),
    ("cut", {**TWELVE, "actors": 8, "limit_tokens": 1024}, {"objective": 66633 / 16, "begins": [0, 1, 2, 4, 6, 8]}),
    ("cut", {"pairs": PAIRS, "fixed": 20, **QUARTER, "actors": 4}, {"objective": 60051 / 16, "begins": [0, 1, 2, 4]}),
    ("order", {"pairs": PAIRS}, {"length": 790}),
    ("partition", {"values": [8, 7, 6, 5, 4], "bins": 2}, {"sums": [14, 16], "bins": [[0, 2], [4, 1, 3]]}),
    ("partition", {"values": [30, 29, 20, 13, 11, 11, 5, 4], "bins": 3}, {"sums": [40, 41, 42]}),
    ("partition", {"values": [40, 40, 22, 21, 19, 9, 7, 6, 3], "bins": 4}, {"sums": [40, 40, 43, 44]}),
    ("cyclic", {**ONES, "cap": None}, {"makespan": 33, "peak_live": [7, 5, 3, 1]}),
    ("cyclic", {**ONES, "cap": 4}, {"makespan": 36, "peak_live": [4, 4, 3, 1]}),
    ("cyclic", {**ONES, "cap": 3}, {"makespan": 45, "peak_live": [3, 3, 3, 1]}),
    ("cyclic", {**ONES, "cap": 2}, {"makespan": 51, "peak_live": [2, 2, 2, 1]}),
    ("cyclic", {**ONES, "cap": 1}, {"makespan": 96, "peak_live": [1, 1, 1, 1]}),
    ("cyclic", {**ONES, "latency": 1}, {"makespan": 39}),
    ("cyclic", EIGHT, {"makespan": 99}),
    ("cyclic", {**EIGHT, "schedule": "1f1b"}, {"makespan": 130}),
    ("cyclic", {**EIGHT, "cap": 6}, {"makespan": 166, "peak_live": [6, 6, 6, 5]}),
    ("cyclic", {**EIGHT, "cap": 5}, {"makespan": 186}),
    ("inject", {"actors": 4, "forward": FALLING, "groups": 6}, {"makespan": 68}),
    ("inject", {"actors": 4, "forward": FALLING, "groups": [[0], [1], [2], [3], [4], [5]]}, {"makespan": 68}),
    ("inject", {"actors": 4, "forward": FALLING, "groups": None}, {"makespan": 69, "order": [4, 5, 2, 3, 0, 1]}),
    ("inject", {"actors": 4, "forward": FALLING, "sizes": FALLING, "cap": 7, "groups": 6}, {"makespan": 99, "held_up": True}),
    ("inject", {"actors": 4, "forward": [5, 4, 3, 2, 1]}, {"makespan": 75}),
    ("inject", {"actors": 3, "forward": [6, 3, 3, 1, 1, 1], "groups": 6}, {"makespan": 67}),
    ("table", {**ONES, "cap": 4}, {"makespan": 27, "dynapipe": 36, "lower_bound": 27}),
    ("table", {**ONES, "cap": 3, "candidates": 10000}, {"makespan": 31, "dynapipe": 45}),
    ("table", {**ONES, "cap": 2}, {"makespan": 41, "dynapipe": 51}),
    ("table", {**ONES, "cap": 1}, {"makespan": 72, "dynapipe": 96, "peak_live": [1, 1, 1, 1]}),
    ("groups", {"lengths": [20000] + 4 * [9900], **ON_8}, {"milliseconds": 2500, "groups": [[4, [20000]]] + 4 * [[1, [9900]]], "proven": True}),
    ("groups", {"lengths": [20000] + 4 * [9900], **ON_8, "least_degree": 4, "most_degree": 4}, {"milliseconds": 3563.0125}),
    ("groups", {"lengths": [35000] + 4 * [8000], **ON_8}, {"milliseconds": 4956.25}),
    ("groups", {"lengths": [18000] + 6 * [9000], **ON_8}, {"milliseconds": 3430}),
    ("groups", {"lengths": [40000] + 8 * [9900], **ON_16}, {"milliseconds": 4000, "proven": True}),
    ("groups", {"lengths": [38000, 18000] + 6 * [9000], **ON_16}, {"milliseconds": 3757.5}),
    ("groups", {"lengths": [70000] + 8 * [8000], **ON_16}, {"milliseconds": 8237.5}),
    ("divide", {"lengths": [1, 2, 3, 4, 5, 6, 7, 8, 9], "parts": 3}, {"parts": [[9, 8], [7, 6], [5, 4, 3, 2, 1]]}),
    ("buckets", {"lengths": [5, 5, 6, 20, 21, 40, 80, 81], "buckets": 4}, {"error": 4}),
    ("chunks", {"actors": 4, "chunks": SIX, "forward": 1, "backward": 2}, {"makespan": 45, "peak_live": [7, 6, 5, 4]}),
    ("chunks", {"actors": 2, "chunks": SIX}, {"makespan": 39}),
    ("chunks", {"actors": 8, "chunks": SIX}, {"makespan": 57}),
    ("chunks", {"actors": 4, "chunks": [8, 2, 2]}, {"makespan": 45, "peak_live": [11, 10, 9, 8]}),
    ("chunks", {"actors": 4, "chunks": SIX[::-1], "warm_up": 1}, {"makespan": 75}),
    ("chunks", {"actors": 1, "chunks": [2, 1], "forward": [3, 2, 1], "sizes": [30, 20, 10]}, {"makespan": 18, "peak_live": [50]}),
    ("checkpoint", {**ROOM, "room": 24}, {"total": 6, "proven": True}),
    ("checkpoint", {**ROOM, "room": 30}, {"total": 3}),
    ("checkpoint", {"actors": 3, "chunks": [2, 2, 1, 1], "layers": 6, "full": 4, "saved_per_layer": 1, "room": 12}, {"total": 4}),
    ("checkpoint", {**ROOM, "full": [6] * 6, "saved_per_layer": [2] * 6, "room": 24}, {"total": 6}),
    ("checkpoint", {**ROOM, "chunks": SIX, "room": 30, "delay": 9}, {"time": 17, "groups": [SIX]}),
    ("checkpoint", {**ROOM, "chunks": SIX, "room": 30, "delay": 3}, {"time": 9, "groups": [[3, 2, 1, 1, 1], [4]]}),
    ("slices", {**SLICES, "length": 16, "actors": 4}, {"time": 9.26, "slices": [[5, 3, 2, 2, 2, 2]], "uniform": 9.86}),
    ("slices", {**SLICES, "length": 16, "actors": 8}, {"time": 12.94, "uniform": 13.93}),
    ("slices", {**SLICES, "length": 12, "actors": 2}, {"time": 4.8, "slices": [[6, 3, 3]], "uniform": 5.04}),
    ("slices", {**SLICES, "length": 16, "actors": 4, "fixed": 1}, {"time": 14.67, "slices": [[6, 4, 3, 3]], "uniform": 15.72}),
    ("slices", {**SLICES, "length": 24, "actors": 4}, {"time": 14.97, "uniform": 16.02}),
    ("slices", {**SLICES, "length": 8, "actors": 4, "sequences": 2}, {"time": 7.23, "sequences": [1, 1], "slices": [[5, 3], [5, 3]]}),
    ("exchange", {"actors": 4, "slices": 8}, {"moved": 18, "blocks": 112, "before": 2.5, "after": 1.25}),
    ("exchange", {"actors": 2, "slices": 8}, {"moved": 3, "blocks": 56, "before": 1.875, "after": 1.5, "moves": [[0, 1, 0, [0, 1, 2]]]}),
    ("exchange", {"actors": 4, "slices": 4}, {"moved": 4, "blocks": 24, "before": 1.75, "after": 1.25}),
    ("layers", {**SEVEN_TWO, "processors": 4, "backward": "whole"}, {"largest": 14, "mean": 8.25}),
    ("layers", {**SEVEN_TWO, "processors": 4, "backward": "apart"}, {"largest": 10, "mean": 8.25}),
    ("prefetch", LANES, {"time": 57, "period": 5}),
    ("prefetch", {**LANES, "lanes": [1, 1, 1, 6, 5]}, {"time": 68, "period": 6}),
    ("prefetch", {**LANES, "synchronise": "1/5"}, {"time": 58.8, "period": 5.2}),
    ("prefetch", {**LANES, "buffers": 1}, {"time": 93, "period": 9}),
    ("window", {**WINDOW, "microbatches": 1}, {"time": 12, "exposed": 4}),
    ("window", {**WINDOW, "microbatches": 4}, {"time": 9, "exposed": 1}),
    ("window", {**WINDOW, "microbatches": 8}, {"time": 8.5, "exposed": 0.5}),
    ("window", {"embed": 6, "dense": 8, "gradient": 6, "microbatches": 4}, {"time": 12, "exposed": 4}),
    ("tables", TABLES, {"period": 8, "tables": [[0], [1]], "bytes": [8000, 3200], "proven": True}),
    # 128 bytes in three passes take 12 s, and in the one that reads them again 4 s.
    ("tables", {"tables": [[100, 2, 4]], "batch": 4, "bandwidth": [32], "dense": [10], "overlap": 1}, {"period": 14, "lookups": [12]}),
    ("tables", {"tables": [[100, 2, 4]], "batch": 4, "bandwidth": [32], "dense": [10], "overlap": 0.25}, {"period": 12}),
    ("tables", {**TABLES, "link": 960}, {"period": 6.2, "tables": [[0, 1], [0, 1]], "bytes": [5600, 5600], "proven": True}),
    ("stages", {**BACKBONE, "links": 1}, {"time": 90, "slowest": 9, "exposed": 0}),
    ("stages", {**BACKBONE, "links": [1, 1, 1, 1, 1, 1, 1], "all_reduce": 0}, {"time": 90}),
    ("modules", {"actors": 2, "images": [4, 1], "part": 2, "backbone": 2}, {"makespan": 33, "proven": True}),
    ("modules", {"actors": 2, "images": [4, 0, 2], "part": 2, "backbone": 2}, {"makespan": 42, "proven": True}),
    ("segments", {"times": [7, 20, 21]}, {"segments": [1, 2, 3]}),
]  # fmt: skip


class Batch(ProgramTest):
    def solve(self, kind, instance, *flags):
        file = self.folder / "instance.json"
        file.write_text(json.dumps(instance))
        return run("batch", kind, file, *flags)

    def answer(self, kind, instance):
        result = self.solve(kind, instance, "--json")
        self.assertEqual(result.code, 0, result.err)
        return result.json()

    def fails(self, kind, instance, *parts):
        self.assert_fails(self.solve(kind, instance), *parts)

    def test_published(self):
        for kind, instance, expected in PUBLISHED:
            with self.subTest(kind=kind, instance=instance):
                answer = self.answer(kind, instance)
                for key, value in expected.items():
                    if isinstance(value, float):
                        self.assertAlmostEqual(answer[key], value, places=6)
                    else:
                        self.assertEqual(answer[key], value)

    def test_published_bounds(self):
        bounds = self.answer("split", {"lengths": [48000], "pieces": 4, "a1": 5.128e-6, "a2": 0.1839576})["bounds"]
        self.assertEqual([round(bound, 1) for bound in bounds], [18507.9, 30381.9, 39866.1])

    def test_published_times_of_modules(self):
        for images, part, backbone, most in [([4, 1, 2, 1], 2, 2, 66), ([4, 1, 2, 1], None, 2, 84), ([8, 1, 4, 2], 2, 4, 129), ([8, 1, 4, 2], None, 4, 165)]:
            answer = self.answer("modules", {"actors": 4, "images": images, "part": part, "backbone": backbone})
            self.assertLessEqual(answer["makespan"], most)
            self.assertLessEqual(answer["lower_bound"], answer["makespan"])

    def test_modules_there_and_back(self):
        instance = {"actors": 2, "images": [4, 1], "part": 1, "backbone": 2, "folded": True, "split": True}
        answer = self.answer("modules", instance)
        self.assertLess(answer["makespan"], 33)
        self.assertEqual(sorted(answer["ranks"][0]), sorted(f"{segment}{kind}" for segment in range(7) for kind in "FIW"))
        held = self.answer("modules", {**MODULES, "room": 3, "saved_per_layer": 0.4})
        self.assertLessEqual(held["held"], 3)
        self.assertGreater(sum(map(sum, held["again"])), 0)
        again = self.answer("modules", {"actors": 1, "images": [2], "backbone": 2, "part_rounds": 2, "backbone_rounds": 3})
        self.assertEqual(again["makespan"], 3 * (2 * 2 + 3 * 2))

    def test_static_modules(self):
        answer = self.answer("static-modules", {"actors": 2, "batches": [[4, 1], [0, 3]], "backbone": 2})
        self.assertEqual(len(answer["times"]), 2)
        self.assertEqual(answer["total"], sum(answer["times"]))
        self.assertIn("stages a rank", answer["table"])

    def test_text(self):
        result = self.solve("cut", {**TEN, "actors": 4})
        self.assertEqual(
            result.out,
            "objective  356.6875\nt max      46.5625\nsum        217\nbegins     0 1 2 3 4 7\n"
            "shapes     1 104 0 | 1 96 0 | 1 64 0 | 1 64 0 | 3 40 0 | 3 16 0\norder      0 1 2 3 4 5 6 7 9 8\n",
        )
        self.assertIn("20000", self.solve("groups", {"lengths": [20000, 9900], **ON_8}).out)

    def test_given_on_the_command_line(self):
        result = run("batch", "partition", '{"values": ["3/2", 1, 0.5], "bins": 2}')
        self.assertEqual((result.code, result.out), (0, "bins  0 | 2 1\nsums  1.5 1.5\n"))

    def test_list(self):
        names = [kind["name"] for kind in run("batch", "list", "--json").json()["kinds"]]
        self.assertLessEqual({kind for kind, _, _ in PUBLISHED} | {"split", "part-size"}, set(names))
        self.assertIn("cut: ", run("batch", "list").out)

    # A cyclic table is a schedule like others.
    def test_tables(self):
        table = self.folder / "cyclic.csv"
        table.write_text(self.solve("cyclic", {**EIGHT, "cap": 6}, "--csv").out)
        self.assertEqual(run("verify", table).code, 0)
        self.assertEqual(run("simulate", table, "--json").code, 0)
        self.assertIn("bubble", self.solve("chunks", {"actors": 2, "chunks": SIX}, "--show").out)
        self.assert_fails(self.solve("partition", {"values": [1], "bins": 1}, "--csv"), "the answer of partition is no table")

    def test_memory(self):
        modes = [{"name": "none", "fixed": 0, "linear": 1, "stored": 4, "peak": 2}, {"name": "full", "fixed": 50, "linear": 1, "peak": 2}]
        answer = self.answer("cut", {"lengths": [64, 64], "modes": modes, "memory": 256, "actors": 2})
        self.assertEqual((answer["mode"], answer["limit"]), ("full", 128))
        self.fails("cut", {"lengths": [64, 64], "modes": modes, "memory": 127, "actors": 2},
                   "sample 0, padded to 64 tokens, fits into no micro-batch", "full: stores 64.0, peaks at 128.0")  # fmt: skip
        self.fails("cut", {"lengths": [64], "modes": modes, "actors": 2}, 'has several modes, but no key "memory"')

    def test_plan(self):
        instance = {**TEN, "actors": 2, "replicas": 2, "memory": 400}
        answer = self.answer("plan", instance)
        self.assertEqual(sorted(sum(answer["micro_batches"], [])), list(range(len(answer["shapes"]))))
        self.assertEqual(answer["time"], max(answer["times"]))
        self.fails("plan", {**instance, "memory": 100}, "sample 0, padded to 104 tokens, fits into no micro-batch")

    def test_searched_tables(self):
        for instance in (EIGHT, {**EIGHT, "cap": 6}, {**EIGHT, "cap": 5, "latency": 1}, {**EIGHT, "cap": 6, "split": False}):
            with self.subTest(instance=instance):
                answer = self.answer("table", instance)
                self.assertLess(answer["makespan"], answer["dynapipe"])
                self.assertLessEqual(answer["lower_bound"], answer["makespan"])
                self.assertLessEqual(max(answer["peak_live"]), instance.get("cap", 100))
        self.assertLess(self.answer("table", {**EIGHT, "cap": 5, "recompute": True})["makespan"], self.answer("table", {**EIGHT, "cap": 5})["makespan"])
        table = self.folder / "searched.csv"
        table.write_text(self.solve("table", {**EIGHT, "cap": 6}, "--csv").out)
        self.assertEqual(run("verify", table).code, 0)
        self.fails("table", {**EIGHT, "cap": 4}, "the cyclic order stalls: micro-batch 0 of size 5.0 is above the cap of 4.0")

    def test_searched_batches(self):
        instance = {**TEN, "actors": 4, "memory": 400}
        theirs, ours = self.answer("plan", instance), self.answer("search", instance)
        self.assertLess(ours["time"], theirs["time"])
        self.assertLessEqual(ours["peak_live"], 400)
        self.assertEqual(sorted(sum(ours["samples"], [])), list(range(10)))
        ragged = self.answer("search", {**instance, "ragged": True})
        self.assertLess(ragged["time"], ours["time"])
        self.assertEqual({shape[0] for shape in ragged["shapes"]}, {0})
        self.assertEqual(ours, self.answer("search", instance))
        self.fails("search", {**instance, "memory": 100}, "sample 0, padded to 104 tokens, fits into no micro-batch")
        self.fails("search", {**instance, "memory": 96, "ragged": True}, "sample 0, padded to 100 tokens, fits into no micro-batch")

    def test_grid(self):
        grid = [{"samples": n, "input": s, "time": n * s} for n in (1, 2) for s in (8, 16)]
        answer = self.answer("cut", {"lengths": [12, 8], "round": 4, "grid": grid, "actors": 1})
        self.assertEqual((answer["sum"], answer["begins"]), (20, [0, 1]))
        self.fails("cut", {"lengths": [17], "grid": grid, "actors": 1}, "sample 0, padded to 24 tokens", "none: not measured")
        self.fails("cut", {"lengths": [8], "grid": grid[:3], "actors": 1}, "the costs of 2 samples of 16 tokens are missing")
        grid[0]["time"] = -1
        self.fails("cut", {"lengths": [8], "grid": grid, "actors": 1}, "grid[0].time is -1; it must not be negative")
        grid[0]["time"] = "nan"
        self.fails("cut", {"lengths": [8], "grid": grid, "actors": 1}, 'grid[0].time is "nan"; it must be a number such as 837.25 or "3349/4"')
        grid[0] = {"samples": 1, "input": 8}
        self.fails("cut", {"lengths": [8], "grid": grid, "actors": 1}, 'instance.json: grid[0] has no key "time"')

    def test_measured_slices(self):
        times = [[1, 2, 3, 4], [2, 3, 5], [4, "9/2"], [9]]  # by length and context
        answer = self.answer("slices", {"actors": 2, "length": 4, "times": times})
        self.assertEqual(answer, {"format": 1, "time": 10, "t_max": 4.5, "sum": 5.5, "sequences": [1], "slices": [[1, 3]], "uniform": 12})
        times[2][1] = None  # so that the other plans of two and three slices tie
        self.assertEqual(self.answer("slices", {"actors": 2, "length": 4, "times": times})["slices"], [[2, 2]])
        pair = {"actors": 2, "length": 1, "sequences": 2, "times": [[[3]], [[4]]]}
        self.assertEqual(self.answer("slices", pair), {"format": 1, "time": 8, "t_max": 4, "sum": 4, "sequences": [2], "slices": [[1]], "uniform": 8})
        self.assertEqual(self.answer("slices", {**pair, "times": [[[3]]]})["sequences"], [1, 1])
        only_unequal = {"actors": 2, "length": 3, "times": [[1, None, None], [None, 2], [None]]}
        answer = self.answer("slices", only_unequal)
        self.assertEqual((answer["slices"], answer["uniform"]), ([[1, 2]], None))

    def test_bad_samples(self):
        self.fails("cut", {**TEN, "lengths": [], "actors": 4}, "the batch has no samples")
        self.fails("cut", {**TEN, "lengths": [5, 0], "actors": 4}, "instance.json: lengths[1] is 0; it must be a whole number from 1")
        self.fails("cut", {**TEN, "lengths": [5, -3], "actors": 4}, "instance.json: lengths[1] is -3; it must be a whole number from 1")
        self.fails("cut", {**TEN, "lengths": [5, 80], "context": 64, "actors": 4}, "sample 1 has length 80, and the context is 64")
        self.fails("cut", {**TEN, "actors": 4, "limit_tokens": 64}, "sample 0, padded to 104 tokens, fits into no micro-batch",
                   "none: stores 104.0, peaks at 104.0")  # fmt: skip
        pairs = {"pairs": [[5, 0], [7, 0]], "fixed": 20, **QUARTER, "actors": 4}
        self.fails("cut", pairs, "the target of every sample is empty: the batch has nothing to learn")
        self.fails("cut", {**pairs, "pairs": [[5]]}, "pairs[0] is [5]; it must be an input's and a target's length")
        self.fails("cut", {**pairs, "lengths": [3]}, 'has both "lengths" and "pairs"')
        self.fails("cut", {**TEN, "order": [0, 0], "actors": 4}, "order must name each of the 10 samples once, from 0")
        self.fails("cut", {"lengths": [5], "actors": 4}, "instance.json has no costs", 'give "fixed", "linear" and "quadratic", or "grid"')
        self.fails("cut", {**TEN, "linear": 0, "actors": 4}, "the time of a token is divided by 0.0; it must be positive")

    def test_bad_micro_batches(self):
        self.fails("cyclic", {"actors": 4, "forward": [3, 1, 2, 1, 3, 2], "sizes": [1, 1, 1, 1, 1, 7], "cap": 6},
                   "the cyclic order stalls: micro-batch 5 of size 7.0 is above the cap of 6.0")  # fmt: skip
        self.fails("cyclic", {"actors": 2, "forward": [1, 1], "cap": 0.5}, "the cyclic order stalls: micro-batch 0 of size 1.0 is above the cap of 0.5")
        self.fails("cyclic", {"actors": 2, "forward": [1, 1], "sizes": [1]}, "there are 2 forward times and 1 sizes")
        self.fails("cyclic", {"actors": 2, "forward": []}, "forward is empty")
        self.fails("cyclic", {"forward": [1]}, 'instance.json has no key "actors"')
        self.fails("cyclic", {**EIGHT, "cap": 6, "schedule": "1f1b"}, "1F1B holds 11.0 on an actor, above the cap of 6.0")
        self.fails("cyclic", {**EIGHT, "schedule": "gpipe"}, 'schedule is "gpipe"; it must be "cyclic" or "1f1b"')
        self.fails("inject", {**EIGHT, "groups": [[0, 1, 2, 3], [4, 5, 6]]}, "groups leaves out micro-batch 7")
        self.fails("inject", {**EIGHT, "groups": [[0, 0]]}, "groups[0][1] is 0, a micro-batch that is there twice")

    def test_bad_groups(self):
        self.fails("groups", {"lengths": [10], **ON_8, "least_degree": 3}, "the least degree 3 is no power of two from 1 to the number of devices, 8")
        self.fails("groups", {"lengths": [10], **ON_8, "least_degree": 16}, "the least degree 16 is no power of two from 1 to the number of devices, 8")
        self.fails("groups", {"lengths": [10], **ON_8, "bandwidth": {"two": 1}}, "bandwidth.two belongs to no degree")
        self.fails("groups", {"lengths": [80001], **ON_8}, "a sequence of 80001 tokens fits into no group of 8 devices")
        self.fails("groups", {"lengths": [10], "devices": 8}, "has no costs")

    def test_bad_chunks_and_modules(self):
        self.fails("checkpoint", {**ROOM, "room": 10}, "a room of 10.0 is too small, even if every chunk recomputes all 2 layers of a stage")
        self.fails("checkpoint", {**ROOM, "full": [6, 6], "room": 24}, "full has 2 entries, there are 6 chunks")
        self.fails("checkpoint", {**ROOM, "full": [6, 6, 3, 6, 6, 6], "room": 24}, "chunk 2 has 3.0 on a stage, and its 2 layers save 4.0")
        self.fails("checkpoint", {**ROOM, "room": 24, "layers": 9}, "9 layers do not divide into 4 equal stages")
        self.fails("chunks", {"actors": 2, "chunks": [2], "forward": [1]}, "forward has 1 entries, there are 2 chunks")
        self.fails("chunks", {"actors": 2, "chunks": [0]}, "chunks[0] is 0; it must be a whole number from 1")
        self.fails("split", {"lengths": [100], "pieces": 2, "a2": 1, "capacity": 40}, "a chunk of 50 tokens is above the capacity of 40.0")
        self.fails("modules", {"actors": 2, "images": [4, 1, 2], "part": 2, "backbone": 2, "most_live": 1}, "every order tried stalls")
        self.fails("modules", {"actors": 2, "images": [4, 1, 2], "backbone": 2, "folded": 1}, "folded")
        self.fails("modules", {**MODULES, "room": 5, "saved_per_layer": 0.6}, "saves more than there is")
        self.fails("modules", {**MODULES, "room": 1, "saved_per_layer": 0.4}, "no table keeps a room of 1.0 on a rank")
        self.fails("static-modules", {"actors": 2, "batches": [[1], [1, 2]], "backbone": 2}, "the batches differ in their ranks or micro-batches")
        self.fails("static-modules", {"actors": 2, "batches": [], "backbone": 2}, "there are no batches")
        self.fails("part-size", {"sizes": [1, 2], "throughputs": [3]}, "throughputs has 1 entries for 2 sizes")

    def test_bad_slices(self):
        known = {"actors": 2, "length": 2, "times": [[1, 2], [3]]}
        self.fails("slices", {**SLICES, "actors": 2}, 'instance.json has no key "length"')
        self.fails("slices", {**SLICES, "length": 4}, 'instance.json has no key "actors"')
        self.fails("slices", {**SLICES, "actors": 2, "length": 0}, "length is 0; it must be a whole number from 1")
        self.fails("slices", {"actors": 2, "length": 4}, "instance.json has no costs", 'give "fixed", "per_token" and "per_pair", or "times"')
        self.fails("slices", {**SLICES, **known}, 'has both "times" and a formula')
        self.fails("slices", {**known, "length": 3}, "times has 2 rows for a length of 3", "there is a row for slices of each length from 1")
        self.fails("slices", {**known, "times": [[1], [3]]}, "times[0] has 1 entries; a slice of length 1 has from 0 to 1 before it")
        self.fails("slices", {**known, "times": [[1, -2], [3]]}, "times[0][1] is -2; it must not be negative")
        self.fails("slices", {**known, "times": 3}, "times is 3; it must be a list")
        self.fails("slices", {**known, "sequences": 2}, "times[0][0] is 1; it must be a list")
        self.fails("slices", {**known, "times": [[1, None], [None]]}, "has too few times: no slices with a time are a whole sequence")
        self.fails("slices", {**SLICES, "actors": 2, "length": 9000, "sequences": 64}, "has too much to try, 64 sequences of length 9000")
        self.fails("exchange", {"actors": 2}, 'instance.json has no key "slices"')
        self.fails("exchange", {"actors": 0, "slices": 8}, "actors is 0; it must be a whole number from 1 to 4096")
        self.fails("exchange", {"actors": 4096, "slices": 4096}, "has 16777216 slices of all actors; 65536 are the most")

    def test_bad_layers(self):
        self.fails("layers", {**SEVEN_TWO, "processors": 0}, "processors is 0; it must be a whole number from 1 to 4096")
        self.fails("layers", {**SEVEN_TWO, "processors": 4, "weight": [1]}, "weight has 1 times for 3 layers")
        self.fails("layers", {**SEVEN_TWO, "processors": 4, "forward": []}, "forward is empty")
        self.fails("layers", {**SEVEN_TWO, "processors": 4, "backward": "cut"}, 'backward is "cut"', "whole, apart or divided")
        self.fails("layers", {**SEVEN_TWO, "processors": 4, "input": [0, -1, 2]}, "input")

    def test_timelines_of_lookups(self):
        timeline = self.folder / "lookups.json"
        for kind, instance, lanes in (("prefetch", LANES, ("prefetch", "copy", "routing", "retrieval", "compute")),
                                      ("prefetch", {**LANES, "lanes": [2, 4, 5]}, ("lane 0", "retrieval", "compute")),
                                      ("window", {**WINDOW, "microbatches": 4}, ("exchange", "dense"))):  # fmt: skip
            drawn = run("batch", kind, json.dumps(instance), "--show", "--timeline", timeline)
            self.assertEqual(drawn.code, 0, drawn.err)
            for extension in ("txt", "svg", "html"):
                picture = self.folder / f"lookups.{extension}"
                self.assertEqual(run("show", timeline, "--out", picture).code, 0)
                for lane in lanes:
                    self.assertIn(lane, picture.read_text())
            for lane in lanes:
                self.assertIn(lane, drawn.out)
        self.assertIn("3B0", run("batch", "prefetch", json.dumps(LANES), "--csv").out)
        self.assert_fails(run("batch", "partition", '{"values": [1], "bins": 1}', "--timeline", timeline),
                          "the answer of partition has no timeline", "leave out --timeline")  # fmt: skip

    def test_bad_lookups(self):
        self.fails("prefetch", {**LANES, "lanes": [1]}, "1 lanes are no way from retrieving to computing", "at least two")
        self.fails("prefetch", {**LANES, "lanes": [1, -1]}, "lanes[1] is -1")
        self.fails("prefetch", {**LANES, "synchronise": -1}, "synchronise is -1")
        self.fails("prefetch", {**LANES, "buffers": 0}, "buffers is 0; it must be a whole number from 1 to 4096")
        self.fails("prefetch", {**LANES, "batches": 1}, "the number of batches is 1", "a period lies between two")
        self.fails("window", {**WINDOW, "microbatches": 0}, "microbatches is 0")
        self.fails("window", {**WINDOW, "dense": -8, "microbatches": 1}, "dense is -8")

    def test_bad_tables(self):
        self.fails("tables", {**TABLES, "bandwidth": [48, 0]}, "the bandwidth of device 1 is 0.0", "above 0")
        self.fails("tables", {**TABLES, "memory": [1000, 1000]}, "table 0 has 8000.0 bytes, more than any device", '"link"')
        self.fails("tables", {**TABLES, "memory": [1000]}, 'memory has 1 entries, and "bandwidth" 2', "one for each device")
        self.fails("tables", {**TABLES, "tables": [[1000, 2]]}, "tables[0] has 2 numbers", "rows, width and lookups per sample")
        self.fails("tables", {**TABLES, "tables": [[1000, 2, -4]]}, "tables[0][2] is -4")

    def test_bad_stages(self):
        self.fails("stages", {**BACKBONE, "stages": 9}, "9 stages of 8 layers", "1 to 8 stages")
        self.fails("stages", {**BACKBONE, "stages": 0}, "stages is 0; it must be a whole number from 1 to 4096")
        self.fails("stages", {**BACKBONE, "microbatches": 0}, "microbatches is 0")
        self.fails("stages", {**BACKBONE, "links": [1, 1]}, "links has 2 times, not 7", "one for all, or one for each")
        self.fails("stages", {**BACKBONE, "layers": []}, "layers is empty")
        self.fails("stages", {**BACKBONE, "all_reduce": -1}, "all_reduce is -1")

    def test_the_timeline_of_a_cut(self):
        """Its micro-batches in 1F1B: on one actor they take what they take together."""
        file = self.folder / "cut.json"
        instance = {"lengths": [100, 90, 50, 20], "actors": 1, "fixed": 1, "linear": 10, "quadratic": 1000}
        cut = run("batch", "cut", json.dumps(instance), "--timeline", file, "--json").json()
        drawn = run("show", file, "--json").json()
        self.assertAlmostEqual(drawn["makespan"], cut["sum"])
        self.assertEqual(drawn["activities"], 2 * len(cut["shapes"]))
        for more in ({"replicas": 2}, {"chunks": 2}):
            self.assert_fails(run("batch", "cut", json.dumps({**instance, **more}), "--timeline", file), "the answer of cut has no timeline")

    def test_bad_instances(self):
        self.fails("cyclc", ONES, 'there is no kind of problem "cyclc"', 'did you mean "cyclic"?')
        self.fails("cyclic", {**ONES, "caps": 3}, 'instance.json has an unknown key "caps"', 'did you mean "cap"?')
        self.assert_fails(run("batch", "cyclic", "{"), "instance:1:2: this is not JSON")
        self.assert_fails(run("batch", "cyclic", '{"actors": NaN}'), "instance:1:12: this is not JSON")
        self.assert_fails(run("batch", "cyclic", self.folder / "none.json"), "none.json: No such file or directory")
        self.assertEqual(run("batch", "cyclic").code, 2)
        self.assertEqual(run("batch", "cyclic", "{}", "--csv", "--json").code, 1)


if __name__ == "__main__":
    unittest.main()
