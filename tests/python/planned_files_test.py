# SPDX-License-Identifier: Apache-2.0
"""Plans of graphs' files and of configurations from Python: what the program plans, and what is refused.

usage: planned_files_test.py, with PENSTOCK the program's path
"""

import tempfile
import unittest
from pathlib import Path

import torch
from beside_program import EXAMPLES, message, printed_json

import penstock

GRAPH, CONFIG, CLUSTER = EXAMPLES / "graphs/two-encoders.json", EXAMPLES / "gpt.toml", EXAMPLES / "clusters/v100-4.toml"


class Files(unittest.TestCase):
    def test_plans_are_the_programs(self):
        for what, planner, own, flags in ((GRAPH, "pipedream", {}, []), (GRAPH, "graphpipe", {"samples": 32, "sizes": [1, 2]}, ["--batch", 32, "--micro-batches", "1,2"]),
                                          (CONFIG, "max-load", {"settings": {"model.layers": 6, "width": 64}}, ["--set", "model.layers=6", "--set", "width=64"]),
                                          ("gpt", "degrees", {"samples": 64, "memory": 1e9}, ["--batch", 64, "--memory", 1e9, "--only", "by-block=0"])):
            with self.subTest(str(what), planner=planner):
                plan = penstock.plan(what, cluster=CLUSTER, planner=planner, **own)
                said = printed_json("plan", what, "--cluster", CLUSTER, "--planner", planner, *flags)
                self.assertEqual([plan.predicted_time, plan.lower_bound, plan.bottleneck, plan.peak_bytes, plan.planner, plan.optimal],
                                 [said[key] for key in ("predicted_time", "lower_bound", "bottleneck", "peak_bytes", "planner", "optimal")])
                self.assertEqual([row["name"] for row in plan.rows()], [stage["name"] for stage in said["stages"]])
                self.assertEqual(plan.order.stages, len(plan.rows()))

    def test_clusters_as_dicts(self):
        cluster = penstock.Cluster(name="4 V100", devices=[{"count": 4, "device": "v100", "memory": 16.0}], levels=[{"size": 4, "bandwidth": 1.25, "latency": 5.0}],
                                   between=[{"devices": [0, 1], "link": "pcie3"}])
        file = '[[devices]]\ncount = 4\ndevice = "v100"\nmemory = 16.0\n[[levels]]\nsize = 4\nbandwidth = 1.25\nlatency = 5.0\n[[between]]\ndevices = [0, 1]\nlink = "pcie3"\n'
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cluster.toml"
            path.write_text(file)
            found, other = (penstock.plan(GRAPH, cluster=each, planner="pipedream") for each in (cluster, path))
        self.assertEqual([found.predicted_time, found.peak_bytes], [other.predicted_time, other.peak_bytes])
        self.assertIn("4 V100", str(found))

    def test_what_a_plan_shows(self):
        plan = penstock.plan(GRAPH, cluster=CLUSTER, planner="graphpipe")
        self.assertAlmostEqual(plan.timeline.makespan, plan.predicted_time)
        self.assertTrue(plan.timeline.seconds)
        self.assertIn("Bottleneck: ", plan.explain())
        with tempfile.TemporaryDirectory() as folder:
            for name, words in (("x.svg", "<svg"), ("x.html", "<!doctype html"), ("x.txt", "two-encoders on "), ("x.json", "{")):
                plan.save(Path(folder) / name)
                self.assertIn(words, (Path(folder) / name).read_text())
            read = penstock.Plan.load(Path(folder) / "x.json")
        self.assertEqual(read.predicted_time, plan.predicted_time)
        self.assertIn("not at hand", message(read.explain))
        self.assertIn("plan.timeline.save", message(lambda: plan.save("x.pdf")))
        self.assertTrue(plan.svg().startswith("<svg"))
        for call, words in ((lambda: plan.save("x.jsn"), 'x.jsn: a plan cannot be written as \'jsn\'\n  hint: did you mean "json"?'), (lambda: plan.save("plan"), "the endings are .svg"),
                            (lambda: plan.show("x.gif"), "its ending is .html"), (lambda: plan.show("no/such.html"), "no/such.html cannot be written: No such file"),
                            (lambda: plan.save(None), "path=None is no path"), (lambda: plan.rows().save("x.xlsx"), "its ending is .csv")):
            self.assertIn(words, message(call))

    def test_errors(self):
        module = torch.nn.Linear(2, 2)
        for call, words in ((lambda: penstock.plan("gtp"), 'did you mean "gpt"?'),
                            (lambda: penstock.plan("no/such.json"), "neither a file"),
                            (lambda: penstock.plan(GRAPH, torch.zeros(2)), "leave out batch"),
                            (lambda: penstock.plan(GRAPH, loss=torch.nn.MSELoss()), "leave out loss"),
                            (lambda: penstock.plan(GRAPH, devices=2, settings={"model.layers": 2}), "leave out settings"),
                            (lambda: penstock.plan(module, torch.zeros(2, 2), samples=4), "leave out samples"),
                            (lambda: penstock.plan("gpt"), "for how many devices is gpt planned?\n  hint: devices=N"),
                            (lambda: penstock.plan(GRAPH), "for how many devices is"),
                            (lambda: penstock.plan(CONFIG, device="v100"), "for how many devices is"),
                            (lambda: penstock.plan("gpt", devices=2, samples=-1), "samples=-1 is not what samples takes\n  hint: samples is a whole number, at least 1"),
                            (lambda: penstock.plan("gpt", devices=2, samples=0), "samples=0"),
                            (lambda: penstock.plan("gpt", devices=2, samples=2.5), "samples=2.5"),
                            (lambda: penstock.plan("gpt", devices=2, samples=True), "samples=True"),
                            (lambda: penstock.plan("gpt", devices=2, sizes=[1, "2"]), "sizes='2'"),
                            *((lambda given=given: penstock.plan("gpt", **{"devices": 2, **given}), "{}={!r} is not what".format(*next(iter(given.items()))))
                              for given in ({"devices": "x"}, {"devices": 2**40}, {"seconds": "x"}, {"nodes": 1.5}, {"memory": "16GB"}, {"planner": 3}, {"device": 3}, {"link": 3},
                                            {"only": 3}, {"replicas": 1}, {"sizes": 3}, {"settings": 3})),
                            (lambda: penstock.plan("gpt", cluster=5), "path=5 is no path"),
                            (lambda: penstock.plan(module, torch.zeros(2, 2), loss=torch.sum, microbatches="x"), "microbatches='x'"),
                            (lambda: penstock.plan(module, torch.zeros(2, 2), loss=torch.sum, profile="nix"), "nix cannot be read"),
                            (lambda: penstock.Plan.load("nix"), "nix cannot be read: No such file"),
                            (lambda: penstock.plan(module), "penstock.plan(module, batch)"),
                            (lambda: penstock.plan(GRAPH, devices=2, planner="pipedreem"), "pipedream"),
                            (lambda: penstock.plan(GRAPH, devices=2, device="v1000"), "v100"),
                            (lambda: penstock.plan(CONFIG, devices=2, settings={"layrs": 2}), "layers"),
                            (lambda: penstock.plan(GRAPH, cluster="local"), "--cluster local"),
                            (lambda: penstock.plan(GRAPH, cluster="no/such.toml"), "cannot be read"),
                            (lambda: penstock.plan(GRAPH, cluster={"device": []}), 'did you mean "devices"?'),
                            (lambda: penstock.plan(GRAPH, cluster={"levels": [8]}), "each is a dict"),
                            (lambda: penstock.plan(GRAPH, cluster={"devices": [{"count": 2, "device": "v1000"}]}), "v100")):
            with self.subTest(words):
                self.assertIn(words, message(call))


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
