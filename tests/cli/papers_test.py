# SPDX-License-Identifier: Apache-2.0
"""penstock papers, its page, and the names of papers wherever a schedule or a planner is asked for. Its commands run with those of all documents:
documents_test.py."""

import pathlib
import sys
import unittest

from support import ProgramTest, run, sampled

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/papers.md"
sys.path.insert(0, str(ROOT / "bench"))
import papers as bench  # noqa: E402
DYNAPIPE = "dynapipe is a batch planner: --set batch.planner=dynapipe; penstock papers dynapipe says more"


class Papers(ProgramTest):
    def test_page(self):
        self.assertEqual(PAGE.read_text(), run("papers", "--markdown").out, "penstock papers --markdown > docs/papers.md")

    def test_the_systems_are_there(self):
        rows = run("papers", "--json").json()["papers"]
        names = {row["name"] for row in rows}
        systems = """jaxpp graphpipe zeropp dynapipe dapple terapipe dip gpipe xpipe bitpipe spp bapipe diffusionpipe flexpipe dawnpiper infinipipe
            helixpipe slimpipe hetpipe crosspipe layerpipe flexsp nestpipe sizing""".split()
        self.assertEqual(len(systems), 24)
        self.assertLessEqual({*systems, "torch.distributed.pipelining", "torchtitan", "megatron", "deepspeed"}, names)
        for row in rows:
            for key in ("run", "plan"):
                self.assertTrue(all("penstock " in command for command in row[key]), row["name"])

    def test_each_system_has_its_benchmark(self):
        rows = [row["name"] for row in run("papers", "--json").json()["papers"]]
        systems = rows[: rows.index("sizing") + 1]  # peers are behind it
        for size in ("small", "large"):
            self.assertEqual([case.name for case in bench.CASES if case.size == size], systems)

    def test_nothing_found_is_slower(self):
        for case in sampled((case for case in bench.CASES if case.size == "small"), 2):
            with self.subTest(case.name):
                theirs, ours = bench.compared(case)
                self.assertLessEqual(ours.time, theirs.time * (1 + 1e-9))

    def test_list_and_row(self):
        listed = run("papers")
        self.assertEqual(listed.code, 0)
        self.assertIn("  dynapipe                      a batch planner: --set batch.planner=dynapipe (2311.10418, EuroSys 2024)\n", listed.out)
        row = run("papers", "Zero Bubble")
        self.assertEqual(row.out, run("papers", "zbv").out)
        self.assertTrue(row.out.startswith("Zero Bubble: Zero Bubble Pipeline Parallelism; "), row.out)
        self.assertIn("$ penstock schedule zb-h1 ", row.out)
        self.assertNotIn("`", row.out)
        self.assertEqual(run("papers", "dip", "--json").json()["also"], ["pipeweaver"])

    def test_refused(self):
        self.assert_fails(run("papers", "dynapip"), 'there is no paper "dynapip"', 'did you mean "dynapipe"?')
        self.assert_fails(run("papers", "dip", "--markdown"), "--markdown prints the whole page", "leave out dip")

    def test_names_are_known_elsewhere(self):
        chain = ("--devices", 2, "--bandwidth", 1e9)
        for command in (
            ["schedule", "dynapipe"],
            ["simulate", "dynapipe"],
            ["check", "dynapipe"],
            ["train", "--set", "pipeline.schedule=dynapipe"],
            ["plan", "gpt", *chain, "--planner", "dynapipe"],
            ["plan", "dynapipe", *chain],
            ["batch", "dynapipe", "{}"],
        ):
            with self.subTest(command):
                self.assert_fails(run(*command, cwd=self.folder), f"hint: {DYNAPIPE}")
        self.assertIn(f"hint: {DYNAPIPE}", run("dynapipe").err)
        self.assert_fails(run("train", "--set", "batch.planner=zeropp"), 'unknown planner "zeropp"', "hint: zeropp is a schedule: --schedule zeropp")
        self.assert_fails(run("schedule", "pipeweaver"), "hint: pipeweaver is a batch planner: --set batch.planner=dip, for texts with images; penstock papers dip")
        self.assert_fails(run("schedule", "dapple"), "hint: dapple is a planner: penstock plan --planner dapple")


if __name__ == "__main__":
    unittest.main()
