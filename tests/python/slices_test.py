# SPDX-License-Identifier: Apache-2.0
"""Sequences in slices: a module's loss and gradients are autograd's under schedules that take slices; what needs a token behind it is refused.

usage: slices_test.py
"""

import copy
import unittest

import kept_exports  # noqa: F401
import torch
import zoo
from evaluate import sampled  # finds the package
from small_modules import Case, token_loss
from torch import nn
from torch.nn import functional

import penstock


class Layer(nn.Module):
    def __init__(self, width, heads, causal, dropout):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads, self.causal, self.drop = heads, causal, nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)
        x = x + self.drop(self.out(attended))
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self, width=8, heads=2, layers=2, vocabulary=19, context=12, causal=True, dropout=0.0):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.layers = nn.ModuleList(Layer(width, heads, causal, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def drawn(**arguments):
    """A module and two batches of it."""
    torch.manual_seed(0)
    return GPT(**arguments).double(), [(torch.randint(19, (4, 12)), torch.randint(19, (4, 12))) for _ in range(2)]


class Slices(Case):
    def test_gradients_and_steps(self):
        plans = [{"schedule": "slimpipe", "slices": 2}, {"schedule": "terapipe", "slices": [3, 2, 1]},
                 {"schedule": "zb-h1", "slices": 2, "data": 2, "zero": 3},
                 {"schedule": "terapipe", "slices": 3}, {"schedule": "1f1b", "slices": 2, "tensor": 2},
                 {"schedule": "gpipe", "slices": 4, "recompute": True, "chunks": 2}]
        for plan in sampled(plans, 2):
            with self.subTest(plan):
                module, batches = drawn()
                twin = copy.deepcopy(module)
                ours, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, twin))
                step = penstock.trainer(module, batches[0], loss=token_loss, optimizer=ours, microbatches=2, **plan)
                self.assert_trains_alike(step, twin, theirs, batches)
                self.assertTrue("attention_join(" in step.program())

    def test_a_table_whose_rows_members_share(self):
        """Positions are looked up ahead of the micro-batches, but where members need a message for it."""
        module, batches = drawn()
        dims = penstock.dims(module, {r"places\.weight": ("vocab", None)})
        settings = {"loss": token_loss, "microbatches": 2, "slices": 2, "tensor": 2, "dims": dims}
        self.assertLess(penstock.check(module, batches[0], **settings).gradients, 1e-10)

    def test_dropout(self):
        module, batches = drawn(dropout=0.2)
        self.assertLess(penstock.check(module, batches[0], loss=token_loss, microbatches=2, schedule="slimpipe", slices=2).gradients, 1e-10)

    def test_hugging_face(self):
        """Where no mask of padding is given; else a token may need one behind it, as far as anybody can tell."""
        for name in sampled(("gpt2", "llama"), 1):
            module, batch = zoo.make(name, torch.float64)
            settings = {"microbatches": 2, "schedule": "slimpipe", "slices": 2}
            with self.subTest(name):
                self.refused("needs something of slice 1, which comes later.*read by scaled_dot_product_attention", module, batch, **settings)
                batch = {"input_ids": batch["input_ids"], "labels": batch["input_ids"]}
                self.assertLess(penstock.check(module, batch, **settings).gradients, 1e-6)

    def test_sequences_that_are_named(self):
        """A module whose first tensor has no tokens, and one with the sequence along dim 2."""
        torch.manual_seed(1)

        class Turned(nn.Module):
            def __init__(self):
                super().__init__()
                self.gpt = GPT()

            def forward(self, scale, tokens):
                return self.gpt(tokens.squeeze(1)) * scale[:, None, None]
        module, batches = Turned().double(), (torch.rand(4, dtype=torch.float64), torch.randint(19, (4, 1, 12)))
        settings = {"loss": lambda y: (y * y).mean(), "microbatches": 2, "schedule": "slimpipe", "slices": 2}
        self.assertLess(penstock.check(module, batches, sequence={"tokens": 2}, **settings).gradients, 1e-10)
        for sequence, message in ((None, r"the sequence of \"scale\" is no dim 1 of"), ({"tokens": 3}, r"the sequence of \"tokens\" is no dim 3 of"),
                                  ({"words": 1}, r"there is no sequence in \"words\""), ({"tokens": "one"}, "sequence is a dim by tensor"),
                                  ({"tokens": 1}, "tokens")):
            with self.subTest(sequence):
                self.refused(message, module, batches, sequence=sequence, **settings)

    def refused(self, message, module, batch, **settings):
        with self.assertRaisesRegex(penstock.PenstockError, "(?s)" + message):
            penstock.trainer(module, batch, **settings).gradients(batch)

    def test_what_is_refused(self):
        module, batches = drawn(causal=False)
        settings = {"loss": token_loss, "microbatches": 2, "schedule": "slimpipe"}
        self.refused("slice 0 needs something of slice 1, which comes later.*causal", module, batches[0], slices=2, **settings)
        module, batches = drawn()
        for more, message in (({"slices": 0}, "slices=0 is not what slices takes"), ({"slices": [2, 0]}, "slices is how many slices"),
                              ({"slices": 13}, "as many tokens"), ({"slices": [3, 2]}, "12 tokens is not a multiple of 5"),
                              ({"options": {"slices": 2}}, "slices is an argument of its own"),
                              ({"schedule": "1f1b", "slices": 2, "options": {"balance": [1.0]}}, "1f1b takes no --balance")):
            with self.subTest(more):
                self.refused(message, module, batches[0], **{**settings, **more})
        step = penstock.trainer(module, batches[0], slices=2, **settings)
        with self.assertRaisesRegex(penstock.PenstockError, "(?s)slices=2: slices are of sequences of one length.*slices=1"):
            step.gradients(penstock.MicroBatches([batches[0], tuple(each[:, :5] for each in batches[0])]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
