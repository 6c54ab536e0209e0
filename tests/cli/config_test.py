# SPDX-License-Identifier: Apache-2.0
"""penstock config, and what all commands' JSON has in common."""

import unittest

from support import SMALL, ProgramTest, run


class ConfigCommand(ProgramTest):
    def test_prints_a_file_that_says_the_same(self):
        first = run("config", "--set", "model.width=64", "--schedule", "zb-h1", "--set", "data.text=a b.txt")
        self.assertEqual(first.code, 0, first.err)
        self.assertRegex(first.out, r"width = 64.0 +# channels of the activations between layers \[128\.0\]\n")
        self.assertRegex(first.out, r'schedule = "zb-h1" +# a name .* \["1f1b"\]\n')
        file = self.folder / "mine.toml"
        file.write_text(first.out)
        self.assertEqual(run("config", file).out, first.out)
        self.assertEqual(run("compile", file, "--set", "heads=2", "--emit", "schedule").code, 0)

    def test_json(self):
        keys = {key["key"]: key for key in run("config", "--steps", 7, "--json").json()["keys"]}
        self.assertEqual(keys["train.steps"], {"key": "train.steps", "value": 7, "default": 400, "unit": "steps",
                                               "meaning": "of the whole run", "given": True})  # fmt: skip
        self.assertEqual((keys["data.text"]["value"], keys["data.text"]["given"]), ([], False))
        self.assertEqual(keys["model.gelu"]["value"], "tanh")

    def test_where_the_table_says_the_actors_they_are_in_force(self):
        table = self.folder / "two.csv"
        table.write_text(run("schedule", "gpipe", "--actors", 3, "--microbatches", 2).out)
        keys = {key["key"]: key for key in run("config", "--schedule", table, "--json").json()["keys"]}
        self.assertEqual((keys["pipeline.actors"]["value"], keys["pipeline.microbatches"]["value"]), (3, 2))

    def test_bad_ones_are_errors(self):
        self.assert_fails(run("config", "--set", "widht=1"), 'unknown key "widht"', 'did you mean "model.width"?')


class Json(ProgramTest):
    """One object whose first key is the format; what is one per actor is a list of objects everywhere."""

    def objects(self):
        table = self.folder / "table.csv"
        table.write_text(run("schedule", "1f1b", "--actors", 2, "--microbatches", 2).out)
        program = self.folder / "program.txt"
        program.write_text(run("compile", *SMALL).out)
        timeline = self.folder / "timeline.json"
        simulate = ["simulate", "1f1b", "--actors", 2, "--microbatches", 2]
        self.assertEqual(run(*simulate, "--timeline", timeline).code, 0)
        graph = self.folder / "graph.json"
        graph.write_text('{"penstock": "graph 1", "samples": 4, "nodes": [{"name": "a", "forward": 1, "backward": 2}], "edges": []}')
        return {
            "schedule": ["schedule", "1f1b", "--actors", 2, "--microbatches", 2],
            "list": ["schedule", "list"],
            "compare": ["schedule", "compare", "--actors", 2, "--microbatches", 2],
            "search": ["schedule", "search", "--actors", 2, "--microbatches", 2],
            "simulate": simulate,
            "verify a table": ["verify", table],
            "verify a program": ["verify", program],
            "simulate a program": ["simulate", program, "--device", "h100-sxm", "--network", "nvlink4"],
            "show": ["show", timeline],
            "check": ["check", *SMALL, "--text", self.text],
            "compile": ["compile", *SMALL, "--emit", "schedule"],
            "train": self.train_arguments("run", 2),
            "generate": ["generate", self.folder / "run", "--tokens", 2],
            "config": ["config"],
        }

    def test_every_object_has_its_format_first(self):
        for name, arguments in self.objects().items():
            result = run(*arguments, "--json")
            self.assertEqual(result.code, 0, (name, result.err))
            self.assertEqual(result.out.count("\n"), 1, name)
            found = result.json()
            self.assertEqual((next(iter(found)), found["format"]), ("format", 1), name)
            for actor in found.get("actors", []):
                self.assertIsInstance(actor, dict, name)
            if "seconds" in found:
                self.assertIsInstance(found["seconds"], float, name)


if __name__ == "__main__":
    unittest.main()
