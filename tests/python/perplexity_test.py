# SPDX-License-Identifier: Apache-2.0
"""Perplexity against plain PyTorch, and language models as lm-eval asks them.

usage: perplexity_test.py
"""

import math
import types
import unittest

import kept_exports  # noqa: F401
import torch
import torch.nn as nn
import zoo
from small_modules import Case, Model, seeded, texts, token_loss
from torch.nn import functional

import penstock
from penstock import PenstockError, harness

if zoo.have("transformers"):
    zoo.stub_torchvision()
    import transformers


def gpt2(dropout=0.0):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=zoo.VOCABULARY, n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
                                     resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout)
    return transformers.GPT2LMHeadModel(config).double()


def labelled(sizes, ignored=-100):
    """Batches of unequally many samples, whose samples have unequally many labels."""
    torch.manual_seed(2)
    out = []
    for samples in sizes:
        ids = zoo.tokens(samples, 9)
        out.append({"input_ids": ids, "labels": ids.masked_fill(torch.rand(samples, 9) < torch.linspace(0.1, 0.9, samples)[:, None], ignored)})
    return out


def by_pytorch(module, batches, shift, ignored=-100):
    """exp of the mean over all tokens that count, each batch by hand."""
    total, count = 0.0, 0
    module.eval()
    for ids, labels in batches:
        with torch.no_grad():
            found = module(ids)
        logits = found if isinstance(found, torch.Tensor) else found.logits
        logits, labels = (logits[:, :-1], labels[:, 1:]) if shift else (logits, labels)
        logs = torch.log_softmax(logits, -1)
        for row, targets in zip(logs.flatten(0, 1), labels.flatten().tolist()):
            if targets != ignored:
                total, count = total - row[targets].item(), count + 1
    module.train()
    return math.exp(total / count), count


class Perplexities(Case):
    def assert_is(self, found, expected):
        self.assertEqual(found.tokens, expected[1])
        self.assertAlmostEqual(float(found), expected[0], delta=1e-10 * expected[0])
        self.assertAlmostEqual(found.loss, math.log(expected[0]), delta=1e-10)

    @unittest.skipUnless(zoo.have("transformers"), "transformers is not installed")
    def test_causal_models_of_hugging_face(self):
        module, batches = gpt2(dropout=0.3), labelled((4, 2))
        step = penstock.trainer(module, batches[0], optimizer=torch.optim.SGD(module.parameters(), lr=0.5), microbatches=2)
        for _ in range(2):
            expected = by_pytorch(module, [tuple(batch.values()) for batch in batches], True)
            for of in (step, module):
                self.assert_is(penstock.perplexity(of, batches), expected)
            step(batches[0])
            step.sync()
        others = labelled((4, 2), ignored=0)
        expected = by_pytorch(module, [tuple(batch.values()) for batch in others], True, ignored=0)
        self.assert_is(penstock.perplexity(module, others, ignore_index=0, shift=True), expected)
        nothing = {name: value if name == "input_ids" else torch.full_like(value, -100) for name, value in batches[1].items()}
        self.assert_is(penstock.perplexity(module, [nothing, *batches]), by_pytorch(module, [tuple(batch.values()) for batch in batches], True))

    @unittest.skipUnless(zoo.have("transformers"), "transformers is not installed")
    def test_models_whose_labels_are_at_their_places(self):
        torch.manual_seed(0)
        module, batches = zoo.without_dropout(transformers.BertForMaskedLM(transformers.BertConfig(**zoo.sizes()))).double(), labelled((4, 2))
        self.assert_is(penstock.perplexity(module, batches), by_pytorch(module, [tuple(batch.values()) for batch in batches], False))

    def test_loss_functions(self):
        module, batches = seeded(Model, layers=2, dropout=0.2), [texts(4), texts(2)]
        step = penstock.trainer(module, batches[0], loss=token_loss, microbatches=2)
        expected = by_pytorch(module, batches, False)
        for of in (step, module):
            self.assert_is(penstock.perplexity(of, batches), expected)
        self.assertRegex(str(penstock.perplexity(step, batches)), r"^perplexity \d+\.?\d*, loss \d\.\d{4} over \d+ tokens$")

    def test_refusals(self):
        class Other(nn.Module):
            def __init__(self, factor):
                super().__init__()
                self.layer, self.factor = nn.Embedding(19, 19), factor

            def forward(self, input_ids, labels):
                logits = self.layer(input_ids)
                return {"loss": token_loss(logits, labels) * self.factor, "logits": logits}

        def refused(text, model, *batches, **given):
            with self.assertRaisesRegex(PenstockError, text):
                penstock.perplexity(model, batches, **given)
        batch = dict(zip(("input_ids", "labels"), texts()))
        refused(r"the model is no language model\n.*\n  it gives output \[8, 3\]", nn.Linear(4, 3), (torch.ones(8, 4), torch.ones(8)))
        refused("the model's loss, [\\d.]+, is neither mean of its targets' negative log-likelihoods\n  that is .*\n  hint: shift=True or shift=False", Other(2), batch)
        penstock.perplexity(Other(2), [batch], shift=False)
        for shift in ("x", 1, 0):
            refused(f"shift={shift!r} is not what shift takes", Other(2), batch, shift=shift)
        still = Other(1)
        nn.init.zeros_(still.layer.weight)
        refused("is both means", still, batch)
        refused("no target of these batches counts\n  a target that is -100 is ignored", Other(1), {**batch, "labels": torch.full((8, 6), -100)})
        refused("a target is -1, and the vocabulary has 19 tokens\n  hint: ignore_index=-1 ignores it", seeded(Model), (batch["input_ids"], torch.full((8, 6), -1)))
        refused(r"targets of shape \[8, 5\] do not go with logits of shape \[8, 6, 19\]", seeded(Model), (batch["input_ids"], torch.ones(8, 5, dtype=torch.int64)))
        refused('the batch has no targets\n  hint: give dicts with "labels", or \\(inputs, targets\\)', seeded(Model), batch["input_ids"])
        refused("a int is neither a trainer nor a module", 3, batch)

    def test_parameters_that_are_not_finite(self):
        module, batch = seeded(Model, layers=2), texts(4)
        module.layers[0].up.weight.data[0] = math.nan
        step = penstock.trainer(module, batch, loss=token_loss, microbatches=2)
        found = penstock.perplexity(module, [batch])
        self.assertTrue(math.isnan(float(found)) and math.isnan(found.loss))
        with self.assertRaisesRegex(PenstockError, "the model's loss is nan\n.*\n  hint: see that its parameters are finite"):
            penstock.perplexity(step, [batch])


class Letters:
    """A tokenizer of letters, of which a pair "th" is one token."""

    vocab_size, bos_token_id, eos_token_id = 29, None, 0
    ALPHABET = ["<end>", " ", "th", *"abcdefghijklmnopqrstuvwxyz"]

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        out, i = [], 0
        while i < len(text):
            size = 2 if text.startswith("th", i) else 1
            out.append(self.ALPHABET.index(text[i:i + size]))
            i += size
        return out

    def decode(self, tokens):
        return "".join(self.ALPHABET[token] for token in tokens)


class Causal(nn.Module):
    """The next token by the mean of those before it."""

    def __init__(self, vocabulary=29):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, 8), nn.Linear(8, vocabulary)

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None])


def requests(*arguments):
    return [types.SimpleNamespace(args=each) for each in arguments]


class Harness(Case):
    @classmethod
    def setUpClass(cls):
        """A step and the module, by the same numbers; no test changes them."""
        cls.module = seeded(Causal)
        step = penstock.trainer(cls.module, (zoo.tokens(4, 16) % 29,) * 2, loss=token_loss, microbatches=2)
        cls.both = [harness.LanguageModel(of, Letters(), length=24, batch_size=4) for of in (cls.module, step)]

    def models(self):
        return self.module, self.both

    def by_hand(self, module, tokens, scored):
        logs = torch.log_softmax(module(torch.tensor([tokens]))[0], -1)
        chosen = [(logs[i - 1, tokens[i]].item(), logs[i - 1].argmax().item() == tokens[i]) for i in range(len(tokens) - scored, len(tokens))]
        return sum(value for value, _ in chosen), all(best for _, best in chosen)

    def assert_scores(self, found, expected):
        self.assertEqual([best for _, best in found], [best for _, best in expected])
        for (value, _), (wanted, _) in zip(found, expected, strict=True):
            self.assertAlmostEqual(value, wanted, delta=1e-10 * max(1, abs(wanted)))

    def test_loglikelihood(self):
        module, models = self.models()
        encode, long = Letters().encode, "abc" * 20
        pairs = [("the cat", " sat"), ("the cat ", "sat"), ("", "th"), ("   ", "a"), (long, " x"), ("a", "b" * 24), ("wi", "th")]
        expected = [self.by_hand(module, encode("the cat sat", add_special_tokens=False), 4)] * 2 + [
            self.by_hand(module, [0, 2], 1), self.by_hand(module, [0, 1, 1, 1, 3], 4), self.by_hand(module, encode(long + " x", add_special_tokens=False)[-25:], 2),
            self.by_hand(module, encode("a" + "b" * 24, add_special_tokens=False), 24), self.by_hand(module, encode("with", add_special_tokens=False), 1)]
        for model in models:
            self.assert_scores(model.loglikelihood(requests(*pairs)), expected)
        greedy = models[0].generate_until(requests(("the", {"until": [], "max_gen_toks": 3})))[0]
        for model in models:
            self.assertTrue(model.loglikelihood(requests(("the", greedy)))[0][1])
        self.assertEqual(models[0].loglikelihood([]), [])

    def test_loglikelihood_rolling(self):
        module, models = self.models()
        for text in ("the", "ab" * 12, "the quick brown fox jumps over the lazy dog and goes on for a while", ""):
            tokens, length = [0, *Letters().encode(text, add_special_tokens=False)], 24
            expected, done = 0.0, 1
            while done < len(tokens):
                end = min(done + length, len(tokens))
                expected += self.by_hand(module, tokens[max(0, end - length - 1):end], end - done)[0]
                done = end
            for model in models:
                self.assertAlmostEqual(model.loglikelihood_rolling(requests((text,)))[0], expected, delta=1e-9)

    def test_generate_until(self):
        module, models = self.models()

        def greedy(text, most):
            tokens, made = Letters().encode(text, add_special_tokens=False)[-(24 - most):] or [0], []
            while len(made) < most and 0 not in made:
                made.append(module(torch.tensor([tokens + made]))[0, -1].argmax().item())
            return [token for token in made if token != 0]
        for text in ("the", "", "z" * 40):
            whole = Letters().decode(greedy(text, 6))
            for model in models:
                self.assertEqual(model.generate_until(requests((text, {"until": None, "max_gen_toks": 6, "do_sample": False, "temperature": 0.7}))), [whole])
                stop = whole[2]
                self.assertEqual(model.generate_until(requests((text, {"until": stop, "max_gen_toks": 6}), (text, {"until": ["#"], "max_gen_toks": 2}))),
                                 [whole[:whole.index(stop)], Letters().decode(greedy(text, 2))])
        for given in ({"do_sample": True}, {"temperature": 0.5}, {"num_beams": 3}):
            with self.assertRaisesRegex(PenstockError, "generate_until is greedy, and the request has"):
                models[0].generate_until(requests(("the", {"max_gen_toks": 3, **given})))
        with self.assertRaisesRegex(PenstockError, "256 tokens are to be generated, and the model reads 24\n  hint: \"max_gen_toks\" below that"):
            models[0].generate_until(requests(("the", {})))

    def test_refusals(self):
        def refused(text, model, tokenizer=Letters(), **given):
            with self.assertRaisesRegex(PenstockError, text):
                harness.LanguageModel(model, tokenizer, **{"length": 24, "batch_size": 2, **given})

        class Both(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed, self.head = nn.Embedding(29, 8), nn.Linear(8, 29)

            def forward(self, tokens):
                x = self.embed(tokens)
                return self.head(x + x.mean(1, keepdim=True))
        refused("the model is no language model\n  a language model gives logits", Classes())
        refused("the model is no causal language model\n  its logits depend on tokens behind them", Both())
        refused("the model's vocabulary has 9 tokens, the tokenizer's 29", Causal(9))
        refused("the tokenizer has neither bos_token_id nor eos_token_id\n.*\n  hint: prefix=TOKEN", Causal(), types.SimpleNamespace())
        refused("the model cannot be called with tokens: .*\n  hint: batch= is a function", nn.Bilinear(2, 2, 2))
        with self.assertRaisesRegex(PenstockError, "a continuation has 25 tokens, and the model reads 24"):
            harness.LanguageModel(Causal(), Letters(), length=24).loglikelihood(requests(("a", "b" * 25)))

    @unittest.skipUnless(zoo.have("transformers"), "transformers is not installed")
    def test_steps_with_labels(self):
        module, batch = gpt2(), labelled((4,))[0]
        step = penstock.trainer(module, batch, microbatches=2)
        found = harness.LanguageModel(step, Letters(), length=32, batch_size=4).loglikelihood_rolling(requests(("the cat",)))
        tokens = torch.tensor([[0, *Letters().encode("the cat", add_special_tokens=False)]])
        self.assertAlmostEqual(found[0], -functional.cross_entropy(module.eval()(tokens[:, :-1]).logits[0], tokens[0, 1:], reduction="sum").item(), delta=1e-9)

    @unittest.skipUnless(zoo.have("lm_eval"), "lm_eval is not installed")
    def test_lm_eval_itself(self):
        from lm_eval.api.instance import Instance
        from lm_eval.api.model import LM
        module, models = self.models()
        self.assertIsInstance(models[0], LM)
        asked = [Instance(request_type="loglikelihood", doc={}, arguments=("the", " cat"), idx=0)]
        self.assert_scores(models[0].loglikelihood(asked), [self.by_hand(module, Letters().encode("the cat", add_special_tokens=False), 4)])


class Classes(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(29, 8)

    def forward(self, tokens):
        return self.embed(tokens).mean(1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
