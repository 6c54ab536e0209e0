# SPDX-License-Identifier: Apache-2.0
"""Nothing is shown of what PyTorch's internals say while a module is traced; what the user's code says, and Penstock itself, is.

usage: quiet_test.py
"""

import logging
import os
import unittest
import warnings
from unittest import mock

import evaluate  # noqa: F401  (it finds the package)
import torch
import torch.nn as nn

import penstock

INTERNAL = "torch.fx.experimental.symbolic_shapes"


class Loud(nn.Module):
    """Says things as PyTorch's modules do, and as a user's does."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        logging.getLogger(INTERNAL).error("an internal log")
        logging.getLogger("torch._dynamo.made_meanwhile").warning("another one")
        warnings.warn_explicit("an internal warning", FutureWarning, "symbolic_shapes.py", 1, module=INTERNAL, registry={})
        warnings.warn("the user's warning", stacklevel=1)
        logging.getLogger("user").warning("the user's log")
        return self.layer(x).mean()


class Seen(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = set()

    def emit(self, record):
        self.texts.add(record.getMessage())


class Quiet(unittest.TestCase):
    def said(self):
        """(warnings, logs) of an export."""
        seen = Seen()
        for name in (INTERNAL, "torch._dynamo", "user"):
            logging.getLogger(name).addHandler(seen)
            self.addCleanup(logging.getLogger(name).removeHandler, seen)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            penstock.export(Loud(), (torch.ones(2, 4),), cache="off")
        return {str(each.message) for each in caught if "oneDNN" not in str(each.message)}, seen.texts

    def test_internals_are_not_shown(self):
        self.assertEqual(self.said(), ({"the user's warning"}, {"the user's log"}))

    def test_debugging_shows_all(self):
        with mock.patch.dict(os.environ, {"PENSTOCK_DEBUG": "1"}):
            found = self.said()
        self.assertEqual(found, ({"the user's warning", "an internal warning"}, {"the user's log", "an internal log", "another one"}))
        with mock.patch.dict(os.environ, {"PENSTOCK_DEBUG": "0"}):
            self.assertEqual(self.said(), ({"the user's warning"}, {"the user's log"}))

    def test_levels_are_as_before(self):
        logging.getLogger(INTERNAL).setLevel(logging.INFO)
        self.said()
        self.assertEqual(logging.getLogger(INTERNAL).level, logging.INFO)

    def test_a_real_step_says_nothing(self):
        """Sizes that vary, an optimiser whose step is traced, and a second shape."""
        module = nn.Sequential(nn.Embedding(19, 8), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 19)).double()
        with warnings.catch_warnings(record=True) as caught, self.assertNoLogs(level="WARNING"):
            warnings.simplefilter("always")
            step = penstock.trainer(module, (torch.randint(19, (4, 6)), torch.randint(19, (4, 6))), optimizer=torch.optim.RMSprop(module.parameters()),
                                    loss=lambda y, target: nn.functional.cross_entropy(y.flatten(0, 1), target.flatten()), microbatches=2)
            step((torch.randint(19, (4, 9)), torch.randint(19, (4, 9))))
        self.assertEqual([str(each.message) for each in caught], [])


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
