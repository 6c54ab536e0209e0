# SPDX-License-Identifier: Apache-2.0
"""The page of timelines in a real browser: it runs without errors, draws, and answers to mouse and keyboard."""

import csv
import io
import json
import pathlib
import re
import statistics
import sys
import unittest
import xml.etree.ElementTree

import timelines
from browser import Browser, browser_profile
from support import ProgramTest, run

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Page(ProgramTest):
    @classmethod
    def setUpClass(cls):
        profile = browser_profile()
        cls.addClassCleanup(profile.cleanup)
        cls.browser = Browser(profile.name)
        cls.addClassCleanup(cls.browser.close)

    def open(self, *files, dark=False):
        page = self.folder / "page.html"
        self.assertEqual(run("show", *files, "--out", page).code, 0)
        self.browser.open(page, dark)
        self.browser.settle()
        self.assertEqual(self.data("errors"), "")
        self.assertEqual(self.data("ready"), "yes")

    def data(self, name):
        return self.browser.evaluate(f"document.documentElement.dataset.{name}")

    def tip(self):
        """The tip's text by line, "" if it is hidden."""
        self.browser.settle()
        return self.browser.evaluate("tip.hidden ? '' : [...tip.children].map((line) => [...line.childNodes].map((c) => c.textContent).join(' ')).join('\\n')")

    def point_of(self, label, timeline=0, device=0):
        """The middle of a device's box, in the window."""
        return self.browser.evaluate(f"""(() => {{
            const t = timelines[{timeline}], i = [...t.begin.keys()].find((k) => t.columns.device[k] === {device} && labelOf(t, k) === {label!r});
            const row = rows[rowOf[{timeline}][{device}]], box = pane.getBoundingClientRect();
            return [box.left + toX((t.begin[i] + t.end[i]) / 2), box.top + toY(row) + row.box / 2];
        }})()""")

    def click(self, x, y):
        self.browser.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.browser.mouse("mouseReleased", x, y, button="left", clickCount=1)

    def colours(self, canvas):
        """How many different colours are on it."""
        return self.browser.evaluate(f"""(() => {{
            const c = document.getElementById('{canvas}');
            return new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size;
        }})()""")

    def test_a_small_step(self):
        file = timelines.write(self.folder / "t.json", 4, 8)
        self.open(file)
        self.assertEqual(int(self.data("boxes")), run("show", file, "--json").json()["activities"])
        self.assertGreater(self.colours("picture"), 20)

        # Pointing at a box.
        self.browser.mouse("mouseMoved", *self.point_of("I0"))
        tip = self.tip().splitlines()
        self.assertEqual(tip[:2], ["input gradients of stage 0, micro-batch 0", "on device 0"])
        self.assertRegex(tip[2], r"^starts \d+\.\d+ ms$")
        self.assertRegex(tip[3], r"^takes 1\.\d+ ms$")
        self.assertEqual(tip[4:], ["waited for the transfer from device 1 to device 0 after input gradients of stage 1, micro-batch 0"])
        self.browser.mouse("mouseMoved", *self.point_of("F1"))
        self.assertIn("follows forward of stage 0, micro-batch 0", self.tip())
        # At the memory, further down.
        x, y = self.point_of("I0")
        self.browser.mouse("mouseMoved", x, self.browser.evaluate("""(() => {
            const row = rows.find((row) => row.memory && row.device === 0);
            return pane.getBoundingClientRect().top + toY(row) + row.height - 4;
        })()"""))
        self.assertIn("memory of device 0 at ", self.tip())
        self.assertIn("parameters 60 MiB", self.tip())
        # At nothing.
        self.browser.mouse("mouseMoved", 5, 5)
        self.assertEqual(self.tip(), "")

        # A click shows what led to the box: back to the very first.
        self.click(*self.point_of("I0"))
        chain = self.browser.evaluate("selected.chain.map((i) => labelOf(timelines[0], i))")
        self.assertEqual((chain[0], chain[-1]), ("I0", "F0"))
        self.browser.press("Escape")
        self.assertIsNone(self.browser.evaluate("selected"))

    def test_looking_around(self):
        self.open(timelines.write(self.folder / "t.json", 4, 8))
        view = lambda: self.browser.evaluate("[view.from, view.to]")
        x, y = self.point_of("F2")
        at = self.browser.evaluate(f"toTime({x} - pane.getBoundingClientRect().left)")
        whole = view()
        self.browser.mouse("mouseMoved", x, y)
        self.browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-500)
        self.browser.settle()
        zoomed = view()
        self.assertLess(zoomed[1] - zoomed[0], 0.6 * (whole[1] - whole[0]))
        # What was pointed at stays where it was.
        self.assertAlmostEqual(self.browser.evaluate(f"toX({at}) + pane.getBoundingClientRect().left"), x, delta=1)
        self.assertIn("forward of stage 0, micro-batch 2", (self.browser.mouse("mouseMoved", x, y + 1), self.tip())[1])

        self.browser.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.browser.mouse("mouseMoved", x - 100, y, button="left", buttons=1)
        self.browser.mouse("mouseReleased", x - 100, y, button="left", clickCount=1)
        self.browser.settle()
        self.assertAlmostEqual(self.browser.evaluate(f"toX({at}) + pane.getBoundingClientRect().left"), x - 100, delta=1)
        before = view()
        self.browser.press("ArrowRight")
        self.assertGreater(view()[0], before[0])
        self.browser.press("0")
        self.assertEqual(view(), whole)
        self.browser.press("m")
        self.assertFalse(self.browser.evaluate("options.memory || rows.some((row) => row.memory)"))
        self.assertEqual(self.data("errors"), "")

    def test_two_beside_each_other(self):
        files = [timelines.write(self.folder / f"{seed}.json", 3, 4, seed=seed, title=f"number {seed}") for seed in range(2)]
        self.open(*files, dark=True)
        headlines = lambda: self.browser.evaluate("rows.filter((row) => row.device < 0).length")
        self.assertEqual(headlines(), 2)
        # One scale: the same time is at the same place in both.
        self.browser.mouse("mouseMoved", *self.point_of("F1", timeline=1))
        self.assertTrue(self.tip().startswith("forward of stage 0, micro-batch 1\non device 0"), self.tip())
        self.browser.press("d")
        self.assertEqual(headlines(), 0)
        self.assertEqual(self.browser.evaluate("rows.map((row) => [row.device, row.timeline]).slice(0, 6)"), [[d, t] for d in range(3) for t in range(2)])
        self.assertEqual(self.data("errors"), "")

    def test_names_are_only_text(self):
        self.open(timelines.write(self.folder / "t.json", 1, 1, title="</script><img src=x onerror=alert(1)>"))
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('img').length"), 0)
        self.assertEqual(self.browser.evaluate("document.querySelector('h1').textContent"), "</script><img src=x onerror=alert(1)>")

    def texts(self, selector):
        return self.browser.evaluate(f"[...document.querySelectorAll({selector!r})].map((e) => e.textContent)")

    def colour_at(self, x, y):
        """The colour of the picture at a point of the window, as it is drawn."""
        return self.browser.evaluate(f"""(() => {{
            const box = pane.getBoundingClientRect();
            return [...picture.getImageData(Math.round({x} - box.left), Math.round({y} - box.top), 1, 1).data].slice(0, 3);
        }})()""")

    def inside(self, label, device=0):
        """Within the box, beside its label and its edges."""
        x, y = self.point_of(label, device=device)
        return x, y - self.browser.evaluate(f"rows[rowOf[0][{device}]].box / 2 - 3")

    def test_figures_are_the_timelines(self):
        step = timelines.step(4, 8)
        self.open(timelines.write(self.folder / "t.json", 4, 8))
        columns = step["activities"]
        busy = [0.0] * 4
        for device, lane, begin, end in zip(*(columns[name] for name in ("device", "lane", "begin", "end"))):
            busy[device] += (end - begin) * (lane == 0)
        figures = dict(zip(self.texts("#figures dt"), self.texts("#figures dd")))
        self.assertEqual(figures["step time"], f"{1e3 * step['makespan']:.4g} ms")
        self.assertEqual(figures["bubble"], f"{100 * (1 - sum(busy) / 4 / step['makespan']):.0f} %")
        shares = [f"{100 * seconds / step['makespan']:.0f} %" for seconds in busy]
        self.assertEqual(figures["devices compute"], ", ".join(dict.fromkeys(shares)))
        self.assertEqual(self.texts("#devices .bar"), shares)
        peaks = [max(map(sum, zip(*(device[name] for name in timelines.CLASSES)))) / (1 << 20) for device in step["memory"]]
        self.assertEqual(self.texts("#devices td:last-child"), [f"{peak:.4g} MiB" for peak in peaks])
        self.assertEqual(figures["highest memory peak"], f"{max(peaks):.4g} MiB, device {peaks.index(max(peaks))}")
        # The critical path: from the activity that ends last, all the step long.
        path = self.browser.evaluate("timelines[0].figures.path")
        self.assertEqual(columns["end"][path["activities"][-1]], step["makespan"])
        self.assertEqual(columns["cause"][path["activities"][0]], -1)
        self.assertAlmostEqual(sum(path[part] for part in ("compute", "transfer", "host", "waiting")), step["makespan"])
        self.assertIn(f"{100 * path['compute'] / step['makespan']:.0f} % computing", figures["critical path"])
        self.assertEqual(self.colours("overlay"), 1)
        self.browser.press("c")
        self.browser.settle()
        self.assertGreater(self.colours("overlay"), 2)

    def test_the_window_is_used(self):
        """Nothing of the window's height is left empty at the bottom but what the largest rows leave."""
        self.open(timelines.write(self.folder / "t.json", 2, 8))
        self.assertGreater(self.browser.evaluate("document.getElementById('devices').getBoundingClientRect().bottom"), 0.85 * 900)

    def test_chunks_of_a_device_differ(self):
        file = self.folder / "t.json"
        file.write_text(json.dumps({"penstock": timelines.in_chunks(timelines.step(4, 6))}))
        self.open(file)
        first, second = self.colour_at(*self.inside("0F0")), self.colour_at(*self.inside("4F1"))
        self.assertGreater(sum(abs(a - b) for a, b in zip(first, second)), 60)
        self.assertIn(first, self.legend_colours())
        self.assertIn(second, self.legend_colours())
        self.assertIn("2F4: forward of stage 2, micro-batch 4", " ".join(self.texts("#kinds span")))
        picture = self.folder / "t.svg"
        self.assertEqual(run("show", file, "--out", picture).code, 0)
        for part in (">4F1</text>", 'class="F c1"', ">2F4: forward of stage 2, micro-batch 4; "):
            self.assertIn(part, picture.read_text())

    def test_slices_are_named(self):
        file = self.folder / "t.json"
        self.assertEqual(run("simulate", "slimpipe", "--slices", 3, "--microbatches", 2, "--timeline", file).code, 0)
        self.open(file)
        self.assertEqual(self.browser.evaluate("[0, 1, 2].map((i) => labelOf(timelines[0], timelines[0].lanes[1][kCompute].numbers[i]))"), ["1.0F0", "1.1F0", "1.2F0"])
        self.assertEqual(self.browser.evaluate("actionOf(timelines[0], timelines[0].lanes[1][kCompute].numbers[1])"), "forward of stage 1, slice 1, micro-batch 0")
        self.assertEqual(self.browser.evaluate("numbersIn('stage')"), [0, 1])
        self.assertIn("2.1F4: forward of stage 2, slice 1, micro-batch 4", " ".join(self.texts("#kinds span")))
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('#devices tbody td')[0].textContent"), "0")

    def test_blocks_are_named(self):
        file = self.folder / "t.json"
        self.assertEqual(run("simulate", "slimpipe-exchange", "--slices", 4, "--microbatches", 1, "--timeline", file).code, 0)
        self.open(file)
        labels = "[...timelines[0].lanes[0][kCompute].numbers].map((i) => labelOf(timelines[0], i))"
        self.assertIn("4.3.0F0", self.browser.evaluate(labels))
        actions = "[...timelines[0].lanes[0][kCompute].numbers].map((i) => actionOf(timelines[0], i))"
        self.assertIn("forward of stage 4, slice 3, block 0, micro-batch 0", self.browser.evaluate(actions))
        self.assertEqual(self.browser.evaluate("numbersIn('stage')"), [0, 1, 2, 3, 4, 5])

    def legend_colours(self):
        return self.browser.evaluate("""[...document.querySelectorAll('#kinds canvas')].flatMap((c) => {
            const pixels = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
            return [...new Set(Array.from({length: pixels.length / 4}, (_, i) => pixels.slice(4 * i, 4 * i + 3).join()))];
        }).map((colour) => colour.split(',').map(Number))""")

    def test_32_devices_have_the_legends_colours_only(self):
        for microbatches in (32, 256):  # boxes of some pixels, and below one
            self.open(timelines.write(self.folder / "t.json", 32, microbatches))
            self.browser.evaluate("options.transfers = options.memory = false; options.size = 0.4; arrange(); resize();")
            found = self.browser.evaluate("""(() => {
                const out = new Set();
                for (const row of rows) {
                    const [y, width] = [toY(row), view.width - view.left - kRight];
                    if (row.device < 0 || y + row.box > view.height) continue;
                    const pixels = picture.getImageData(view.left, y, width, row.box).data;
                    for (let i = 0; i < pixels.length; i += 4) out.add(pixels.slice(i, i + 3).join());
                }
                return [...out].map((colour) => colour.split(',').map(Number));
            })()""")
            idle = self.browser.evaluate("bytesOf(colours.stripe)")
            self.assertEqual([colour for colour in found if colour not in [*self.legend_colours(), idle]], [], microbatches)
            self.assertGreater(len(found), 4)

    def test_transfers_do_not_cross_memory(self):
        self.open(*(timelines.write(self.folder / f"{seed}.json", 4, 4, seed=seed) for seed in range(2)))
        for _ in range(2):  # the timelines one under the other, and device by device
            crossed = self.browser.evaluate("""timelines.flatMap((timeline, t) => [...timeline.transfers.numbers].filter((i) => {
                const ends = [timeline.columns.device[i], timeline.columns.peer[i]].map((device) => rows[rowOf[t][device]]);
                const from = Math.min(...ends.map((row) => row.y)), to = Math.max(...ends.map((row) => row.y));
                return rows.some((row) => row.memory && row.y + row.height > from && row.y < to);
            })).length""")
            self.assertEqual(crossed, 0)
            self.assertEqual(self.browser.evaluate("rows.filter((row) => row.memory).length"), 8)
            self.browser.press("d")

    def test_filters(self):
        self.open(timelines.write(self.folder / "t.json", 4, 8))
        before = self.colour_at(*self.inside("F2"))
        self.browser.evaluate("document.getElementById('stage').focus()")
        self.browser.press("1")  # chooses the entry that begins so, and moves nothing
        self.browser.settle()
        self.assertEqual(self.browser.evaluate("[location.hash, chosen.stage, view.from, view.to === lastTime]"), ["#stage=1", 1, 0, True])
        other = self.browser.evaluate("bytesOf(colours.other)")
        self.assertEqual(self.colour_at(*self.inside("F2")), other)
        self.assertEqual(self.colour_at(*self.inside("F2", device=1)), before)
        # What is asked for in the address is what one sees.
        self.browser.evaluate("location.hash = 'stage=1&microbatch=3'")
        self.browser.settle()
        self.assertEqual(self.browser.evaluate("[document.getElementById('microbatch').value, chosen]"), ["3", {"stage": 1, "microbatch": 3}])
        self.assertEqual(self.colour_at(*self.inside("F2", device=1)), other)
        self.assertEqual(self.colour_at(*self.inside("F3", device=1)), before)
        self.browser.evaluate("location.hash = 'stage=77&microbatch=x'")
        self.browser.settle()
        self.assertEqual(self.browser.evaluate("chosen"), {"stage": -1, "microbatch": -1})
        self.assertEqual(self.colour_at(*self.inside("F2")), before)
        self.assertEqual(self.data("errors"), "")

    def test_boxes_are_selected_by_keys(self):
        self.open(timelines.write(self.folder / "t.json", 4, 8))
        said = []
        for key in "nnnpw":
            self.browser.press(key)
            said.append(self.tip().splitlines()[0])
        forward = "forward of stage 0, micro-batch {}".format
        self.assertEqual(said, [forward(0), forward(1), forward(2), forward(1), forward(0)])
        self.browser.press("Escape")
        self.assertEqual(self.tip(), "")
        # The slider has keys of its own.
        self.browser.evaluate("document.getElementById('size').focus()")
        view = self.browser.evaluate("[view.from, view.to]")
        self.browser.press("ArrowRight")
        self.assertEqual(self.browser.evaluate("[view.from, view.to]"), view)

    def test_boxes_are_found_by_what_they_say(self):
        self.open(timelines.write(self.folder / "t.json", 4, 12))
        found = lambda text: self.browser.evaluate(f"(find({text!r}), found.hits.map(([t, i]) => labelOf(timelines[t], i)))")
        self.assertEqual(found("F1"), ["F1"] * 4)  # and not F10
        self.assertEqual(set(found("stage 2, micro-batch 3")), {"F3", "I3", "W3", "2->3", "2->1"})
        self.assertEqual(found("no such (thing"), [])
        self.assertEqual(self.browser.evaluate("document.getElementById('found').textContent"), "0 found")
        self.assertEqual(len(found("TRANS")), len(timelines.step(4, 12)["activities"]["lane"]) - self.browser.evaluate("timelines[0].columns.lane.filter((lane) => lane !== kTransfer).length"))
        # From box to box, and around the ends; the keys of the text box are its own.
        self.browser.press("/")
        self.browser.evaluate("document.getElementById('find').value = ''")
        for key in "f2":
            self.browser.press(key)
        said = []
        for _ in range(5):
            self.browser.evaluate("document.getElementById('find').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}))")
            said.append(self.browser.evaluate("[found.at, labelOf(timelines[0], selected.chain[0]), document.getElementById('found').textContent]"))
        self.assertEqual(said, [[i % 4, "F2", f"{i % 4 + 1} of 4"] for i in range(5)])
        self.browser.evaluate("document.getElementById('find').blur()")
        self.browser.press("N")
        self.assertEqual(self.browser.evaluate("found.at"), 3)
        self.browser.press("n")
        self.assertEqual(self.browser.evaluate("found.at"), 0)
        self.assertEqual(self.data("errors"), "")

    def test_files_are_saved(self):
        title = 'a, "b" & <c>'
        self.open(timelines.write(self.folder / "t.json", 2, 3, title=title))
        columns = timelines.step(2, 3)["activities"]
        rows = list(csv.DictReader(io.StringIO(self.browser.evaluate("csvText()"))))
        self.assertEqual([float(row["end"]) for row in rows], columns["end"])
        self.assertEqual({row["timeline"] for row in rows}, {title})
        self.assertEqual([row["label"] for row in rows if row["lane"] == "compute"][:2], ["F0", "F1"])
        self.assertEqual(json.loads(self.browser.evaluate("jsonText()"))[0]["what"], "forward of stage 0, micro-batch 0")
        svg = xml.etree.ElementTree.fromstring(self.browser.evaluate("svgText()"))
        texts = [part.text for part in svg.iter("{http://www.w3.org/2000/svg}text")]
        for text in ("device 1", "F2", "I0", "W2"):
            self.assertIn(text, texts)
        self.assertEqual(svg.find("{http://www.w3.org/2000/svg}title").text, title)
        self.assertGreater(self.colours("picture"), 20)  # the canvas is drawn on as before
        # A click makes the file.
        names = self.browser.evaluate("""new Promise((done) => {
            const names = [];
            HTMLAnchorElement.prototype.click = function () { names.push(this.download); if (names.length === 4) done(names); };
            for (const button of document.querySelectorAll('#export button')) button.click();
        })""")
        self.assertEqual(sorted(names), [f"a_b_c_.{extension}" for extension in ("csv", "json", "png", "svg")])
        self.assertEqual(self.data("errors"), "")

    def test_contrast(self):
        """Texts stand out from their ground, letters from boxes, and areas of memory from each other, in bright and dark."""
        def luminance(colour):
            parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
            return sum(w * (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4) for w, p in zip((0.2126, 0.7152, 0.0722), parts))

        def ratio(one, other):
            low, high = sorted(luminance(colour) + 0.05 for colour in (one, other))
            return high / low

        css = (ROOT / "src/front/report/page/page.css").read_text()
        bright, dark = (dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", line)) for line in css.splitlines() if ":root" in line)
        self.assertGreater(len(dark), 6)
        for name, colours in (("light", bright), ("dark", {**bright, **dark})):
            for ink in ("ink", "faint", "alarm"):
                for ground in ("ground", "stripe"):
                    self.assertGreaterEqual(ratio(colours[ink], colours[ground]), 4.5, (name, ink, ground))
            self.assertGreaterEqual(ratio(colours["ink"], colours["bar"]), 4.5, name)
            self.open(timelines.write(self.folder / "t.json", 2, 3), dark=name == "dark")
            memory = [entry[name] for entry in self.browser.evaluate("page.memory")]
            self.assertEqual(self.browser.evaluate("colours.memory"), memory)
            for one, other in zip(memory, memory[1:]):
                self.assertGreaterEqual(ratio(one, other), 3, (name, one, other))
            for colour in memory:
                self.assertGreaterEqual(ratio(colour, colours["stripe"]), 3, (name, colour))
            for look in self.browser.evaluate("page.looks"):
                grounds = [colours["ground"]] + [colours["stripe"]] * (look["letter"] != "~")  # transfers lie below the stripe
                for ground in grounds:
                    self.assertGreaterEqual(max(ratio(look[part], ground) for part in ("colour", "edge")), 3, (name, look["meaning"], ground))
        picture = self.folder / "t.svg"
        self.assertEqual(run("show", self.folder / "t.json", "--out", picture).code, 0)
        style = picture.read_text()
        looks = self.browser.evaluate("page.looks")
        self.assertIn("rect.I { stroke: #827b24; }", style)
        self.assertLessEqual(set(re.findall(r"rect\.\w+ \{ stroke: (#\w+)", style)), {look["edge"] for look in looks})
        grounds = re.findall(r"\.(idle|ground) \{ fill: (#\w+);", style)
        self.assertEqual(len(grounds), 4)  # bright and dark
        for name, ground in grounds:
            for look in looks:
                if name == "ground" or look["letter"] != "~":
                    best = max(ratio(look[part], {"#fff": "#ffffff"}.get(ground, ground)) for part in ("colour", "edge"))
                    self.assertGreaterEqual(best, 3, (look["meaning"], ground))
        for look in self.browser.evaluate("page.looks"):
            if look["letter"] != "~":  # transfers have no letters
                self.assertGreaterEqual(ratio(look["colour"], "#000000"), 4.5, look["meaning"])

    def test_curves_fit_the_window_and_take_its_colours(self):
        run_folder = self.folder / "run"
        run_folder.mkdir()
        timelines.write(run_folder / "timeline.json", 2, 3)
        lines = [{"step": step, "loss": 5 / step, "seconds": 1, "tokens_per_second": 900 + step % 9} for step in range(1, 400)]
        (run_folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.addCleanup(self.browser.resize, 1400, 900)
        for width, dark in ((1400, False), (700, True)):
            self.browser.resize(width, 900)
            self.open(run_folder, dark=dark)
            self.assertEqual(self.browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), True)
            ground = "getComputedStyle(document.querySelector('.curves .ground')).fill === getComputedStyle(document.body).backgroundColor"
            self.assertEqual(self.browser.evaluate(ground), True)

    def test_a_plan_says_its_memory(self):
        plan = self.folder / "plan.json"
        result = run("plan", ROOT / "examples/graphs/two-encoders.json", "--devices", 2, "--bandwidth", 1e9, "--batch", 4, "--no-replicas", "--seconds", 1, "--out", plan)
        self.assertEqual(result.code, 0, result.err)
        self.open(plan)
        self.assertEqual(self.texts("#devices tbody th"), ["stage 0 (device 0)", "stage 1 (device 1)"])
        self.assertNotIn("\u2013", self.texts("#devices td:last-child"))

    def test_narrow_windows(self):
        """Nothing of a page is wider than the window, and the picture can be scrolled to its right end."""
        long = "a cluster with a name that is as long as paths of configurations may be/" * 4
        self.addCleanup(self.browser.resize, 1400, 900)
        for width, actors, names in ((700, 2, "short"), (700, 32, long), (400, 2, long)):
            self.browser.resize(width, 900)
            files = [timelines.write(self.folder / f"{seed}.json", actors, 8, seed=seed, title=names) for seed in range(2)]
            for shown in (files[:1], files):
                self.open(*shown, dark=actors == 32)
                self.assertEqual(self.browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), True)
                self.assertGreaterEqual(self.browser.evaluate("view.width"), 600)
                self.browser.evaluate("chart.scrollLeft = 10000")
                right = self.browser.evaluate("pane.getBoundingClientRect().right - chart.getBoundingClientRect().right")
                self.assertLessEqual(abs(right), 20)

    def test_64_devices_and_256_microbatches(self):
        self.open(timelines.write(self.folder / "t.json", 64, 256))
        boxes = int(self.data("boxes"))
        self.assertGreater(boxes, 3 * 64 * 256)
        self.browser.evaluate("options.memory = false; options.size = 0.3; arrange(); resize();")
        self.assertLess(int(self.data("drawn")), 64 * 3 * 1400)  # at most one per pixel and lane
        times = [float(self.browser.evaluate("draw(), document.documentElement.dataset.milliseconds")) for _ in range(9)]
        print(f"64 x 256: {boxes} boxes, whole picture redrawn in {statistics.median(times):.1f} ms", file=sys.stderr)
        self.browser.mouse("mouseMoved", *self.point_of("W200"))
        self.assertRegex(self.tip(), r"^(forward|input gradients|weight gradients) of stage 0, micro-batch \d+\n")
        self.assertEqual(self.data("errors"), "")


if __name__ == "__main__":
    unittest.main()
