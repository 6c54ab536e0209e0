# SPDX-License-Identifier: Apache-2.0
"""A table that `penstock schedule` prints is the schedule: verified, simulated and trained as the one by name is."""

import unittest

from support import SMALL, ProgramTest, read_pieces, run

CHUNKS = ["--chunks", "2"]
SLICES = ["--slices", "2"]
WINDOW = ["--window", "2"]
# The flags that each schedule is tried with: those that shape its table, and those that only training takes.
OPTIONS = {
    **dict.fromkeys(("breadth-first", "interleaved-1f1b", "interleaved-zb", "zeropp", "zb-v", "v-half", "v-min", "dualpipe-v", "dualpipe-v-jaxpp",
                     "bitpipe", "hanayo", "helixpipe"), [(CHUNKS, []), ([*CHUNKS, "--split-backward"], [])]),
    "1f1b": [([], []), (["--split-backward"], []), (WINDOW, []), (SLICES, []), (["--in-flight", "1"], [])],
    "zb-h2": [([], []), (["--transfers", "0.5"], [])],
    "kfkb": [(["--group", "2"], [])],
    **dict.fromkeys(("terapipe", "seq1f1b"), [(SLICES, [])]),
    "slimpipe": [(SLICES, []), (SLICES, ["--set", "head_shards=2"])],
    "slimpipe-exchange": [([*CHUNKS, "--slices", "4"], [])],
    **dict.fromkeys(("pipedream", "pipedream-2bw", "hetpipe", "layerpipe", "xpipe", "pipeoptim"), [(["--window", "3"], ["--set", "tied=0", "clip=0"])]),
    "nestpipe": [(WINDOW, [])],
}  # fmt: skip
RUNS = ("zeropp", "slimpipe-exchange", "pipedream", "dualpipe")  # the others' programs are the same, and so are their steps
DIFFUSION = ["--set", "model.name=latent_diffusion", "--batch", "16", "--microbatches", "4", "--set", "validation_every=0"]
FROZEN = ["--frozen", "0.5,0.5"]
DIFFUSIONS = {
    "1f1b": [([*FROZEN, *WINDOW], ["--set", "clip=0"])],
    "bidirectional": [([*CHUNKS, *FROZEN], ["--set", "backbones=2"]), ([*CHUNKS, *FROZEN, *WINDOW], ["--set", "backbones=2", "clip=0"])],
}


class PrintedTables(ProgramTest):
    def printed(self, name, shaping, more):
        head = ["--head-shards", "2"] if "head_shards=2" in more else []
        result = run("schedule", name, "--actors", 2, "--microbatches", 4, *shaping, *head)
        self.assertEqual(result.code, 0, result.err)
        table = self.folder / "table.csv"
        table.write_text(result.out)
        self.assertEqual(run("schedule", table).out, result.out)
        return table

    def of_both(self, name, table, shaping, *command):
        """The results of a command for the named schedule and for its table."""
        results = [run(*command, "--schedule", name, *shaping), run(*command, "--schedule", table)]
        for result in results:
            self.assertEqual(result.code, 0, result.err)
        return [result.out.replace(str(table), name) for result in results]

    def check(self, model, name, shaping, more):
        table = self.printed(name, shaping, more)
        self.assertEqual(run("verify", table).code, 0)
        if "head_shards=2" not in more:  # a flag of `schedule` alone
            tables = [run("simulate", *what, "--json").json() for what in ([name, "--actors", 2, "--microbatches", 4, *shaping], [table])]
            self.assertEqual(*({**each, "name": None} for each in tables))
        self.assertEqual(*self.of_both(name, table, shaping, "compile", *model, *more, "--emit", "program"))
        return table

    def check_runs(self, model, name, shaping, more):
        table = self.check(model, name, shaping, more)
        out = [self.folder / " ".join([what, name, *shaping]) for what in ("name", "table")]
        for folder, (schedule, flags) in zip(out, [(name, shaping), (table, [])], strict=True):
            result = run("train", *model, *more, "--schedule", schedule, *flags, "--steps", 6, "--out", folder)
            self.assertEqual(result.code, 0, result.err)
        self.assertTrue(read_pieces(out[0] / "checkpoint-6") == read_pieces(out[1] / "checkpoint-6"))

    def test_every_schedule(self):
        names = [line.split()[0] for line in run("schedule", "list").out.splitlines()]
        self.assertLessEqual(OPTIONS.keys() | DIFFUSIONS.keys(), set(names))
        for name in names:
            model = [*SMALL, "--text", self.text]
            for shaping, more in OPTIONS.get(name, [] if name in DIFFUSIONS else [([], [])]):
                with self.subTest(name, shaping=shaping, more=more):
                    (self.check_runs if name in RUNS else self.check)(model, name, shaping, more)

    def test_stages_without_a_backward_and_two_backbones(self):
        for name, options in DIFFUSIONS.items():
            for shaping, more in options:
                with self.subTest(name, shaping=shaping):
                    (self.check_runs if "--window" in shaping else self.check)(DIFFUSION, name, shaping, more)


if __name__ == "__main__":
    unittest.main()
