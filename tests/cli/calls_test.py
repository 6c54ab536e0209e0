"""Which folder calls which, by the symbols of the core's library, as public headers hide where a function is defined; and what words mean."""

import pathlib
import re
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
    def test_those_of_several_meanings_are_named(self):
        text = (ROOT / "docs/glossary.md").read_text()
        named = re.search(r"^These words mean several things, [^:]+: ([^.]+)\.", text, re.MULTILINE).group(1)
        self.assertEqual(named.split(", "), figures.words_of_several_meanings(ROOT))

    def test_each_has_one_line(self):
        lines = [word for word in re.findall(r"^\| ([^|]+) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE) if word != "word"]
        self.assertEqual(len(set(lines)), len(lines))


if __name__ == "__main__":
    unittest.main()
