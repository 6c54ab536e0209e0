"""Which folder calls which, by the symbols of the core's library: public headers hide where a function is defined."""

import pathlib
import sys
import unittest

from support import PROGRAM

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import figures  # noqa: E402

# Frozen stages stand where a table's actors wait, which the clock says.
KNOWN = {("schedule", function, "simulate") for function in ("Network::at", "time_table", "uniform_costs")}


class Calls(unittest.TestCase):
    def test_no_folder_calls_one_above_it(self):
        library = pathlib.Path(PROGRAM).resolve().parent / "libpenstock_core.a"
        self.assertEqual(set(figures.upward_calls(ROOT, library)), KNOWN)

    def test_a_call_up_is_found(self):
        order = figures.layers(ROOT)
        self.assertLess(order.index("schedule"), order.index("simulate"))
        self.assertEqual(figures.folder_of("unity_schedule_0_cxx.cxx.o", ROOT), "schedule")
        self.assertEqual(figures.folder_of("gpt.cpp.o", ROOT), "models")


if __name__ == "__main__":
    unittest.main()
