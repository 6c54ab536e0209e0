# SPDX-License-Identifier: Apache-2.0
"""penstock show: every format, what it says of bad files, and a run's own timeline."""

import json
import pathlib
import unittest
import xml.etree.ElementTree

import timelines
from support import ProgramTest, run


class Show(ProgramTest):
    def setUp(self):
        super().setUp()
        self.timeline = timelines.write(self.folder / "t.json", 2, 3)

    def test_the_terminal_shows_text(self):
        result = run("show", self.timeline, "--columns", 40)
        self.assertEqual(result.code, 0, result.err)
        self.assertTrue(result.out.startswith("made up: "), result.out)
        self.assertIn("device 1 ", result.out)
        self.assertIn("F forward   I input gradients", result.out)
        self.assertNotIn("\033", result.out)

    def test_files(self):
        for extension in ["txt", "svg", "html", "json"]:
            out = self.folder / f"picture.{extension}"
            result = run("show", self.timeline, "--out", out)
            self.assertEqual((result.code, result.out), (0, f"drawn in {out}\n"), result.err)
            self.assertGreater(out.stat().st_size, 500)
        xml.etree.ElementTree.parse(self.folder / "picture.svg")
        self.assertEqual((self.folder / "picture.txt").read_text(), run("show", self.timeline).out)

    def test_json_is_read_back(self):
        """And a second time it is the same file."""
        one, two = self.folder / "one.json", self.folder / "two.json"
        run("show", self.timeline, "--out", one)
        self.assertEqual(run("show", one, "--out", two).code, 0)
        self.assertEqual(one.read_bytes(), two.read_bytes())

    def test_several(self):
        other = timelines.write(self.folder / "other.json", 2, 3, seed=1, title="another")
        result = run("show", self.timeline, other)
        self.assertIn("made up: ", result.out)
        self.assertIn("another: ", result.out)
        page = self.folder / "both.html"
        self.assertEqual(run("show", self.timeline, other, "--out", page).code, 0)
        self.assertIn("<title>made up, another</title>", page.read_text())
        self.assert_fails(run("show", self.timeline, other, "--out", self.folder / "both.json"), ".json holds one timeline, not 2")

    def test_several_below_each_other(self):
        """They have one scale: what lasts half as long is half as wide."""
        pictures = self.folder / "both.svg"
        short, long = self.folder / "short.json", self.folder / "long.json"
        for file, backward in ((short, 1), (long, 3)):
            self.assertEqual(run("simulate", "gpipe", "--actors", 1, "--microbatches", 1, "--backward", backward, "--timeline", file).code, 0)
        self.assertEqual(run("show", short, long, "--out", pictures).code, 0)
        boxes = [[float(box.get("width")) for box in part.iter("{http://www.w3.org/2000/svg}rect") if box.get("class") in ("F", "B") and box.get("height") == "26"]
                 for part in xml.etree.ElementTree.parse(pictures).iter("{http://www.w3.org/2000/svg}g") if part.get("transform")]  # fmt: skip
        self.assertEqual([[round(width) for width in part] for part in boxes], [[362, 362], [362, 1088]])

    def test_converted(self):
        """Another program makes other formats of an SVG, here one that copies it."""
        programs = self.folder / "programs"
        programs.mkdir()
        alone = {"environment": {"PATH": str(programs)}}
        for name in ("p.png", "p.pdf"):
            refused = run("show", self.timeline, "--out", self.folder / name, **alone)
            self.assert_fails(refused, f"{name}: no program is installed that makes it of an SVG", "rsvg-convert, inkscape and cairosvg", "librsvg2-bin")
        converter = programs / "rsvg-convert"
        converter.write_text('#!/bin/sh\n/bin/cp "$5" "$4"\n')
        converter.chmod(0o755)
        self.assertEqual(run("show", self.timeline, "--out", self.folder / "p.pdf", **alone).out, f"drawn in {self.folder}/p.pdf\n")
        self.assertEqual(run("show", self.timeline, "--out", self.folder / "p.svg").code, 0)
        self.assertEqual((self.folder / "p.pdf").read_bytes(), (self.folder / "p.svg").read_bytes())
        converter.write_text("#!/bin/sh\nexit 1\n")
        self.assert_fails(run("show", self.timeline, "--out", self.folder / "q.pdf", **alone), "rsvg-convert could not make ", "--out FILE.svg")
        self.assertFalse(list(self.folder.glob("*.part*")))

    def test_sections_of_a_page(self):
        text, page = self.folder / "text.txt", self.folder / "page.html"
        text.write_text("a < b\n")
        sections = ["--section", f"What was said={text}", "--section", f"Again={text}"]
        result = run("show", self.timeline, "--title", "All of it", *sections, "--out", page)
        self.assertEqual(result.code, 0, result.err)
        for part in ["<title>All of it</title>", "<h2>What was said</h2>\n<pre>a &lt; b\n</pre>", "<h2>Again</h2>"]:
            self.assertIn(part, page.read_text())
        self.assert_fails(run("show", self.timeline, "--out", page, "--section", f"A={self.folder}/none"), "none: No such file or directory")
        self.assert_fails(run("show", self.timeline, "--out", page, "--section", "text"), "--section text: which file?", "HEADING=FILE")
        for more in [sections, ["--title", "All of it"]]:
            self.assert_fails(run("show", self.timeline, "--out", self.folder / "p.svg", *more), "--title and --section are for pages", "--out FILE.html")
        self.assert_fails(run("show", self.timeline, "--title", "All of it"), "--title and --section are for pages")

    def test_seconds_and_units_have_no_common_scale(self):
        units = self.folder / "units.json"
        units.write_text(self.timeline.read_text().replace('"seconds": true', '"seconds": false'))
        self.assert_fails(run("show", self.timeline, units), "units.json have no common scale: one is in seconds, the other is not")

    def test_json_report(self):
        report = run("show", self.timeline, "--json", "--out", self.folder / "p.svg").json()
        self.assertEqual(report["out"], str(self.folder / "p.svg"))
        self.assertEqual(report["devices"], 2)
        self.assertEqual(report["activities"], len(json.loads(self.timeline.read_text())["penstock"]["activities"]["begin"]))
        self.assertGreater(report["makespan"], 0)

    def test_bad_input(self):
        table = self.folder / "plan.csv"
        table.write_text("0F0,0B0\n")
        self.assert_fails(run("show", table), "plan.csv: a table or a program, not a timeline", "penstock simulate", "--timeline OUT.json")
        self.assert_fails(run("show", self.folder / "none.json"), "none.json: No such file or directory")
        cut = self.folder / "cut.json"
        cut.write_text(self.timeline.read_text()[:1000])
        self.assert_fails(run("show", cut, "--out", self.folder / "cut.html"), "cut.json:1:1001: this is not JSON")
        self.assertFalse((self.folder / "cut.html").exists())
        self.assert_fails(run("show", self.timeline, "--out", self.folder / "p.gif"), 'unknown format ".gif"', ".svg, .pdf, .png, .html, .json and .txt")
        self.assertEqual(run("show").code, 2)
        self.assertEqual(run("show", self.timeline, "--columns", 0).code, 1)
        self.assertIn("penstock show runs/gpt --out step.svg", run("show", "--help").out)

    def run_folder(self, name, batch=16, context=128, rate=1000, seed=0):
        """A folder as a run leaves it, of 30 steps."""
        folder = self.folder / name
        folder.mkdir()
        timelines.write(folder / "timeline.json", 2, 3, seed=seed)
        (folder / "config.toml").write_text(f"[model]\ncontext = {context}.0\n[train]\nbatch = {batch}\n")
        lines = [{"step": step, "loss": 5 / step, "seconds": 1, "tokens_per_second": rate} for step in range(1, 31)]
        lines[-1]["validation_loss"] = 0.5
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    def test_curves_of_a_run(self):
        folder, page = self.run_folder("run"), self.folder / "page.html"
        self.assertEqual(run("show", folder, "--out", page).code, 0)
        for part in ("tokens/s of ", "<title>made up</title>", "<title>Loss and tokens/s of 30 steps</title>", 'class="line loss"', 'class="validation"'):
            self.assertIn(part, page.read_text())
        metrics = folder / "metrics.jsonl"
        metrics.write_text(metrics.read_text().replace('"step": 7,', '"stop": 7,'))
        self.assert_fails(run("show", folder, "--out", page), "metrics.jsonl:7: the line is no step's metrics", '"stop": 7', "--resume")
        metrics.unlink()
        self.assertEqual(run("show", folder, "--out", page).code, 0)
        self.assertNotIn("Loss and", page.read_text())

    def test_runs_are_named_and_their_batches_compared(self):
        one, other = self.run_folder("one"), self.run_folder("other", rate=2500, seed=1)
        result = run("show", one, other)
        self.assertEqual((result.code, result.err), (0, ""))
        self.assertIn(f"{one}: made up, 1.0 k tokens/s", result.out)
        self.assertIn(f"{other}: made up, 2.5 k tokens/s", result.out)
        wider, page = self.run_folder("wider", batch=32), self.folder / "page.html"
        result = run("show", one, wider, "--out", page)
        said = f"{one} and {wider} have other batches, so their steps' times do not compare: train.batch = 16, model.context = 128; and train.batch = 32"
        self.assertIn("warning: " + said, result.err)
        self.assertIn(f'<p class="warning">{said}', page.read_text())
        longer = self.run_folder("longer", context=256)
        self.assertIn("model.context = 256", run("show", one, other, longer).err)

    def test_against(self):
        faster, page, text = timelines.write(self.folder / "b.json", 2, 3, seed=1, title="another", jitter=0), self.folder / "p.html", self.folder / "p.txt"
        result = run("show", self.timeline, "--against", faster)
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("A: made up\nB: another\n", result.out)
        self.assertRegex(result.out, r"\nforward +0 +\d.* ms +3 ms +-")
        self.assertRegex(result.out, r"\npeak of device 1 +\d")
        for out in (page, text):
            self.assertEqual(run("show", self.timeline, "--against", faster, "--out", out).code, 0)
            self.assertIn("A: made up\nB: another\n", out.read_text())
        self.assertIn("<h2>Difference</h2>", page.read_text())
        report = run("show", self.timeline, "--against", faster, "--json").json()["difference"]
        self.assertAlmostEqual(next(entry["b"] for entry in report["times"] if (entry["kind"], entry["stage"]) == ("forward", 0)), 0.003)
        wide = timelines.write(self.folder / "wide.json", 4, 3)
        self.assertIn("They have other devices: A has 2 devices, B 4 devices.", run("show", self.timeline, "--against", wide).out)

    def test_what_has_no_difference(self):
        units = self.folder / "units.json"
        units.write_text(self.timeline.read_text().replace('"seconds": true', '"seconds": false'))
        self.assert_fails(run("show", self.timeline, "--against", units), "one is in seconds, the other is not")
        self.assert_fails(run("show", self.timeline, self.timeline, "--against", self.timeline), "--against compares one timeline, not 2")
        self.assert_fails(run("show", self.timeline, "--against", self.timeline, "--out", "p.svg"), "p.svg: a difference is text", ".html")
        plan = self.folder / "plan.json"
        graph = pathlib.Path(__file__).resolve().parents[2] / "examples/graphs/two-encoders.json"
        made = run("plan", graph, "--devices", 2, "--bandwidth", 1e9, "--batch", 4, "--no-replicas", "--seconds", 1, "--out", plan)
        self.assertEqual(made.code, 0, made.err)
        programs = self.folder / "programs"
        programs.mkdir()
        (programs / "cairosvg").write_text('#!/bin/sh\n! /bin/grep -q "var(" "$1" && /bin/cp "$1" "$5"\n')  # it ends at a variable
        (programs / "cairosvg").chmod(0o755)
        drawn = run("show", plan, "--out", self.folder / "plan.pdf", environment={"PATH": str(programs)})
        self.assertEqual(drawn.out, f"drawn in {self.folder}/plan.pdf\n", drawn.err)
        self.assert_fails(run("show", plan, "--against", self.timeline), "plan.json is a plan: --against compares timelines")

    def test_a_run_leaves_its_timeline(self):
        self.train("run", 2)
        report = run("show", self.folder / "run" / "timeline.json", "--json").json()
        self.assertEqual(report["devices"], 2)
        self.assertEqual(run("show", self.folder / "run", "--json").json(), report)
        self.assert_fails(run("show", self.folder), "has no timeline.json: it is no run's folder")
        self.assertEqual(run("show", self.folder / "run", "--out", self.folder / "run.html").code, 0)
        self.assertIn("<title>Loss and tokens/s of 2 steps</title>", (self.folder / "run.html").read_text())
        file = json.loads((self.folder / "run" / "timeline.json").read_text())
        phases = {event["ph"] for event in file["traceEvents"]}
        self.assertLessEqual({"X", "M", "s", "f"}, phases)


if __name__ == "__main__":
    unittest.main()
