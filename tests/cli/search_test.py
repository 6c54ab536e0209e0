# SPDX-License-Identifier: Apache-2.0
"""penstock schedule search and penstock schedule compare: what they find, write and refuse."""

import pathlib
import tempfile
import unittest

from support import ProgramTest, run

SHAPE = ["--actors", 4, "--microbatches", 8]
CLEAR = 1.02  # kClear of include/penstock/race.h
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


class Search(ProgramTest):
    def test_finds_a_table_that_simulates_as_it_says(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "best.csv"
            flags = ["--latency", 0.5, "--input", 1.25, "--weight", 0.75]
            found = run("schedule", "search", *SHAPE, *flags, "--memory-limit", 6, "--out", path, "--json").json()
            again = run("simulate", path, *flags, "--json").json()
            self.assertEqual(path.read_text(), found["table"])
        self.assertEqual(again["makespan"], found["makespan"])
        self.assertEqual(again["peak_live"], found["peak_live"])
        self.assertLessEqual(max(found["peak_live"]), 6)
        self.assertLessEqual(found["lower_bound"], found["makespan"])
        self.assertLessEqual(found["makespan"], found["generator"]["makespan"])

    def test_text_says_what_is_proven(self):
        out = run("schedule", "search", *SHAPE, "--memory-limit", 4, "--show").out
        self.assertIn("makespan 27, bubble 11.1 %: no order of these stages is faster", out)
        self.assertIn("best schedule by name of 4 stages: interleaved-zb, 27", out)
        twice = run("schedule", "search", *SHAPE, "--memory-limit", 4, "--copies", 2).out
        self.assertIn("makespan 25, bubble 4.0 %", twice)
        self.assertIn("searched: 27", out)
        found = run("schedule", "search", *SHAPE, "--memory-limit", 2, "--chunks", 2, "--seconds", 1, "--json").json()
        self.assertEqual((found["copies"], max(found["peak_live"]) <= 2), (1, True))

    def test_a_window_of_steps(self):
        window = ["--actors", 4, "--microbatches", 4, "--window", 3]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "window.csv"
            found = run("schedule", "search", *window, "--out", path, "--json").json()
            self.assertEqual((found["makespan"], found["generator"]["makespan"], found["steps"], found["optimal"]), (39, 45, 3, True))
            run("verify", path, "--staleness", 1)
            self.assertEqual(run("simulate", path, "--json").json()["makespan"], 39)
        at_once = run("schedule", "search", *window, "--staleness", 0).out
        self.assertIn("makespan 45", at_once)
        self.assertIn("a window of 3 steps:", at_once)
        for flags, words in (
            (["--window", 0], "--window 0: a table is for 1 step or more"),
            (["--window", 3, "--staleness", -1], "--staleness -1: it is 0 updates or more"),
            (["--window", 2, "--copies", 2], "--copies 2: in a table for several steps each stage is on one actor"),
            (["--window", 2, "--forward-only"], "--forward-only has no updates, of which --window is"),
            (["--window", 2, "--recompute-time", 1], "a table for several steps is searched for its order alone"),
            (["--window", 2, "--costs", "costs.json", "--measure", "gpt.toml"], "--measure runs tables of one step"),
        ):
            refused = run("schedule", "search", *flags)
            self.assertIn(words, refused.err)
            self.assertEqual(refused.code, 1)

    def test_compare(self):
        rows = run("schedule", "compare", *SHAPE, "--memory-limit", 6, "--latency", 0.5, "--json").json()["schedules"]
        names = [entry["name"] for entry in run("schedule", "list", "--json").json()["schedules"] if not entry["orders_slices"]]
        self.assertEqual({row["name"] for row in rows}, set(names))
        taken = [row for row in rows if "refused" not in row]
        self.assertEqual(taken, sorted(taken, key=lambda row: (not row["fits"], row["makespan"])))
        self.assertEqual([row["fits"] for row in taken], [max(row["peak_live"]) <= 6 for row in taken])
        zb = next(row for row in rows if row["name"] == "zb-h1")
        self.assertEqual((zb["makespan"], zb["transfers"], zb["copies"]), (33, 48, 1))
        self.assertIn("zeropp --unit 4", [row.get("title") for row in rows])
        out = run("schedule", "compare", *SHAPE, "--memory-limit", 6, "--show").out
        self.assertIn("over the limit", out)
        self.assertIn("actor 3", out)

    def test_recomputes_and_offloads(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "best.csv"
            flags = ["--recompute-time", 0.75, "--offload-time", 0.5, "--kept", 0.125]
            limit = ["--memory-limit", 2.5, "--seconds", 2]
            found = run("schedule", "search", *SHAPE, *flags, *limit, "--out", path, "--json").json()
            again = run("simulate", path, *flags, "--json").json()
        self.assertEqual((again["makespan"], again["peak_live"]), (found["makespan"], found["peak_live"]))
        self.assertGreater(found["recomputed"] + found["offloaded"], 0)
        self.assertLessEqual(max(found["peak_live"]), 2.5)
        without = run("schedule", "search", *SHAPE, *flags, *limit, "--allow", "none", "--json").json()
        self.assertEqual((without["recomputed"], without["offloaded"]), (0, 0))
        self.assertLess(found["makespan"], without["makespan"])
        only = run("schedule", "search", *SHAPE, *flags, *limit, "--allow", "recompute").out
        self.assertRegex(only, r"found by .*, \d+ recomputed")
        self.assertNotIn("offloaded", only)
        rows = run("schedule", "compare", *SHAPE, *flags, "--memory-limit", 2.5, "--json").json()["schedules"]
        gpipe = next(row for row in rows if row["name"] == "gpipe")
        self.assertTrue(gpipe["fits"] and "recomputed" in gpipe["title"] or "offloaded" in gpipe["title"], gpipe)

    def test_sharded_parameters(self):
        flags = ["--gather", 1, "--reduce", 1, "--parameters", 0.5]
        shape = ["--actors", 4, "--microbatches", 12, "--chunks", 2]
        found = run("schedule", "search", *shape, *flags, "--memory-limit", 6.5, "--seconds", 4, "--json").json()
        self.assertEqual(found["generator"]["name"], "zeropp --unit 6")
        self.assertGreaterEqual(found["gathers"], 8 * 2 * 2)
        zeropp = run("simulate", "zeropp", *shape, "--unit", 6, *flags, "--json").json()
        self.assertEqual(found["generator"]["makespan"], zeropp["makespan"])
        one = run("simulate", "1f1b", *SHAPE, *flags, "--json").json()
        self.assertGreater(one["makespan"], run("simulate", "1f1b", *SHAPE, "--json").json()["makespan"])
        self.assertEqual(run("simulate", "1f1b", *SHAPE, "--parameters", 2, "--json").json()["peak_live"], [6, 5, 4, 3])

    def costs(self, *chunks):
        """A small model's configuration and what its tasks cost with so many stages per actor."""
        config, costs = self.folder / "small.toml", self.folder / "costs.json"
        config.write_text(
            f'[model]\nlayers = 4\nwidth = 16\nheads = 2\ncontext = 8\n[data]\ntext = ["{self.text}"]\n[train]\nbatch = 4\n'
            "[pipeline]\nactors = 2\nmicrobatches = 4\n"
        )
        for count in chunks:
            schedule = "1f1b" if count == 1 else "interleaved-1f1b"
            result = run("profile", config, "--schedule", schedule, "--chunks", count, "--rounds", 1, "--out", costs)
            self.assertEqual(result.code, 0, result.err)
        return config, costs

    def test_race(self):
        config, costs = self.costs(1, 2)
        best = self.folder / "best.csv"
        flags = ["--microbatches", 4, "--memory-limit", 2.5, "--costs", costs, "--measure", config, "--rounds", 2, "--steps", 2]
        result = run("schedule", "search", *flags, "--candidates", 3, "--seconds", 2, "--out", best, "--json")
        self.assertEqual(result.code, 0, result.err)
        self.assertRegex(result.err, r"race: round 1 of 2: \d tables\nrace: round 2 of 2: \d tables\n")
        found = result.json()
        racers = found["race"]
        self.assertEqual((found["found_by"], found["makespan"]), (racers[0]["name"], racers[0]["predicted"]))
        self.assertEqual(best.read_text(), found["table"])
        self.assertEqual({racer["chunks"] for racer in racers}, {1, 2})
        self.assertTrue(3 < len(racers) <= 6, racers)
        # By what was measured, but that a published table is in front of those that are hardly faster.
        self.assertEqual(racers[1:], sorted(racers[1:], key=lambda racer: (-racer["rounds"], racer["measured"])))
        last_round = [racer["measured"] for racer in racers if racer["rounds"] == racers[0]["rounds"]]
        self.assertEqual(racers[0]["rounds"], max(racer["rounds"] for racer in racers))
        self.assertLessEqual(racers[0]["measured"], CLEAR * min(last_round))
        self.assertLessEqual(max(found["peak_live"]), 2.5)
        trained = run("train", config, "--schedule", best, "--chunks", racers[0]["chunks"], "--steps", 1, "--out", self.folder / "run")
        self.assertEqual(trained.code, 0, trained.err)

        out = run("schedule", "search", *flags, "--chunks", 2, "--candidates", 1, "--seconds", 1).out
        self.assertRegex(out, r"predicted +measured +rounds\n")
        self.assertIn("the fastest, as predicted:", out)
        split = run("schedule", "search", *flags, "--chunks", 1, "--candidates", 1, "--seconds", 1, "--mesh", "pipe=2,tensor=2", "--json")
        self.assertEqual(split.code, 0, split.err)
        self.assertTrue(all("measured" in racer for racer in split.json()["race"]), split.out)

    def test_race_leaves_out_what_cannot_be(self):
        config, costs = self.costs(1)
        flags = ["schedule", "search", "--costs", costs, "--seconds", 1]
        race = ["--measure", config, "--candidates", 2, "--rounds", 1, "--steps", 1]
        out = run(*flags, "--microbatches", 4, *race).out
        self.assertRegex(out, "left out: 2 stages per actor: .*costs.json has no time for ")

        # The flags' micro-batches and actors, and a model, that are not the configuration's.
        self.assert_fails(run(*flags, "--microbatches", 8, *race), "small.toml has pipeline.microbatches = 4, the search --microbatches 8")
        self.assert_fails(run(*flags, "--microbatches", 4, "--actors", 3, *race), "small.toml has pipeline.actors = 2, the search --actors 3")
        self.assert_fails(run("schedule", "search", *race), "--measure races the best tables for measured costs", "--costs FILE")
        other = self.folder / "other.toml"
        other.write_text(config.read_text().replace("width = 16", "width = 32"))
        self.assert_fails(run(*flags, "--microbatches", 4, "--measure", other), "was measured for another model than that of", "width 16", "width 32")
        plan = self.folder / "plan.json"
        made = run("plan", config, "--devices", 2, "--bandwidth", 1e9, "--device", "h200", "--out", plan)
        self.assertEqual(made.code, 0, made.err)
        other.write_text(config.read_text() + f'plan = "{plan}"\n')
        self.assert_fails(run(*flags, "--microbatches", 4, "--measure", other), "has the stages of a plan, the search those of the model")
        self.assert_fails(run(*flags, "--microbatches", 4, *race, "--mesh", "pipe=3"), "pipeline.actors = 3, the search --actors 2")
        for needs_measure in ("--rounds", 2), ("--mesh", "pipe=2"):
            self.assertEqual(run(*flags, *needs_measure).code, 1)

    def test_race_of_too_many_stages(self):
        config, costs = self.costs(1, 2)
        config.write_text(config.read_text().replace("layers = 4", "layers = 3"))
        costs.write_text(costs.read_text().replace("layers 4", "layers 3"))  # as if it had been measured
        flags = ["schedule", "search", "--costs", costs, "--seconds", 1, "--measure", config]
        flags += ["--candidates", 2, "--rounds", 1, "--steps", 1, "--microbatches", 4]
        racers = run(*flags, "--json").json()["race"]
        outcomes = {(racer["chunks"], "measured" in racer, "refused" in racer) for racer in racers}
        self.assertEqual(outcomes, {(1, True, False), (2, False, True)})
        self.assertRegex(run(*flags).out, r"left out: .*3 layers")
        self.assert_fails(run(*flags, "--chunks", 2), "small.toml can run none of the tables found", "3 layers")

    def test_own_tables_are_compared(self):
        own, small = self.folder / "own.csv", self.folder / "small.csv"
        own.write_text(run("schedule", "zb-h1", *SHAPE).out)
        small.write_text(run("schedule", "1f1b", "--actors", 2, "--microbatches", 2).out)
        rules = REPOSITORY / "examples/schedules/1f1b.rules"
        ranked = run("schedule", "compare", own, rules, small, "1f1b", "zb-h1", *SHAPE, "--json").json()["schedules"]
        rows = {row["name"]: row for row in reversed(ranked)}  # the best of each
        self.assertEqual(set(rows), {str(own), str(rules), str(small), "1f1b", "zb-h1"})
        self.assertEqual(rows[str(own)]["makespan"], rows["zb-h1"]["makespan"])
        self.assertEqual(rows[str(rules)]["makespan"], rows["1f1b"]["makespan"])
        self.assertIn("it is for 2 actors and 2 micro-batches; compare it by --actors 2 --microbatches 2", rows[str(small)]["refused"])
        broken = self.folder / "broken.csv"
        broken.write_text("0F0,0F0\n")
        refused = run("schedule", "compare", broken, *SHAPE)
        self.assertEqual(refused.code, 1)
        self.assertIn("0F0 stands twice", refused.err)

    def test_tables_are_compared_as_they_are_simulated(self):
        sliced, three = self.folder / "sliced.csv", self.folder / "three.csv"
        sliced.write_text(run("schedule", "slimpipe", *SHAPE, "--slices", 2).out)
        three.write_text("0F0,2F0,2B0,0B0\n1F0,1B0\n")
        for table, shape, flags in ((sliced, SHAPE, []), (sliced, SHAPE, ["--gather", 0.25]), (three, ["--actors", 2, "--microbatches", 1], [])):
            flags += ["--bytes", 8, "--bandwidth", 4, "--forward", 1.1]
            row = run("schedule", "compare", table, *shape, *flags, "--json").json()["schedules"][0]
            alone = run("simulate", table, *flags, "--json").json()
            for figure in ("makespan", "bubble", "peak_live"):
                self.assertEqual(row[figure], alone[figure], (table, figure))

    def test_mistakes(self):
        for flag, value in (("--slices", [2]), ("--frozen", [1]), ("--split-backward", [])):
            self.assert_fails(run("schedule", "search", *SHAPE, flag, *value), f"{flag}: a search orders whole micro-batches of trained stages", f"leave out {flag}")
        for arguments, code, message in [
            (["search", "--actors", 1000, "--microbatches", 100], 1, "is too large"),
            (["compare", "--actors", 5000, "--microbatches", 1], 1, "--actors 5000 are too many"),
            (["search", *SHAPE, "--memory-limit", 0.5], 1, "the smallest limit that would do is 1"),
            (["search", *SHAPE, "--memory-limit", 0], 1, "an actor holds more than 0 activations"),
            (["search", *SHAPE, "--seconds", -1], 1, "--seconds -1"),
            (["search", "--actors", 0], 1, "actors must be at least 1"),
            (["search", *SHAPE, "--bandwidth", 5], 1, "a bandwidth says nothing without --bytes"),
            (["search", *SHAPE, "--costs", "nowhere.json"], 1, "nowhere.json"),
            (["search", *SHAPE, "--costs", "nowhere.json", "--forward", 2], 1, "says what each stage takes"),
            (["compare", *SHAPE, "--costs", "nowhere.json"], 1, "nowhere.json"),
            (["search", *SHAPE, "--reduce", 1], 1, "--reduce says nothing without --gather"),
            (["search", *SHAPE, "--kept", 2], 1, "--kept 2.0: it is a part of a micro-batch's activations"),
            (["search", *SHAPE, "--gather", -1], 1, "--gather -1"),
            (["search", *SHAPE, "--allow", "everything"], 1, "everything"),
            (["search", *SHAPE, "--recompute-time", 1, "--memory-limit", 0.5], 1, "no table found keeps a memory limit of 0.5"),
            (["search", "1f1b"], 2, "1f1b"),
            ([], 2, "penstock schedule needs WHAT: a schedule's name"),
        ]:
            with self.subTest(arguments):
                result = run("schedule", *arguments)
                self.assertEqual(result.code, code, result.err)
                self.assertIn(message, result.err)


if __name__ == "__main__":
    unittest.main()
