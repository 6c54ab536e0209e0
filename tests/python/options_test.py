# SPDX-License-Identifier: Apache-2.0
"""A trainer's schedule takes the options that it takes in a configuration, by the same names."""

import pathlib
import re
import tempfile
import unittest

import kept_exports  # noqa: F401
import torch
from evaluate import sampled  # noqa: F401  finds the package
from small_modules import Images
from torch import nn
from torch.nn import functional

import penstock

RULES = pathlib.Path(__file__).resolve().parents[2] / "examples/schedules"


def trained(**settings):
    """The program, and the parameters after three steps."""
    torch.manual_seed(3)
    module = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
    step = penstock.trainer(module, torch.ones(8, 6), optimizer=torch.optim.SGD(module.parameters(), 0.1), loss=lambda y: (y * y).mean(),
                            actors=2, microbatches=4, **settings)
    for seed in range(3):
        step(torch.randn(8, 6, generator=torch.Generator().manual_seed(seed)))
    return step.program(), step.state_dict()


class Options(unittest.TestCase):
    def test_they_shape_the_table(self):
        for schedule, options in (("1f1b", {"split_backward": True}), ("eager-1f1b", {"in_flight": 1}), ("crosspipe", {"transfers": [4.0]})):
            with self.subTest(schedule, options=options):
                (usual, expected), (program, values) = trained(schedule=schedule), trained(schedule=schedule, options=options)
                self.assertNotEqual(program, usual)
                for name, tensor in values.items():
                    torch.testing.assert_close(tensor, expected[name])

    def test_others_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            table = pathlib.Path(folder) / "table.csv"
            table.write_text("0F0,0B0,0F1,0B1,0F2,0B2,0F3,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n")
            for settings, message in (({"options": {"in_fligth": 3}}, 'no option "in_fligth".*did you mean "in_flight"'),
                                      ({"options": {"group": 2}}, "1f1b takes no --group"),
                                      ({"options": {"split_backward": 1}}, '"split_backward" needs true or false'),
                                      ({"options": {"chunks": 2}}, "chunks is an argument of its own"),
                                      ({"schedule": table, "options": {"unit": 1}}, "is a table: it takes no unit"),
                                      ({"options": {"window": 2}}, "window is an argument of its own"),
                                      ({"options": {"slices": 2}}, "slices is an argument of its own.*slices=2"),
                                      ({"options": {"frozen": [1.0]}}, "stages")):
                with self.subTest(settings), self.assertRaisesRegex(penstock.PenstockError, "(?s)" + message):
                    trained(**settings)

    def test_stages_take_micro_batches_of_their_own_sizes(self):
        """At once, as whoever counts the second stage's runs sees; what needs all samples of a micro-batch (a batch norm, a mean) does so one after the
        other."""
        torch.manual_seed(1)
        layers, images = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4))).double(), Images().double()
        with tempfile.TemporaryDirectory() as folder:
            table = pathlib.Path(folder) / "table.csv"
            table.write_text("0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1x2F0,1x2B0,1x2F2,1x2B2\n")
            for module, shape, forwards in ((layers, (6,), 2), (images, (3, 6, 6), 4)):
                with self.subTest(type(module).__name__):
                    batch = torch.randn(8, *shape, dtype=torch.float64), torch.randint(5, (8,))
                    settings = {"loss": lambda y, target: functional.cross_entropy(y, target, reduction="sum"), "reduction": "sum", "actors": 2, "microbatches": 4, "schedule": table}
                    self.assertLess(penstock.check(module, batch, **settings).gradients, 1e-10)
                    step = penstock.trainer(module, batch, optimizer=torch.optim.Adam(module.parameters()), **settings)
                    step(batch)
                    self.assertEqual(len(re.findall(r"\brun 1\S*F\d @F", step.program())), forwards)

    def test_rules_from_a_file_and_as_text(self):
        deep = RULES / "eager-1f1b.rules"
        (usual, expected), (program, values) = trained(schedule="eager-1f1b"), trained(schedule=deep)
        self.assertEqual(program, usual)
        for name, tensor in values.items():
            self.assertTrue(torch.equal(tensor, expected[name]), name)
        self.assertEqual(trained(schedule=str(deep))[0], usual)
        self.assertEqual(trained(schedule=deep.read_text())[0], usual)
        self.assertEqual(trained(schedule=deep, options={"split_backward": False})[0], usual)

    def test_rules_say_how_many_stages_an_actor_has(self):
        there_and_back = "penstock rules 1\nplacement wave 2\nprefer B F\nlimit 4\n"
        program, values = trained(schedule=there_and_back)
        self.assertEqual(trained(schedule=there_and_back, chunks=2)[0], program)
        for name, tensor in trained(schedule="1f1b")[1].items():
            torch.testing.assert_close(values[name], tensor)

    def test_rules_that_cannot(self):
        for settings, message in (({"schedule": "penstock rules 1\nlimit p-\n"}, "the rules:3:1: expected a number"),
                                  ({"schedule": "penstock rules 1\nlimit 1\n", "options": {"in_flight": 1}}, "the rules: rules take no --in-flight"),
                                  ({"schedule": "penstock rules 1\nplacement wave 2\n", "chunks": 3}, "stages per actor are 2 by the placement, 3 by"),
                                  ({"schedule": "penstock rules 1\nlimit 0\n"}, "limit 0")):
            with self.subTest(settings), self.assertRaisesRegex(penstock.PenstockError, "(?s)" + message):
                trained(**settings)
        with self.assertRaisesRegex(penstock.PenstockError, "none.rules cannot be read"):
            trained(schedule="none.rules")


if __name__ == "__main__":
    unittest.main()
