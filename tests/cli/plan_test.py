# SPDX-License-Identifier: Apache-2.0
"""penstock plan: graphs, clusters and this machine; the plan's file is what train, check, simulate and show read."""

import contextlib
import json
import pathlib
import re
import unittest
import xml.etree.ElementTree as ElementTree

from browser import Browser, browser_profile
from support import ProgramTest, run, run_all, sampled

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/clusters"
PROFILES = pathlib.Path(__file__).resolve().parents[2] / ".." / "shared" / "profiles"

def pipedream(nodes, edges):
    """The text form: (forward ms, backward ms, activation bytes, parameter bytes) of each node."""
    lines = [
        f"node{i} -- Layer{i} -- forward_compute_time={f}, backward_compute_time={b}, activation_size={a}, parameter_size={p}"
        for i, (f, b, a, p) in enumerate(nodes)
    ]
    return "\n".join(lines + [f"\tnode{a} -- node{b}" for a, b in edges]) + "\n"


CHAIN = pipedream([(1, 2, 1000, 4000)] * 4, [(0, 1), (1, 2), (2, 3)])


class PlanTest(ProgramTest):
    def graph(self, text=CHAIN):
        file = self.folder / "graph.txt"
        file.write_text(text)
        return file

    def plan(self, *arguments):
        result = run("plan", *arguments, "--json")
        self.assertEqual(result.code, 0, result.err)
        return result.json()

    def test_a_graph(self):
        plan = self.plan(self.graph(), "--devices", 2, "--bandwidth", 1e9, "--no-replicas")
        self.assertEqual([len(stage["nodes"]) for stage in plan["stages"]], [2, 2])
        self.assertEqual([stage["devices"] for stage in plan["stages"]], [[0], [1]])
        self.assertTrue({"bottleneck", "predicted_time", "peak_bytes", "search_seconds", "optimal", "planner"} <= plan.keys())
        self.assertGreaterEqual(plan["predicted_time"], 0.006 * 16)
        text = run("plan", self.graph(), "--devices", 2, "--bandwidth", 1e9, "--no-replicas")
        self.assertIn("takes", text.out)

    def test_a_large_graph_within_a_time(self):
        """The graph has no series and parallel parts: a node feeds the next, the one after and the seventh."""
        edges = [(a, a + step) for step in (1, 2, 7) for a in range(400 - step)]
        graph = self.graph(pipedream([(1 + i % 5, 2 + i % 3, 1000, 4000) for i in range(400)], edges))
        arguments = ["plan", graph, "--devices", 8, "--bandwidth", 1e9, "--seconds", 1, "--no-replicas"]
        text = run(*arguments)
        self.assertEqual(text.code, 0, text.err)
        self.assertRegex(text.out, r" of at most 1 s\n")
        self.assertRegex(text.out, r"no plan takes less than [^,]*, which leaves a gap of \d+\.\d %\.")
        plan = self.plan(*arguments[1:])
        self.assertEqual(plan["time_limit"], 1)
        self.assertAlmostEqual(plan["gap"], plan["predicted_time"] / plan["lower_bound"] - 1)
        self.assertGreaterEqual(plan["gap"], 0)

    def test_explain(self):
        graph = self.graph(pipedream([(1, 2, 1000, 4000)] * 6, [(i, i + 1) for i in range(5)]))
        plan = self.plan(graph, "--devices", 2, "--bandwidth", 1e9, "--no-replicas", "--seconds", 1, "--explain")
        explanation = plan["explanation"]
        self.assertEqual(explanation["bottleneck"], "stage")
        more = {change["what"]: change["predicted_time"] for change in explanation["changes"]}
        self.assertLess(more["one more device"], plan["predicted_time"])
        self.assertAlmostEqual(more["twice the memory"], plan["predicted_time"])
        self.assertLessEqual(more["twice the bandwidth"], plan["predicted_time"])
        self.assertIn("next", explanation)
        self.assertEqual(explanation["planned_time"], plan["predicted_time"])
        text = run("plan", self.graph(), "--devices", 2, "--bandwidth", 1e9, "--seconds", 1, "--explain").out
        for part in ("Bottleneck: ", "one more device", "twice the memory"):
            self.assertIn(part, text)

    def test_a_cluster_file(self):
        cluster = self.folder / "c.toml"
        cluster.write_text('name = "four"\n[[devices]]\ncount = 4\n[[levels]]\nsize = 4\nbandwidth = 1e10\n')
        plan = self.plan(self.graph(), "--cluster", cluster, "--no-replicas")
        self.assertEqual(plan["cluster"], "four")
        self.assertEqual(len(plan["peak_bytes"]), 4)
        self.assert_fails(run("plan", self.graph(), "--cluster", cluster, "--devices", 2), "--devices and --cluster", "the file says")

    def test_planners_are_listed(self):
        out = run("plan", "--help").out
        for name in ("best", "exact", "pipedream", "piper", "max-load", "graphpipe"):
            self.assertIn(f"  {name}: ", out)

    @unittest.skipUnless(PROFILES.is_dir(), "the planner profiles are not here")
    def test_the_originals_values(self):
        vgg = [PROFILES / "pipedream-vgg16-graph.txt", "--planner", "pipedream", "--devices", 4, "--bandwidth", 1e9]
        self.assertAlmostEqual(self.plan(*vgg)["bottleneck"], 0.2055208960, 10)
        self.assertAlmostEqual(self.plan(*vgg, "--straight")["bottleneck"], 0.411041792, 9)
        self.assertAlmostEqual(self.plan(*vgg, "--ignore-transfers")["bottleneck"], 0.175732624, 9)
        piper = self.plan(PROFILES / "piper-bert32a100.json", "--planner", "piper", "--devices", 8)
        self.assertAlmostEqual(piper["bottleneck"], 0.1220367122, 10)
        load = self.plan(PROFILES / "dnn-partitioning-bert24_training.json", "--planner", "max-load")
        self.assertAlmostEqual(load["bottleneck"], 41.7458125e-3, 10)
        load = run("plan", PROFILES / "dnn-partitioning-bert24_training.json", "--planner", "max-load", "--devices", 2)
        self.assertIn("objective: 109.9 ms, proven the least", load.out)

    def test_errors(self):
        def fails(text, *parts, devices=("--devices", 2, "--bandwidth", 1e9)):
            self.assert_fails(run("plan", self.graph(text), *devices), *parts)

        fails(pipedream([(1, 1, 1, 1)] * 3, [(0, 1), (1, 2), (2, 1)]), "graph.txt: the graph has a cycle of 2 nodes", "node2 -> node1")
        fails(CHAIN.replace("forward_compute_time=1, ", "", 1), "graph.txt:1", "forward_compute_time")
        fails(CHAIN.replace("=1, ", "=one, ", 1), "graph.txt:1")
        fails(CHAIN + "\tnode0 -- node9\n", "graph.txt:8", "node9")
        fails("", "graph.txt: the file is empty")
        fails("{", "graph.txt:1:2")
        fails("[1, 2]", "graph.txt")
        fails(CHAIN, "a cluster of 0 devices", devices=("--devices", 0, "--bandwidth", 1e9))
        fails(CHAIN, "for how many devices", "--devices N, or --cluster FILE", devices=())
        fails(CHAIN, "what do links", "--bandwidth", devices=("--devices", 2))
        fails(CHAIN, "--bandwidth -1", devices=("--devices", 2, "--bandwidth", -1))
        fails(CHAIN, "--memory 0: it must be above 0", devices=("--devices", 2, "--bandwidth", 1, "--memory", 0))
        fails(CHAIN, "--latency inf", devices=("--devices", 2, "--bandwidth", 1, "--latency", "inf"))
        # A node that fits nowhere.
        fails(CHAIN, "fits the memory", "the smallest memory that would do", devices=("--devices", 2, "--bandwidth", 1e9, "--memory", 100))
        fails(CHAIN, 'there is no planner "pipdream"', 'did you mean "pipedream"?',
              devices=("--devices", 2, "--bandwidth", 1e9, "--planner", "pipdream"))  # fmt: skip
        fails(CHAIN, 'there is no planner "dgrees"', 'did you mean "degrees"?', devices=("--devices", 2, "--planner", "dgrees"))
        fails(CHAIN, 'there is no planner "sequence"', 'did you mean "sequences"?', devices=("--devices", 2, "--planner", "sequence"))
        fails(CHAIN, "a step of 2000000000 samples has 2000000000 micro-batches of 1", "--microbatch-sizes SIZES",
              devices=("--devices", 2, "--bandwidth", 1e9, "--batch", 2_000_000_000))  # fmt: skip
        self.assert_fails(run("plan", "gtp"), '"gtp" is neither a file nor a model', "candle-uno", 'did you mean "gpt"?')
        usage = run("plan", self.graph(), "--plannr", "best")
        self.assertEqual((usage.code, usage.err.splitlines()[-1]), (2, "  hint: did you mean --planner?"))
        fails(CHAIN, "--set is for configurations", devices=("--devices", 2, "--bandwidth", 1e9, "--set", "seed=1"))
        fails(CHAIN, "--cluster local measures a configuration's model", devices=("--cluster", "local"))
        self.assert_fails(run("plan", "gpt", "--set", "backend=gloo", "--cluster", "local"), "--cluster local measures threads")
        self.assert_fails(run("plan", "gpt", "--set", "batch=8", "--microbatch-sizes", 3, "--cluster", "local"), "do not divide train.batch = 8")

    def config(self, model):
        file = self.folder / f"{model}.toml"
        file.write_text(
            f'[model]\nname = "{model}"\nlayers = 3\nwidth = 32\nheads = 2\ncontext = 16\n[data]\ntext = ["{self.text}"]\n'
            "[train]\nbatch = 8\nvalidation_every = 0\nvalidation_batches = 1\n[pipeline]\nmicrobatches = 4\n"
        )
        return file

    def planned_here(self, model):
        """A configuration, its plan's file, and what the program said."""
        config, out = self.config(model), self.folder / f"{model}.json"
        result = run("plan", config, "--cluster", "local", "--seconds", 1, "--rounds", 2, "--candidates", 2, "--out", out, "--json",
                     "--explain")  # fmt: skip
        # It is said before anything is measured.
        self.assertRegex(result.err, r"^(plan: this machine is busy: .*\n)?plan: a step takes \S+ [mu]?s; measuring \d sizes? and about \d plans? takes about \d+ \w+\n")
        self.assertEqual(result.code, 0, result.err)
        return config, out, result.json()

    def test_from_plan_to_run(self):
        for model in ("gpt", "two-branch"):
            config, file, plan = self.planned_here(model)
            self.assertGreater(plan["predicted_time"], 0)
            self.assertEqual(len(plan["peak_bytes"]), 2)
            self.assertIn("next", plan["explanation"])
            # Two times of one step: by the nodes' costs, which the explanation is of, and by the stages as they were measured whole.
            self.assertNotEqual(plan["explanation"]["planned_time"], plan["predicted_time"])
            planned = [config, "--plan", file]
            check = run("check", *planned, "--dtype", "f64", "--json")
            self.assertEqual(check.code, 0, check.out + check.err)
            self.assertTrue(check.json()["equal"])
            folder = self.folder / f"{model}-run"
            trained = run("train", *planned, "--steps", 3, "--out", folder, "--json")
            self.assertEqual(trained.code, 0, trained.err)
            resumed = run("train", "--resume", folder, "--steps", 4, "--json")
            self.assertEqual(resumed.code, 0, resumed.err)
            self.assertEqual(resumed.json()["step"], 4)
            stages = run("compile", *planned, "--emit", "stages")
            self.assertEqual(stages.out.count("\nstage "), len(plan["stages"]), stages.err)
            self.assert_fails(run("check", *planned, "--actors", 5), "--actors 5: the plan", "says 2 actors")
            self.assert_fails(run("check", *planned, "--schedule", "gpipe"), "--schedule gpipe: the plan")
            self.assert_fails(run("check", *planned, "--window", 2), "--window 2: the plan", "says which action each actor runs when", "leave out --window")
        self.assert_fails(run("check", self.config("gpt"), "--plan", file), 'is a plan of "two-branch", the model is "gpt"')
        self.assert_fails(run("check", self.config(model), "--plan", file, "--set", "layers=2"), "which the model has not")
        self.assert_fails(run("check", self.config(model), "--plan", self.folder / "none.json"), "none.json")

    def test_stages_on_several_devices(self):
        config, file = self.config("gpt"), self.folder / "replicas.json"
        plan = self.plan(config, "--batch", 16, "--devices", 4, "--bandwidth", 1e10, "--planner", "pipedream", "--microbatch-sizes", "2",
                         "--out", file)  # fmt: skip
        groups = [len(stage["devices"]) for stage in plan["stages"]]
        self.assertGreater(max(groups), min(groups))
        planned, devices = [config, "--plan", file, "--batch", 16], sum(groups)
        for zero in sampled(range(4), 1):
            check = ["check", *planned, "--dtype", "f64", "--set", f"zero={zero}", "--json"]
            for results in ([run(*check)], run_all(devices, *check, "--backend", "gloo")):
                self.assertEqual([result.code for result in results], [0] * len(results), (zero, results[0].out, results[0].err))
                self.assertTrue(results[0].json()["equal"])

        first, second = self.folder / "first", self.folder / "second"
        trained = run("train", *planned, "--set", "zero=2", "--steps", 6, "--set", "checkpoint_every=3", "--out", first)
        self.assertEqual(trained.code, 0, trained.err)
        self.assertIn(f"on {len(groups)} actors of {', '.join(map(str, groups))} devices", trained.err)
        resumed = run("train", "--resume", first / "checkpoint-3", "--out", second, "--plan", "", "--schedule", "1f1b", "--microbatches", 4,
                      "--mesh", "pipe=2,data=2")  # fmt: skip
        self.assertEqual(resumed.code, 0, resumed.err)
        again = run("train", "--resume", second, "--plan", file, "--steps", 8)
        self.assertEqual(again.code, 0, again.err)
        steps = {out: [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()] for out in (first, second)}
        self.assertEqual(len(steps[first][0]["peak_bytes"]), devices)
        self.assertAlmostEqual(steps[second][2]["loss"], steps[first][5]["loss"], delta=1e-3)
        self.assertEqual(steps[second][-1]["step"], 8)

        costs = self.folder / "costs.json"
        profiled = run("profile", *planned, "--rounds", 1, "--out", costs)
        self.assertEqual(profiled.code, 0, profiled.err)
        simulated = run("simulate", config, "--plan", file, "--set", "train.batch=16", "--costs", costs, "--json")
        self.assertEqual(len(simulated.json()["busy"]), devices, simulated.err)

    def test_devices_that_do_not_fit_a_plan(self):
        config, file = self.config("gpt"), self.folder / "replicas.json"
        self.plan(config, "--nodes", 1, "--devices", 2, "--bandwidth", 1e10, "--planner", "pipedream", "--microbatch-sizes", 2, "--out", file)
        planned = ["check", config, "--plan", file]
        self.assert_fails(run(*planned, "--mesh", "pipe=1,data=2"), "--mesh data 2: the plan",
                          "says how many devices each actor has: 2", "leave out --mesh data")
        self.assert_fails(run(*planned, "--batch", 4), "4 samples cannot be cut into 4 micro-batches of 2 equal parts", "has 2 devices")
        self.assert_fails(run(*planned, "--backend", "gloo"), "needs one process per device", "penstock launch -n 2")
        for result in run_all(3, *planned, "--backend", "gloo"):
            self.assert_fails(result, "3 processes were started for 2 devices (1 actor of 2)")
        three = run("plan", config, "--nodes", 1, "--devices", 3, "--bandwidth", 1e10, "--planner", "pipedream", "--microbatch-sizes", 2)
        self.assertEqual(three.code, 0)
        self.assertTrue(three.out.startswith(
            "train cannot run this plan: the plan: 8 samples cannot be cut into 4 micro-batches of 3 equal parts"), three.out)

    def test_a_plan_is_profiled_and_simulated(self):
        config, file, _ = self.planned_here("gpt")
        costs = self.folder / "costs.json"
        profiled = run("profile", config, "--plan", file, "--rounds", 2, "--out", costs)
        self.assertEqual(profiled.code, 0, profiled.err)
        simulated = run("simulate", config, "--plan", file, "--costs", costs, "--json")
        self.assertEqual(simulated.code, 0, simulated.err)
        self.assertEqual(simulated.json()["microbatches"], json.loads(file.read_text())["microbatches"])
        self.assert_fails(run("simulate", "1f1b", "--plan", file), "--plan is for programs and configurations")

    def test_a_stage_that_has_nothing_to_learn(self):
        """T5's relative positions are nobody's parameters: their stage has no backward, and its device no state."""
        config, file = self.config("t5"), self.folder / "t5.json"
        planned = ["plan", config, "--devices", 2, "--bandwidth", 1e9, "--no-replicas", "--microbatch-sizes", 2, "--seconds", 1, "--out", file]
        self.assertEqual(run(*planned).code, 0)
        plan = json.loads(file.read_text())
        rest = [node for stage in plan["stages"] for node in stage["nodes"] if node != "model"]
        plan["stages"] = [dict(plan["stages"][0], name=name, nodes=nodes, devices=[device])
                          for device, (name, nodes) in enumerate([("positions", ["model"]), ("rest", rest)])]  # fmt: skip
        plan["links"] = [{"from": 0, "to": 1, "bytes": 1024.0, "seconds": 1e-6}]
        plan["schedule"] = "0F0,0F1,0F2,0F3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n"
        file.write_text(json.dumps(plan))
        planned, costs, folder = [config, "--plan", file], self.folder / "costs.json", self.folder / "run"
        for arguments in (
            ["check", *planned, "--dtype", "f64"],
            ["profile", *planned, "--rounds", 1, "--out", costs],
            ["simulate", *planned, "--costs", costs],
            ["train", *planned, "--steps", 2, "--out", folder],
            ["train", "--resume", folder, "--steps", 3],
        ):
            result = run(*arguments)
            self.assertEqual(result.code, 0, result.err)
        self.assertEqual([f.name for f in sorted((folder / "checkpoint-2").glob("device-*"))], ["device-1.safetensors"])

    def test_degrees(self):
        cluster = self.folder / "c.toml"
        cluster.write_text('[[devices]]\ncount = 8\nmemory = 1\n[[levels]]\nsize = 4\nbandwidth = 100\n[[levels]]\nsize = 2\nbandwidth = 10\n')
        graph = self.graph(pipedream([(1, 2, 1e6, 4e6)] * 8, [(i, i + 1) for i in range(7)]))
        arguments = [graph, "--cluster", cluster, "--planner", "degrees", "--batch", 64]
        plan = self.plan(*arguments)
        self.assertTrue({"stages", "bottleneck", "predicted_time", "peak_bytes", "search_seconds", "optimal"} <= plan.keys())
        self.assertEqual(plan["pipe"] * plan["data"], 8)
        self.assertEqual(plan["data"] * plan["microbatches"] * plan["micro_batch"], 64)
        self.assertEqual(len(plan["stages"]), plan["pipe"] * plan["chunks"])
        self.assertEqual(sorted(node for stage in plan["stages"] for node in stage["nodes"]), [f"node{i}" for i in range(8)])
        self.assertEqual(len(plan["peak_bytes"]), 8)
        self.assertAlmostEqual(plan["compute"] + plan["bubble"] + plan["exposed"], plan["predicted_time"])

        fixed = self.plan(*arguments, "--only", "pipe=2,schedule=zeropp,zero=3", "--explain", "--every")
        self.assertEqual((fixed["pipe"], fixed["data"], fixed["zero"], fixed["schedule"]), (2, 4, 3, "zeropp"))
        self.assertEqual(len(fixed["alternatives"]), fixed["considered"])
        self.assertGreater(len({other["unit"] for other in fixed["alternatives"]}), 2)
        self.assertGreaterEqual(fixed["predicted_time"], plan["predicted_time"])
        text = run("plan", *arguments, "--explain").out
        for part in ("exposed communication", "ZeRO-0", "ZeRO-3", "breadth-first", "The fullest device holds"):
            self.assertIn(part, text)

        self.assert_fails(run("plan", *arguments, "--memory", 1e4), "no plan of", "the smallest memory of each device that would do")
        self.assert_fails(run("plan", *arguments, "--only", "pip=2"), 'did you mean "pipe"?')
        self.assert_fails(run("plan", *arguments, "--only", "pipe=3"), "no degrees for", "on 8 devices")
        self.assert_fails(run("plan", *arguments, "--states", "2+2"), "--states 2+2: not three numbers of bytes")
        self.assert_fails(run("plan", graph, "--devices", 2, "--bandwidth", 1e9, "--only", "pipe=2"), "--only is of --planner degrees and sequences")

    def test_degrees_of_a_model(self):
        plan = self.plan("gpt", "--set", "model.layers=6", "--set", "train.dtype=bf16", "--cluster", EXAMPLES / "a100-64.toml", "--device", "a100-80",
                         "--planner", "degrees", "--batch", 64, "--only", "pipe=8")  # fmt: skip
        self.assertEqual(plan["pipe"] * plan["data"] * plan["tensor"] * plan["context"], 64)
        self.assertEqual(plan["pipe"], 8)
        self.assertEqual(len(plan["stages"][0]["devices"]), 8)

    def test_whole_configurations(self):
        config, out = self.config("gpt"), self.folder / "best.toml"
        cluster = ["--devices", 2, "--bandwidth", 1e10, "--device", "a100-80"]
        varied = ["--vary", "slices=1,2,[3,1],999", "--vary", "schedule=1f1b,slimpipe"]
        found = self.plan(config, *cluster, *varied, "--set", "context=256", "--out", out)["configurations"]
        self.assertEqual(len(found), 8)
        runnable = [one for one in found if "refused" not in one]
        self.assertEqual(len(runnable), 6)
        self.assertEqual([one["predicted_time"] for one in runnable], sorted(one["predicted_time"] for one in runnable))
        self.assertTrue(all(one["fits"] and len(one["memory"]) == 2 and one["measured_time"] is None for one in runnable))
        self.assertIn("999", found[-1]["refused"])
        best = run("config", out, "--json").json()["keys"]
        values = {key["key"]: key["value"] for key in best}
        self.assertEqual(values["pipeline.schedule"], runnable[0]["settings"]["schedule"])
        self.assertEqual(values["model.context"], 256)
        check = run("check", out, "--dtype", "f64", "--json")
        self.assertEqual(check.code, 0, check.out + check.err)
        text = run("plan", config, *cluster, *varied, "--set", "context=256", "--explain").out
        for part in ("8 configurations of 8 compiled, 2 refused, 0 too large", "refused: slices=999", "loses by"):
            self.assertIn(part, text)
        # Actors follow from the cluster where nothing says how many there are.
        four = self.plan(config, "--devices", 4, "--bandwidth", 1e10, "--vary", "pipeline.context=1,2", "--set", "layers=4")["configurations"]
        self.assertEqual([len(one["memory"]) for one in four], [4, 4])
        self.assertEqual(len({str(one["memory"]) for one in four}), 2)

    def test_slices_are_planned(self):
        config, out = self.config("gpt"), self.folder / "planned.toml"
        cluster = ["--devices", 2, "--bandwidth", 1e10, "--device", "a100-80", "--set", "context=2048", "--set", "width=256", "--set", "schedule=terapipe"]
        found = self.plan(config, *cluster, "--vary", "slices=1,2,3,4,planned", "--slice-unit", 256, "--out", out)["configurations"]
        lengths = json.loads(found[0]["settings"]["slices"])
        self.assertEqual(sum(lengths), 2048)
        self.assertGreater(lengths[0], lengths[-1])
        self.assertTrue(all(length % 256 == 0 for length in lengths))
        again = self.plan(out, "--devices", 2, "--bandwidth", 1e10, "--device", "a100-80", "--vary", "actors=2")["configurations"]
        self.assertEqual(again[0]["predicted_time"], found[0]["predicted_time"])
        text = run("plan", config, *cluster, "--vary", "slices=planned", "--slice-unit", 4000, "--explain")
        self.assert_fails(text, "none of the configurations can be run", "slices in units of 4000 tokens: a sequence of 2048 has 1 unit")
        self.assert_fails(run("plan", config, "--devices", 2, "--bandwidth", 1e10, "--slice-unit", 4), "--slice-unit is of slices that are planned")

    def test_whole_configurations_here(self):
        found = self.plan(self.config("gpt"), "--cluster", "local", "--vary", "slices=1,2", "--rounds", 2, "--candidates", 1)["configurations"]
        self.assertEqual([one["measured_time"] is None for one in found], [False, True])
        self.assertGreater(found[0]["predicted_time"], 0)

    def test_sequences_are_planned(self):
        found = self.plan(self.config("gpt"), "--planner", "sequences", "--set", "context=256", "--set", "layers=2", "--devices", 2, "--bandwidth", 1e10,
                          "--memory", 1e9)["configurations"]  # fmt: skip
        schedules = {one["settings"]["schedule"] for one in found if "refused" not in one}
        self.assertEqual(schedules, {"1f1b", "zb-h1", "terapipe", "seq1f1b", "slimpipe", "slimpipe-exchange", "helixpipe"})
        self.assertEqual({one["settings"]["recompute"] for one in found}, {"none"})  # all fit

    def test_some_sequences_are_planned(self):
        arguments = [self.config("gpt"), "--planner", "sequences", "--set", "context=256", "--set", "layers=2", "--devices", 2, "--bandwidth", 1e10]
        found = self.plan(*arguments, "--only", "pipeline.context=1,schedule=slimpipe,schedule=1f1b")["configurations"]
        self.assertEqual({(one["settings"]["pipeline.context"], one["settings"]["schedule"]) for one in found}, {("1", "slimpipe"), ("1", "1f1b")})
        self.assert_fails(run("plan", *arguments, "--only", "slices=7"), "--only slices=7: no configuration has these values")

    def test_virtual_workers_are_planned_and_run(self):
        model = ("--set", "layers=4", "--set", "width=32", "--set", "context=16", "--set", "batch=8", "--set", "microbatches=1", "--set", "clip=0",
                 "--set", "optimiser=sgd", "--set", "momentum=0")  # fmt: skip
        mixed, out = ("--cluster", EXAMPLES / "mixed-4.toml"), self.folder / "workers.toml"
        planned = run("plan", "mlp", *mixed, *model, "--set", "window=4", "--planner", "hetpipe-waves", "--json", "--out", out)
        self.assertEqual(planned.code, 0, planned.err)
        found = planned.json()["configurations"]
        self.assertEqual({each["settings"]["pipeline.data"] for each in found}, {"1", "2", "4"})
        # Two workers of the same layers are faster where each has neighbours that NVLink joins, or is of one kind.
        two = (*model, "--set", "window=4", "--set", "schedule=hetpipe", "--set", "actors=2", "--set", "pipeline.data=2", "--set", "pipeline.distance=0")
        varied = run("plan", "mlp", *mixed, *two, "--vary", "pipeline.workers=[[2,2],[2,2]]", "--vary", "cluster_devices=[0,2,1,3],[0,1,2,3]", "--json")
        times = {each["settings"]["cluster_devices"]: each["predicted_time"] for each in varied.json()["configurations"]}
        self.assertLess(times["[0,1,2,3]"], times["[0,2,1,3]"])
        best = [each["predicted_time"] for each in found if each["settings"]["pipeline.data"] == "2"]
        self.assertLessEqual(best[0], min(times.values()))
        self.assertRegex(out.read_text(), r"^# The devices of a run are devices [0-3](, [0-3]){3} of the cluster, in this order.\n\[model\]")
        checked = run("check", out, "--dtype", "f64", "--json").json()
        self.assertEqual((checked["loss_difference"], checked["parameter_difference"]), (0, 0))
        self.assertEqual(run("train", out, "--text", self.text, "--steps", 4, "--out", self.folder / "workers").code, 0)
        self.assert_fails(run("plan", "mlp", *mixed, *model, "--planner", "hetpipe-waves"), "pipeline.window is 1", "--set pipeline.window")
        self.assert_fails(run("plan", "mlp", *mixed, *two, "--vary", "cluster_devices=[0,1,2,9]"), "device 9 of the program's is none of cluster")

    def test_whole_configurations_that_cannot_be(self):
        config = self.config("gpt")
        two = ["--devices", 2, "--bandwidth", 1e10]
        self.assert_fails(run("plan", self.graph(), *two, "--vary", "slices=1"), "is taken as a graph", "give CONFIG.toml")
        self.assert_fails(run("plan", config, *two, "--vary", "slices"), "--vary slices: not a key with values", "--vary slices=1,4,8")
        self.assert_fails(run("plan", config, *two, "--vary", "slice=1,2"), '--vary slice: unknown key "slice"', 'did you mean "batch.slices" or "pipeline.slices"?')
        self.assert_fails(run("plan", config, *two, "--vary", "slices=999,998"), "none of the configurations can be run", "slices=998: ", "other values")
        self.assert_fails(run("plan", config, *two, "--vary", "slices=1", "--out", "best.json"), "--out best.json", "FILE.toml")
        self.assert_fails(run("plan", config, *two, "--vary", "slices=1", "--planner", "sequences"), "says itself what it varies")
        self.assert_fails(run("plan", config, *two, "--vary", "slices=1", "--microbatch-sizes", "1"), "--microbatch-sizes says sizes", "--vary microbatches=4,8")
        self.assert_fails(run("plan", config, *two, "--vary", "slices=1", "--only", "pipe=2"), "--only is of --planner degrees and sequences")
        self.assert_fails(run("plan", config, *two, "--vary", "slices=1", "--memory", 10), "no configuration fits", "the smallest, slices=1")
        self.assert_fails(run("plan", config, "--devices", 3, "--bandwidth", 1, "--vary", "pipeline.context=2"), "3 devices are no multiple of the 2")
        self.assert_fails(run("plan", config, "--cluster", "local", "--set", "backend=gloo", "--vary", "slices=1"), "measures threads")

    def test_degrees_are_run_from_a_file(self):
        config, file = self.config("gpt"), self.folder / "degrees.json"
        cluster = self.folder / "two-nodes.toml"
        cluster.write_text('name = "two nodes"\n[[devices]]\ncount = 4\n' + 2 * "[[levels]]\nsize = 2\nbandwidth = 1.0\n")
        planned = ["plan", config, "--cluster", cluster, "--planner", "degrees", "--out", file]
        for only, local in (("pipe=2,zero=0", 1), ("pipe=2,zero=3", 1), ("pipe=1,zero=3,local=2", 2)):
            result = run(*planned, "--only", only, "--json")
            self.assertEqual(result.code, 0, result.err)
            self.assertEqual(result.json()["cannot_run"], "")
            stored = json.loads(file.read_text())
            self.assertEqual((stored["zero"], stored.get("local", 1)), (result.json()["zero"], local))
            check = run("check", config, "--plan", file, "--dtype", "f64", "--json")
            self.assertEqual(check.code, 0, check.out + check.err)
            self.assertTrue(check.json()["equal"])
        self.assert_fails(run(*planned, "--only", "by-block=1"), "--out and --only by-block=1", "block by block")

    def test_degrees_of_split_tensors(self):
        config, file = self.config("gpt"), self.folder / "split.json"
        cluster = self.folder / "node.toml"
        cluster.write_text('name = "a node"\n[[devices]]\ncount = 4\n[[levels]]\nsize = 4\nbandwidth = 100.0\n')
        planned = ["plan", config, "--cluster", cluster, "--planner", "degrees"]
        splits = (("tensor=2,sequence=0,pipe=2", (2, 1, False), "--mesh pipe=2,data=1,tensor=2"),
                  ("tensor=2,sequence=1,data=2,zero=1", (2, 1, True), "--mesh pipe=1,data=2,tensor=2 --set layout.sequence=tensor"),
                  ("context=2,pipe=2", (1, 2, False), "--mesh pipe=2,data=1,context=2"))  # fmt: skip
        for only, split, mesh in splits:
            plan = self.plan(*planned[1:], "--only", only, "--out", file)
            self.assertEqual(((plan["tensor"], plan["context"], plan["sequence"]), plan["mesh"], plan["cannot_run"]), (split, mesh, ""))
            self.assertGreater(plan["split_seconds"], 0)
            check = run("check", config, "--plan", file, "--dtype", "f64", "--json")
            self.assertEqual(check.code, 0, check.out + check.err)
            self.assertTrue(check.json()["equal"])
        explained = run(*planned, "--explain")
        for part in ("tensor 2", "tensor 2 and sequence", "context 4", "loses by", "Its mesh: --mesh pipe="):
            self.assertIn(part, explained.out)
        explained = run(*planned, "--explain", "--set", "attention=parts")  # of the splits that are tried, few allow it
        self.assertIn("tensor 2 and sequence", explained.out, explained.err)
        self.assert_fails(run(*planned, "--only", "tensor=4"), "pipeline.tensor = 4", '"heads" has 2 in h.0.attn.c_attn.weight')
        self.assert_fails(run(*planned, "--only", "tensor=3"), "no degrees for gpt on 4 devices", "a replica is split over 1 device")
        self.assert_fails(run(*planned, "--only", "order=pipe/width"), 'order has "width"', "axes: pipe, data, context, tensor")
        self.assert_fails(run("check", config, "--plan", file, "--set", "pipeline.context=1"), "the plan", "says context = 2")
        self.assert_fails(run("check", config, "--plan", file, "--set", "slices=2"), "the plan", "says which action each actor runs when")
        compiled = run("compile", config, "--plan", file, "--set", "head_shards=1", "--emit", "stages")  # a number of the model, not of the table
        self.assertEqual(compiled.code, 0, compiled.err)

    def test_what_is_assumed_stands_at_the_top(self):
        config = self.config("gpt")
        plan = ["plan", config, "--devices", 4, "--seconds", 1]
        self.assertRegex(run(*plan).out, r"(?m)^Assumed: times of a published v100 \(--figures\); links without limit \(--bandwidth\)")
        self.assertEqual(self.plan(*plan[1:], "--bandwidth", 1e9, "--figures", "a100-80", "--memory", 1e12, "--microbatch-sizes", "1,2")["assumed"], [])

    def test_a_clusters_own_device_times_it(self):
        cluster = self.folder / "c.toml"
        cluster.write_text('[[devices]]\ncount = 4\ndevice = "h100-sxm"\n[[levels]]\nsize = 4\nlink = "nvlink4"\n')
        for planner in ("degrees", "dapple", "pipedream"):
            plan = [self.config("gpt"), "--cluster", cluster, "--planner", planner, "--microbatch-sizes", "2"]
            figures = ([], ["--figures", "h100-sxm"], ["--device", "h100-sxm"], ["--figures", "v100"])
            own, named, old, other = (self.plan(*plan, *more)["predicted_time"] for more in figures)
            self.assertEqual((own, own), (named, old), planner)
            self.assertNotEqual(own, other, planner)
        self.assertEqual(self.plan("gpt", "--cluster", cluster, "--seconds", 1, "--microbatch-sizes", "2")["assumed"], [])

    def test_optimal_is_proven(self):
        """A planner's own objective may be proven the least where its step is not."""
        graph = self.graph(pipedream([(5, 7, 100_000_000, 4000)] * 6, [(i, i + 1) for i in range(5)]))
        for planner in ("max-load", "pipedream", "piper", "exact", "best"):
            plan = self.plan(graph, "--devices", 3, "--bandwidth", 1e10, "--planner", planner, "--batch", 16, "--no-replicas")
            self.assertEqual(plan["optimal"], plan["gap"] <= 1e-9, planner)
            if planner == "max-load":
                self.assertEqual((plan["bottleneck_optimal"], plan["optimal"]), (True, False))

    def test_micro_batches_that_are_said(self):
        for planner in ("best", "pipedream", "piper", "max-load"):
            plan = self.plan(self.graph(), "--devices", 2, "--bandwidth", 1e9, "--planner", planner, "--microbatch-sizes", "4", "--batch", 16, "--seconds", 1)
            self.assertEqual({stage["micro_batch"] for stage in plan["stages"]}, {4}, planner)

    def test_a_limit_holds_for_what_is_measured(self):
        """A run's devices take no more than the plan's file says, which keeps to --memory-limit."""
        config, file = self.config("gpt"), self.folder / "limited.json"
        arguments = [config, "--devices", 2, "--bandwidth", 1e10, "--planner", "pipedream", "--batch", 16, "--microbatch-sizes", "2"]
        most = max(self.plan(*arguments, "--memory-limit", 1e12)["peak_bytes"])
        refused = run("plan", *arguments, "--memory-limit", most / 4)
        self.assert_fails(refused, "no plan of gpt fits into devices of", "memory of each device that would do is")
        needed = float(re.search(r"would do is [^(]*\(([0-9.e+]+)", refused.err)[1])
        plan = self.plan(*arguments, "--memory-limit", needed, "--out", file)
        self.assertLessEqual(max(plan["peak_bytes"]), needed)
        trained = run("train", config, "--plan", file, "--batch", 16, "--steps", 2, "--set", "checkpoint_every=0", "--out", self.folder / "limited")
        self.assertEqual(trained.code, 0, trained.err)
        step = json.loads((self.folder / "limited" / "metrics.jsonl").read_text().splitlines()[-1])
        self.assertLessEqual(max(step["peak_bytes"]), needed)
        self.assertEqual(plan["memory_of"], "program")
        self.assertIn("Memory is what the plan's program holds.", run("plan", *arguments, "--memory-limit", needed).out)
        graph = self.plan(self.graph(), "--devices", 2, "--bandwidth", 1e9, "--memory-limit", 1e9)
        self.assertEqual(graph["memory_of"], "planner")

    def test_best_is_not_behind_degrees(self):
        arguments = [self.config("gpt"), "--devices", 4, "--bandwidth", 1e9]
        best = self.plan(*arguments, "--seconds", 4)
        self.assertEqual(best["cannot_run"], "")
        self.assertLessEqual(best["predicted_time"], self.plan(*arguments, "--seconds", 1, "--planner", "degrees", "--only", "by-block=0")["predicted_time"])

    def test_best_is_not_behind_a_planner_in_the_memory_of_its_plan(self):
        """The program of the fastest plan does not fit there; that of another planner's does."""
        problem = ("gpt", "--set", "layers=8", "--set", "width=512", "--set", "heads=8", "--set", "context=256", "--cluster", EXAMPLES / "v100-4.toml", "--batch", 64)
        theirs = self.plan(*problem, "--planner", "dawnpiper")
        best = self.plan(*problem, "--memory", max(theirs["peak_bytes"]), "--seconds", 60)
        self.assertLessEqual(best["predicted_time"], theirs["predicted_time"])
        self.assertLessEqual(max(best["peak_bytes"]), max(theirs["peak_bytes"]))

    def test_sizes_need_not_fit_the_default_of_micro_batches(self):
        plan = self.plan("gpt", "--set", "layers=2", "--batch", 36, "--microbatch-sizes", "6,12", "--devices", 2, "--bandwidth", 1e9, "--seconds", 1)
        self.assertEqual(plan["samples"], 36)

    def test_explain_with_several_levels(self):
        cluster = self.folder / "c.toml"
        cluster.write_text("[[devices]]\ncount = 4\n[[levels]]\nsize = 2\nbandwidth = 100\n[[levels]]\nsize = 2\nbandwidth = 10\n")
        plan = self.plan(self.graph(), "--cluster", cluster, "--seconds", 1, "--explain")
        more = {change["what"]: change for change in plan["explanation"]["changes"]}
        self.assertIn("predicted_time", more["2 more devices"])
        self.assertEqual(len(plan["figures"]), len(plan["stages"]))
        self.assertTrue({"degree", "ways", "gradient_sum", "update"} <= plan["figures"][0].keys())
        self.assertTrue(all("latency" in link for link in plan["links"]))

    def test_published_figures(self):
        plan = self.plan(self.config("two-branch"), "--devices", 3, "--bandwidth", 1e10, "--device", "a100-80", "--no-replicas",
                         "--seconds", 1)  # fmt: skip
        self.assertLessEqual(len(plan["stages"]), 3)
        nodes = [node for stage in plan["stages"] for node in stage["nodes"]]
        self.assertEqual(len(nodes), len(set(nodes)))
        self.assertIn("head", nodes)
        self.assert_fails(run("plan", "gpt", "--devices", 2, "--bandwidth", 1, "--device", "v10"), "v100")

    def test_show(self):
        file = self.folder / "plan.json"
        self.assertEqual(run("plan", self.graph(), "--devices", 2, "--bandwidth", 1e9, "--out", file).code, 0)
        for extension in ("svg", "html", "txt"):
            out = self.folder / f"plan.{extension}"
            result = run("show", file, "--out", out)
            self.assertEqual(result.code, 0, result.err)
            self.assertIn("stage 0" if extension == "svg" else "node", out.read_text())
        ElementTree.parse(self.folder / "plan.svg")
        self.assertIn("micro-batch", run("show", file).out)
        self.assertEqual(run("show", file, "--json").json()["stages"], run("plan", self.graph(), "--devices", 2, "--bandwidth", 1e9, "--json").json()["stages"])
        self.assert_fails(run("show", file, "--out", self.folder / "plan.gif"), "a plan cannot be drawn", ".svg, .html and .txt")
        broken = self.folder / "broken.json"
        broken.write_text(file.read_text().replace('"planner"', '"planer"'))
        self.assert_fails(run("show", broken, "--out", self.folder / "x.svg"), "broken.json", "planer")

    def test_the_page_of_a_plan(self):
        """The plan has six stages with long names: each text is whole and in its box, nothing beside the window, light or dark."""
        graph = self.graph(pipedream([(1, 2, 1000, 4000)] * 6, [(i, i + 1) for i in range(5)]))
        file, page = self.folder / "plan.json", self.folder / "plan.html"
        self.assertEqual(run("plan", graph, "--devices", 6, "--bandwidth", 1e9, "--no-replicas", "--planner", "max-load", "--out", file).code, 0)
        plan = json.loads(file.read_text())
        self.assertEqual(len(plan["stages"]), 6)
        names = [f"encoder.layers.{i}.attention_and_feed_forward..encoder.layers.{i + 7}.WWWWWWWWWWWWWWWWWWWWWWWWW{'ü' * i}" for i in range(6)]
        for stage, name in zip(plan["stages"], names):
            stage["name"] = name
        file.write_text(json.dumps(plan))
        self.assertEqual(run("show", file, "--out", page).code, 0)
        with browser_profile() as profile, contextlib.closing(Browser(profile)) as browser:
            for width, dark in ((1400, False), (700, True)):
                browser.resize(width, 900)
                browser.open(page, dark)
                found = browser.evaluate("""(() => {
                    const inside = (a, b) => a.x >= b.x && a.y >= b.y && a.x + a.width <= b.x + b.width && a.y + a.height <= b.y + b.height;
                    const svg = document.querySelector('.picture svg'), box = svg.getBoundingClientRect();
                    const stages = [...svg.querySelectorAll('.stage')].map((stage) => ({
                        name: [...stage.querySelectorAll('.name')].map((line) => line.textContent).join(''),
                        fits: [...stage.querySelectorAll('text')].every((text) => inside(text.getBBox(), stage.querySelector('.box').getBBox())),
                        seen: inside(stage.querySelector('.box').getBBox(), svg.viewBox.baseVal)}));
                    return {stages, wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
                            right: box.right - innerWidth, ground: getComputedStyle(svg.querySelector('.ground')).fill,
                            body: getComputedStyle(document.body).backgroundColor, tip: document.getElementById('tip').tagName};
                })()""")
                self.assertEqual([stage["name"] for stage in found["stages"]], [f"{i}  {name}" for i, name in enumerate(names)])
                self.assertTrue(all(stage["fits"] and stage["seen"] for stage in found["stages"]), found)
                self.assertEqual(found["wide"], 0)
                self.assertEqual(found["ground"], found["body"])
                self.assertEqual(found["tip"], "DIV")
                if width == 1400:
                    self.assertLessEqual(found["right"], 0)


if __name__ == "__main__":
    unittest.main()
