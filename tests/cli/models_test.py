# SPDX-License-Identifier: Apache-2.0
"""Every model trains: real text where it reads text, synthetic data otherwise, and says which."""

import json
import os
import unittest

from support import ProgramTest, run

# Sizes that train a step in milliseconds, and how far the loss must fall.
MODELS = {
    "candle-uno": (["branches=3", "layers=2", "width=16", "learning_rate=0.01", "weight_decay=0"], 0.5),
    "dlrm": (["branches=3", "layers=2", "width=16", "rows=10", "learning_rate=0.01", "weight_decay=0"], 0.8),
    "moe": (["layers=2", "width=32", "heads=2", "context=32"], 0.8),
    "multimodal": (["branches=3", "layers=1", "context=32"], 0.8),
    "resnet": (["width=4", "classes=4", "learning_rate=0.01"], 0.5),
    "t5": (["layers=1", "width=32", "heads=2", "context=32"], 0.8),
    "vgg": (["width=4", "classes=4"], 0.5),
}
TEXT_MODELS = ["moe", "multimodal", "t5"]
GENERATING_MODELS = ["moe"]


class Models(ProgramTest):
    def train_model(self, name, steps):
        settings = [f"model.name={name}", *MODELS[name][0], f"steps={steps}", "validation_every=0", "batch=32", "microbatches=4"]
        arguments = [argument for setting in settings for argument in ["--set", setting]]
        text = ["--text", self.text] if name in TEXT_MODELS else []
        return run("train", *arguments, *text, "--actors", 2, "--out", self.folder / name)

    def losses(self, name):
        return [json.loads(line)["loss"] for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]

    def test_the_loss_falls(self):
        for name, (_, share) in MODELS.items():
            with self.subTest(name):
                result = self.train_model(name, 80)
                self.assertEqual(result.code, 0, result.err)
                curve = self.losses(name)
                self.assertLess(sum(curve[-10:]), share * sum(curve[:10]))
                self.assertEqual("A sample:" in result.out or "no sample: at a loss of" in result.err, name in GENERATING_MODELS)
                for part in ["tokens/s", " of text in "] if name in TEXT_MODELS else ["samples/s", "synthetic data (seed 0)"]:
                    self.assertIn(part, result.err)

    def test_generate_needs_a_model_that_continues_text(self):
        self.train_model("candle-uno", 1)
        self.assert_fails(run("generate", self.folder / "candle-uno"), "this model does not continue a text")

    def test_a_model_without_logits_trains(self):
        """The sample at the end is left out."""
        arguments = ["train", "--set", "model.name=bigram", "--actors", 1, "--schedule", "sequential", "--text", self.text]
        result = run(*arguments, "--batch", 8, "--steps", 2, "--out", self.folder / "bigram", program=os.environ["LEAST_MODEL"])
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("no sample: this model does not continue a text", result.err)
        self.assertNotIn("A sample:", result.out)

    def test_text_is_refused_where_none_is_read(self):
        self.assert_fails(run("train", "--set", "model.name=dlrm", "--text", __file__), 'model "dlrm" reads no text')


if __name__ == "__main__":
    unittest.main()
