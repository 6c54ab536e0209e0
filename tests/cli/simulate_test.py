# SPDX-License-Identifier: Apache-2.0
"""penstock simulate of tables: the published times, what --explain says, and every flag's mistakes."""

import json
import unittest

from support import SMALL, ProgramTest, run

SHAPE = ["--actors", 4, "--microbatches", 8]


def simulate(*arguments):
    result = run("simulate", *arguments, "--json")
    assert result.code == 0, result.err
    return result.json()


class Simulate(ProgramTest):
    # p=4, m=8, F=1, B=2 (I=W=1), for an actor's whole share: makespan, bubble in percent, peak, makespan at latency 0.5 and 1.
    REFERENCE = {
        ("gpipe", 1): (33, 27.3, [8, 8, 8, 8], 36, 39),
        ("gpipe", 2): (28.5, 15.8, [8, 8, 8, 8], None, None),
        ("1f1b", 1): (33, 27.3, [4, 3, 2, 1], 41, 49),
        ("eager-1f1b", 1): (33, 27.3, [7, 5, 3, 1], 36, 39),
        ("interleaved-1f1b", 2): (28.5, 15.8, [5.5, 4.5, 3.5, 2.5], 35.5, 46),
        ("breadth-first", 2): (28.5, 15.8, [8, 8, 8, 8], None, None),
        ("zb-h1", 1): (27, 11.1, [4, 4, 4, 4], 33, 41),
        ("zb-h2", 1): (27, 11.1, [7, 7, 7, 7], None, None),
        ("zeropp", 1): (30, 20.0, [8, 8, 8, 8], None, None),
        ("zeropp", 2): (27, 11.1, [8, 8, 8, 8], None, None),
        ("sequential", 1): (96, 75.0, [1, 1, 1, 1], None, None),
    }

    def test_reference_table(self):
        names = [entry["name"] for entry in run("schedule", "list", "--json").json()["schedules"]]
        self.assertLessEqual({name for name, _ in self.REFERENCE}, set(names))
        for (name, chunks), (makespan, bubble, peak, half, one) in self.REFERENCE.items():
            with self.subTest(name):
                shape = [name, *SHAPE, "--chunks", chunks, "--forward", 1, "--backward", 2]
                found = simulate(*shape)
                self.assertEqual(found["makespan"], makespan)
                self.assertAlmostEqual(100 * found["bubble"], bubble, delta=0.05)
                self.assertEqual(found["peak_live"], peak)
                self.assertEqual([actor["peak_live"] for actor in found["actors"]], peak)
                self.assertEqual(found["busy"], [24] * 4)
                self.assertEqual([actor["busy"] for actor in found["actors"]], [24] * 4)
                self.assertEqual(found["lower_bound"], 24)
                if half:
                    self.assertEqual(simulate(*shape, "--latency", 0.5)["makespan"], half)
                    self.assertEqual(simulate(*shape, "--latency", 1)["makespan"], one)

    def test_one_slow_link(self):
        for name, makespans in {"1f1b": [33, 41, 49], "zb-h1": [27, 34, 42]}.items():
            for latency, makespan in enumerate(makespans):
                link = "2-3" if latency == 1 else "3-2"
                self.assertEqual(simulate(name, *SHAPE, "--link", f"{link}:latency={latency}")["makespan"], makespan)

    def test_options_of_schedules(self):
        for arguments, makespan in {
            ("zb-h2", "--transfers", 0.5, "--latency", 0.5): 29,
            ("zb-h2", "--transfers", 1, "--latency", 1): 32,
            ("crosspipe", "--in-flight", 8, "--transfers", "0,0,2", "--link", "2-3:latency=2"): 29,
            ("kfkb", "--group", 4, "--latency", 1): 39,
            ("zeropp", "--unit", 8): 30,
        }.items():
            self.assertEqual(simulate(*arguments, *SHAPE)["makespan"], makespan, arguments)
        self.fails(["gpipe", "--unit", 4], "gpipe takes no --unit", "schedules that do: zeropp")

    def test_fused_pairs_and_split_backwards(self):
        # The published bubbles, 2 of 26 and (p-1)(F&B+B-3W) of half chunks = 3 of 63, are those of pairs in one piece.
        both, folded = ["dualpipe", *SHAPE], ["dualpipe-v", "--actors", 4, "--microbatches", 20, "--chunks", 2]
        for shape, makespan, atomic in [(both, 25, 26), (folded, 61.5, 63), (["1f1b", *SHAPE], 33, 33)]:
            self.assertEqual(simulate(*shape)["makespan"], makespan)
            self.assertEqual(simulate(*shape, "--atomic-pairs")["makespan"], atomic)
        # Apart there are no pairs left; an input gradient goes out early.
        self.assertEqual(simulate(*both, "--split-backward", "--atomic-pairs")["makespan"], 25)
        self.assertEqual(simulate("1f1b", *SHAPE, "--split-backward")["makespan"], 30)
        for name in ["1f1b", "dualpipe"]:
            apart = run("schedule", name, *SHAPE, "--split-backward").out
            self.assertNotRegex(apart, "B|OVERLAP")
            self.assertEqual([apart.count(kind) for kind in "FIW"], [32, 32, 32])
        table = self.folder / "pair.csv"
        table.write_text("(0F0;0B0)OVERLAP_F_B\n1F0,1B0\n")
        self.assertEqual(simulate(table)["makespan"], 6)
        self.fails([table, "--atomic-pairs"], "0F0 on actor 0 can never run if fused pairs are one piece of work", "take the pairs apart")

    def test_larger_published_bubbles(self):
        shape = ["--actors", 8, "--microbatches", 32]
        for arguments, bubble in {("1f1b",): 17.9, ("zb-h1",): 6.8, ("interleaved-1f1b", "--chunks", 2): 9.9,
                                  ("interleaved-1f1b", "--chunks", 6): 3.5}.items():  # fmt: skip
            self.assertAlmostEqual(100 * simulate(*arguments, *shape)["bubble"], bubble, delta=0.05)
        unequal = ["--actors", 8, "--microbatches", 20, "--forward", 1, "--input", 1.3, "--weight", 0.7]
        found = simulate("zb-h1", *unequal)
        self.assertAlmostEqual(found["makespan"], 71.2, delta=0.05)
        self.assertAlmostEqual(100 * found["bubble"], 15.7, delta=0.05)

    def test_times_that_are_not_given(self):
        one = ["sequential", "--actors", 1, "--microbatches", 1]
        split = ["zb-h1", "--actors", 1, "--microbatches", 1]
        for flags, whole, parts in [
            ([], 3, 3),
            (["--backward", 6], 7, 7),
            (["--input", 2, "--weight", 3], 6, 6),
            (["--input", 2], 4, 4),
            (["--backward", 6, "--weight", 1], 7, 5),
            (["--forward", 0], 2, 2),
        ]:
            self.assertEqual(simulate(*one, *flags)["makespan"], whole, flags)
            self.assertEqual(simulate(*split, *flags)["makespan"], parts, flags)

    def test_per_stage(self):
        chunked = ["interleaved-1f1b", *SHAPE, "--chunks", 2]
        whole, each = simulate(*chunked), simulate(*chunked, "--per-stage")
        self.assertEqual(each["makespan"], 2 * whole["makespan"])
        self.assertEqual(each["peak_live"], whole["peak_live"])

    def test_bandwidth(self):
        # F0 leaves at 1, its 4 bytes take 2 and one latency; F1 waits for the link.
        table = self.folder / "two.csv"
        table.write_text("0F0,0F1\n1F0,1F1\n")
        bytes_ = ["--bytes", 4]
        self.assertEqual(simulate(table, *bytes_, "--bandwidth", 2, "--latency", 3)["makespan"], 9)
        self.assertEqual(simulate(table, *bytes_, "--bandwidth", "inf", "--latency", 3)["makespan"], 6)
        self.assertEqual(simulate(table, *bytes_, "--link", "0-1:latency=3,bandwidth=2")["makespan"], 9)
        self.assertEqual(simulate(table, *bytes_, "--latency", 3, "--link", "0-1:bandwidth=2")["makespan"], 9)

    def test_jitter_and_stragglers(self):
        still = simulate("1f1b", *SHAPE)
        first, again = (simulate("1f1b", *SHAPE, "--jitter", 0.2, "--seed", 7) for _ in range(2))
        self.assertEqual(first, again)
        self.assertNotEqual(first["makespan"], still["makespan"])
        self.assertNotEqual(first["makespan"], simulate("1f1b", *SHAPE, "--jitter", 0.2, "--seed", 8)["makespan"])
        slow = simulate("1f1b", *SHAPE, "--straggler", "1=2")
        self.assertEqual(slow["busy"], [24, 48, 24, 24])
        self.assertEqual(simulate("1f1b", *SHAPE, *[flag for a in range(4) for flag in ("--straggler", f"{a}=2")])["makespan"], 66)

    def test_slices(self):
        shape = ["--actors", 4, "--microbatches", 4, "--slices", 8]
        found = simulate("slimpipe", *shape)
        self.assertEqual([found[key] for key in ("makespan", "peak_live", "stages", "slices")], [13.125, [1.75, 1.5, 1.25, 1], 4, 8])
        self.assertEqual(simulate("seq1f1b", *shape)["peak_live"], [1.375, 1.25, 1.125, 1])
        self.assertEqual(simulate("slimpipe", *shape, "--latency", 0.125)["makespan"], 13.875)
        half = ["--slice-times", "9,11,13,15,17,19,21,23"]  # n + 2j + 1: half of the time is attention
        self.assertEqual(simulate("slimpipe", *shape, *half)["makespan"], 13.828125)
        self.assertEqual(simulate("slimpipe", *shape, "--per-stage", "--forward", 2, "--backward", 4)["makespan"], 26.25)
        # A slice sends an eighth of what a micro-batch does.
        bandwidth = ["--bytes", 8, "--bandwidth", 8]
        self.assertEqual(simulate("terapipe", *shape, *bandwidth)["makespan"], 13.125 + 2 * 3 / 8)
        for name in ["1f1b", "dualpipe"]:  # each of which gives the same work
            whole, cut = simulate(name, *SHAPE), simulate(name, *SHAPE, "--slices", 8)
            self.assertEqual((cut["busy"], cut["slices"], whole["slices"]), (whole["busy"], 8, 1))
            self.assertLess(cut["makespan"], whole["makespan"])
        table = self.folder / "table.csv"
        table.write_text(run("schedule", "slimpipe", *shape).out)
        self.assertEqual(simulate(table), {**found, "name": str(table)})
        self.assertIn("slimpipe: 4 actors, 4 stages of 8 slices, 4 micro-batches", run("simulate", "slimpipe", *shape).out)
        changes = {change["change"]: change["makespan"] for change in simulate("slimpipe", *shape, "--explain")["explanation"]["changes"]}
        self.assertEqual(changes["schedule seq1f1b (peak live 1.4)"], 13.125)
        self.assertIn("stage 0.7 10 % faster", run("simulate", "slimpipe", *shape, *half, "--stage-times", "2,1,1,1", "--explain").out)
        self.assertIn("a chain of 4 stages of 8 slices", run("verify", table).out)
        self.assertEqual([run("verify", table, "--json").json()[key] for key in ("stages", "slices")], [4, 8])
        listed = run("schedule", "terapipe", *shape, "--json").json()
        self.assertEqual((listed["stages"], listed["slices"], listed["actors"][1]["actions"][1]), (4, 8, "1.1F0"))
        rules = self.folder / "mine.rules"
        rules.write_text("penstock rules 1\nlimit p-r\n")
        self.assertEqual(simulate(rules, *shape)["makespan"], simulate("1f1b", *shape)["makespan"])
        self.fails([rules, *shape, "--costs", "none.json"], "none.json")

    def test_slices_gather_their_stage_together(self):
        costs = ["--gather", 1, "--reduce", 2, "--parameters", 3, "--microbatches", 2]
        for table in (["gpipe"], ["breadth-first", "--chunks", 2], ["zeropp", "--chunks", 2, "--unit", 1]):
            whole, cut = (simulate(*table, "--actors", 1, *costs, "--slices", n) for n in (1, 4))
            self.assertEqual((cut["makespan"], cut["busy"]), (whole["makespan"], whole["busy"]), table)
            self.assertAlmostEqual(cut["peak_live"][0], whole["peak_live"][0], msg=table)
        self.assertEqual(simulate("gpipe", "--actors", 1, *costs, "--slices", 4)["makespan"], 1 + 2 + 1 + 4 + 2)

    def test_drawings_name_slices(self):
        file, picture = self.folder / "timeline.json", self.folder / "timeline.svg"
        run("simulate", "slimpipe", "--slices", 2, "--timeline", file, "--explain")
        self.assertEqual(run("show", file, "--out", picture).code, 0)
        for part in (">1.1B0</text>", "<title>forward of stage 1, slice 1, micro-batch 0\n", "2.1F4: forward of stage 2, slice 1, micro-batch 4; "):
            self.assertIn(part, picture.read_text())
        boxes = [event["args"] for event in json.loads(file.read_text())["traceEvents"] if event["name"] == "B7"]
        self.assertEqual({(box["stage"], box["slice"]) for box in boxes}, {(0, 0), (0, 1), (1, 0), (1, 1)})
        file.write_text(file.read_text().replace('"slices":2', '"slices":0'))
        self.assert_fails(run("show", file), "timeline.json: penstock.slices is 0: a stage has 1 or more")

    def test_attention_on_other_actors(self):
        helix = ["helixpipe", "--actors", 4, "--chunks", 2, "--stage-times", "0.5," + "3,1," * 7 + "3,0.5", "--forward", 8, "--backward", 16]
        self.assertEqual(simulate(*helix, "--microbatches", 4)["makespan"], 105)
        self.assertEqual(simulate(*helix, "--microbatches", 4, "--latency", 0.5)["makespan"], 119)
        self.assertEqual(simulate(*helix, "--microbatches", 8, "--group", 2)["makespan"], 204)
        self.assertEqual(simulate(*helix, "--microbatches", 4, "--forward-only")["makespan"], 35)
        self.fails([*helix, "--microbatches", 6], "helixpipe: 6 micro-batches are not whole rounds of 4", "use --microbatches 8")

    def test_exchanged_blocks(self):
        shape = ["--actors", 4, "--microbatches", 4, "--slices", 8]
        # Each layer is attention alone, of which slice j takes 2j + 1.
        attention = ["--stage-times", ",".join(["0,1,0"] * 4), "--forward", 3, "--backward", 6, "--slice-times", "1,3,5,7,9,11,13,15"]
        found, slim = (simulate(name, *shape, *flags) for name, flags in (("slimpipe-exchange", attention), ("slimpipe", attention[2:])))
        self.assertEqual((found["stages"], found["slices"]), (12, 8))
        self.assertAlmostEqual(sum(found["busy"]), sum(slim["busy"]))
        self.assertEqual((found["makespan"], slim["makespan"]), (39.75, 48.234375))
        listed = run("schedule", "slimpipe-exchange", *shape, "--json").json()
        self.assertEqual((listed["stages"], listed["slices"]), (12, 8))
        self.assertEqual(sum(action.count(".") == 2 and action.endswith("F0") for row in listed["actors"] for action in row["actions"]), 18)

    def test_drawings_name_blocks(self):
        file, picture = self.folder / "timeline.json", self.folder / "timeline.svg"
        run("simulate", "slimpipe-exchange", "--slices", 4, "--microbatches", 1, "--timeline", file)
        self.assertEqual(run("show", file, "--out", picture).code, 0)
        self.assertIn("<title>forward of stage 4, slice 3, block 0, micro-batch 0\n", picture.read_text())
        boxes = [event["args"] for event in json.loads(file.read_text())["traceEvents"] if "block" in event.get("args", {})]
        self.assertEqual({(box["stage"], box["slice"], box["block"]) for box in boxes}, {(4, 3, 0)})
        whole = file.read_text()
        for blocks, message in [("[[4,3]]", "blocks[0] is not a stage, a slice and a block"), ("[[4,3,0],[4,3,0]]", "blocks[1] is not behind the one before it")]:
            file.write_text(whole.replace('"blocks":[[4,3,0]]', f'"blocks":{blocks}'))
            self.assert_fails(run("show", file), f"timeline.json: penstock.{message}")

    def test_bad_slices(self):
        self.fails(["1f1b", "--slices", 0], "1f1b: --slices must be at least 1, not 0")
        self.fails(["slimpipe", "--slices", 100000, "--microbatches", 1000], "micro-batches x 100000 slices is too large")
        self.fails(["slimpipe", "--slices", 2, "--slice-times", "1,2,3"], "--slice-times gives 3 times for 2 slices", "give one for each")
        self.fails(["1f1b", "--stage-times", "1"], "--stage-times gives 1 time for 2 stages")
        self.fails(["1f1b", "--stage-times=1,-1"], "--stage-times -1.0: it must be a finite number")
        self.fails(["1f1b", "--stage-times", "0,0"], "--stage-times: one of them must be above 0")
        self.fails(["1f1b", "--stage-times", "1,2", "--costs", "c.json"], "--costs c.json says what each stage takes", "hint: leave out --stage-times\n")
        table = self.folder / "table.csv"
        table.write_text("0.0F0,0.1F0,0.0B0,0.1B0\n")
        self.fails([table], "table.csv:1:3: 0.0B0 can never run", "move 0.1B0 (column 4) before column 3")
        self.fails([table, "--slices", 2], "says itself how many actors", "leave out --slices")

    def test_explanation(self):
        found = simulate("1f1b", *SHAPE, "--latency", 0.5, "--explain")["explanation"]
        path = found["critical_path"]
        self.assertEqual(path["compute"] + path["transfer"] + path["waiting"], 41)
        self.assertEqual(path["transfer"], 8)
        for idle in found["idle"]:
            self.assertEqual(sum(idle.values()), 17)
        changes = {change["change"]: change for change in found["changes"]}
        self.assertEqual(changes["no latency"]["makespan"], 33)
        self.assertEqual(found["changes"], sorted(found["changes"], key=lambda change: -change["saved"]))
        self.assertEqual(changes["schedule gpipe (peak live 8.0)"]["makespan"], 36)
        self.assertIn("with no latency, 33 (19.5 % less)", found["text"])
        text = run("simulate", "1f1b", *SHAPE, "--latency", 0.5, "--explain").out
        self.assertIn(found["text"], text)
        self.assertIn("makespan 41, bubble 41.5 %, lower bound 24", text)
        slow = simulate("zb-h1", *SHAPE, "--straggler", "2=1.5", "--explain")["explanation"]
        self.assertEqual(slow["changes"][0]["change"], "no straggler")
        self.assertEqual(slow["changes"][0]["makespan"], 27)

    def test_a_table_from_a_file(self):
        table = self.folder / "table.csv"
        table.write_text(run("schedule", "zb-h1", *SHAPE).out)
        found, named = simulate(table), simulate("zb-h1", *SHAPE)
        self.assertEqual(found.pop("name"), str(table))
        named.pop("name")
        self.assertEqual(found, named)
        self.assertNotIn("schedule", json.dumps(simulate(table, "--explain")["explanation"]["changes"]))

    def test_drawings(self):
        file = self.folder / "timeline.json"
        drawn = run("simulate", "1f1b", *SHAPE, "--latency", 0.5, "--show", "--timeline", file)
        self.assertEqual(drawn.code, 0, drawn.err)
        self.assertIn("makespan 41", drawn.out)
        self.assertRegex(drawn.out, r"actor 3 .*FFFBBBBB")
        shown = run("show", file, "--json").json()
        self.assertEqual((shown["makespan"], shown["devices"], shown["activities"]), (41, 4, 64 + 48))
        self.assert_fails(run("simulate", "1f1b", "--timeline", self.folder / "none" / "t.json"), "none/t.json: No such file or directory")

    def test_measured_costs(self):
        file = self.folder / "costs.json"
        profiled = run("profile", *SMALL, "--actors", 2, "--rounds", 2, "--text", self.text, "--out", file)
        self.assertEqual(profiled.code, 0, profiled.err)
        shape = ["--actors", 2, "--microbatches", 4, "--costs", file]
        times = {(task["kind"], task["stage"]): task["beside"]["threads"]["mean"]
                 for task in reversed(json.loads(file.read_text())["tasks"]) if "stage" in task}  # fmt: skip
        found = simulate("1f1b", *shape, "--explain")
        self.assertAlmostEqual(found["busy"][0], 4 * (times["F", 0] + times["B", 0]), delta=1e-12)
        self.assertAlmostEqual(found["busy"][1], 4 * (times["F", 1] + times["B", 1]), delta=1e-12)
        self.assertLess(found["lower_bound"], found["makespan"])
        split = simulate("zb-h1", *shape)
        self.assertAlmostEqual(split["busy"][1], 4 * (times["F", 1] + times["I", 1] + times["W", 1]), delta=1e-12)
        self.assertRegex(run("simulate", "1f1b", *shape, "--latency", 0).out, r"makespan [0-9.]+ [mu]s")
        self.assertGreater(simulate("1f1b", *shape, "--latency", 1, "--bytes", 4, "--bandwidth", 4)["makespan"], 8)
        self.fails(["1f1b", "--actors", 4, "--costs", file], "costs.json has no time for 8 of the tasks of 1f1b", "F of stage 0",
                   "cut into 2", f"penstock profile CONFIG.toml --schedule 1f1b --actors 4 --out {file} measures them")  # fmt: skip
        self.fails(["1f1b", *shape, "--backend", "gloo"], "costs.json has no links of backend gloo", "--backend gloo")
        self.fails(["1f1b", *shape, "--forward", 1], "says what each stage takes", "leave out --forward")
        self.fails(["1f1b", *shape, "--bytes", -1], "--bytes -1.0")
        file.write_text("{}")
        self.fails(["1f1b", *shape], "costs.json")
        self.fails(["1f1b", "--costs", self.folder / "none.json"], "none.json: No such file or directory")

    def test_large_tables(self):
        found = simulate("1f1b", "--actors", 256, "--microbatches", 1024)
        self.assertEqual(found["makespan"], 3 * (1024 + 255))

    def fails(self, arguments, *parts):
        self.assert_fails(run("simulate", *arguments), *parts)

    def test_bad_numbers(self):
        for flag in ["--forward", "--backward", "--input", "--weight", "--latency"]:
            self.fails(["1f1b", f"{flag}=-1"], f"{flag} -1.0: it must be a finite number, 0 or above")
        for value in ["nan", "inf"]:
            self.fails(["1f1b", f"--latency={value}"], f"--latency {value}: it must be a finite number, 0 or above")
        for value in ["0", "nan"]:
            self.fails(["1f1b", "--bytes=1", f"--bandwidth={value}"], "--bandwidth ", ": a bandwidth is above 0")
        self.fails(["1f1b", "--bandwidth=1", "--bytes=-1"], "--bytes -1.0: it must be")
        self.fails(["1f1b", "--bandwidth=1"], "a bandwidth says nothing without --bytes")
        self.fails(["1f1b", "--link=0-1:bandwidth=3"], "a bandwidth says nothing without --bytes")
        self.fails(["1f1b", "--bytes=1"], "--bytes says nothing without --bandwidth")
        for value in ["1", "nan"]:
            self.fails(["1f1b", f"--jitter={value}"], "--jitter ", ": it is a share of each time")

    def test_bad_links_and_stragglers(self):
        for value, part in {
            "0-1": "this is no link",
            "0-2:latency=1": "there is no actor 2\n  hint: there are 2: 0 to 1",
            "-1-0:latency=1": '"" is no actor\'s number',
            "a-1:latency=1": '"a" is no actor\'s number',
            "1-1:latency=1": "a link is between two actors",
            "0-1:latency": 'cannot read "latency"',
            "0-1:latency=1m": 'cannot read "latency=1m"',
            "0-1:delay=1": 'cannot read "delay=1"',
            "0-1:latency=-1": "latency -1.0: it must be",
        }.items():
            self.fails(["1f1b", "--link", value], f"--link {value}: ", part)
        self.fails(["1f1b", "--link", "0-1:latency=1", "--link", "1-0:latency=2"], "link 1-0 is given twice")
        self.fails(["1f1b", "--bytes=1", "--link", "0-1:bandwidth=0"], "bandwidth 0.0: a bandwidth is above 0")
        for value, part in {
            "1": "this is no actor and factor",
            "2=2": "there is no actor 2",
            "x=2": '"x" is no actor\'s number',
            "1=0": "the factor must be",
            "1=nan": "the factor must be",
        }.items():
            self.fails(["1f1b", f"--straggler={value}"], f"--straggler {value}: {part}")

    def test_bad_tables(self):
        self.fails(["1f1b", "--actors", 1000000, "--microbatches", 1], "--actors 1000000 are too many")
        self.fails(["gpipe", "--actors", 4000, "--microbatches", 16000], "is too large")
        self.fails(["1f1"], 'there is no schedule "1f1"', 'did you mean "1f1b"?')
        self.fails(["1f1b", "--chunks", 2], "1f1b takes one stage per actor")
        self.fails([self.folder / "none.csv"], "none.csv: No such file or directory")
        table = self.folder / "table.csv"
        table.write_text("0F0,0B0\n1B0,1F0\n")
        self.fails([table], "table.csv:2:1: 1B0 can never run")
        self.fails([table, "--against", self.folder], "--against is for programs and configurations")
        self.fails([table, "--actors", 2], "says itself how many actors", "leave out --actors")

    def test_against_a_run(self):
        config = self.folder / "small.toml"
        config.write_text('[model]\nname = "candle-uno"\n')
        step = [config, "--figures", "v100", "--network", "nvlink2", "--against", self.folder]
        self.assertEqual(run("simulate", *step[:5], "--timeline", self.folder / "timeline.json").code, 0)
        metrics = self.folder / "metrics.jsonl"
        done = [{"step": step, "loss": 1, "seconds": seconds, "tokens_per_second": 1} for step, seconds in ((1, 5), (2, 1), (2, 3), (3, 2))]
        metrics.write_text("".join(json.dumps(line) + "\n" for line in done))
        self.assertEqual(simulate(*step)["step"]["measured"], 3)  # the median of the steps as they were done last
        metrics.write_text('{"step": 1}\n')
        self.fails(step, "metrics.jsonl:1: the line is no step's metrics", '{"step": 1}')
        metrics.write_text("")
        self.fails(step, "metrics.jsonl has no steps")

    def test_usage(self):
        for arguments, code in [([], 2), (["1f1b", "--latency", "slow"], 1), (["1f1b", "--seed=-1"], 1)]:
            result = run("simulate", *arguments)
            self.assertEqual(result.code, code, arguments)
            self.assertEqual(result.out, "")
        self.assertIn("Example:\n  penstock simulate", run("simulate", "--help").out)


if __name__ == "__main__":
    unittest.main()
