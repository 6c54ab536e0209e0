"""The page of timelines in a real browser: it runs without errors, draws, and answers to mouse and keyboard."""

import statistics
import sys
import tempfile
import unittest

import timelines
from browser import Browser
from support import ProgramTest, run


class Page(ProgramTest):
    @classmethod
    def setUpClass(cls):
        profile = tempfile.TemporaryDirectory(prefix="penstock-test-")
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
        self.assertEqual(tip[0], "I0: input gradients")
        self.assertEqual(tip[1:4], ["on device 0", "stage 0", "micro-batch 0"])
        self.assertRegex(tip[4], r"^duration 1\.\d+ ms$")
        self.assertIn("waited for the transfer from device 1", tip)
        # At the memory under it.
        x, y = self.point_of("I0")
        self.browser.mouse("mouseMoved", x, y + self.browser.evaluate("rows[0].height - rows[0].gap - 4 - rows[0].box / 2"))
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
        self.assertIn("F2: forward", (self.browser.mouse("mouseMoved", x, y + 1), self.tip())[1])

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
        self.assertTrue(self.tip().startswith("F1: forward\non device 0"), self.tip())
        self.browser.press("d")
        self.assertEqual(headlines(), 0)
        self.assertEqual(self.browser.evaluate("rows.map((row) => [row.device, row.timeline])"), [[d, t] for d in range(3) for t in range(2)])
        self.assertEqual(self.data("errors"), "")

    def test_names_are_only_text(self):
        self.open(timelines.write(self.folder / "t.json", 1, 1, title="</script><img src=x onerror=alert(1)>"))
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('img').length"), 0)
        self.assertEqual(self.browser.evaluate("document.querySelector('h1').textContent"), "</script><img src=x onerror=alert(1)>")

    def test_64_devices_and_256_microbatches(self):
        self.open(timelines.write(self.folder / "t.json", 64, 256))
        boxes = int(self.data("boxes"))
        self.assertGreater(boxes, 3 * 64 * 256)
        self.browser.evaluate("options.memory = false; options.size = 0.3; arrange(); resize();")
        self.assertLess(int(self.data("drawn")), 64 * 3 * 1400)  # at most one per pixel and lane
        times = [float(self.browser.evaluate("draw(), document.documentElement.dataset.milliseconds")) for _ in range(9)]
        print(f"64 x 256: {boxes} boxes, whole picture redrawn in {statistics.median(times):.1f} ms", file=sys.stderr)
        self.browser.mouse("mouseMoved", *self.point_of("W200"))
        self.assertRegex(self.tip(), r"^[FIW]\d+: ")
        self.assertEqual(self.data("errors"), "")


if __name__ == "__main__":
    unittest.main()
