# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts under meshes: the sequential step's gradients, and what is sent."""

import re
import unittest

from support import ProgramTest, run, sampled

SMALL = ["--set", "model.name=moe", "--set", "layers=4", "--set", "width=16", "--set", "heads=2", "--set", "context=16", "--batch", 8,
         "--microbatches", 4]  # fmt: skip
WITH_SEQUENCE = ["--set", "layout.sequence=expert", "--set", "groups=2"]



class Experts(ProgramTest):
    def conversions(self, *arguments):
        """The conversions of the layer with a mixture, in one micro-batch: of tensors of at least so many bytes, forward and backward."""
        result = run("compile", *SMALL, "--set", "model.layers=2", "--emit", "layouts", *arguments)
        self.assertEqual(result.code, 0, result.err)
        sent = re.findall(r"^  (\w+) %\d+ (\w+)\[([\d,]+)\]: .* for (?:add|add_n|constrain|matmul) of h\.1( \(backward\))? in", result.out, re.MULTILINE)
        sent = [(verb, shape, bool(backward)) for verb, dtype, shape, backward in sent if verb != "slice" and shape.endswith(",16")]
        return [(verb, shape) for verb, shape, backward in sent if not backward], [(verb, shape) for verb, shape, backward in sent if backward]

    def check(self, *arguments):
        result = run("check", *SMALL, "--dtype", "f64", "--json", *arguments)
        self.assertEqual(result.code, 0, f"{arguments}: {result.err}")
        self.assertTrue(result.json()["equal"], arguments)

    def test_equal_the_sequential_step(self):
        self.check("--mesh", "pipe=1")
        meshes = ("expert=2", "pipe=2,expert=2", "pipe=2,tensor=2", "pipe=2,data=2", "expert=2,tensor=2", "pipe=2,data=2,expert=2")
        for mesh in sampled(meshes, 2):
            self.check("--mesh", mesh, "--set", "dropout=0.1")
        for schedule in sampled((["zb-h1"], ["gpipe"], ["interleaved-1f1b", "--chunks", 2]), 1):
            self.check("--mesh", "pipe=2,expert=2", "--schedule", *schedule)

    def test_sizes_that_do_not_divide(self):
        self.check("--mesh", "pipe=2,expert=2", "--set", "experts=5")
        self.check("--mesh", "expert=3", "--set", "experts=4", "--set", "capacity_factor=0.7")

    def test_split_tokens_equal_the_sequential_step(self):
        self.check("--mesh", "pipe=2,expert=2", *WITH_SEQUENCE)
        self.check("--mesh", "expert=2", "--set", "layout.sequence=expert")
        self.check("--mesh", "expert=2", "--set", "layout.sequence=expert", "--set", "groups=4")

    def test_whole_tokens_are_sent_once_in_each_direction(self):
        """As the two sums of Megatron's MLP: what experts answer is summed with the weights of the gate, token by token. Back, the sum is scattered
        and gathered behind the addition, which sends as much."""
        self.assertEqual(self.conversions("--mesh", "expert=2"), ([("all_reduce", "2,1,16,16")], [("reduce_scatter", "2,1,16,16")]))

    def test_split_tokens_are_exchanged(self):
        """Room for ceil(1.25 * 2 * 4 / 4) = 3 tokens of each of the 4 groups."""
        there, back = ("all_to_all", "4,2,4,3,16"), ("all_to_all", "2,4,4,3,16")
        mesh = ["--mesh", "expert=4", "--set", "layout.sequence=expert", "--set", "groups=4"]
        forward, backward = self.conversions(*mesh)
        self.assertEqual(forward, [there, back])
        self.assertIn(there, backward)

    def test_more_members_than_experts_are_refused(self):
        result = run("check", *SMALL, "--mesh", "expert=4", "--set", "experts=3")
        self.assertNotEqual(result.code, 0)
        self.assertIn('pipeline.expert = 4: "experts" has 3 in h.1.mlp.experts.c_fc.weight, fewer than members of the axis', result.err)


if __name__ == "__main__":
    unittest.main()
