# SPDX-License-Identifier: Apache-2.0
"""The commands print and write these things when all goes well."""

import json
import re
import unittest

from support import SMALL, ProgramTest, read_tensors, run


class Program(ProgramTest):
    def test_the_bare_program_lists_its_commands(self):
        result = run()
        self.assertEqual((result.code, result.out), (2, ""))
        for command in ("train", "generate", "check", "compile", "schedule", "mesh", "verify", "profile", "plan", "show", "simulate", "launch"):
            self.assertRegex(result.err, rf"\n  {command} +\w")

    def test_version(self):
        result = run("--version")
        self.assertEqual((result.code, result.err), (0, ""))
        self.assertRegex(result.out, r"^penstock \d+\.\d+ \((commit [0-9a-f]+(, changed)?, )?libtorch \d+\.\d+\)\n$")

    def test_train_reports(self):
        result = self.train("run", 8, "--set", "validation_every=4")
        self.assertIn("step 1/8  loss ", result.err)
        self.assertIn("validation ", result.err)
        self.assertIn("no sample: at a loss of ", result.err)  # 8 steps are too few for text
        for part in ["device", "busy", "waiting", "memory planned", "timeline.html"]:
            self.assertIn(part, result.out)
        self.assertNotIn("\033", result.out + result.err)
        lines = [json.loads(line) for line in (self.folder / "run" / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines], list(range(1, 9)))
        self.assertEqual([line["step"] for line in lines if "validation_loss" in line], [4, 8])
        for key in ["loss", "gradient_norm", "learning_rate", "seconds", "tokens_per_second", "bubble"]:
            self.assertIsInstance(lines[0][key], float)
        self.assertEqual(len(lines[0]["peak_bytes"]), 2)
        page = (self.folder / "run" / "timeline.html").read_text()
        self.assertIn("<canvas", page)
        self.assertNotIn("http", page)

    def test_train_json(self):
        report = self.train("run", 8, "--json").json()
        self.assertEqual(report["step"], 8)
        self.assertEqual(len(report["actors"]), 2)
        for actor in report["actors"]:
            # The arenas are allocated as planned; beside them kernels need a little.
            self.assertGreaterEqual(actor["measured_bytes"], actor["planned_bytes"])
            self.assertLess(actor["measured_bytes"], 1.03 * actor["planned_bytes"])
        self.assertLess(report["validation_loss"], 6)

    def test_train_without_validation(self):
        self.assertNotIn("validation_loss", self.train("run", 2, "--set", "validation=0", "--json").json())

    def test_the_loss_falls_and_all_schedules_agree(self):
        curves = {}
        for name, *more in [("sequential", "--actors", 1), ("gpipe",), ("1f1b",), ("eager-1f1b",), ("zb-h1",), ("interleaved-1f1b", "--chunks", 2)]:
            self.train(name, 50, "--schedule", name, *more)
            lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
            curves[name] = [json.loads(line)["loss"] for line in lines]
        for name, curve in curves.items():
            for step, (a, b) in enumerate(zip(curve, curves["sequential"], strict=True)):
                self.assertAlmostEqual(a, b, delta=1e-3, msg=f"{name}, step {step + 1}")
        self.assertLess(curves["1f1b"][-1], 0.8 * curves["1f1b"][0])

    def test_generate(self):
        self.train("run", 4)
        one, same = (run("generate", self.folder / "run", "--prompt", "line ", "--tokens", 30, "--json").json() for _ in range(2))
        self.assertEqual(one, same)
        self.assertGreater(len(one["text"]), 0)
        other = run("generate", self.folder / "run", "--prompt", "line ", "--tokens", 30, "--seed", 1, "--json").json()
        self.assertNotEqual(one["text"], other["text"])
        self.assertEqual(run("generate", self.folder / "run", "--tokens", 0).code, 1)

    def test_parameters_of_another_run(self):
        """A file with the published prefix and masks starts a run."""
        dump = self.folder / "dump"
        self.assertEqual(run("check", *SMALL, "--seed", 3, "--dump", dump).code, 0)
        self.train("seed", 1, "--seed", 3)
        self.train("init", 1, "--seed", 3, "--init", dump / "parameters.safetensors")
        losses = [json.loads((self.folder / out / "metrics.jsonl").read_text())["loss"] for out in ("seed", "init")]
        self.assertEqual(losses[0], losses[1])

    def test_check_dumps(self):
        dump = self.folder / "dump"
        result = run("check", *SMALL, "--dtype", "f64", "--json", "--dump", dump)
        self.assertEqual(result.code, 0, result.err)
        report = result.json()
        self.assertLess(report["loss_difference"], 1e-10)
        self.assertLess(report["gradient_difference"], 1e-10)
        self.assertTrue(report["equal"])
        parameters = read_tensors(dump / "parameters.safetensors")
        self.assertIn(report["worst"], parameters)
        for which in ("sequential", "pipelined"):
            gradients = read_tensors(dump / f"gradients_{which}.safetensors")
            self.assertEqual({k: len(v) for k, v in gradients.items()}, {k: len(v) for k, v in parameters.items()})
        self.assertEqual(set(read_tensors(dump / "batch.safetensors")), {"tokens", "targets"})
        losses = json.loads((dump / "losses.json").read_text())
        self.assertEqual(losses["model"]["width"], 32)
        self.assertAlmostEqual(losses["sequential"], losses["pipelined"], delta=1e-10)

    def test_options_of_schedules(self):
        def compiled(*arguments):
            result = run("compile", *SMALL, "--emit", "schedule", *arguments)
            self.assertEqual(result.code, 0, result.err)
            return result.out

        def table(name, *flags):
            return run("schedule", name, "--actors", 2, "--microbatches", 4, *flags).out

        for name, setting, *flags in [
            ("1f1b", "in_flight=1", "--in-flight", 1),
            ("kfkb", "group=4", "--group", 4),
            ("zeropp", "unit=2", "--unit", 2),
            ("zb-h2", "transfers=[1]", "--transfers", 1),
            ("gpipe", "split_backward=true", "--split-backward"),
        ]:
            with self.subTest(name):
                self.assertNotEqual(table(name), table(name, *flags))
                self.assertEqual(compiled("--schedule", name, "--set", setting), table(name, *flags))
                self.assertEqual(compiled("--schedule", name, *flags), table(name, *flags))
        config = self.folder / "run.toml"
        config.write_text('[pipeline]\nschedule = "1f1b"\nunit = 2\n')
        self.assert_fails(run("compile", config, *SMALL, "--emit", "schedule"), "1f1b takes no --unit", "it takes --in-flight", "zeropp")
        config.write_text("[model]\nlayers = 2\nwidth = 32\ncontext = 16\n")
        figures = ["simulate", config, "--device", "h100-sxm", "--network", "nvlink4"]
        free, held = (run(*figures, *flags, "--json").json()["makespan"] for flags in ([], ["--in-flight", 1]))
        self.assertGreater(held, 1.2 * free)
        self.assert_fails(run(*figures, "--unit", 2), "1f1b takes no --unit")

    def test_a_table_says_its_own_numbers(self):
        table = self.folder / "three.csv"
        table.write_text(run("schedule", "1f1b", "--actors", 3, "--microbatches", 2).out)
        small = [*SMALL[: SMALL.index("--microbatches")], "--schedule", table]
        self.train("run", 2, *small[-2:], "--microbatches", 2)
        self.assertEqual(run("compile", *small, "--emit", "schedule").out, table.read_text())
        self.assert_fails(run("compile", *small, "--actors", 2), "three.csv has 3 actors, pipeline.actors is 2", "--actors 3")
        self.assert_fails(run("compile", *small, "--group", 2), "three.csv is a table: it takes no group", "leave out pipeline.group")

    def test_measured_kernels(self):
        kept = self.folder / "cache" / "kernels.txt"
        chosen = [*SMALL, "--set", f"kernels={kept}"]
        checked = run("check", *chosen)
        self.assertEqual(checked.code, 0, checked.err)
        header, _, *choices = kept.read_text().splitlines()
        self.assertEqual(header, "penstock kernels 1")
        self.assertGreater(len(choices), 5)
        for choice in choices:
            self.assertRegex(choice, r'^"f32 \d+x\d+x\d+ [nt][nt] (bias|add|store)" "(penstock|onednn|mkl)"$')
        self.assertNotIn('kernel="', run("compile", *SMALL).out)
        # What is kept is what runs, for training as for its prediction: costs are found by the tasks as they are.
        kept.write_text(kept.read_text().replace('" "penstock"', '" "mkl"').replace('" "onednn"', '" "mkl"'))
        program = run("compile", *chosen).out
        self.assertIn('kernel="mkl"', program)
        self.assertNotIn('kernel="penstock"', program)
        self.train("run", 2, "--set", f"kernels={kept}")
        costs, config = self.folder / "costs.json", self.folder / "run.toml"
        profiled = run("profile", *chosen, "--rounds", 1, "--text", self.text, "--out", costs)
        self.assertEqual(profiled.code, 0, profiled.err)
        config.write_text("")
        settings = [setting for flag, setting in zip(chosen, chosen[1:]) if flag == "--set"]
        simulated = run("simulate", config, "--costs", costs, *[part for setting in [*settings, "batch=8", "microbatches=4"] for part in ("--set", setting)])
        self.assertEqual(simulated.code, 0, simulated.err)
        kept.write_text("{}")
        self.assert_fails(run("check", *chosen), "kernels.txt:1:1: ")

    def test_compile_prints_every_form(self):
        for form in ["graph", "stages", "program"]:
            result = run("compile", *SMALL, "--emit", form)
            self.assertEqual(result.code, 0, result.err)
            self.assertTrue(result.out.startswith(f"penstock {form} 1\n"), result.out[:100])
        table = self.folder / "plan.csv"
        table.write_text(run("compile", *SMALL, "--emit", "schedule", "--schedule", "zb-h1").out)
        self.assertEqual(run("check", *SMALL, "--schedule", table).code, 0)

    def test_compile_prints_the_draft_after_a_pass(self):
        result = run("compile", *SMALL, "--emit", "draft", "--after", "actions")
        self.assertEqual(result.code, 0, result.err)
        self.assertTrue(result.out.startswith("penstock draft 1\nafter actions\n"), result.out[:100])
        last = run("compile", *SMALL, "--emit", "draft").out
        self.assertTrue(last.startswith("penstock draft 1\nafter frees\n"), last[:100])
        self.assert_fails(
            run("compile", *SMALL, "--emit", "draft", "--after", "action"),
            'lowering has no pass "action"',
            "its passes: blocks, actions, offload, reduce, before, after, refresh, devices, steps, waves, versions, lookups, workers, axes, "
            "transfers, order, frees",
            'did you mean "actions"?',
        )
        self.assert_fails(run("compile", *SMALL, "--after", "actions"), "--after names a pass of lowering", "add --emit draft")

    def test_compile_dumps_the_draft_of_each_pass(self):
        folder = self.folder / "passes"
        result = run("compile", *SMALL, "--emit", "draft", "--dump-passes", folder)
        self.assertEqual(result.code, 0, result.err)
        files = sorted(folder.iterdir())
        of_several = ["steps", "waves", "versions", "lookups", "workers", "axes"]
        names = ["blocks", "actions", "offload", "reduce", "before", "after", "refresh", "devices", *of_several, "transfers", "order", "frees"]
        self.assertEqual([file.name for file in files], [f"{i + 1:02}-{name}.txt" for i, name in enumerate(names)])
        for file, name in zip(files, names):
            reason, took, text = file.read_text().split("\n", 2)
            self.assertTrue(reason.startswith("// "), reason)
            self.assertRegex(took, r"^// [0-9.e-]+ ms(, unchanged: the draft is that of the pass before)?$")
            self.assertTrue(text.startswith(f"penstock draft 1\nafter {name}\n"), text[:100])
            self.assertEqual("unchanged" in took, name in ["blocks", "offload", "reduce", "devices", *of_several], file)
        self.assertEqual(text, result.out)

    def test_verify_says_whether_there_is_a_memory_plan(self):
        program = self.folder / "program.txt"
        program.write_text(run("compile", *SMALL, "--emit", "program").out)
        self.assertTrue(run("verify", program, "--json").json()["memory_plan"])
        self.assertNotIn("memory plan", run("verify", program).out)
        program.write_text(re.sub(r"(  slot \S+ \w+) @\d+", r"\1", program.read_text()))
        self.assertFalse(run("verify", program, "--json").json()["memory_plan"])
        self.assertIn("no memory plan: its slots have no places, so it cannot run", run("verify", program).out)
        self.assert_fails(run("verify", program, "--memory-limit", 10**9), "has no memory plan")

    def test_a_table_that_recomputes(self):
        table = self.folder / "again.csv"
        table.write_text("0F0,0F1,0R0,0B0,0F2,0F3,0B1,0R2,0B2,0R3,0B3\n1F0,1R0,1B0,1F1,1R1,1B1,1F2,1B2,1F3,1B3\n")
        arguments = [*SMALL, "--schedule", table, "--actors", 2]
        result = run("check", *arguments, "--dtype", "f64", "--set", "dropout=0.2")
        self.assertEqual(result.code, 0, result.err)
        self.assert_fails(run("check", *arguments, "--recompute", "inputs"), "0R0 has nothing to recompute", 'pipeline.recompute = "none"')
        result = run("compile", *arguments, "--emit", "stages")
        self.assertIn("  F light: ", result.out)
        self.assertIn("  R: ", result.out)


if __name__ == "__main__":
    unittest.main()
