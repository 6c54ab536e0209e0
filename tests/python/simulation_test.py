# SPDX-License-Identifier: Apache-2.0
"""Steps simulated, compared, searched and swept from Python: the program's own numbers, and pictures that can be printed.

usage: simulation_test.py, with PENSTOCK the program's path. What needs pandas or matplotlib is skipped, and said to be, where these are not installed.
"""

import importlib.util
import os
import pickle
import random
import struct
import tempfile
import unittest
from pathlib import Path

import numpy as np
from beside_program import EXAMPLES, message, printed, printed_json
from evaluate import drawn_seed  # finds the package

import penstock
from penstock import Costs, Schedule, Timeline

SEED = drawn_seed()
HAVE = {name: importlib.util.find_spec(name) is not None for name in ("pandas", "matplotlib")}


def flags_of(costs):
    """The flags of `penstock simulate` that say the same."""
    out = []
    for name, value in costs.items():
        flag = "--" + {"recompute": "recompute-time", "offload": "offload-time"}.get(name, name).replace("_", "-")
        if name == "links":
            for (a, b), link in value.items():
                out += ["--link", f"{a}-{b}:" + ",".join(f"{key}={number}" for key, number in link.items())]
        elif name == "straggler":
            out += [word for actor, factor in value.items() for word in (flag, f"{actor}={factor}")]
        else:
            out += [flag] if value is True else [flag, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return out


def drawn_costs(source, stages, slices):
    """Some of all costs, that go together."""
    def number():
        return round(source.uniform(0.1, 3), 3)

    costs = {name: number() for name in ("forward", "backward", "input", "weight", "latency", "recompute", "parameters") if source.random() < 0.5}
    costs |= {"bytes": number(), "bandwidth": number()} if source.random() < 0.5 else {}
    costs |= {"links": {(0, 1): {"latency": number()}}} if source.random() < 0.5 else {}
    costs |= {"gather": number(), "reduce": number()} if source.random() < 0.3 and slices == 1 else {}
    costs |= {"stage_times": [number() for _ in range(stages)]} if source.random() < 0.5 else {}
    costs |= {"slice_times": [number() for _ in range(slices)]} if source.random() < 0.5 else {}
    costs |= {"straggler": {1: 1.5}} if source.random() < 0.5 else {}
    costs |= {"jitter": 0.2, "seed": source.randrange(100)} if source.random() < 0.5 else {}
    return costs | {name: True for name in ("per_stage", "atomic_pairs") if source.random() < 0.3}


class Figures(unittest.TestCase):
    def test_are_the_programs(self):
        source = random.Random(SEED)
        tables = [("1f1b", {"actors": 3, "microbatches": 6}), ("zb-v", {"actors": 2, "microbatches": 4, "chunks": 2}), ("dualpipe", {"actors": 4, "microbatches": 8}),
                  ("slimpipe", {"actors": 2, "microbatches": 2, "slices": 4}), ("pipedream", {"actors": 2, "microbatches": 2, "window": 3}),
                  ("1f1b", {"actors": 2, "microbatches": 4, "frozen": [1, 0.5]})]
        for name, options in tables:
            table = Schedule(name, **options)
            costs = drawn_costs(source, table.stages, table.slices)
            if name in ("pipedream", "dualpipe"):  # gathers are of tables of one step, stages on one actor
                costs = {key: value for key, value in costs.items() if key not in ("gather", "reduce")}
            with self.subTest(name, seed=SEED, costs=costs):
                step = penstock.simulate(table, costs)
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "timeline.json"
                    flags = [word for key, value in options.items() for word in ("--" + key, ",".join(map(str, value)) if isinstance(value, list) else value)]
                    counted = {key: value for key, value in costs.items() if key != "recompute"}  # which these tables do not do
                    said = printed_json("simulate", name, *flags, *flags_of(counted), "--explain", "--timeline", path)
                    self.assertEqual(Timeline.read(path), step)
                explained = said.pop("explanation")
                self.assertEqual(step.figures, {key: value for key, value in said.items() if key != "format"})
                self.assertEqual([step.makespan, step.bubble, step.lower_bound, step.busy, step.peak_live, step.actors],
                                 [said[key] for key in ("makespan", "bubble", "lower_bound", "busy", "peak_live", "actors")])
                found = step.explanation()
                self.assertEqual({key: found[key] for key in ("critical_path", "idle")}, {key: explained[key] for key in ("critical_path", "idle")})
                for change in found["changes"]:
                    self.assertIn(change, explained["changes"])

    def test_measured_costs_are_in_seconds(self):
        with tempfile.TemporaryDirectory() as folder:
            costs = Path(folder) / "costs.json"
            printed("profile", "--set", "layers=2", "--set", "width=16", "--set", "heads=2", "--set", "context=8", "--batch", 4, "--microbatches", 2,
                    "--rounds", 1, "--out", costs)
            for more in ({}, {"measured": costs}):
                step = penstock.simulate(Schedule("1f1b", microbatches=2), None if more else costs, **more)
                self.assertEqual(step.makespan, printed_json("simulate", "1f1b", "--actors", 2, "--microbatches", 2, "--costs", costs)["makespan"])
                self.assertTrue(step.seconds)
            rules = EXAMPLES / "schedules/1f1b.rules"
            said = printed_json("simulate", rules, "--actors", 2, "--microbatches", 2, "--costs", costs)
            read = Schedule.read(rules, actors=2, microbatches=2, costs=costs)
            self.assertEqual(penstock.simulate(read, costs).makespan, said["makespan"])
            self.assertEqual(penstock.simulate(rules, costs).schedule, Schedule.read(rules, actors=2, microbatches=8, costs=costs))
            self.assertIn("leave out forward or measured", message(lambda: penstock.simulate("1f1b", costs, forward=1)))
            said = printed_json("schedule", "compare", "--actors", 2, "--microbatches", 2, "--costs", costs)["schedules"]
            rows = penstock.compare_schedules(microbatches=2, costs=costs)
            self.assertEqual([(row["name"], row["makespan"]) for row in rows], [(row["name"], row.get("makespan")) for row in said])

    def test_rows_and_memory(self):
        step = penstock.simulate(Schedule("1f1b", actors=2, microbatches=2), latency=0.5)
        rows = step.rows()
        self.assertEqual(sum(row["duration"] for row in rows if row["lane"] == "compute"), sum(step.busy))
        self.assertEqual({row["peer"] for row in rows if row["lane"] == "transfer"}, {0, 1})
        self.assertEqual([(row["kind"], row["stage"], row["microbatch"], row["begin"]) for row in rows if row["lane"] == "compute"][:2], [("F", 0, 0, 0.0), ("F", 0, 1, 1.0)])
        self.assertEqual([max(row["total"] for row in step.memory if row["device"] == actor) for actor in (0, 1)], step.peak_live)
        sliced = penstock.simulate(Schedule("slimpipe", actors=2, microbatches=2, slices=4)).rows()
        self.assertEqual({row["slice"] for row in sliced if row["lane"] == "compute"}, {0, 1, 2, 3})

    @unittest.skipUnless(HAVE["pandas"], "pandas is not installed")
    def test_frames(self):
        step = penstock.simulate("1f1b")
        frame = step.frame()
        self.assertEqual(len(frame), len(step.rows()))
        self.assertAlmostEqual(frame[frame.lane == "compute"].groupby("device").duration.sum()[0], step.busy[0])
        self.assertNotIn("schedule", penstock.sweep("1f1b", actors=[2]).frame().columns)
        self.assertEqual(list(step.memory.frame().columns)[:3], ["device", "time", "total"])

    def test_errors(self):
        table = Schedule("1f1b", actors=2)
        wrong = [
            ({"foward": 1}, 'did you mean "forward"?'),
            ({"qqq": 1}, "there are forward, "),
            ({"forward": -1}, "a finite number, 0 or above"),
            ({"forward": "1"}, "a finite number, 0 or above"),
            ({"bandwidth": 0, "bytes": 1}, "above 0"),
            ({"bandwidth": 1}, "says nothing without bytes"),
            ({"bytes": 1}, "say nothing without a bandwidth"),
            ({"reduce": 1}, "says nothing without gather"),
            ({"kept": 2}, "from 0 to 1"),
            ({"jitter": 1}, "below 1"),
            ({"seed": -1}, "a whole number"),
            ({"per_stage": 1}, "True or False"),
            ({"stage_times": [1]}, "stage_times has 1 times, and the table 2 stages"),
            ({"stage_times": [0, 0]}, "one of them above 0"),
            ({"slice_times": [1, 1]}, "the table 1 slices"),
            ({"straggler": {5: 2}}, "there are 0 to 1"),
            ({"straggler": {0: 0}}, "a factor above 0"),
            ({"links": {(0, 0): {"latency": 1}}}, "between two actors"),
            ({"links": {(0, 4): {"latency": 1}}}, "there is no actor 4"),
            ({"links": {(0, 1): {"speed": 1}}}, "links by their two actors"),
            ({"measured": "no/such.json"}, "cannot be read"),
            ({"backend": 3}, "the name of a backend"),
        ]
        for costs, words in wrong:
            with self.subTest(**costs):
                self.assertIn(words, message(lambda costs=costs: penstock.simulate(table, costs)))
        self.assertIn("says nothing of costs", message(lambda: penstock.simulate(table, 3)))
        self.assertIn("can never run", message(lambda: penstock.simulate([["0F0", "0B0"], ["1B0", "1F0"]])))
        self.assertIn("cannot be read", message(lambda: Timeline.read("no/such.json")))

    def test_arguments_of_another_kind(self):
        """The argument and its value are named, whatever the engine would say of it."""
        rows = penstock.compare_schedules(["1f1b"])
        wrong = [
            (lambda: Schedule("1f1b", actors="2"), "actors='2' is not what actors takes"), (lambda: Schedule("1f1b", actors=2**40), "a number below 2^31"),
            (lambda: Schedule("1f1b", frozen=[1, "x"]), "frozen is numbers"), (lambda: Schedule("1f1b", frozen="ab"), "frozen='ab'"), (lambda: Schedule("1f1b", name=5), "name=5"),
            (lambda: Schedule(5), "5 is no schedule"), (lambda: Schedule([5]), "actor 0 has the row 5, a int"), (lambda: Schedule.parse(5), "text=5"),
            (lambda: Schedule.read(5), "path=5 is no path"), (lambda: Schedule("1f1b").save(None), "path=None is no path"), (lambda: penstock.simulate(None), "None is no schedule"),
            (lambda: penstock.simulate("1f1b", jitter=0.1, seed=2**70), "below 2^64"), (lambda: penstock.simulate("1f1b").text("x"), "columns='x'"),
            (lambda: penstock.simulate("1f1b").page(5), "title=5"), (lambda: Timeline.read(5), "path=5 is no path"), (lambda: penstock.compare_schedules(5), "5 names no schedules"),
            (lambda: penstock.compare_schedules(actors="4"), "actors='4'"), (lambda: penstock.compare_schedules(allow=5), "allow=5"), (lambda: penstock.sweep(5), "5 names no schedules"),
            (lambda: penstock.search(search_seed="x"), "search_seed='x'"), (lambda: penstock.search(search_seed=-1), "at least 0 and below 2^63"), (lambda: penstock.search(seconds="x"), "seconds='x'"),
            (lambda: penstock.search(order_transfers="x"), "order_transfers is True or False"), (lambda: rows.where(lambda row: row["fit"]), "no column 'fit'\n  hint: did you mean \"fits\"?"),
        ]
        for call, words in wrong:
            with self.subTest(words):
                self.assertIn(words, message(call))
        with self.assertRaises(KeyError):  # the user's own
            rows.where(lambda row: {}[row["name"]])

    def test_numbers_of_numpy(self):
        table = Schedule("gpipe", actors=np.int64(2))
        self.assertEqual(penstock.simulate(table, forward=np.float32(1.5), stage_times=np.array([1.0, 2.0])), penstock.simulate(table, forward=1.5, stage_times=[1, 2]))
        self.assertEqual([row["actors"] for row in penstock.sweep("gpipe", actors=np.arange(2, 4))], [2, 3])

    def test_costs_are_a_dict_that_numbers_override(self):
        costs = Costs(forward=1.0, backward=3.0)
        self.assertEqual(penstock.simulate("gpipe", costs, backward=2.0), penstock.simulate("gpipe", forward=1.0, backward=2.0))
        self.assertEqual(penstock.simulate("gpipe", {**costs, "latency": 0.5}), penstock.simulate("gpipe", costs, latency=0.5))


class Compared(unittest.TestCase):
    def test_rows_are_the_programs(self):
        for limit in (None, 3):
            flags = ["--latency", 0.5, "--recompute-time", 1, *(["--activation-limit", limit] if limit else [])]
            said = printed_json("schedule", "compare", "--actors", 3, "--microbatches", 6, "--chunks", 2, *flags)["schedules"]
            rows = penstock.compare_schedules(actors=3, microbatches=6, chunks=2, activation_limit=limit, latency=0.5, recompute=1.0)
            for key in ("name", "makespan", "bubble", "chunks", "transfers", "copies"):
                self.assertEqual([row[key] for row in rows if not row["refused"]], [row[key] for row in said if "refused" not in row], (limit, key))
            self.assertEqual([row["peak_live"] for row in rows if not row["refused"]], [max(row["peak_live"]) for row in said if "refused" not in row])
            self.assertEqual({row["name"] for row in rows if row["refused"]}, {row["name"] for row in said if "refused" in row})
            self.assertEqual(rows.best()["schedule"].simulate(latency=0.5, recompute=1.0).makespan, rows[0]["makespan"])

    def test_names_and_tables_together(self):
        mine = Schedule(Schedule("zb-h1", microbatches=4).rows, name="mine")
        rows = penstock.compare_schedules(["gpipe", mine, "zb-v"], actors=2, microbatches=4)
        self.assertEqual({row["name"] for row in rows}, {"gpipe", "mine", "zb-v"})
        self.assertEqual(rows.best()["makespan"], min(row["makespan"] for row in rows))
        self.assertEqual([row["refused"] for row in rows], ["", "", ""])
        self.assertIn("orders slices", penstock.compare_schedules(["terapipe"])[0]["refused"])
        self.assertIn("<td>mine</td>", rows._repr_html_())
        self.assertIn("zb-v", str(rows))
        for call, words in ((lambda: penstock.compare_schedules(["1f1"]), 'did you mean "1f1b"?'), (lambda: penstock.compare_schedules(allow=["recomp"]), '"recompute"'),
                            (lambda: penstock.compare_schedules(actors=0), "at least 1"), (lambda: penstock.compare_schedules(activation_limit=0), "above 0"),
                            (lambda: penstock.compare_schedules(actors=64, microbatches=1024), "looks at these alone"), (lambda: penstock.compare_schedules(["terapipe"]).best(), "none of the rows")):
            self.assertIn(words, message(call))

    def test_tables_of_another_size_are_refused_as_by_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            path, rules = Path(folder) / "mine.csv", EXAMPLES / "schedules/1f1b.rules"
            Schedule("1f1b", actors=4, microbatches=1).save(path)
            for actors, microbatches in ((2, 1), (4, 8), (4, 1)):
                said = printed_json("schedule", "compare", path, rules, "gpipe", "--actors", actors, "--microbatches", microbatches)["schedules"]
                rows = penstock.compare_schedules([path, str(rules), "gpipe"], actors=actors, microbatches=microbatches)
                refused = [row.get("refused", "").replace("--actors 4 --microbatches 1", "actors=4, microbatches=1") for row in said]
                self.assertEqual([(row["name"], row["makespan"], row["refused"]) for row in rows],
                                 [(row["name"], row.get("makespan"), why) for row, why in zip(said, refused)])
                self.assertEqual(rows[-1]["refused"], "" if (actors, microbatches) == (4, 1) else
                                 "it is for 4 actors and 1 micro-batch; compare it by actors=4, microbatches=1")

    def test_sweeps(self):
        rows = penstock.sweep(["1f1b", "zb-v"], actors=[2, 3], latency=[0, 0.5], microbatches=4, chunks=2, costs=Costs(backward=3.0))
        self.assertEqual([(row["name"], row["actors"], row["latency"]) for row in rows[:3]], [("1f1b", 2, 0), ("1f1b", 2, 0.5), ("1f1b", 3, 0)])
        self.assertEqual(len(rows), 8)
        self.assertTrue(all("chunks" in row["refused"] for row in rows if row["name"] == "1f1b"), rows)
        last = rows[-1]
        self.assertEqual(last["makespan"], penstock.simulate(Schedule("zb-v", actors=3, microbatches=4, chunks=2), backward=3.0, latency=0.5).makespan)
        with tempfile.TemporaryDirectory() as folder:
            rows.where(lambda row: not row["refused"]).save(Path(folder) / "rows.csv")
            self.assertEqual((Path(folder) / "rows.csv").read_text().splitlines()[0], "name,actors,latency,microbatches,chunks,makespan,bubble,lower_bound,busy,peak_live,refused")
        for axes, words in (({"actor": [2]}, 'did you mean "actors"?'), ({"qqq": [2]}, "options: actors"), ({"latency": [-1]}, "0 or above")):
            self.assertIn(words, message(lambda axes=axes: penstock.sweep("1f1b", **axes)))
        self.assertIn('did you mean "gpipe"?', message(lambda: penstock.sweep("gpip", actors=[2])))
        self.assertIn("says itself how large", penstock.sweep(Schedule("gpipe"), actors=[2])[0]["refused"])
        self.assertEqual(penstock.sweep(Schedule("gpipe"), latency=[0, 1])[1]["makespan"], penstock.simulate("gpipe", latency=1).makespan)

    def test_a_search_is_the_programs(self):
        said = printed_json("schedule", "search", "--actors", 3, "--microbatches", 5, "--latency", 0.25, "--activation-limit", 2, "--seconds", 100)
        found = penstock.search(actors=3, microbatches=5, latency=0.25, activation_limit=2, seconds=100)
        self.assertEqual(found.csv, said["table"])
        self.assertEqual(found.figures, {key: said[key] for key in found.figures})
        self.assertEqual([found.makespan, found.bubble, found.lower_bound, found.gap, found.optimal, found.found_by],
                         [said[key] for key in ("makespan", "bubble", "lower_bound", "gap", "optimal", "found_by")])
        self.assertEqual(found.simulate().makespan, found.makespan)
        self.assertIn("makespan", repr(found))
        self.assertEqual(pickle.loads(pickle.dumps(found)).figures, found.figures)

    def test_a_search_of_unequal_stages(self):
        found = penstock.search(actors=2, microbatches=4, stage_times=[1, 2], seconds=5)
        self.assertEqual(found.simulate().makespan, found.makespan)
        self.assertLessEqual(found.makespan, penstock.simulate(Schedule("zb-h1", microbatches=4), stage_times=[1, 2]).makespan)

    def test_what_a_search_refuses(self):
        for how, words in (({"jitter": 0.1}, "leave out jitter"), ({"actors": 0}, "at least 1"), ({"copies": 0}, "copies is a whole number"), ({"seconds": 0}, "above 0"),
                           ({"window": 2, "copies": 2}, "leave one of window and copies out"), ({"activation_limit": 0.1}, "0.1"), ({"latncy": 1}, '"latency"'),
                           ({"stage_times": [1]}, "the table 2 stages")):
            with self.subTest(**how):
                self.assertIn(words, message(lambda how=how: penstock.search(**how)))


class Pictures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.step = penstock.simulate(Schedule("interleaved-zb", actors=4, microbatches=8, chunks=2), latency=0.25)

    def test_the_engine_writes_what_the_program_writes(self):
        self.step.save(self.folder / "x.json")
        self.assertEqual(Timeline.read(self.folder / "x.json"), self.step)
        for ending in ("svg", "html", "txt"):
            self.step.save(self.folder / f"x.{ending}")
            printed("show", self.folder / "x.json", "--out", self.folder / f"y.{ending}")
            self.assertEqual((self.folder / f"x.{ending}").read_text(), (self.folder / f"y.{ending}").read_text())
        self.assertTrue(self.step._repr_svg_().startswith("<svg"))
        self.assertTrue(Schedule("gpipe")._repr_svg_().startswith("<svg"))

    def test_a_timeline_that_was_read_has_its_figures(self):
        self.step.save(self.folder / "timeline.json")
        read = Timeline.read(self.folder)  # as of a run's folder
        self.assertEqual([read.makespan, read.peak_live], [self.step.makespan, self.step.peak_live])
        self.assertAlmostEqual(read.bubble, self.step.bubble)
        for found, own in zip(read.busy, self.step.busy):
            self.assertAlmostEqual(found, own)
        self.assertIn("critical path", read.explain())
        self.assertIsNone(read.schedule)

    @unittest.skipUnless(HAVE["matplotlib"], "matplotlib is not installed")
    def test_pictures_have_a_papers_size(self):
        for width, inches in (("column", 3.3), ("page", 6.9), (5, 5)):
            self.step.save(self.folder / "x.png", width=width, dpi=100)
            size = struct.unpack(">2I", (self.folder / "x.png").read_bytes()[16:24])
            self.assertAlmostEqual(size[0], 100 * inches, delta=1)
        self.step.save(self.folder / "x.pdf", greyscale=True)
        self.assertTrue((self.folder / "x.pdf").read_bytes().startswith(b"%PDF"))
        self.step.save(self.folder / "x.svg", width="page")
        self.assertIn("matplotlib", (self.folder / "x.svg").read_text())

    @unittest.skipUnless(HAVE["matplotlib"], "matplotlib is not installed")
    def test_text_is_readable_and_inside(self):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from penstock import drawing

        for greyscale in (False, True):
            figure = Figure(dpi=100)
            canvas = FigureCanvasAgg(figure)
            ax = drawing._axes_in(figure, self.step, drawing._boxes(self.step), 3.3, True)
            self.assertIs(self.step.plot(ax, greyscale=greyscale), ax)
            texts = [*ax.texts, *ax.get_legend().get_texts(), *ax.get_xticklabels(), *ax.get_yticklabels(), ax.xaxis.label, ax.yaxis.label]
            self.assertGreaterEqual(min(text.get_fontsize() for text in texts), 5)
            canvas.draw()
            renderer, whole = canvas.get_renderer(), figure.bbox
            for text in [*ax.get_legend().get_texts(), ax.xaxis.label, ax.yaxis.label]:
                box = text.get_window_extent(renderer)
                self.assertTrue(box.x0 >= 0 and box.x1 <= whole.x1 + 1 and box.y0 >= -1 and box.y1 <= whole.y1 + 1, (text.get_text(), box))
            colours = [colour for collection in ax.collections for colour in collection.get_facecolor()]
            self.assertEqual(all(len({round(part, 9) for part in colour[:3]}) == 1 for colour in colours), greyscale)

    @unittest.skipUnless(HAVE["matplotlib"], "matplotlib is not installed")
    def test_rows_as_lines(self):
        from matplotlib.figure import Figure

        rows = penstock.sweep(["1f1b", "zb-v"], actors=2, microbatches=[8, 4], chunks=[1, 2])
        ax = rows.plot("microbatches", ax=Figure().add_subplot())
        (line, other) = ax.get_lines()
        self.assertEqual([line.get_label(), other.get_label()], ["1f1b", "zb-v"])
        self.assertEqual(list(line.get_xdata()), [4, 8])
        self.assertEqual(list(line.get_ydata()), sorted((row["bubble"] for row in rows if row["name"] == "1f1b" and not row["refused"]), reverse=True))
        rows.save_plot(self.folder / "x.pdf", "microbatches", "makespan", greyscale=True)
        self.assertTrue((self.folder / "x.pdf").read_bytes().startswith(b"%PDF"))
        self.assertIn('did you mean "bubble"?', message(lambda: rows.plot("actors", "bubbel")))
        self.assertIn("the endings are", message(lambda: rows.save_plot("x.gif", "actors")))

    @unittest.skipUnless(HAVE["matplotlib"], "matplotlib is not installed")
    def test_micro_batches_are_numbered_where_boxes_have_room(self):
        from matplotlib.figure import Figure

        def numbers(microbatches):
            figure = Figure(figsize=(3.3, 1))
            return [text.get_text() for text in penstock.simulate(Schedule("gpipe", microbatches=microbatches)).plot(figure.add_subplot()).texts]
        self.assertEqual(sorted(numbers(4)), sorted([str(number) for number in range(4)] * 4))
        self.assertEqual(numbers(200), [])

    def test_errors(self):
        for path, how, words in (("x.gif", {}, "the endings are"), ("x.svg", {"dpi": -1}, "dpi=-1"), ("x.txt", {"dpi": "x"}, "dpi='x'"), ("x.json", {"width": "pge"}, 'did you mean "page"?'),
                                 ("x.html", {"width": -1}, "1 to 100 inches"), ("no/such.svg", {}, "no/such.svg cannot be written: No such file"),
                                 ("", {}, "cannot be written as ''"), ("x.pn", {}, 'did you mean "png"?'), ("x.html", {"greyscale": True}, "for paper"),
                                 ("x.pdf", {"width": "colum"}, 'did you mean "column"?'), ("x.pdf", {"width": 0}, "1 to 100 inches")):
            if HAVE["matplotlib"] or not path.endswith("pdf"):
                with self.subTest(path, **how):
                    self.assertIn(words, message(lambda path=path, how=how: self.step.save(self.folder / path, **how)))

    def test_what_is_cut_off_never_has_the_name(self):
        """A full disk, in the middle of the text: the file that was there stays, and nothing lies beside it. Links stay links."""
        from unittest import mock

        def full(self, *_, **__):
            Path.write_bytes(self, b"half")
            raise OSError(28, "No space left on device")
        path = self.folder / "x.svg"
        path.symlink_to(self.folder / "y.svg")
        self.step.save(path)
        before = path.read_text()
        with mock.patch.object(Path, "write_text", full):
            self.assertEqual(message(lambda: penstock.simulate("gpipe").save(path)), f"{path} cannot be written: No space left on device")
        self.assertEqual((path.read_text(), path.is_symlink(), sorted(os.listdir(self.folder))), (before, True, ["x.svg", "y.svg"]))

    def test_packages_that_are_not_installed_are_named(self):
        from unittest import mock

        with mock.patch.dict("sys.modules", {"matplotlib": None, "pandas": None}):
            self.assertIn("pip install matplotlib", message(lambda: self.step.save(self.folder / "x.pdf")))
            self.assertIn("pip install matplotlib", message(lambda: self.step.plot()))
            self.assertIn("pip install pandas", message(lambda: self.step.frame()))


if __name__ == "__main__":
    for name in (name for name, there in HAVE.items() if not there):
        print(f"{name} is not installed: what needs it is skipped")
    unittest.main()
