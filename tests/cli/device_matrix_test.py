# SPDX-License-Identifier: Apache-2.0
"""On the stand-in: every schedule, schedules with each axis of the mesh and level of ZeRO, windows, batches with programs of their own, and what
else a step may have. Each is the sequential step, or the same run on the CPU."""

import json
import random
import unittest

from support import SMALL, ProgramTest, run, sampled

FLAGS = {
    **dict.fromkeys(("breadth-first", "interleaved-1f1b", "interleaved-zb", "zeropp", "zb-v", "v-half", "v-min", "dualpipe-v", "dualpipe-v-jaxpp",
                     "bitpipe", "hanayo", "helixpipe"), ["--chunks", "2"]),
    **dict.fromkeys(("terapipe", "seq1f1b", "slimpipe"), ["--slices", "4"]),
    "slimpipe-exchange": ["--chunks", "2", "--slices", "4"],
    "bidirectional": ["--chunks", "2", "--frozen", "0.5,0.5", "--set", "model.name=latent_diffusion", "--set", "backbones=2"],
    **dict.fromkeys(("pipedream", "pipedream-2bw", "hetpipe", "layerpipe", "xpipe", "pipeoptim"), ["--window", "3", "--set", "tied=0", "clip=0"]),
    "nestpipe": ["--window", "2"],
}
AXES = [["--mesh", "pipe=2,data=2"], ["--mesh", "pipe=2,tensor=2"], ["--mesh", "pipe=2,context=2"],
        *(["--mesh", "pipe=2,data=2", "--set", f"zero={level}"] for level in (1, 2, 3))]
ON_AXES = ["1f1b", "zb-h1", "interleaved-1f1b", "zb-v", "dualpipe-v", "zeropp", "helixpipe", "slimpipe-exchange"]

DIFFUSION = ["--set", "model.name=latent_diffusion", "--batch", "32", "--microbatches", "4"]
OTHERS = {
    "LoRA": [*SMALL, "--set", "lora=2"],
    "diffusion": [*DIFFUSION, "--window", "3", "--set", "clip=0", "--frozen", "0.5,0.5"],
    "self-conditioning": [*DIFFUSION, "--window", "3", "--set", "clip=0", "--frozen", "0.5,0.5", "--set", "self_conditioning=0.5"],
    "lookups ahead": ["--set", "model.name=dlrm", "--set", "rows=40", "--batch", "16", "--microbatches", "4", "--schedule", "nestpipe", "--window", "3",
                      "--set", "pipeline.prefetch=true", "--set", "optimiser=sgd", "momentum=0", "weight_decay=0", "clip=0"],
    "lazy rows ahead": ["--set", "model.name=dlrm", "--set", "rows=40", "--batch", "16", "--microbatches", "4", "--schedule", "nestpipe", "--window", "3",
                        "--set", "pipeline.prefetch=true", "--set", "train.lazy_rows=true", "clip=0"],
}
TEXTS = ["--set", "model.layers=4", "--set", "model.width=16", "--set", "model.heads=2", "--set", "model.context=64", "--batch", "8",
         "--microbatches", "4"]
IMAGES = ["--set", "model.name=multimodal", "--set", "input=images", "--set", "model.layers=4", "--set", "vision_layers=4", "--set", "width=16",
          "--set", "heads=2", "--set", "model.context=48", "--set", "model.images=3", "--set", "image_size=8", "--batch", "8", "--microbatches", "4",
          "--chunks", "2", "--schedule", "interleaved-1f1b"]
BATCHES = {
    "dynapipe": TEXTS,
    "balanced": [*TEXTS, "--schedule", "zb-h1"],
    "infinipipe": [*TEXTS, "--set", "batch.round=8", "--set", "batch.fixed=0"],
    "infinipipe with layers again": [*TEXTS, "--set", "model.layers=8", "--set", "batch.round=8", "--set", "batch.fixed=0", "--set", "batch.memory=72", "--set",
                                     "batch.recompute=inputs"],
    "terapipe": [*TEXTS, "--set", "batch.round=8", "--set", "batch.fixed=0.05", "--set", "batch.linear=1e3", "--set", "batch.quadratic=1e4"],
    "flexsp": [*TEXTS, "--set", "batch.round=8", "--mesh", "pipe=1,context=2"],
    "flexsp beside tensor": [*TEXTS, "--set", "model.heads=4", "--set", "batch.round=8", "--mesh", "pipe=1,context=2,tensor=2"],
    "dip": [*IMAGES, "--set", "batch.part=2"],
    "dip beside tensor": [*IMAGES, "--set", "batch.part=2", "--mesh", "pipe=2,tensor=2"],
}


class DeviceMatrix(ProgramTest):
    def check(self, schedule, more=()):
        """In f64, in which the stand-in's operators are the CPU's."""
        given = FLAGS.get(schedule, [])
        model = DIFFUSION if "--frozen" in given else [*SMALL, "--text", self.text]
        result = run("check", *model, "--dtype", "f64", "--device", "standin", "--schedule", schedule, *given, *more, "--json")
        self.assertEqual(result.code, 0, result.err)
        self.assertTrue(result.json()["equal"])

    def test_every_schedule(self):
        names = [line.split()[0] for line in run("schedule", "list").out.splitlines()]
        self.assertLessEqual(set(FLAGS), set(names))
        for name in sampled(names, 5):
            with self.subTest(name):
                self.check(name)

    def test_axes_and_sharding(self):
        two_stacks = [("helixpipe", [*axes, "--chunks", "3", "--set", "model.name=t5", "layers=2", "qkv_in_attention=1"]) for axes in AXES]
        for name, axes in sampled([(name, axes) for name in ON_AXES for axes in AXES] + two_stacks, 4):
            with self.subTest(name, axes=axes):
                self.check(name, axes)

    def losses(self, name, device, arguments):
        folder = self.folder / f"{name} {device}"
        run_there = ["--dtype", "f64", "--device", device, "--steps", 6, "--set", "validation_every=0", "--out", folder]
        result = run("train", *arguments, *run_there, "--json")  # without a sample of text, which the stand-in takes long to generate
        self.assertEqual(result.code, 0, result.err)
        return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]

    def assert_same_run(self, name, arguments):
        ours, theirs = (self.losses(name, device, arguments) for device in ("standin", "cpu"))
        for ours, theirs in zip(ours, theirs, strict=True):
            self.assertLess(abs(ours - theirs), 1e-9 * abs(theirs))

    def test_what_else_a_step_has(self):
        for name, arguments in OTHERS.items():
            with self.subTest(name):
                self.assert_same_run(name, arguments)

    def test_batches_with_programs_of_their_own(self):
        generator = random.Random(5)
        lines = [{"text": "".join(generator.choice("abcdefgh ") for _ in range(generator.randint(2, 150)))} for _ in range(40)]
        documents = self.folder / "documents.jsonl"
        documents.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for name, arguments in sampled(BATCHES.items(), 2):
            planner = name.split()[0]
            with self.subTest(name):
                data = [] if planner == "dip" else ["--set", f"data.documents={documents}", "--set", "data.validation=0"]
                self.assert_same_run(name, [*arguments, *data, "--set", f"batch.planner={planner}"])


if __name__ == "__main__":
    unittest.main()
