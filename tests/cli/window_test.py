# SPDX-License-Identifier: Apache-2.0
"""Runs whose tables are for a window of training steps."""

import array
import json
import unittest

from support import ProgramTest, read_metrics, read_state, run, sampled

MODEL = ("--set", "layers=2", "--set", "width=16", "--set", "heads=2", "--set", "context=16", "--set", "tied=0", "--set", "clip=0", "--batch", "8")
WINDOW = (*MODEL, "--actors", "2", "--microbatches", "2", "--schedule", "pipedream", "--window", "4")

DLRM = ("--set", "model.name=dlrm", "--set", "branches=2", "--set", "layers=2", "--set", "rows=12", "--set", "clip=0", "--actors", "2",
        "--microbatches", "2", "--batch", "8")  # fmt: skip
PLAIN = ("--set", "optimiser=sgd", "--set", "momentum=0", "--set", "weight_decay=0")
AHEAD = ("--schedule", "nestpipe", "--window", "4", "--set", "pipeline.prefetch=true")


class Window(ProgramTest):
    def train_here(self, out, steps, *more, launched=0):
        text = self.folder / "text.txt"
        text.write_text("What is read is what the table says. " * 200)
        return self.trained(out, steps, "--text", text, *more, launched=launched)

    def trained(self, out, steps, *more, launched=0):
        command = ("train", "--steps", steps, "--out", self.folder / out, *more)
        result = run("launch", "-n", str(launched), "--", *command) if launched else run(*command)
        self.assertEqual(result.code, 0, result.err)
        return read_state(self.folder / out / f"checkpoint-{steps}")

    def refused(self, *arguments):
        result = run(*arguments)
        self.assertEqual(result.code, 1, result.out)
        return result.err

    def test_each_step_has_its_metrics_and_a_resumed_run_the_same_bits(self):
        whole = self.train_here("whole", 16, *WINDOW, "--set", "checkpoint_every=8")
        self.assertEqual(sorted(read_metrics(self.folder / "whole")), list(range(1, 17)))
        self.train_here("begun", 8, *WINDOW, "--set", "decay_end=16")
        result = run("train", "--resume", self.folder / "whole" / "checkpoint-8", "--steps", 16, "--out", self.folder / "resumed")
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(read_state(self.folder / "resumed" / "checkpoint-16"), whole)

    def test_processes_have_the_same_bits(self):
        self.assertEqual(self.train_here("processes", 8, *WINDOW, "--backend", "gloo", launched=2), self.train_here("threads", 8, *WINDOW))

    def test_predictions_are_the_same_between_processes(self):
        for schedule in ("xpipe", "pipeoptim"):
            late = (*MODEL, "--actors", "2", "--microbatches", "2", "--schedule", schedule, "--window", "2")
            processes = self.train_here(f"{schedule}-processes", 4, *late, "--backend", "gloo", launched=2)
            self.assertEqual(processes, self.train_here(f"{schedule}-threads", 4, *late))

    def test_weights_in_bf16_are_cast_from_the_version_that_is_read(self):
        self.train_here("narrow", 8, *WINDOW, "--dtype", "bf16")
        self.train_here("wide", 8, *WINDOW)
        narrow, wide = read_metrics(self.folder / "narrow"), read_metrics(self.folder / "wide")
        self.assertAlmostEqual(narrow[8]["loss"], wide[8]["loss"], delta=0.02)

    def test_lookups_ahead_have_the_same_bits(self):
        plain = self.trained("plain", 20, *DLRM, *PLAIN, "--schedule", "1f1b")
        self.assertEqual(self.trained("ahead", 20, *DLRM, *PLAIN, *AHEAD), plain)
        self.assertEqual(self.trained("processes", 20, *DLRM, *PLAIN, *AHEAD, "--backend", "gloo", launched=2), plain)
        for schedule in ("nestpipe", "pipedream"):
            result = run("check", *DLRM, *PLAIN, *AHEAD, "--schedule", schedule, "--json")
            self.assertEqual(result.code, 0, result.err)
            self.assertEqual((result.json()["loss_difference"], result.json()["parameter_difference"]), (0, 0))

    def test_lookups_ahead_on_several_devices_have_the_same_bits(self):
        few = ("--set", "rows=60")  # more than the indices of a step: updated by rows; 12 are not
        split = ("--mesh", "pipe=2,tensor=2", "--set")
        meshes = (("--mesh", "pipe=2,data=2"), (*split, "layout.rows=tensor"), (*split, "layout.columns=tensor"))
        for i, mesh in sampled(enumerate(meshes), 1):
            for name, sizes in (("all", ()), ("few", few)):
                plain = self.trained(f"{name}{i}", 16, *DLRM, *sizes, *PLAIN, "--schedule", "nestpipe", "--window", "4", *mesh)
                self.assertEqual(self.trained(f"{name}-ahead{i}", 16, *DLRM, *sizes, *PLAIN, *AHEAD, *mesh), plain, mesh)
            out = self.trained(f"processes{i}", 16, *DLRM, *few, *PLAIN, *AHEAD, *mesh, "--backend", "gloo", launched=4)
            self.assertEqual(out, plain, mesh)
            self.assertEqual(run("check", *DLRM, *few, *PLAIN, *AHEAD, *mesh).code, 0)

    def test_lazy_rows_ahead_have_the_same_bits(self):
        lazy = ("--set", "train.lazy_rows=true")
        for optimiser, rows in sampled((("adamw", 12), ("sgd", 60), ("nadam", 60), ("lion", 12)), 2):
            model = (*DLRM, *lazy, "--set", f"optimiser={optimiser}", "--set", f"rows={rows}")
            plain = self.trained(f"{optimiser}", 16, *model, "--schedule", "1f1b")
            self.assertEqual(self.trained(f"{optimiser}-ahead", 16, *model, *AHEAD), plain, optimiser)
        self.assertEqual(self.trained("processes", 16, *model, *AHEAD, "--backend", "gloo", launched=2), plain)
        self.assertEqual(self.trained("begun", 8, *model, *AHEAD, "--set", "decay_end=16"), read_state(self.folder / "begun" / "checkpoint-8"))
        result = run("train", "--resume", self.folder / "begun", "--steps", 16, "--out", self.folder / "resumed")
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(read_state(self.folder / "resumed" / "checkpoint-16"), self.trained("whole", 16, *model, *AHEAD, "--set", "decay_end=16"))
        for mesh in (("--mesh", "pipe=2,data=2", "--set", "zero=1"), ("--mesh", "pipe=2,tensor=2", "--set", "layout.columns=tensor")):
            later = self.trained(f"late{len(mesh[1])}", 16, *model, "--schedule", "nestpipe", "--window", "4", *mesh)
            self.assertEqual(self.trained(f"early{len(mesh[1])}", 16, *model, *AHEAD, *mesh), later, mesh)
            self.assertEqual(run("check", *model, *AHEAD, *mesh).code, 0)

    def test_losses_of_lazy_rows_are_the_same_on_several_devices(self):
        model = (*DLRM, "--dtype", "f64", "--set", "train.lazy_rows=true", "--set", "warmup=0", "--set", "learning_rate=0.05", "--set", "rows=60")
        self.trained("one", 8, *model)
        for i, mesh in enumerate((("--mesh", "pipe=2,tensor=2", "--set", "layout.columns=tensor"), ("--mesh", "pipe=2,data=2", "--set", "zero=3"))):
            self.trained(f"mesh{i}", 8, *model, *mesh)
            for step, line in read_metrics(self.folder / f"mesh{i}").items():
                self.assertAlmostEqual(line["loss"], read_metrics(self.folder / "one")[step]["loss"], delta=1e-10)

    def test_lazy_rows_are_refused(self):
        lazy, out = ("--set", "train.lazy_rows=true"), ("--steps", 8, "--out", self.folder / "refused")
        tied = self.refused("train", *MODEL, "--set", "tied=1", *lazy, *out)
        self.assertIn('train.lazy_rows: rows of "wte.weight" cannot be updated by themselves\n  its gradient is not of one lookup by the data\'s indices', tied)
        self.assertIn("or set train.lazy_rows = false", tied)
        muon = self.refused("train", *DLRM, "--set", "optimiser=muon", *lazy, *out)
        self.assertIn('train.lazy_rows: rows of "emb_l.0.weight" cannot be updated by themselves\n  of its update "mul" reads all rows', muon)
        factored = self.refused("train", *DLRM, "--set", "optimiser=adafactor", *lazy, *out)
        self.assertIn("cannot be updated by themselves", factored)
        self.assertIn("the model trains no table that it looks up", self.refused("train", "--set", "model.name=candle-uno", *lazy, *out))
        rows = self.refused("train", *DLRM, "--mesh", "pipe=2,tensor=2", "--set", "layout.rows=tensor", *lazy, *out)
        self.assertIn("under train.lazy_rows, leave the rows of tables whole", rows)
        late = self.refused("train", *DLRM, "--schedule", "xpipe", "--window", "4", *lazy, *out)
        self.assertIn("train.lazy_rows leaves rows as they are, and schedule xpipe predicts whole tables", late)
        workers = self.refused("train", *DLRM, "--schedule", "hetpipe", "--window", "4", "--mesh", "pipe=2,data=2", "--set", "pipeline.distance=0", *lazy, *out)
        self.assertIn("schedule hetpipe exchanges updates of whole tables between workers", workers)
        planned = self.refused("train", *MODEL, "--set", "data.documents=['none']", "--set", "batch.planner=dynapipe", *lazy, *out)
        self.assertIn('batch.planner = "dynapipe" makes a step for each shape of micro-batch', planned)

    def test_lookups_ahead_are_refused(self):
        out = ("--steps", 8, "--out", self.folder / "refused")
        late = self.refused("train", *DLRM, *AHEAD, *out)
        self.assertIn('pipeline.prefetch: rows of "emb_l.0.weight" cannot be looked up ahead', late)
        self.assertIn('an update by "adamw" changes rows that no sample names', late)
        self.assertIn("hint: set train.lazy_rows = true", late)
        for key in ("momentum", "weight_decay"):
            refused = self.refused("train", *DLRM, *PLAIN, "--set", f"{key}=0.5", *AHEAD, *out)
            self.assertIn(f"an update with {key} = 0.5 changes rows that no sample names", refused)
        workers = ("--schedule", "hetpipe", "--window", "4", "--mesh", "pipe=2,data=2", "--set", "pipeline.distance=0", "--set", "pipeline.prefetch=true")
        for command in (("check",), ("train", *out)):
            apart = self.refused(*command, *DLRM, *PLAIN, *workers)
            self.assertIn("pipeline.prefetch looks rows up a step ahead, and pipeline.distance = 0 is of workers that update by themselves", apart)
            self.assertIn("hint: set pipeline.prefetch = false, or pipeline.distance = -1", apart)
        short = self.refused("train", *DLRM, *PLAIN, "--schedule", "1f1b", "--set", "pipeline.prefetch=true", *out)
        self.assertIn("pipeline.prefetch looks rows up in the step before, and schedule 1f1b is for one step", short)
        self.assertIn("the last step of a window has no data of a next one", short)

    def test_times_and_memory_are_predicted(self):
        result = run("simulate", "pipedream", "--actors", 4, "--microbatches", 1, "--window", 6, "--parameters", 10, "--json").json()
        self.assertEqual(result["steps"], 6)
        self.assertEqual((result["versions"], result["staleness"]), ([4, 3, 2, 1], [3, 2, 1, 0]))
        for actor, late in zip(result["actors"], (3, 2, 1, 0)):
            self.assertEqual((actor["versions"], actor["staleness"]), (late + 1, late))
            self.assertAlmostEqual(actor["peak_live"], 11 * (late + 1))
        costs, config, text = (self.folder / name for name in ("costs.json", "model.toml", "text.txt"))
        text.write_text("What is read is what the table says. " * 200)
        config.write_text("[model]\nlayers = 2\nwidth = 16\nheads = 2\ncontext = 16\ntied = 0\n[train]\nclip = 0\nbatch = 8\n"
                          f"[data]\ntext = ['{text}']\n[pipeline]\nactors = 2\nmicrobatches = 2\n")  # fmt: skip
        profiled = run("profile", config, "--schedule", "pipedream", "--window", 4, "--rounds", 2, "--out", costs)
        self.assertEqual(profiled.code, 0, profiled.err)
        program = run("simulate", config, "--schedule", "pipedream", "--set", "window=4", "--costs", costs, "--json")
        self.assertEqual(program.code, 0, program.err)
        self.assertGreater(program.json()["step_seconds"], 0)
        plan = run("plan", config, "--cluster", "local", "--vary", "schedule=chimera,pipedream", "--vary", "window=1,4", "--rounds", 1, "--json").json()
        self.assertEqual([v["refused"] for v in plan["configurations"] if v.get("refused")], [])

    def test_check_runs_the_versions_one_after_the_other(self):
        model = ("--set", "layers=4", *MODEL[2:])
        for schedule, actors, microbatches in sampled((("pipedream", 2, 2), ("pipedream-2bw", 4, 4), ("xpipe", 4, 2), ("pipeoptim", 2, 1)), 1):
            table = ("--schedule", schedule, "--actors", actors, "--microbatches", microbatches, "--window", 4, "--set", "dropout=0.1")
            result = run("check", *model, *table, "--json").json()
            self.assertEqual((result["loss_difference"], result["parameter_difference"], result["tolerance"]), (0, 0, 0), schedule)
        named = run("check", "zb-h1", *MODEL, "--actors", 2, "--microbatches", 2, "--json").json()
        self.assertTrue(named["equal"])
        self.assertIn("cannot read none.toml", self.refused("check", "none.toml"))
        self.assertIn('no file and no schedule "zb-h9"\n  hint: did you mean', self.refused("check", "zb-h9"))
        shared = run("check", *model, "--mesh", "pipe=2,data=2", "--microbatches", 2, "--schedule", "pipedream", "--window", 3, "--dtype", "f64", "--json").json()
        self.assertTrue(shared["equal"])
        self.assertGreater(shared["tolerance"], 0)
        self.assertIn("--dump writes the gradients of one step, and the table is for 4 steps", self.refused("check", *WINDOW, "--dump", self.folder / "dump"))

    def test_a_straggler_takes_longer(self):
        def seconds(*more):
            self.train_here(f"run-{len(more)}", 8, *MODEL, "--actors", "2", "--microbatches", "8", *more)
            timeline = (self.folder / f"run-{len(more)}" / "timeline.json").read_text()
            least = {}  # of each kind on each actor the shortest: another program may take the core in the middle of any one
            for event in json.loads(timeline)["traceEvents"]:
                if event.get("ph") == "X" and event["name"][0] in "FB":
                    key = event["pid"] - 1, event["name"][0]
                    least[key] = min(least.get(key, event["dur"]), event["dur"])
            return (least[1, "F"] + least[1, "B"]) / (least[0, "F"] + least[0, "B"])
        self.assertGreater(seconds("--straggler", "1=50"), 5 * seconds())
        self.assertEqual(read_state(self.folder / "run-0" / "checkpoint-8"), read_state(self.folder / "run-2" / "checkpoint-8"))
        for value, why in (("2=2", "there is no actor 2\n  actors are 0 to 1"), ("1.1=2", "actor 1 has no device 1\n  its devices are 0 to 0"), ("1=0.5", "actor 1 cannot take 0.5 times as long"),
                           ("fast", '"fast" is no actor and factor'), ("1=nan", "actor 1 cannot take nan times as long"),
                           ("0=1e300", "actor 0 cannot take 1e+300 times as long\n  a run can be held back, not made faster: factors are 1 to 1e+06")):  # fmt: skip
            self.assertIn(why, self.refused("train", *MODEL, "--actors", 2, "--straggler", value, "--out", self.folder / "none"))

    def test_late_parameters_give_other_losses(self):
        self.train_here("late", 8, *WINDOW)
        self.train_here("drained", 8, *MODEL, "--actors", "2", "--microbatches", "2")
        late, drained = read_metrics(self.folder / "late"), read_metrics(self.folder / "drained")
        self.assertEqual(late[1]["loss"], drained[1]["loss"])
        self.assertNotEqual(late[4]["loss"], drained[4]["loss"])

    def test_what_waits_for_other_stages_is_refused(self):
        clipped, tied = (self.refused("train", *WINDOW, "--set", key, "--out", self.folder / "none") for key in ("clip=1", "tied=1"))
        self.assertIn("pipedream:1:4: 0F2 reads version 0 of its stage in step 1\n  an update of", clipped)
        self.assertIn("waits for other actors, whose gradients it or the norm that clips it sums\n  hint: neither clip (--set clip=0) nor read a parameter on several actors (--set tied=0), or let each step end before "
                      "the next begins, as any schedule of one step does: --schedule 1f1b --window 4", clipped)  # fmt: skip
        self.assertIn('pipedream:1:4: 0F2 reads version 0 of its stage in step 1\n  "wte.weight" is read by stages on several actors', tied)
        sliced = self.refused("train", *WINDOW, "--slices", "2", "--dtype", "bf16", "--out", self.folder / "none")
        self.assertIn("is read before it is made\n  0 of its updates stand before\n  what a step's actions share, such as a cast of it that all slices read", sliced)
        self.assertIn("9 steps are left, and pipeline.window does 4 at a time",
                      self.refused("train", *WINDOW, "--steps", 9, "--out", self.folder / "nine"))  # fmt: skip

    def test_drained_steps_have_the_bits_of_steps_without_a_window(self):
        model = (*MODEL, "--set", "layers=4", "--set", "clip=0.1", "--set", "tied=1", "--microbatches", "2")
        for schedule, actors in (("1f1b", 1), ("zb-h1", 2), ("1f1b", 4)):
            table = ("--schedule", schedule, "--actors", actors)
            steps = self.train_here(f"steps-{actors}", 8, *model, *table)
            self.assertEqual(self.train_here(f"window-{actors}", 8, *model, *table, "--window", 4), steps, schedule)
        for schedule, chunks in (("chimera", 1), ("bitpipe", 2)):  # a stage has replicas, which read what all of their gradients have made
            table = ("--schedule", schedule, "--chunks", chunks, "--actors", 2, "--dtype", "f64")
            steps = self.train_here(f"steps-{schedule}", 8, *model, *table)
            self.assertEqual(self.train_here(f"window-{schedule}", 8, *model, *table, "--window", 4), steps, schedule)
            self.assertTrue(run("check", *model, *table, "--window", 2, "--json").json()["equal"])
        two = (*model, "--schedule", "zb-h1", "--actors", 2, "--window", 4)
        self.assertEqual(self.train_here("processes", 8, *two, "--backend", "gloo", launched=2), read_state(self.folder / "steps-2" / "checkpoint-8"))
        result = run("train", "--resume", self.folder / "window-2" / "checkpoint-8", "--steps", 16, "--out", self.folder / "resumed")
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(read_state(self.folder / "resumed" / "checkpoint-16"), self.train_here("whole", 16, *two, "--set", "decay_end=8"))
        for tied in (0, 1):
            checked = run("check", *two, "--set", f"tied={tied}", "--json").json()
            self.assertTrue(checked["equal"])
            self.assertEqual(checked["tolerance"] == 0, tied == 0)
            self.assertLess(checked["parameter_difference"], 1e-6)

    def test_weight_gradients_may_be_on_another_actor(self):
        model = ("--set", "layers=4", *MODEL[2:], "--actors", 2, "--microbatches", 2)  # W of two layers, with nothing before them, read parameters
        table = self.folder / "balanced.csv"
        table.write_text(run("schedule", "layerpipe", "--actors", 2, "--microbatches", 2, "--window", 4, "--balance", "3,1").out)
        self.assertIn("0W", table.read_text().splitlines()[1])
        for dtype in ("f32", "f64"):
            checked = run("check", *model, "--schedule", table, "--set", "dropout=0.1", "--dtype", dtype, "--json").json()
            self.assertEqual((checked["loss_difference"], checked["parameter_difference"]), (0, 0))
        self.assertTrue(run("check", *model[:-4], "--schedule", table, "--json").json()["equal"], "the table says itself how many of each step there are")
        threads = self.train_here("threads", 8, *model, "--schedule", table)
        self.assertEqual(self.train_here("processes", 8, *model, "--schedule", table, "--backend", "gloo", launched=2), threads)
        for zero in (0, 3):
            devices = ("--mesh", "pipe=2,data=2", "--set", f"zero={zero}", "--dtype", "f64", "--json")
            self.assertTrue(run("check", *model, "--schedule", table, *devices).json()["equal"], zero)

        divided = self.folder / "divided.csv"  # input gradients, too
        divided.write_text(run("schedule", "layerpipe", "--actors", 2, "--microbatches", 2, "--window", 4, "--balance", "1,8").out)
        for row in divided.read_text().splitlines():
            self.assertRegex(row, r"1I\d")
        checked = run("check", *model, "--schedule", divided, "--set", "dropout=0.1", "--dtype", "f64", "--json").json()
        self.assertEqual((checked["loss_difference"], checked["parameter_difference"]), (0, 0))
        threads = self.train_here("divided", 8, *model, "--schedule", divided)
        self.assertEqual(self.train_here("divided-processes", 8, *model, "--schedule", divided, "--backend", "gloo", launched=2), threads)
        standin = run("check", *model, "--schedule", divided, "--dtype", "f64", "--device", "standin", "--json")
        self.assertTrue(standin.json()["equal"], standin.err)

        drained, step = self.folder / "drained.csv", self.folder / "step.csv"
        step.write_text("0F0,0F1,0I0,0I1\n1F0,1I0,1F1,1I1,1W0,0W0,0W1,1W1\n")
        drained.write_text("0F0,0F1,0I0,0I1,0U1,0F2,0F3,0I2,0I3,0U3\n"
                           "1F0,1I0,1F1,1I1,1W0,0W0,0W1,1W1,1U1,1F2,1I2,1F3,1I3,1W2,0W2,0W3,1W3,1U3\n")  # fmt: skip
        waits = (*model, "--set", "clip=0.1", "--set", "tied=1")
        steps = self.train_here("steps", 8, *waits, "--schedule", step)
        self.assertEqual(self.train_here("window", 8, *waits, "--schedule", drained), steps)

        predicted = self.folder / "predicted.csv"
        predicted.write_text("0F0,0F1,0@0+1F2,0@0+1F3,0I0,0I1,0U1,0I2,0I3,0U3\n1F0,1B0,1F1,1B1,1U1,0W0,0W1,1F2,1B2,1F3,1B3,1U3,0W2,0W3\n")
        refused = self.refused("check", *model, "--schedule", predicted)
        self.assertIn("on device 1 version 0+1 of ", refused)
        self.assertIn("an I or W on another actor than its forward is sent what it reads, and predictions are not", refused)
        workers = ("--mesh", "pipe=2,data=2", "--set", "pipeline.distance=0", "--set", "optimiser=sgd", "--set", "momentum=0")
        refused = self.refused("check", *model, *workers, "--schedule", table)
        self.assertIn("is on actor 1, its forward on actor 0\n  pipeline.distance = 0 is of workers, whose actors sum their own stages' gradients", refused)

    def test_shares_have_the_bits_of_whole_sums(self):
        table = (*MODEL, "--mesh", "pipe=2,data=2", "--microbatches", "2", "--schedule", "pipedream", "--window", "4")
        whole = self.train_here("level-1", 8, *table, "--set", "zero=1")
        for level in (2, 3):
            self.train_here(f"level-{level}", 8, *table, "--set", f"zero={level}")
            self.assertEqual([step["loss"] for step in read_metrics(self.folder / f"level-{level}").values()],
                             [step["loss"] for step in read_metrics(self.folder / "level-1").values()])  # fmt: skip
        self.assertEqual(read_state(self.folder / "level-2" / "checkpoint-8"), whole)
        drained = ("--schedule", "zb-h1", "--set", "clip=0.1", "--set", "tied=1", "--set", "zero=3", "--dtype", "f64")
        self.assertTrue(run("check", *table, *drained, "--json").json()["equal"])
        unmade = run("check", *table, "--schedule", "zeropp")
        self.assertEqual(unmade.code, 1)
        self.assertIn("0UNSHARD is of no step\n  the table is for 4 steps, each of which gathers and reduces as pipeline.zero says", unmade.err)

    def test_workers_update_in_waves(self):
        sgd = (*MODEL, "--set", "optimiser=sgd", "--set", "momentum=0", "--set", "weight_decay=0", "--mesh", "pipe=1,data=2", "--microbatches", "1", "--schedule", "hetpipe")
        workers = (*sgd, "--window", "8", "--set", "pipeline.distance=0")
        whole = self.train_here("whole", 16, *workers, "--set", "checkpoint_every=8")
        together = self.train_here("together", 16, *sgd, "--window", "8")  # waves of one step, which all wait for
        parameters = [name for name in together if name.startswith(("h.", "wte", "ln_f", "lm_head"))]
        self.assertGreater(len(parameters), 20)
        for name in parameters:
            values = [array.array("f", state[name]) for state in (whole, together)]
            self.assertLess(max(abs(a - b) for a, b in zip(*values, strict=True)), 1e-6, name)
        self.assertEqual(self.train_here("processes", 16, *workers, "--backend", "gloo", launched=2), whole)
        four = (*sgd[:-6], "--mesh", "pipe=2,data=2", "--microbatches", "1", "--schedule", "hetpipe", "--window", "8")
        near = self.train_here("near", 16, *four, "--set", "pipeline.distance=0", "--set", "checkpoint_every=8")
        self.assertNotEqual(self.train_here("far", 16, *four, "--set", "pipeline.distance=1"), near)
        result = run("train", "--resume", self.folder / "near" / "checkpoint-8", "--steps", 16, "--out", self.folder / "resumed")
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(read_state(self.folder / "resumed" / "checkpoint-16"), near)
        plain = (*MODEL, "--set", "optimiser=sgd", "--microbatches", "1", "--set", "pipeline.distance=0", "--out", self.folder / "refused")
        in_window, two = ("--schedule", "hetpipe", "--window", "8"), ("--mesh", "pipe=2,data=2")
        for more, why in (((*two, "--schedule", "1f1b"), "schedule 1f1b is for one step"),
                          ((*in_window, "--mesh", "pipe=2"), "and each actor has one device\n  hint: say how many they are"),
                          ((*in_window, *two, "--set", "zero=1"), "pipeline.zero = 1 shares what they update"),
                          ((*in_window, *two, "--set", "momentum=0.9"), "is no parameter\n  what an optimiser keeps beside")):  # fmt: skip
            self.assertIn(why, self.refused("train", *plain, *more))
        clipped = self.refused("check", *four, "--set", "pipeline.distance=0", "--set", "clip=1")
        self.assertIn("pipeline.distance = 0 is of workers that update by themselves, and an update of", clipped)

    def test_workers_have_stages_of_their_own(self):
        small = (*MODEL, "--set", "layers=4", "--batch", "12", "--set", "weight_decay=0", "--microbatches", "1")
        sgd = (*small, "--set", "optimiser=sgd", "--set", "momentum=0", "--schedule", "hetpipe", "--window", "6", "--set", "pipeline.distance=1")
        two = (*sgd, "--mesh", "pipe=2,data=2", "--set", "checkpoint_every=6")
        other = self.train_here("other", 12, *two, "--set", "pipeline.workers=[[3, 1], [2, 2]]")
        self.assertEqual(self.train_here("alike", 12, *two, "--set", "pipeline.workers=[[2, 2], [2, 2]]"), other)
        self.assertEqual(self.train_here("processes", 12, *two, "--set", "pipeline.workers=[[3, 1], [2, 2]]", "--backend", "gloo", launched=4), other)
        for step, metrics in read_metrics(self.folder / "alike").items():
            self.assertEqual(metrics["loss"], read_metrics(self.folder / "other")[step]["loss"])
        result = run("train", "--resume", self.folder / "other" / "checkpoint-6", "--steps", 12, "--out", self.folder / "resumed")
        self.assertEqual(result.code, 0, result.err)
        self.assertNotIn("no sample", result.err)
        self.assertEqual(read_state(self.folder / "resumed" / "checkpoint-12"), other)
        for mesh, workers, tolerance in (("pipe=2,data=2", "[[3, 1], [2, 2]]", 0), ("pipe=2,data=2,tensor=2", "[[1, 3], [3, 1]]", 0),
                                         ("pipe=2,data=3", "[[1, 3], [3, 1], [2, 2]]", 1e-4)):  # fmt: skip
            checked = run("check", *sgd, "--mesh", mesh, "--set", f"pipeline.workers={workers}", "--json").json()
            self.assertTrue(checked["equal"])
            self.assertEqual(checked["tolerance"], tolerance)
        # In step they may clip, tie, and have any schedule of one step.
        in_step = (*small, "--set", "tied=1", "--set", "clip=0.1", "--mesh", "pipe=2,data=2", "--schedule", "zb-h1", "--dtype", "f64")
        self.assertTrue(run("check", *in_step, "--set", "pipeline.workers=[[3, 1], [2, 2]]", "--json").json()["equal"])
        clipped = self.train_here("clipped", 3, *in_step, "--set", "pipeline.workers=[[3, 1], [2, 2]]", "--set", "pipeline.update=stage")
        whole = self.train_here("whole", 3, *in_step, "--set", "pipeline.workers=[[2, 2], [2, 2]]", "--set", "pipeline.update=stage")
        for name in ("wte.weight", "h.2.mlp.c_fc.weight"):
            values = [array.array("d", state[name]) for state in (clipped, whole)]
            self.assertLess(max(abs(a - b) for a, b in zip(*values, strict=True)), 1e-9, name)
        for value, why in (("[[3, 1], [1, 4]]", "worker 1 is [1, 4], which is 5 stages; worker 0 has 4\n  each worker has the whole model\n"),
                           ("[[3, 1]]", "what 1 worker have, and each actor has 2 devices\n  each device of an actor is of another worker\n  hint: --mesh pipe=2,data=1"),
                           ("[[3, 1], [1, 1, 2]]", "worker 1 is [1, 1, 2], and schedule hetpipe has 2 stages\n  hint: give each stage of the schedule"),
                           ("[[3, 1], [1.5, 2.5]]", "worker 1 is [1.5, 2.5]\n  it is how many stages of the model each has"),
                           ("[[3, 1], [4, 0]]", "pipeline.workers is 0; it must be at least 1")):  # fmt: skip
            self.assertIn(why, self.refused("train", *two, "--set", f"pipeline.workers={value}", "--out", self.folder / "refused"))

    def test_unequal_devices_take_unequal_stages(self):
        figures = ("--device", "v100", "--latency", "1e-5", "--bandwidth", "1e10", "--straggler", "2=3")  # worker 0's actor 1
        config = self.folder / "workers.toml"
        config.write_text("""[model]\nname = "gpt"\nlayers = 8\nwidth = 512\ncontext = 256\ntied = 0\n[train]\nbatch = 8\noptimiser = "sgd"\nmomentum = 0\nclip = 0
[pipeline]\nactors = 2\ndata = 2\nschedule = "hetpipe"\nmicrobatches = 1\nwindow = 8\ndistance = 0\nworkers = [[4, 4], [4, 4]]\n""")
        alike = run("simulate", config, *figures, "--json").json()["makespan"]
        other = run("simulate", config, *figures, "--set", "pipeline.workers=[[6, 2], [4, 4]]", "--json").json()["makespan"]
        self.assertLess(other, 0.65 * alike)

    def test_check_runs_each_worker_by_itself(self):
        sgd = (*MODEL, "--batch", "12", "--set", "optimiser=sgd", "--set", "momentum=0", "--microbatches", "1", "--schedule", "hetpipe", "--window", "7")
        meshes = ("pipe=2,data=2", "pipe=2,data=3", "pipe=2,data=2,tensor=2")
        for mesh, distance in sampled([(mesh, distance) for mesh in meshes for distance in (0, 2)], 2):
            workers = run("check", *sgd, "--mesh", mesh, "--set", f"pipeline.distance={distance}", "--json")
            self.assertEqual(workers.code, 0, workers.err)
            workers = workers.json()
            self.assertEqual((workers["loss_difference"], workers["parameter_difference"], workers["tolerance"]), (0, 0, 0), mesh)

    def test_a_table_is_proven_and_bounded(self):
        for in_flight, distance, missing in ((3, 0, 4), (3, 1, 7), (1, 0, 0), (2, 0, 2), (4, 4, 22)):  # HetPipe, (D+1)N+N-2
            table = self.folder / f"hetpipe-{in_flight}.csv"
            table.write_text(run("schedule", "hetpipe", "--actors", 4, "--microbatches", 1, "--window", 32, "--in-flight", in_flight).out)
            self.assertEqual(run("verify", table, "--distance", distance, "--json").json()["missing_of_others"], missing)
            self.assertIn(f"at most {missing} update", run("verify", table, "--distance", distance).out)
        table = self.folder / "table.csv"
        table.write_text(run("schedule", "pipedream", "--actors", 4, "--microbatches", 1, "--window", 6).out)
        result = run("verify", table)
        self.assertIn("a window of 6 steps", result.out)
        self.assertEqual([actor["versions"] for actor in run("verify", table, "--json").json()["actors"]], [4, 3, 2, 1])
        self.assertIn("table.csv:1:4: 0F3 reads version 0 in step 3: 3 updates late", self.refused("verify", table, "--staleness", 2))
        self.assertEqual(run("verify", table, "--staleness", 3).code, 0)


if __name__ == "__main__":
    unittest.main()
