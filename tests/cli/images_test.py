# SPDX-License-Identifier: Apache-2.0
"""Training on texts with images: every batch under a table of its own equals the padded batch; from files; resuming; what is refused."""

import json
import pathlib
import random
import unittest

from support import ProgramTest, run, sampled

MODEL = ["--set", "model.name=multimodal", "--set", "input=images", "--set", "model.layers=4", "--set", "vision_layers=4", "--set", "width=16",
         "--set", "heads=2", "--set", "model.context=48", "--set", "model.images=3", "--set", "image_size=8", "--batch", 8,
         "--microbatches", 4, "--dtype", "f64", "--chunks", 2, "--schedule", "interleaved-1f1b"]  # fmt: skip
PLANNED = ["--set", "batch.planner=dip", "--set", "batch.part=2"]


class Images(ProgramTest):
    def path(self, name):
        return pathlib.Path(self.folder) / name

    def write_image(self, name, size=8, magic=b"P6", most=b"255", bytes=None, seed=0):
        colours = 3 if magic == b"P6" else 1
        pixels = random.Random(seed).randbytes(size * size * colours if bytes is None else bytes)
        self.path(name).write_bytes(magic + b"\n# drawn\n%d %d\n" % (size, size) + most + b"\n" + pixels)

    def lines(self, lines, name="texts.jsonl"):
        self.path(name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return ["--set", f"data.documents={self.path(name)}", "--set", "data.validation=0"]

    def texts(self):
        """Texts with 0 to 3 images, in colours and grey."""
        generator = random.Random(3)
        for i in range(6):
            self.write_image(f"{i}.ppm", magic=b"P6" if i % 2 else b"P5", seed=i)
        return self.lines([{"images": [f"{generator.randrange(6)}.ppm" for _ in range(i % 4)], "text": "ab" + "cd " * generator.randrange(12)}
                           for i in range(24)])  # fmt: skip

    def train(self, out, *arguments, steps=4):
        result = run("train", *MODEL, *arguments, "--steps", steps, "--out", self.path(out))
        self.assertEqual(result.code, 0, result.err)
        return self.metrics(out)

    def metrics(self, out):
        return [json.loads(line) for line in (self.path(out) / "metrics.jsonl").read_text().splitlines()]

    def compare(self, found, expected, what):
        for a, b in zip(found, expected, strict=True):
            for key in ("loss", "gradient_norm"):
                self.assertLess(abs(a[key] - b[key]), 1e-9 * abs(b[key]), f"{what}, step {b['step']}: {key}")

    def test_equals_the_padded_batches(self):
        for kind, data in (("drawn", []), ("files", self.texts())):
            padded = self.train(f"{kind}-padded", *data, "--actors", 1)
            plans = ((1, []), (2, []), (4, ["--set", "batch.live=8"]), (2, ["--recompute", "inputs"]),
                     (2, ["--schedule", "zb-v"]), (4, ["--schedule", "zb-v"]))  # fmt: skip
            for case, (actors, more) in sampled(enumerate(plans), 2):
                planned = self.train(f"{kind}-{case}", *data, *PLANNED, "--actors", actors, *more)
                self.compare(planned, padded, f"{kind}, {actors} actors {more}")
                self.assertTrue(all(line["planning_seconds"] > 0 for line in planned))
            self.compare(self.train(f"{kind}-shapes", *data, "--set", "batch.planner=shapes"), padded, "shapes")

    def test_devices_that_share_micro_batches(self):
        """Some devices have texts with fewer images than others of the micro-batch, or with none."""
        data = self.texts()
        padded = self.train("padded", *data, "--actors", 1)
        cases = (("pipe=1,data=2",), ("pipe=2,data=2",), ("pipe=2,data=2", "--schedule", "zb-v"), ("pipe=2,data=2", "--set", "zero=1"),
                 ("pipe=2,data=2", "--set", "zero=3"), ("pipe=2,data=2", "--recompute", "inputs"), ("pipe=1,data=4",))  # fmt: skip
        for mesh, *more in sampled(cases, 2):
            planned = self.train("-".join([mesh, *more]), *data, *PLANNED, "--mesh", mesh, "--microbatches", 2, *more)
            self.compare(planned, padded, f"{mesh} {more}")
        split = (("pipe=2,tensor=2",), ("pipe=2,context=2",), ("pipe=1,context=2,tensor=2",), ("pipe=1,tensor=2", "--schedule", "zb-v"),
                 ("pipe=1,data=2,tensor=2", "--set", "zero=1"), ("pipe=1,data=2,context=2",), ("pipe=1,data=2,tensor=2", "--set", "zero=3"),
                 ("pipe=2,tensor=2", "--set", "layout.sequence=tensor"), ("pipe=2,tensor=2", "--recompute", "selective"))  # fmt: skip
        for mesh, *more in sampled(split, 1):
            planned = self.train("-".join([mesh, *more]), *data, *PLANNED, "--mesh", mesh, "--microbatches", 2, *more)
            self.compare(planned, padded, f"{mesh} {more}")
        shapes = self.train("shapes", *data, "--set", "batch.planner=shapes", "--mesh", "pipe=2,data=2", "--microbatches", 2)
        self.compare(shapes, padded, "shapes")

    def test_several_segments(self):
        """The text's stages go over the actors twice."""
        padded = self.train("padded", "--actors", 1)
        planned = self.train("planned", *PLANNED, "--actors", 2, "--chunks", 3, "--set", "vision_stages=2")
        self.compare(planned, padded, "two rounds of the text")

    def test_learns(self):
        lines = self.train("learns", *PLANNED, "--dtype", "f32", "--set", "learning_rate=0.01", steps=60)
        self.assertLess(lines[-1]["loss"], 0.6 * lines[0]["loss"])

    def test_resumes(self):
        planned = [*PLANNED, "--schedule", "zb-v"]
        whole = self.train("whole", *planned, steps=6)
        self.train("part", *planned, "--set", "decay_end=6", steps=3)
        result = run("train", "--resume", self.path("part"), "--steps", 6)
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual([line["loss"] for line in self.metrics("part")], [line["loss"] for line in whole])

    def test_processes(self):
        threads = self.train("threads", *PLANNED)
        result = run("launch", "-n", 2, "--", "train", *MODEL, *PLANNED, "--backend", "gloo", "--steps", 4, "--out", self.path("gloo"))
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual([line["loss"] for line in self.metrics("gloo")], [line["loss"] for line in threads])

    def test_layers_computed_again(self):
        """Under a limit of bytes parts wait, or layers of some of them are computed again: the batches stay the same."""
        larger = ["--set", "model.layers=8", "--set", "vision_layers=8"]
        padded = self.train("padded", *larger, "--actors", 1)

        def planned(name, *arguments):
            return self.train(name, *PLANNED, *larger, *arguments)

        def peak(lines):
            return max(max(line["peak_bytes"]) for line in lines)

        free = planned("free")
        most = peak(free)
        less = ["--set", f"batch.memory_limit={int(0.6 * most)}", "--set", "batch.recompute=inputs"]
        runs = {"waits": (0.8, planned("waits", "--set", f"batch.memory_limit={int(0.8 * most)}")),
                "again": (0.6, planned("again", *less)),
                "split": (0.9, planned("split", "--set", f"batch.memory_limit={int(0.9 * most)}", "--set", "batch.recompute=inputs",
                                       "--schedule", "zb-v"))}  # fmt: skip
        self.compare(free, padded, "free")
        for name, (share, lines) in runs.items():
            self.compare(lines, padded, name)
            self.assertLessEqual(peak(lines), 1.05 * share * most, name)
        again = runs["again"][1]
        self.assertGreater(sum(line.get("layers_again", 0) for line in again), 0)
        self.assertFalse(any("layers_again" in line for line in free + runs["waits"][1]))
        self.assertRegex(self.refusal(*PLANNED, *larger, *less[:2]),
                         'no table keeps a room of .* on a rank\n.*\n  hint: give more room: a higher batch.memory_limit, or batch.recompute = "inputs"')
        result = run("launch", "-n", 2, "--", "train", *MODEL, *PLANNED, *larger, *less, "--backend", "gloo", "--steps", 4,
                     "--out", self.path("gloo"))  # fmt: skip
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual([line["loss"] for line in self.metrics("gloo")], [line["loss"] for line in again])

    def test_texts_without_images(self):
        data = self.lines([{"text": f"only text {i}"} for i in range(16)])
        planned = self.train("planned", *data, *PLANNED)
        padded = self.train("padded", *data, "--actors", 1)
        self.compare(planned, padded, "no images at all")
        shared = self.train("shared", *data, *PLANNED, "--mesh", "pipe=2,data=2", "--set", "zero=1")
        self.compare(shared, padded, "no images at all, two devices for each actor")

    def test_check(self):
        for arguments in ([], PLANNED, [*self.texts(), *PLANNED], [*PLANNED, "--mesh", "pipe=2,data=2", "--microbatches", 2]):
            result = run("check", *MODEL, "--actors", 2, *arguments)
            self.assertEqual(result.code, 0, result.err)

    def refusal(self, *arguments):
        result = run("train", *MODEL, "--steps", 1, "--out", self.path("refused"), *arguments)
        self.assertEqual(result.code, 1, result.out)
        return result.err.replace(f"{self.folder}/", "")

    def refused_line(self, line):
        good = [{"images": [], "text": "good"}] * 3
        return self.refusal(*self.lines([*good, line]))

    def test_refused_files(self):
        self.write_image("large.ppm", size=16)
        self.write_image("short.ppm", bytes=100)
        self.write_image("deep.ppm", most=b"65535", bytes=400)
        self.write_image("good.ppm")
        self.path("none.ppm").write_text("GIF89a")
        self.assertIn("error: texts.jsonl:4: large.ppm is an image of 16 x 16; the model reads 8 x 8\n"
                      "  hint: scale it, or set model.image_size: convert IMAGE -resize 8x8! FILE.ppm",
                      self.refused_line({"images": ["good.ppm", "large.ppm"], "text": "large"}))  # fmt: skip
        self.assertIn("error: texts.jsonl:4: short.ppm ends early: it has 100 bytes of pixels, and 8 x 8 in colours take 192",
                      self.refused_line({"images": ["short.ppm"], "text": "short"}))  # fmt: skip
        self.assertIn("error: texts.jsonl:4: deep.ppm has values up to 65535", self.refused_line({"images": ["deep.ppm"], "text": "deep"}))
        self.assertIn("error: texts.jsonl:4: none.ppm is no image that is read here\n"
                      "  hint: use binary PPM (P6) or PGM (P5): convert IMAGE -depth 8 FILE.ppm",
                      self.refused_line({"images": ["none.ppm"], "text": "none"}))  # fmt: skip
        missing = self.refused_line({"images": ["missing.ppm"], "text": "missing"})
        self.assertIn("error: texts.jsonl:4: ", missing)
        self.assertIn("missing.ppm: No such file or directory", missing)
        self.assertIn("texts.jsonl:4: images has 4 images; the model takes at most 3",
                      self.refused_line({"images": ["good.ppm"] * 4, "text": "many"}))  # fmt: skip
        self.assertIn("texts.jsonl:4: text is too short", self.refused_line({"images": ["good.ppm"], "text": "a"}))
        self.assertIn('texts.jsonl:4 has no key "images", but "image"\n  hint: did you mean "images"?', self.refused_line({"image": "good.ppm", "text": "key"}))
        self.assertIn("there are fewer texts with images than one batch takes: 4 in texts.jsonl",
                      self.refused_line({"images": ["good.ppm"], "text": "few"}))  # fmt: skip

    def test_refused(self):
        self.assertIn('batch.planner = "dip" plans texts with images; model "multimodal" reads none',
                      self.refusal(*PLANNED, "--set", "input=stretches", "--set", "branches=3"))  # fmt: skip
        self.assertIn('batch.planner = "dynapipe" cuts batches of sequences with lengths of their own',
                      self.refusal("--set", "batch.planner=dynapipe", "--chunks", 1, "--schedule", "1f1b"))  # fmt: skip
        self.assertIn('batch.planner = "dip" spreads the encoder and the text each over all 2 actors; they have 1 and 1 stages',
                      self.refusal(*PLANNED, "--chunks", 1, "--schedule", "1f1b"))  # fmt: skip
        table = self.path("halves.csv")
        table.write_text("0F0,1F0,1B0,0B0\n2F0,3F0,3B0,2B0\n")
        self.assertIn('batch.planner = "dip" pads rows, and batch.rows is "ragged"', self.refusal(*PLANNED, "--set", "batch.rows=ragged"))
        costs = self.path("costs.json")
        self.assert_fails(run("profile", *MODEL, *PLANNED, "--out", costs), 'batch.planner = "dip" plans no batches of sequences', "leave out batch.planner")
        self.assertIn('batch.planner = "dip": the stages of schedule', self.refusal(*PLANNED, "--schedule", table, "--microbatches", 1))
        self.assertIn('batch.planner = "dip" makes each part of images stages of its own, and [layout.text.0] is for one stage',
                      self.refusal(*PLANNED, "--mesh", "pipe=2,tensor=2", "--set", "layout.text.0.heads="))  # fmt: skip
        self.assertIn('batch.planner = "dip" with pipeline.zero = 1, and texts split over context: what devices share of a sum would depend',
                      self.refusal(*PLANNED, "--mesh", "pipe=1,data=2,context=2", "--microbatches", 2, "--set", "zero=1"))  # fmt: skip
        self.assertIn("reads texts with images, but data.text names", self.refusal("--text", self.text))
        self.assertIn("images of 9 x 9 are not cut evenly into patches of 4 x 4", self.refusal("--set", "image_size=9"))
        self.assertIn("context 3 has no room for a text behind 3 images of 1 tokens", self.refusal("--set", "model.context=3"))
        self.assertIn("do not make 3 tokens of equally many patches", self.refusal("--set", "image_tokens=3"))
        self.assertIn('with 1 layer of vision and 4 of text cannot be cut into 2 and 2 stages', self.refusal("--set", "vision_layers=1"))
        self.assertIn('batch.planner = "dip" counts no tokens, and batch.memory is one of tokens', self.refusal(*PLANNED, "--set", "batch.memory=64"))
        self.assertIn('batch.planner = "shapes" keeps no limit of memory',
                      self.refusal("--set", "batch.planner=shapes", "--set", "batch.memory_limit=1000000"))  # fmt: skip
        self.assertIn("no table keeps a room of", self.refusal(*PLANNED, "--set", "batch.memory_limit=200000"))
        self.assertIn("every order tried stalls: a rank may hold 1 segments",
                      self.refusal(*PLANNED, "--set", "batch.live=1"))  # fmt: skip


if __name__ == "__main__":
    unittest.main()
