# SPDX-License-Identifier: Apache-2.0
"""penstock mesh and compile --explain: who holds what of a value, and what tensors that are split over axes cost."""

import contextlib
import json
import unittest
import xml.etree.ElementTree

from browser import Browser, browser_profile
from support import SMALL, ProgramTest, run

MESH = ["--mesh", "pipe=2,data=2,tensor=2"]
VALUES = ["--value", "h.0.attn.c_attn.weight", "--value", "h.0.mlp"]
CLUSTER = '[[devices]]\ncount = {}\n[[levels]]\nsize = 2\nlink = "nvlink3"\n[[levels]]\nsize = {}\nbandwidth = 25.0\n'


class Mesh(ProgramTest):
    def cluster(self, devices):
        file = self.folder / f"{devices}.toml"
        file.write_text(CLUSTER.format(devices, devices // 2))
        return file

    def test_text(self):
        result = run("mesh", *SMALL, *MESH, *VALUES, "--cluster", self.cluster(8))
        self.assertEqual(result.code, 0, result.err)
        for part in ["mesh: pipe 2 x data 2 x tensor 2; a step sends", "tensor  2 devices, 300 GB/s", "data     8 devices, 25 GB/s",
                     "h.0.attn.c_attn.weight, f32[32,96], in state", "columns 0 to 15; columns 32 to 47; columns 64 to 79: devices 0, 2",
                     "along tensor it is made "]:  # fmt: skip
            self.assertIn(part, result.out)

    def test_files(self):
        for extension in ["txt", "svg", "html"]:
            out = self.folder / f"mesh.{extension}"
            result = run("mesh", *SMALL, *MESH, *VALUES, "--out", out)
            self.assertEqual((result.code, result.out), (0, f"drawn in {out}\n"), result.err)
        xml.etree.ElementTree.parse(self.folder / "mesh.svg")
        self.assertEqual((self.folder / "mesh.txt").read_text(), run("mesh", *SMALL, *MESH, *VALUES).out)

    def test_json(self):
        report = run("mesh", *SMALL, *MESH, *VALUES, "--json").json()
        self.assertEqual((report["devices"], report["mesh"]), (8, {"pipe": 2, "data": 2, "tensor": 2}))
        parts = report["values"][0]["parts"]
        self.assertEqual([part["terms"] for part in parts], [[[0, 2]], [[1, 3]]])
        self.assertEqual([box["columns"] for box in parts[1]["boxes"]], [[16, 32], [48, 64], [80, 96]])
        tensor = next(axis for axis in report["axes"] if axis["axis"] == "tensor")
        self.assertEqual(tensor["groups"], [[0, 1], [2, 3], [4, 5], [6, 7]])
        self.assertGreater(tensor["levels"][0]["busiest_device_bytes"], 0)

    def test_picture_in_a_browser(self):
        """No two texts of the picture lie on each other, and none reaches beyond it; also on the page of a step's timeline."""
        values = [*VALUES, "--value", "ln_f.weight", "--value", "wte.weight", "--value", "%0"]
        svg = self.folder / "mesh.svg"
        self.assertEqual(run("mesh", *SMALL, *MESH, *values, "--cluster", self.cluster(8), "--out", svg).code, 0)
        with browser_profile() as profile, contextlib.closing(Browser(profile)) as browser:
            browser.call("Page.navigate", url=svg.resolve().as_uri())
            self.wait(browser, "document.readyState === 'complete' && Boolean(document.querySelector('.mesh'))")
            overlaps = browser.evaluate("""(() => {
                const texts = [...document.querySelectorAll('text')].map((t) => [t.textContent, t.getBoundingClientRect()]);
                const size = document.documentElement.viewBox.baseVal, found = [];
                texts.forEach(([a, r], i) => {
                    if (r.left < 0 || r.right > size.width || r.bottom > size.height) found.push(a + ' leaves the picture');
                    texts.slice(i + 1).forEach(([b, q]) => {
                        if (r.left < q.right - 1 && q.left < r.right - 1 && r.top < q.bottom - 3 && q.top < r.bottom - 3) found.push(a + ' on ' + b);
                    });
                });
                return found;
            })()""")
            self.assertEqual(overlaps, [])

    def wait(self, browser, condition):
        for _ in range(500):
            if browser.evaluate(condition):
                return
            browser.settle()
        self.fail(condition)

    def test_a_page_shows_pictures(self):
        page = self.folder / "mesh.html"
        self.assertEqual(run("mesh", *SMALL, *MESH, *VALUES, "--out", page).code, 0)
        text = page.read_text()
        for part in ["<svg xmlns", "<h2>Conversions between layouts</h2>\n<pre>axis tensor of 2 members: each sends "]:
            self.assertIn(part, text)
        self.assertNotIn("<script", text)
        svg = self.folder / "mesh.svg"
        self.assertEqual(run("mesh", *SMALL, *MESH, *VALUES, "--out", svg).code, 0)
        self.train("run", 1)
        both = self.folder / "both.html"
        shown = run("show", self.folder / "run" / "timeline.json", "--section", f"Who holds what={svg}", "--out", both)
        self.assertEqual(shown.code, 0, shown.err)
        self.assertIn('<h2>Who holds what</h2>\n<div class="picture"', both.read_text())

    def test_explain(self):
        result = run("compile", *SMALL, *MESH, "--explain")
        self.assertEqual(result.code, 0, result.err)
        for part in ["axis tensor of 2 members: each sends ", '\nstage "0", each micro-batch: ', "all_reduce  %", "outside of the loop, once a step: ",
                     "a step of 8 micro-batches on the mesh pipe 2 x data 2 x tensor 2\n"]:  # fmt: skip
            self.assertIn(part, result.out)
        report = run("compile", *SMALL, *MESH, "--explain", "--json").json()
        (axis,) = report["axes"]
        costs = [c["bytes"] for c in axis["stages"]["0"]["conversions"]]
        self.assertEqual(costs, sorted(costs, reverse=True))
        self.assertAlmostEqual(sum(stage["bytes"] for stage in axis["stages"].values()), axis["microbatch_bytes"])
        self.assertEqual([axis["axis"] for axis in report["step"]], ["pipe", "data", "tensor"])
        self.assertIn("no axis of the mesh splits tensors\n", run("compile", *SMALL, "--explain").out)
        self.assert_fails(run("compile", *SMALL, "--explain", "--emit", "graph"), "--explain and --emit graph")

    def test_simulate_takes_a_mesh(self):
        config = self.folder / "run.toml"
        config.write_text("[model]\nlayers = 4\nwidth = 32\nheads = 2\ncontext = 16\n[train]\nbatch = 8\n[pipeline]\nmicrobatches = 4\n")
        figures = ["--device", "a100-40", "--network", "nvlink3"]
        report = run("simulate", config, *figures, *MESH, "--json").json()
        self.assertEqual(len(report["actors"]), 8)
        self.assertEqual(len(run("simulate", config, *figures, "--json").json()["actors"]), 2)
        self.assert_fails(run("simulate", config, *figures, "--mesh", "tensr=2"), 'there is no axis "tensr"', "did you mean tensor?")
        self.assert_fails(run("simulate", "1f1b", *MESH), "--mesh is for programs and configurations")
        program = self.folder / "program.txt"
        program.write_text(run("compile", *SMALL).out)
        self.assert_fails(run("simulate", program, *figures, *MESH), "--mesh and --set are for configurations")

    def test_bad_input(self):
        self.assert_fails(run("mesh", *SMALL, *MESH, "--value", "h.0.attn.c_attn.wight"),
                          "error: --value h.0.attn.c_attn.wight: the step has no such parameter, module or value\n"
                          "  a value without a name is %N, as penstock compile --emit layouts numbers those of each micro-batch\n"
                          '  hint: did you mean "h.0.attn.c_attn.weight"?\n')  # fmt: skip
        cluster = self.cluster(6)
        self.assert_fails(run("mesh", *SMALL, *MESH, "--cluster", cluster),
                          f'error: the mesh is of 8 devices, cluster "{cluster}" has 6\n  the mesh: pipe 2 x data 2 x tensor 2\n'
                          "  the cluster's levels: 2 devices, 6 devices\n"
                          "  hint: the product of the mesh's axes must be the number of devices\n")  # fmt: skip
        self.assert_fails(run("mesh", *SMALL, *MESH, "--out", self.folder / "m.png"), 'unknown format ".png"', ".svg, .html and .txt")
        self.assert_fails(run("compile", *SMALL, *MESH, "--memory-limit", 10000), "error: device ", "; the limit is 9.8 KiB\n", "it holds f32[",
                          "hint: split more: a larger --mesh tensor= or context=")  # fmt: skip
        self.assertEqual(run("compile", *SMALL, *MESH, "--memory-limit", 10**9).code, 0)
        self.assert_fails(run("compile", *SMALL, "--emit", "graph", "--memory-limit", 1), "--memory-limit is for programs, not for --emit graph")


if __name__ == "__main__":
    unittest.main()
