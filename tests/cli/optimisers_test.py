# SPDX-License-Identifier: Apache-2.0
"""Each optimiser under plans of all kinds: the state of the sequential run to rounding, or a refusal before the first step."""

import array
import unittest

from support import ProgramTest, read_metrics, read_state, run, sampled

STEPS = 4
KEYS = "attn.c_attn.bias"  # has keys' biases, whose gradient is nothing but rounding, as they move all scores of a query alike
OPTIMISERS = ("adamw", "adam", "nadam", "sgd", "nesterov", "lion", "adafactor", "muon")
MODEL = ("--set", "layers=2", "--set", "width=16", "--set", "heads=2", "--set", "context=8", "--batch", "8", "--microbatches", "2", "--dtype", "f64",
         "--set", "warmup=0", "--set", "learning_rate=0.01", "--steps", STEPS, "--set", "clip=0.5")  # fmt: skip
# Tied and clipped, unless it says otherwise.
PLANS = {
    "two actors": ("--mesh", "pipe=2"),
    "backward in two": ("--mesh", "pipe=2", "--schedule", "zb-h1", "--set", "update=stage", "--set", "tied=0", "--set", "clip=0"),
    "two devices": ("--mesh", "pipe=2,data=2"),
    "shares of what is kept": ("--mesh", "pipe=2,data=2", "--set", "zero=1"),
    "shares of all": ("--mesh", "pipe=2,data=2", "--set", "zero=3"),
    "a window": ("--mesh", "pipe=2", "--schedule", "zb-h1", "--window", "2"),
    "a window of shares": ("--mesh", "pipe=1,data=2", "--set", "zero=2", "--window", "2"),
    "adapters": ("--mesh", "pipe=2", "--set", "lora=2"),
}
VALIDATED = ("--mesh", "pipe=2", "--schedule", "zb-h1", "--set", "tied=0", "--set", "update=validated")
# Steps of a window that read parameters of their own versions, which no sequential run does.
VERSIONS = ("pipedream", "pipedream-2bw")
LATE = ("--mesh", "pipe=2", "--set", "tied=0", "--set", "clip=0", "--window", "4", "--json")


class Optimisers(ProgramTest):
    def trained(self, out, *more):
        text = self.folder / "text.txt"
        text.write_text("What is kept of a parameter is what its row says. " * 100)
        result = run("train", "--text", text, "--out", self.folder / out, *MODEL, *more)
        self.assertEqual(result.code, 0, result.err)
        return read_state(self.folder / out / f"checkpoint-{STEPS}")

    def assert_alike(self, found, expected, bound):
        self.assertEqual(found.keys(), expected.keys())
        for name in expected:
            if name != "step" and not name.endswith(KEYS):
                pairs = list(zip(array.array("d", found[name]), array.array("d", expected[name]), strict=True))
                self.assertLess(max(abs(a - b) for a, b in pairs), bound, name)

    def compare(self, optimiser, plan, flags):
        """With the run of one device on the same model."""
        is_model = [key.split("=")[0] in ("tied", "clip", "lora") for key in flags]
        model = [part for i, part in enumerate(flags) if is_model[i] or (i + 1 < len(flags) and flags[i] == "--set" and is_model[i + 1])]
        chosen = ("--set", f"optimiser={optimiser}")
        alone = f"{optimiser}, alone, {' '.join(model)}"
        if not (self.folder / alone).exists():
            self.trained(alone, *chosen, *model, "--mesh", "pipe=1")
        expected = read_state(self.folder / alone / f"checkpoint-{STEPS}")
        # Adafactor's steps are as large for small gradients, whose rounding they carry on.
        self.assert_alike(self.trained(f"{optimiser}, {plan}", *chosen, *flags), expected, 1e-6 if optimiser == "adafactor" else 1e-9)

    def test_plans(self):
        for shift in sampled(range(len(PLANS)), 1):  # each time every optimiser, and every plan
            for optimiser, (plan, flags) in zip(OPTIMISERS, [*PLANS.items()][shift:] + [*PLANS.items()][:shift], strict=True):
                with self.subTest(optimiser, plan=plan):
                    self.compare(optimiser, plan, flags)

    def test_parts_of_tensors(self):
        mesh = ("--mesh", "pipe=2,tensor=2")
        self.refused("which no gradient is in\n  members of a mesh axis have parts of a state", "adafactor", *mesh)
        for optimiser in sampled((optimiser for optimiser in OPTIMISERS if optimiser != "adafactor"), 2):
            with self.subTest(optimiser):
                for out, flags in (("parts", mesh), ("whole", ("--mesh", "pipe=1"))):
                    self.trained(f"{optimiser} {out}", "--set", f"optimiser={optimiser}", *flags)
                parts, whole = (read_metrics(self.folder / f"{optimiser} {out}") for out in ("parts", "whole"))
                for key in ("loss", "gradient_norm"):
                    for step in range(1, STEPS + 1):
                        self.assertAlmostEqual(parts[step][key], whole[step][key], delta=1e-9)

    def test_updates_that_are_validated(self):
        for optimiser in OPTIMISERS:
            with self.subTest(optimiser):
                if optimiser in ("adamw", "sgd"):
                    for clip in ("0.01", "1e9"):
                        self.compare(optimiser, f"validated {clip}", (*VALIDATED, "--set", f"clip={clip}"))
                else:
                    self.refused(f"the optimiser {optimiser} makes no update that can be validated", optimiser, *VALIDATED)

    def test_versions(self):
        for optimiser, schedule in sampled([(optimiser, schedule) for optimiser in OPTIMISERS for schedule in VERSIONS], 3):
            with self.subTest(optimiser, schedule=schedule):
                result = run("check", *MODEL, *LATE, "--set", f"optimiser={optimiser}", "--schedule", schedule)
                self.assertEqual(result.code, 0, result.err)
                self.assertTrue(result.json()["equal"], result.out)

    def test_processes_and_a_resumed_run_have_the_same_bits(self):
        for optimiser in ("lion", "adafactor"):
            flags = ("--set", f"optimiser={optimiser}", "--mesh", "pipe=2", "--set", "checkpoint_every=2")
            whole = self.trained(f"{optimiser} whole", *flags)
            result = run("launch", "-n", "2", "--", "train", "--text", self.folder / "text.txt", "--out", self.folder / optimiser, *MODEL, *flags, "--backend", "gloo")
            self.assertEqual(result.code, 0, result.err)
            self.assertEqual(read_state(self.folder / optimiser / f"checkpoint-{STEPS}"), whole)
            result = run("train", "--resume", self.folder / f"{optimiser} whole" / "checkpoint-2", "--steps", STEPS, "--out", self.folder / f"{optimiser} resumed")
            self.assertEqual(result.code, 0, result.err)
            self.assertEqual(read_state(self.folder / f"{optimiser} resumed" / f"checkpoint-{STEPS}"), whole)

    def refused(self, why, optimiser, *flags):
        result = run("train", *MODEL, "--set", f"optimiser={optimiser}", "--out", self.folder / "refused", *flags)
        self.assertEqual(result.code, 1, result.out)
        self.assertIn(why, result.err)
        self.assertFalse((self.folder / "refused" / "metrics.jsonl").exists())

    def test_what_does_not_go_together(self):
        window = ("--set", "tied=0", "--set", "clip=0", "--window", "4")
        self.refused("its update has no rule by which it could be predicted\n  hint: optimisers that have one: adamw, adam and sgd", "lion",
                     *window, "--mesh", "pipe=2", "--schedule", "xpipe")  # fmt: skip
        for optimiser in ("adafactor", "lion", "nesterov"):
            self.refused("what an optimiser keeps beside the parameters would be another on each worker\n"
                         "  hint: set train.momentum = 0 and an optimiser that then keeps nothing that counts (sgd)", optimiser, *window, "--mesh", "pipe=2,data=2",
                         "--microbatches", "1", "--schedule", "hetpipe", "--set", "pipeline.distance=0")  # fmt: skip
        self.refused("the optimiser lion takes no momentum, which is 0.5\n  it takes beta1, beta2, weight_decay\n"
                     "  hint: leave out momentum, or take another optimiser", "lion", "--set", "momentum=0.5")  # fmt: skip
        self.refused('unknown optimiser "lyon"\n  hint: did you mean "lion"?', "lyon")


if __name__ == "__main__":
    unittest.main()
