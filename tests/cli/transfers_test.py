# SPDX-License-Identifier: Apache-2.0
"""Tables that say where transfers start: verified, simulated, searched, and run on threads, over Gloo and on the stand-in."""

import pathlib
import unittest

from support import SMALL, ProgramTest, run, run_all

TABLE = pathlib.Path(__file__).resolve().parents[2] / "examples/transfers.csv"
LINKS = ["--bytes", 1, "--bandwidth", 1, "--latency", 1]


class Transfers(ProgramTest):
    def written(self, text, name="table.csv"):
        path = self.folder / name
        path.write_text(text)
        return path

    def test_the_text_keeps_them(self):
        self.assertEqual(run("schedule", TABLE).out, TABLE.read_text())
        self.assertEqual(run("verify", TABLE).code, 0)
        late = self.written(TABLE.read_text().replace("1RECV_F1,1F1", "1F1,1RECV_F1"))
        refused = run("verify", late)
        self.assertEqual(refused.code, 1)
        self.assertIn("table.csv:2:2: 1RECV_F1 receives what was needed before", refused.err)

    def test_simulation_honours_them(self):
        """F and B take 1 each, and a byte 1 on its link, at whose end it is 1 later. 1F0's receive stands behind 1B1."""
        makespan = {}
        for name, table in ("given", TABLE.read_text()), ("inferred", "0F0,0F1,0B1,0B0\n1F1,1B1,1F0,1B0\n"):
            makespan[name] = run("simulate", self.written(table), *LINKS, "--forward", 1, "--backward", 1, "--json").json()["makespan"]
        self.assertEqual(makespan, {"given": 13, "inferred": 11})

    def test_search_orders_them(self):
        path = self.folder / "ordered.csv"
        flags = ["--actors", 2, "--microbatches", 4, "--chunks", 2, *LINKS]
        plain = run("schedule", "search", *flags, "--seconds", 4, "--json").json()
        found = run("schedule", "search", *flags, "--seconds", 4, "--order-transfers", "--out", path, "--json").json()
        self.assertLessEqual(found["makespan"], plain["makespan"])
        self.assertEqual(plain["sends"], 0)
        again = run("simulate", path, *LINKS, "--json").json()
        self.assertEqual(again["makespan"], found["makespan"])
        window = run("schedule", "search", "--order-transfers", "--window", 2)
        self.assertEqual(window.code, 1)
        self.assertIn("--order-transfers: where transfers start is said in tables of one step, not of 2", window.err)

    def test_runs_are_the_sequential_run(self):
        table = ["check", *SMALL, "--dtype", "f64", "--microbatches", 2, "--actors", 2, "--schedule", TABLE, "--json"]
        for more in [], ["--device", "standin"], ["--mesh", "pipe=2,data=2"], ["--mesh", "pipe=2,tensor=2"], ["--mesh", "pipe=2,data=2", "--set", "zero=3"]:
            with self.subTest(more):
                result = run(*table, *more)
                self.assertEqual(result.code, 0, result.err)
                self.assertTrue(result.json()["equal"])
        for rank, result in enumerate(run_all(2, *table, "--backend", "gloo")):
            self.assertEqual(result.code, 0, f"rank {rank}: {result.err}")


if __name__ == "__main__":
    unittest.main()
