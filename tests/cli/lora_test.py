# SPDX-License-Identifier: Apache-2.0
"""Adapters of low rank on a run's parameters: what is trained, what it takes, and what is refused."""

import unittest

from support import SMALL, ProgramTest, read_tensors, run

LORA = ["--set", "lora=2"]


class Lora(ProgramTest):
    def test_from_a_run(self):
        """The base stays as it was, in memory there is less of everything, and the run's checkpoints are whole."""
        full = self.train("base", 4, "--json").json()
        tuned = self.train("tuned", 4, *LORA, "--set", "lora_alpha=4", "--init", self.folder / "base", "--json").json()
        for with_adapters, whole in zip(tuned["actors"], full["actors"]):
            self.assertLess(with_adapters["planned_bytes"], 0.8 * whole["planned_bytes"])
        before, after = ({name: value for file in (self.folder / out / "checkpoint-4").glob("*.safetensors") for name, value in read_tensors(file).items()}
                         for out in ("base", "tuned"))  # fmt: skip
        parameters = {name for name in before if not name.startswith(("first:", "second:")) and name != "step"}
        self.assertEqual({name: before[name] for name in parameters}, {name: after[name] for name in parameters})
        adapters = {name for name in after if ".lora_" in name and ":" not in name}
        self.assertEqual(set(after) - parameters - adapters - {"step"}, {f"{kind}:{name}" for kind in ("first", "second") for name in adapters})
        self.assertTrue(any(any(after[name]) for name in adapters if ".lora_B." in name))
        self.assertGreater(len(run("generate", self.folder / "tuned", "--tokens", 5, "--json").json()["text"]), 0)
        result = run("train", "--resume", self.folder / "tuned", "--steps", 6, "--set", "lora=4")
        self.assert_fails(result, "is of another model", "lora: 2", "here 4")
        self.assertEqual(run("train", "--resume", self.folder / "tuned", "--steps", 6).code, 0)
        self.assert_fails(run(*self.train_arguments("back", 1, "--init", self.folder / "tuned")), 'lora_A.weight" is unknown to the model')

    def test_begins_as_the_base(self):
        """Until B is trained, the loss is the base's, whether its parameters lie whole or in pieces."""
        self.train("base", 3, "--mesh", "pipe=2,data=2", "--set", "zero=3")
        arguments = ["--init", self.folder / "base", "--set", "learning_rate=1e-9", "--json"]
        losses = [self.train(out, 1, *arguments, *flags).json()["loss"]
                  for out, flags in [("same", []), ("adapted", LORA), ("split", LORA + ["--mesh", "pipe=2,tensor=2"])]]  # fmt: skip
        self.assertAlmostEqual(losses[0], losses[1], delta=1e-6)
        self.assertAlmostEqual(losses[0], losses[2], delta=1e-5)

    def test_a_random_base_is_noted(self):
        note = "note: adapters alone are trained, and the parameters beside them are random: --init FILE takes a trained model's"
        self.assertNotIn(note, self.train("base", 1).err)
        self.assertIn(note, self.train("random", 1, *LORA).err)
        self.assertNotIn(note, self.train("tuned", 1, *LORA, "--init", self.folder / "base").err)
        self.assertNotIn(note, run("train", "--resume", self.folder / "random", "--steps", 2).err)

    def test_t5(self):
        """Under several schedules, on one device and over processes of a mesh, the adapters train alike, and the base stays."""
        t5 = ["--set", "model.name=t5", "--set", "width=16", "--set", "heads=2", "--set", "context=32", "--dtype", "f64",
              "--batch", 8, "--microbatches", 4, "--set", "validation_every=0"]  # fmt: skip

        def trained(name, *more):
            result = run("train", *t5, *more, "--steps", 3, "--out", self.folder / name, "--json")
            self.assertEqual(result.code, 0, result.err)
            return result.json()["loss"]

        trained("base", "--actors", 2)
        tuned = [*LORA, "--init", self.folder / "base", "--set", "lora_alpha=4"]
        one = trained("one", *tuned, "--actors", 1, "--schedule", "sequential")
        for name, *more in (("zb-h1", "--schedule", "zb-h1", "--actors", 4), ("mesh", "--mesh", "pipe=2,tensor=2"), ("shared", "--mesh", "pipe=2,data=2",
                            "--set", "zero=3")):  # fmt: skip
            self.assertAlmostEqual(trained(name, *tuned, *more), one, delta=1e-10, msg=name)
        before, after = ({name: value for file in (self.folder / out / "checkpoint-3").glob("*.safetensors") for name, value in read_tensors(file).items()}
                         for out in ("base", "one"))  # fmt: skip
        parameters = {name for name in before if not name.startswith(("first:", "second:")) and name != "step"}
        self.assertEqual({name: before[name] for name in parameters}, {name: after[name] for name in parameters})
        self.assertTrue(any(any(value) for name, value in after.items() if name.endswith(".SelfAttention.q.lora_B.weight") and ":" not in name))

    def test_another_base(self):
        self.train("base", 1)

        def fails(words, *flags, base="base"):
            self.assert_fails(run(*self.train_arguments("tuned", 1, *LORA, "--init", self.folder / base, *flags)), *words)

        hint = "hint: set the [model] table and train.dtype to those of the run"
        fails(['"h.4.attn.c_attn.weight" is missing', hint], "--set", "layers=6")
        fails(['"h.2.attn.c_attn.bias" is unknown to the model', hint], "--set", "layers=2")
        fails(['"wte.weight" is f32[256,32], the model\'s is f32[256,64]', hint], "--set", "width=64")
        fails(['"wte.weight" is f32[256,32], the model\'s is f64[256,32]', hint], "--dtype", "f64")
        (self.folder / "empty").mkdir()
        fails(["empty"], base="empty")

    def test_options(self):
        for setting, words in [
            ("lora=-1", 'option "lora", the adapters\' rank, is -1'),
            ("lora=1.5", 'option "lora", the adapters\' rank, is 1.5'),
            ("lora=33", 'option "lora" is 33, but the rank of "h.0.attn.c_attn.weight" is 32 at most'),
            ("lora_alpha=4", 'option "lora_alpha" is 4.0, but there are no adapters'),
            ("lora_to=mlp", 'option "lora_to" is "mlp", but there are no adapters'),
        ]:
            self.assert_fails(run("check", *SMALL, "--set", setting), words, "hint: ")


if __name__ == "__main__":
    unittest.main()
