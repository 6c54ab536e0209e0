# SPDX-License-Identifier: Apache-2.0
"""A latent diffusion model trains with frozen encoders, and makes pictures of its classes."""

import json
import random
import struct
import unittest
import zlib

from support import ProgramTest, read_metrics, read_state, run, sampled

SMALL = ["--set", "model.name=latent_diffusion", "--set", "validation_every=0", "--batch", "32", "--microbatches", "4", "--lr", "0.003"]
TINY = [*SMALL, "--set", "width=16", "--set", "text_width=8", "--set", "heads=2", "--set", "image=16", "--set", "patch=4"]
FROZEN = ("text.", "image.")


def read_png(path):
    """Width, height and the rows' bytes of a PNG of colours whose rows are not filtered."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(content):
        (length,) = struct.unpack_from(">I", content, at)
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", content, at + 8 + length)[0] == zlib.crc32(kind + data)
        chunks[kind] = data
        at += 12 + length
    width, height, depth, colours = struct.unpack_from(">IIBB", chunks[b"IHDR"])
    assert (depth, colours) == (8, 2)
    rows = zlib.decompress(chunks[b"IDAT"])
    stride = 3 * width + 1
    assert len(rows) == stride * height
    return width, height, [rows[y * stride + 1 : (y + 1) * stride] for y in range(height)]


def pixels(path):
    return [value for row in read_png(path)[2] for value in row]


def correlation(a, b):
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    shared = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b))
    return shared / (sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)) ** 0.5


class Diffusion(ProgramTest):
    def train_model(self, name, steps, *arguments):
        result = run("train", *arguments, "--steps", steps, "--out", self.folder / name)
        self.assertEqual(result.code, 0, result.err)
        return result

    def draw(self, name, label, *arguments):
        out = self.folder / f"{name}-{label}.png"
        result = run("generate", self.folder / name, "--class", label, "--out", out, *arguments)
        self.assertEqual(result.code, 0, result.err)
        return out

    def patterns(self):
        """The mean image of each class, by its elements: colours, then rows from the top."""
        self.assertEqual(run("check", *SMALL, "--dtype", "f64", "--batch", 64, "--dump", self.folder / "dump").code, 0)
        content = (self.folder / "dump/batch.safetensors").read_bytes()
        (length,) = struct.unpack_from("<Q", content)
        header = json.loads(content[8 : 8 + length])

        def values(name, code):
            begin, end = header[name]["data_offsets"]
            return struct.unpack(f"<{(end - begin) // 8}{code}", content[8 + length + begin : 8 + length + end])

        labels, images = values("label", "q"), values("image", "d")
        size = len(images) // len(labels)
        out = []
        for label in range(4):
            samples = [images[i * size : (i + 1) * size] for i, each in enumerate(labels) if each == label]
            out.append([sum(place) / len(samples) for place in zip(*samples)])
        return out

    def test_the_loss_falls_and_pictures_show_their_class(self):
        self.train_model("run", 400, *SMALL, "--actors", 2, "--schedule", "1f1b")
        losses = [read_metrics(self.folder / "run")[step]["loss"] for step in range(1, 401)]
        self.assertLess(sum(losses[-20:]), 0.65 * sum(losses[:20]))
        # A picture has the colours of each pixel together, an image has planes of them.
        of_planes = [[row[3 * x + colour] for colour in range(3) for y in range(32) for x in range(32) for row in [rows[y]]]
                     for rows in (read_png(self.draw("run", label))[2] for label in range(4))]  # fmt: skip
        patterns = self.patterns()
        for label, picture in enumerate(of_planes):
            found = [correlation(picture, pattern) for pattern in patterns]
            self.assertEqual(found.index(max(found)), label, found)
            self.assertGreater(found[label], 0.6)

    def test_frozen_parameters_stay(self):
        for schedule, actors in [("1f1b", 2), ("zb-h1", 3), ("gpipe", 2)]:
            self.train_model(schedule, 3, *TINY, "--schedule", schedule, "--actors", actors, "--set", "checkpoint_every=1", "--set", "keep=9")
            first, last = (read_state(self.folder / schedule / f"checkpoint-{step}") for step in (1, 3))
            frozen = [name for name in first if name.startswith(FROZEN)]
            self.assertIn("text.layer.1.attn.qkv.weight", frozen)
            self.assertIn("image.reflection.0", frozen)
            for name in frozen:
                self.assertEqual(first[name], last[name], name)
            self.assertNotEqual(first["layer.0.up.weight"], last["layer.0.up.weight"])
            moments = [name for name in last if name.startswith(("first:", "second:"))]
            self.assertIn("first:layer.0.up.weight", moments)
            self.assertFalse([name for name in moments if name.split(":")[1].startswith(FROZEN)])

    def test_each_schedule_trains_the_same(self):
        def losses(name, *arguments):
            self.train_model(name, 3, *TINY, "--set", "dtype=f64", *arguments)
            return [line["loss"] for line in read_metrics(self.folder / name).values()]

        alone = losses("alone", "--schedule", "sequential", "--actors", 1)
        plans = [("1f1b", 2, 1), ("zb-h1", 4, 1), ("interleaved-1f1b", 2, 2), ("zb-v", 2, 2), ("zeropp", 2, 2),
                 ("1f1b", 2, 1, "--set", "pipeline.update=stage")]  # fmt: skip
        for schedule, actors, chunks, *more in sampled(plans, 2):
            with self.subTest(schedule):
                found = losses(schedule + "-".join(more).replace("=", "-"), "--schedule", schedule, "--actors", actors, "--chunks", chunks, *more)
                for one, other in zip(alone, found):
                    self.assertAlmostEqual(one, other, delta=1e-10 * abs(one))

    def test_frozen_forwards_fill_the_step_before(self):
        common = [*TINY, "--set", "dtype=f64", "--set", "clip=0", "--set", "checkpoint_every=3", "--set", "keep=9", "--actors", "2"]
        filled = [*common, "--frozen", "0.5,1.5", "--window", "3"]
        # The same learning rate in all runs, whatever their steps.
        filled, common = ([*each, "--set", "decay_end=6"] for each in (filled, common))

        def losses(name, *arguments, steps=6):
            self.train_model(name, steps, *arguments)
            return [line["loss"] for line in read_metrics(self.folder / name).values()]

        expected = losses("ahead", *common, "--frozen", "0.5,1.5")
        for name, arguments in {"filled": [], "zb-h1": ["--schedule", "zb-h1"], "all": ["--window", "6"]}.items():
            with self.subTest(name):
                for one, other in zip(expected, losses(name, *filled, *arguments)):
                    self.assertAlmostEqual(one, other, delta=1e-10)
        losses("half", *filled, steps=3)
        result = run("train", "--resume", self.folder / "half", "--steps", 6)
        self.assertEqual(result.code, 0, result.err)
        for run_folder in ("filled", "half"):
            self.assertEqual(read_state(self.folder / run_folder / "checkpoint-6"), read_state(self.folder / "filled/checkpoint-6"))
        result = run("launch", "-n", 2, "--", "train", *filled, "--backend", "gloo", "--steps", 6, "--out", self.folder / "gloo")
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(read_state(self.folder / "gloo/checkpoint-6"), read_state(self.folder / "filled/checkpoint-6"))
        self.assertEqual(run("check", *filled).code, 0)

    def test_filling_is_predicted(self):
        def predicted(*arguments):
            figures = ("--device", "v100", "--network", "nvlink2")
            (self.folder / "a.toml").write_text('[model]\nname = "latent_diffusion"\n[train]\nclip = 0\nbatch = 32\n')
            result = run("simulate", self.folder / "a.toml", *figures, "--set", "microbatches=4", *arguments, "--json")
            self.assertEqual(result.code, 0, result.err)
            return result.json()["makespan"]

        # A step whose frozen forwards stand in the one before takes less than with all of them ahead, and more than on more actors.
        frozen = ("--frozen", "0.3,0.3")
        ahead, filled, alone = predicted(*frozen), predicted(*frozen, "--window", 4) / 4, predicted(*frozen, "--actors", 1)
        self.assertLess(filled, ahead)
        self.assertGreater(filled, 0.5 * ahead)
        self.assertLess(ahead, alone)

    def test_cuts_are_planned(self):
        tiny = [value for value in TINY if value not in ("--batch", "--microbatches", "--lr", "32", "4", "0.003")]
        common = [*tiny, "--set", "batch=32", "--set", "microbatches=4", "--set", "clip=0", "--devices", 2, "--bandwidth", 1e10]
        out = self.folder / "planned.toml"
        result = run("plan", "latent_diffusion", *common, "--set", "window=3", "--planner", "diffusionpipe", "--out", out, "--json")
        self.assertEqual(result.code, 0, result.err)
        planned = result.json()["configurations"]
        self.assertEqual(len(planned), 6)
        cuts = run("plan", "latent_diffusion", *common, "--set", "window=3", "--vary", "frozen_stages=1,2,3",
                   "--vary", "stage_layers=1+3,2+2,3+1", "--vary", "frozen=planned", "--json").json()["configurations"]  # fmt: skip
        self.assertEqual(len(cuts), 9)
        self.assertAlmostEqual(planned[0]["predicted_time"], cuts[0]["predicted_time"])
        result = run("train", out, "--steps", 3, "--out", self.folder / "planned")
        self.assertEqual(result.code, 0, result.err)
        self.assert_fails(run("plan", "latent_diffusion", *common, "--planner", "diffusionpipe"), "pipeline.window is 1", "--set pipeline.window")
        self.assert_fails(run("plan", "gpt", "--devices", 2, "--bandwidth", 1, "--set", "window=2", "--set", "clip=0", "--set", "schedule=nestpipe",
                              "--planner", "diffusionpipe"), "no frozen stages", "latent_diffusion")  # fmt: skip
        self.assert_fails(run("plan", "latent_diffusion", *common, "--planner", "diffusionpipe", "--vary", "window=2"), "says itself what it varies")

    def write_images(self, name, count, classes=4, size=16):
        """CIFAR-10's binary format: a class, and three planes. Gives the flag, and each class's pattern, under the noise that all images have."""
        generator, values = random.Random(1), 3 * size * size
        patches = [[generator.gauss(0, 40) for _ in range(48)] for _ in range(classes)]
        patterns = [[patches[label][place * 48 // values] for place in range(values)] for label in range(classes)]
        out = bytearray()
        for i in range(count):
            out.append(i % classes)
            out.extend(min(255, max(0, int(127 + value + generator.gauss(0, 40)))) for value in patterns[i % classes])
        (self.folder / name).write_bytes(out)
        return ["--set", f"data.documents={self.folder / name}"], patterns

    def test_images_of_files(self):
        images, patterns = self.write_images("large.bin", 256, size=32)
        self.train_model("run", 400, *SMALL, *images, "--actors", 2, "--schedule", "1f1b")
        losses = [read_metrics(self.folder / "run")[step]["loss"] for step in range(1, 401)]
        self.assertLess(sum(losses[-20:]), 0.75 * sum(losses[:20]))
        for label in range(4):
            rows = read_png(self.draw("run", label))[2]
            picture = [row[3 * x + colour] for colour in range(3) for row in rows for x in range(32)]
            found = [correlation(picture, pattern) for pattern in patterns]
            self.assertEqual(found.index(max(found)), label, found)
        images, _ = self.write_images("a.bin", 120)
        # Which actor reads what changes nothing, and a resumed run goes on where it was: each epoch draws other noise.
        base = [*TINY, *images, "--dtype", "f64", "--set", "decay_end=8", "--set", "checkpoint_every=4", "--set", "keep=9"]
        found = {}
        for name, more in {"one": ["--schedule", "sequential", "--actors", 1], "two": ["--actors", 2]}.items():
            self.train_model(name, 8, *base, *more)
            found[name] = [line["loss"] for line in read_metrics(self.folder / name).values()]
        for one, other in zip(found["one"], found["two"], strict=True):
            self.assertAlmostEqual(one, other, delta=1e-10)
        self.assertEqual(run("train", "--resume", self.folder / "two" / "checkpoint-4", "--steps", 8, "--out", self.folder / "again").code, 0)
        self.assertEqual(read_state(self.folder / "two/checkpoint-8"), read_state(self.folder / "again/checkpoint-8"))

    def test_images_of_files_that_do_not_fit(self):
        def fails(words, *arguments):
            self.assert_fails(run("train", *TINY, *arguments, "--steps", 1, "--out", self.folder / "none"), *words)

        images, _ = self.write_images("a.bin", 120)
        fails(["a.bin has 92280 bytes, which are no whole number of images of 32 x 32", "an image takes 3073", "set model.image"],
              *images, "--set", "image=32")  # fmt: skip
        fails(["a.bin: image 2 is of class 2; the model has 2 classes", "set model.classes to 3"], *images, "--set", "classes=2")
        fails(["fewer images than one batch takes: 20 in", "one batch takes 32; 19 are there beside validation"], *self.write_images("b.bin", 20)[0])
        (self.folder / "empty.bin").write_bytes(b"")
        fails(["empty.bin has 0 bytes"], "--set", f"data.documents={self.folder / 'empty.bin'}")
        fails(["none.bin"], "--set", f"data.documents={self.folder / 'none.bin'}")

    def test_two_backbones_share_the_actors_in_both_directions(self):
        two = [*TINY, "--set", "backbones=2", "--set", "dtype=f64", "--set", "clip=0", "--set", "decay_end=4"]

        def losses(name, *arguments):
            self.train_model(name, 4, *two, *arguments)
            return [line["loss"] for line in read_metrics(self.folder / name).values()]

        opposite = ["--schedule", "bidirectional", "--actors", 2, "--chunks", 2, "--frozen", "0.5,0.5"]
        alone = losses("alone", "--schedule", "sequential", "--actors", 1)
        for name, arguments in {"step": [], "filled": ["--window", 4], "one-direction": ["--schedule", "interleaved-1f1b"],
                                "four": ["--actors", 4, "--window", 2]}.items():  # fmt: skip
            with self.subTest(name):
                for one, other in zip(alone, losses(name, *opposite, *arguments)):
                    self.assertAlmostEqual(one, other, delta=1e-10 * abs(one))
        for arguments in ([], ["--window", 2]):
            self.assertEqual(run("check", *two, *opposite, *arguments).code, 0)
        result = run("launch", "-n", 2, "--", "train", *two, *opposite, "--window", 4, "--backend", "gloo", "--steps", 4, "--out", self.folder / "gloo")
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(read_state(self.folder / "gloo/checkpoint-4"), read_state(self.folder / "filled/checkpoint-4"))
        self.assertEqual(read_png(self.draw("filled", 1, "--steps", 2))[:2], (16, 16))
        self.assert_fails(run("check", *TINY, *opposite), "stage 2 feeds stage 4", "two: --set model.name=latent_diffusion --set backbones=2")

    def test_self_conditioning_trains_the_same(self):
        own = [*TINY, "--set", "self_conditioning=0.5", "--set", "dtype=f64", "--set", "decay_end=4"]

        def losses(name, *arguments):
            self.train_model(name, 4, *own, *arguments)
            return [line["loss"] for line in read_metrics(self.folder / name).values()]

        alone = losses("alone", "--schedule", "sequential", "--actors", 1)
        self.assertNotEqual(alone, losses("plain", "--schedule", "sequential", "--actors", 1, "--set", "self_conditioning=0"))
        self.assertNotEqual(alone, losses("always", "--schedule", "sequential", "--actors", 1, "--set", "self_conditioning=1"))
        both = ["--actors", 2, "--frozen", "0.5,0.5"]  # stages 2 and 3 are the first way, 4 and 5 the second one
        others = {"step": both, "clipped": [*both, "--window", 2], "other": ["--schedule", "gpipe", "--actors", 3, "--chunks", 2],
                  "one-stage": ["--schedule", "zb-h1", "--actors", 3],
                  "shared": ["--mesh", "pipe=2,data=2", "--frozen", "0.5,0.5", "--set", "zero=1"]}  # fmt: skip
        for name, arguments in [("filled", [*both, "--window", 4, "--set", "clip=0"]), *sampled(others.items(), 1)]:
            with self.subTest(name):
                expected = alone if "clip=0" not in arguments else losses("unclipped", "--schedule", "sequential", "--actors", 1, "--set", "clip=0")
                for one, other in zip(expected, losses(name, *arguments), strict=True):
                    self.assertAlmostEqual(one, other, delta=1e-10 * abs(one))
        filled = [*both, "--window", 4, "--set", "clip=0"]
        result = run("launch", "-n", 2, "--", "train", *own, *filled, "--backend", "gloo", "--steps", 4, "--out", self.folder / "gloo")
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(read_state(self.folder / "gloo/checkpoint-4"), read_state(self.folder / "filled/checkpoint-4"))
        checked = run("check", *own, *filled, "--json").json()
        self.assertEqual((checked["loss_difference"], checked["parameter_difference"]), (0, 0))
        self.assertEqual(read_png(self.draw("filled", 1, "--steps", 2))[:2], (16, 16))

    def test_self_conditioning_is_what_the_table_says(self):
        emitted = run("compile", *TINY, "--set", "self_conditioning=1", "--actors", 2, "--frozen", "1,1", "--emit", "schedule")
        self.assertEqual(emitted.code, 0, emitted.err)
        self.assertIn("#forward,1.0,1.0,1.0,1.0\n", emitted.out)
        self.assertNotIn("2B0", emitted.out)
        self.assertIn("4B0", emitted.out)
        # The estimate goes back from the last actor to the first.
        program = run("compile", *TINY, "--set", "self_conditioning=1", "--actors", 2, "--frozen", "1,1", "--emit", "program").out
        self.assertRegex(program.partition("device 1")[2], r"send %F3:\d+\.0 to 0")
        self.assert_fails(run("check", *TINY, "--set", "self_conditioning=2"), "self_conditioning is 2.0", "from 0 to 1")
        self.assert_fails(run("check", *TINY, "--set", "self_conditioning=1", "--set", "backbones=2"), "backbones 2", "one backbone reads what it gave itself")
        self.assert_fails(run("check", *TINY, "--set", "self_conditioning=1", "--schedule", "gpipe", "--actors", 5),
                          "with self-conditioning cannot be cut into 5 stages")  # fmt: skip

    def test_what_is_trained_fills_nothing(self):
        result = run("check", "--actors", 2, "--window", 2, "--frozen", 1, "--set", "clip=0", "--set", "tied=0")
        self.assert_fails(result, "stage 0 is frozen, and its", 'reads parameter "w', "which is trained", "pipeline.frozen")
        clipped = run("check", *TINY, "--frozen", "1,1", "--window", 2, "--json")  # updates wait, and no frozen stage does
        self.assertEqual(clipped.code, 0, clipped.err)
        self.assertEqual((clipped.json()["parameter_difference"], clipped.json()["tolerance"]), (0, 0))
        self.assert_fails(run("train", *TINY, "--frozen", "0"), "--frozen must be above 0")
        (self.folder / "table.csv").write_text("0F0\n1F0,1B0\n")
        self.assert_fails(run("check", *TINY, "--schedule", self.folder / "table.csv", "--frozen", "1"), "leave out pipeline.frozen")

    def test_bf16_trains(self):
        self.train_model("bf16", 3, *TINY, "--dtype", "bf16", "--actors", 3, "--schedule", "zb-h1")
        self.assertLess(read_metrics(self.folder / "bf16")[1]["loss"], 2)
        self.draw("bf16", 0, "--steps", 2)

    def test_generate(self):
        self.train_model("run", 1, *TINY, "--actors", 2)
        first, again = pixels(self.draw("run", 1, "--steps", 3)), pixels(self.draw("run", 1, "--steps", 3))
        self.assertEqual(first, again)
        self.assertNotEqual(first, pixels(self.draw("run", 1, "--steps", 3, "--seed", 1)))
        self.assertEqual(read_png(self.folder / "run-1.png")[:2], (16, 16))
        result = run("generate", self.folder / "run", "--out", self.folder / "a.png", "--class", 2, "--steps", 1, "--json")
        self.assertEqual(result.json()["picture"], str(self.folder / "a.png"))
        self.assertEqual((result.json()["class"], result.json()["size"]), (2, 16))

    def test_generate_refuses(self):
        self.train_model("run", 1, *TINY, "--actors", 2)
        out = ["--out", self.folder / "a.png"]

        def refused(*arguments):
            result = run("generate", self.folder / "run", *arguments)
            self.assert_fails(result)
            self.assertFalse((self.folder / "a.png").exists())
            return result.err

        self.assertIn('error: model "latent_diffusion" makes pictures, and nothing says where\n  hint: --out picture.png', refused())
        self.assertIn('model "latent_diffusion" makes pictures and continues no text\n  only a text takes --prompt, --top-k',
                      refused(*out, "--prompt", "a", "--top-k", 3))  # fmt: skip
        self.assertIn("--class is 4; the model was trained on 4 classes\n  hint: use 0 to 3", refused(*out, "--class", 4))
        self.assertIn("--class is -1; the model was trained on 4 classes", refused(*out, "--class", -1))
        self.assertIn('--steps is 101; model "latent_diffusion" has 100 levels of noise', refused(*out, "--steps", 101))
        self.assertIn("--steps is 0;", refused(*out, "--steps", 0))
        self.assertIn("--guidance is -1; it must be at least 0", refused(*out, "--guidance", -1))
        self.assertIn("missing/a.png", refused("--out", self.folder / "missing/a.png", "--steps", 1))

    def test_a_model_of_text_makes_no_pictures(self):
        self.train("text", 1)
        self.assert_fails(run("generate", self.folder / "text", "--out", self.folder / "a.png", "--class", 1),
                          'model "gpt" makes no pictures\n  only a picture takes --out, --class\n  hint: --prompt TEXT')  # fmt: skip

    def test_a_table_from_a_file_has_no_backward_of_a_frozen_stage(self):
        def trains(name, table):
            (self.folder / name).write_text(table)
            return run("check", *TINY, "--dtype", "f64", "--schedule", self.folder / name, "--microbatches", 1)

        self.assertEqual(trains("good.csv", "0F0\n1F0,1B0\n").code, 0)
        self.assert_fails(trains("bad.csv", "0F0,0B0\n1F0,1B0\n"), "bad.csv:1:2: 0B0 is a backward of a stage without", "stage 0 only runs forward")


if __name__ == "__main__":
    unittest.main()
