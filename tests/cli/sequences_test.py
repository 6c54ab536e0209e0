"""Training on sequences with lengths of their own: every batch as a program of its own equals the padded batch; resuming; what is refused."""

import json
import pathlib
import random
import unittest

from support import ProgramTest, run

MODEL = ["--set", "model.layers=4", "--set", "model.width=16", "--set", "model.heads=2", "--set", "model.context=64", "--batch", 8,
         "--microbatches", 4, "--dtype", "f64"]  # fmt: skip
PLANNED = ["--set", "batch.planner=dynapipe"]


class Sequences(ProgramTest):
    def documents(self, count=40, seed=5):
        """A .jsonl file of texts of 2 to 150 bytes, every third of them an input and a target."""
        generator = random.Random(seed)
        lines = []
        for i in range(count):
            text = "".join(generator.choice("abcdefgh ") for _ in range(generator.randint(2, 150)))
            lines.append({"text": text} if i % 3 else {"input": text[:5], "target": text[5:] + "."})
        file = pathlib.Path(self.folder) / f"{seed}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return ["--set", f"data.documents={file}", "--set", "data.validation=0"]

    def train(self, out, *arguments, steps=6):
        folder = pathlib.Path(self.folder) / out
        result = run("train", *MODEL, *arguments, "--steps", steps, "--out", folder)
        self.assertEqual(result.code, 0, result.err)
        return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

    def test_equals_the_padded_batches(self):
        documents = self.documents()
        padded = self.train("padded", *documents, "--actors", 1, "--schedule", "sequential", "--set", "dropout=0.1")
        for actors, more in ((1, []), (2, []), (4, ["--set", "batch.memory=128"]), (2, ["--recompute", "inputs"])):
            planned = self.train(f"planned-{actors}-{len(more)}", *documents, *PLANNED, "--actors", actors, "--set", "dropout=0.1", *more)
            for a, b in zip(planned, padded, strict=True):
                for key in ("loss", "gradient_norm"):
                    self.assertLess(abs(a[key] - b[key]), 1e-9 * abs(b[key]), f"{actors} actors, step {b['step']}: {key}")
            self.assertTrue(all(line["planning_seconds"] > 0 for line in planned))
        self.assertNotIn("planning_seconds", padded[0])

    def test_resumes(self):
        documents = self.documents(seed=6)
        whole = self.train("whole", *documents, *PLANNED)
        self.train("part", *documents, *PLANNED, "--set", "decay_end=6", steps=3)
        folder = pathlib.Path(self.folder) / "part"
        result = run("train", "--resume", folder, "--steps", 6)
        self.assertEqual(result.code, 0, result.err)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["loss"] for line in lines], [line["loss"] for line in whole])

    def test_processes(self):
        documents = self.documents(seed=7)
        threads = self.train("threads", *documents, *PLANNED)
        folder = pathlib.Path(self.folder) / "gloo"
        result = run("launch", "-n", 2, "--", "train", *MODEL, *documents, *PLANNED, "--backend", "gloo", "--steps", 6, "--out", folder)
        self.assertEqual(result.code, 0, result.err)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["loss"] for line in lines], [line["loss"] for line in threads])

    def refusal(self, *arguments):
        result = run("train", *MODEL, "--steps", 1, "--out", pathlib.Path(self.folder) / "refused", *arguments)
        self.assertEqual(result.code, 1, result.out)
        return result.err

    def test_refused(self):
        documents = self.documents()
        self.assertIn('batch.planner = "dynapipe" cuts batches of sequences with lengths of their own', self.refusal(*PLANNED))
        self.assertIn("plans one stage for each actor; schedule interleaved-1f1b has 4 for 2",
                      self.refusal(*documents, *PLANNED, "--schedule", "interleaved-1f1b", "--chunks", 2))  # fmt: skip
        self.assertIn("micro-batches of different shapes: each actor is one device",
                      self.refusal(*documents, *PLANNED, "--mesh", "pipe=2,tensor=2"))  # fmt: skip
        self.assertIn("fits into no micro-batch", self.refusal(*documents, *PLANNED, "--set", "batch.memory=8"))
        self.assertIn("there are fewer sequences than one batch takes", self.refusal(*self.documents(count=3, seed=8)))
        self.assertIn("both data.text and data.documents", self.refusal(*documents, "--set", "data.text=README.md"))
        bad = pathlib.Path(self.folder) / "bad.jsonl"
        bad.write_text('{"text": "abc"}\n{"txt": "abc"}\n')
        self.assertIn('bad.jsonl:2 has an unknown key "txt"', self.refusal("--set", f"data.documents={bad}"))


if __name__ == "__main__":
    unittest.main()
