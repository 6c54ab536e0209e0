# SPDX-License-Identifier: Apache-2.0
"""The demonstration's page, made of results, in a real browser: its charts show them, and its headline says what can be said."""

import pathlib
import sys
import tempfile
import unittest
from types import SimpleNamespace

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "demo"))

from browser import Browser, browser_profile
from demo import why_incomparable
from demo_page import make_page

BUSY = "the machine was too busy to compare, other programs took 64 % of the cores meanwhile, which no profile can know"


def results(measured, incomparable=""):
    losses = [2 + 3 * 0.98**step for step in range(240)]
    return {
        "findings": ["1. a < b"],
        "parts": [["The first <part>", "$ penstock\n1 < 2 & so on\n"]],
        "time": {"predicted": 0.0119, "measured": measured, "others": 0.01, "incomparable": incomparable},
        "memory": {"predicted": [5_000_000, 4_000_000], "measured": [5_000_000, 4_100_000]},
        "peer": {"ratio": 0.8, "medians": [["penstock", "interleaved-1f1b", 0.1], ["peer", "InterleavedZeroBubble", 0.125]]},
        "lengths": {"padded": [0.3, 20_000], "packed": [0.1, 60_000], "planned": [0.08, 75_000]},
        "losses": {"unbroken": losses, "resumed": losses, "killed_after": 203, "resumed_from": 200},
    }


class DemoPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="penstock-test-")))
        cls.browser = Browser(cls.enterClassContext(browser_profile()))
        cls.addClassCleanup(cls.browser.close)

    def open(self, results, width=1400, dark=False):
        page = self.folder / "demo.html"
        page.write_text(make_page(results, "<!doctype html><p id='inner'>\"timelines\"</p>"))
        self.browser.resize(width, 900)
        self.browser.open(page, dark)

    def headline(self):
        return self.browser.evaluate("document.querySelector('.headline').textContent")

    def test_a_quiet_machine(self):
        self.open(results([0.0125] * 230))
        self.assertEqual(self.headline(), "A step was predicted to take 11.9 ms, and took 12.5 ms: the prediction is 4.8 % too short.")

    def test_a_busy_machine_has_no_percentage(self):
        self.open(results([0.0125 * (1 + step % 20) for step in range(230)], BUSY))
        self.assertTrue(self.headline().startswith("A step was predicted to take 11.9 ms. This run cannot confirm it: " + BUSY), self.headline())
        self.assertIn("half of 230 steps took 62.5 ms to 188 ms", self.headline())
        self.assertNotIn("too short", self.headline())

    def test_when_a_run_says_nothing_of_a_prediction(self):
        demo, quiet, noisy = SimpleNamespace(quick=False), [0.0125, 0.0126] * 50, [0.0125, 0.02] * 50
        self.assertEqual(why_incomparable(demo, quiet, others=0.01), "")
        self.assertIn("other programs took 64 % of the cores", why_incomparable(demo, quiet, others=0.64))
        self.assertIn("too busy to compare, the middle half of the steps differ by 46 %", why_incomparable(demo, noisy, others=0.01))
        self.assertIn("as short as these", why_incomparable(SimpleNamespace(quick=True), quiet, others=0.01))

    def test_bars_are_as_long_as_their_values(self):
        self.open(results([0.0125] * 230))
        bars = self.browser.evaluate("""[...document.querySelectorAll('figure')].map((figure) =>
            [...figure.querySelectorAll('.bar')].map((bar) => [Number(bar.dataset.value), bar.getBBox().width])).filter((bars) => bars.length)""")
        self.assertEqual([[value for value, _ in chart] for chart in bars], [[5_000_000, 5_000_000, 4_000_000, 4_100_000], [0.1, 0.125], [20_000, 60_000, 75_000]])
        for chart in bars:
            for value, width in chart:
                self.assertAlmostEqual(width / value * chart[0][0], chart[0][1], delta=0.02)

    def test_everything_is_in_its_place(self):
        """No text leaves its chart, nothing is wider than the window; the timelines stand in a frame of their own."""
        measured = [0.0125 * (1 + 30 * (step % 7 == 0)) for step in range(230)]
        for width, dark in ((1400, False), (700, True), (400, False)):
            self.open(results(measured, BUSY), width, dark)
            outside = self.browser.evaluate("""[...document.querySelectorAll('.chart text, .chart rect, .chart circle')].filter((part) => {
                const box = part.getBBox(), all = part.ownerSVGElement.viewBox.baseVal;
                return box.x < 0 || box.y < 0 || box.x + box.width > all.width || box.y + box.height > all.height;
            }).map((part) => part.outerHTML)""")
            self.assertEqual(outside, [])
            self.assertTrue(self.browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))
        self.assertEqual(self.browser.evaluate("document.querySelector('iframe').contentDocument.querySelector('#inner').textContent"), '"timelines"')
        self.assertEqual(self.browser.evaluate("document.querySelector('pre').textContent"), "$ penstock\n1 < 2 & so on\n")
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('figure svg').length"), 5)

    def test_parts_that_did_not_run_are_left_out(self):
        some = results([0.0125] * 230)
        del some["peer"], some["losses"]
        self.open(some)
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('figure').length"), 3)


if __name__ == "__main__":
    unittest.main()
