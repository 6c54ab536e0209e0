# SPDX-License-Identifier: Apache-2.0
"""Which folder calls which, by the symbols of the core's library, as public headers hide where a function is defined; and what words mean."""

import pathlib
import sys
import unittest

from support import PROGRAM

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import figures  # noqa: E402


class Calls(unittest.TestCase):
    def test_no_folder_calls_one_above_it(self):
        library = pathlib.Path(PROGRAM).resolve().parent / "libpenstock_core.a"
        self.assertEqual(figures.upward_calls(ROOT, library), [])

    def test_a_call_up_is_found(self):
        order = figures.layers(ROOT)
        self.assertLess(order.index("schedule"), order.index("simulate"))
        self.assertEqual(figures.folder_of("unity_schedule_0_cxx.cxx.o", ROOT), "schedule")
        self.assertEqual(figures.folder_of("gpt.cpp.o", ROOT), "models")


class Words(unittest.TestCase):
    def test_none_has_several_meanings(self):
        self.assertEqual(figures.words_of_several_meanings(figures.glossary(ROOT)), [])
        rows = [(["a"], "Two things: b; c"), (["d"], "A b. (The class `D` is another thing.)"), (["e"], "To b; also the file"), (["f"], "A b")]
        self.assertEqual(figures.words_of_several_meanings(rows), ["a", "d", "e"])

    def test_each_has_one_row(self):
        words = [word for words, _ in figures.glossary(ROOT) for word in words]
        self.assertGreater(len(words), 50)
        self.assertEqual([word for word in words if words.count(word) > 1], [])


if __name__ == "__main__":
    unittest.main()
