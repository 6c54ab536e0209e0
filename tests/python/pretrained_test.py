# SPDX-License-Identifier: Apache-2.0
"""Folders of Hugging Face's save_pretrained: read, trained, written back, and what is refused.

usage: pretrained_test.py
"""

import json
import tempfile
import unittest
from pathlib import Path

import evaluate  # noqa: F401  finds the package
import kept_exports  # noqa: F401
import torch
import zoo
from torch import nn

import penstock
from penstock import saved
from penstock.pretrained import Folder
from penstock.pretrained_files import shards_of

if not zoo.have("transformers"):
    raise unittest.SkipTest("transformers is not installed")
zoo.stub_torchvision()
import transformers  # noqa: E402

TEXT = dict(vocab_size=61, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)


def llama(**config):
    return transformers.LlamaForCausalLM, transformers.LlamaConfig(**TEXT, **config)


def gpt2(**config):
    return transformers.GPT2LMHeadModel, transformers.GPT2Config(vocab_size=61, n_embd=16, n_layer=1, n_head=2, n_positions=32, resid_pdrop=0,
                                                                 embd_pdrop=0, attn_pdrop=0, **config)


def on_meta(made):
    kind, config = made
    with torch.device("meta"):
        return kind(config)


def texts():
    tokens = torch.randint(61, (4, 8))
    return {"input_ids": tokens, "labels": tokens}


def trained(module, **options):
    return penstock.trainer(module, texts(), microbatches=2, dynamic=False, optimizer=torch.optim.AdamW(module.parameters(), lr=1e-2), **options)


def stored(folder):
    """Each key's file and tensor, as the files have them."""
    return {key: (file.name, tensor) for file in sorted(Path(folder).glob("*.safetensors")) for key, tensor in saved.read(file)[1].items()}


class Case(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)
        self.fresh("")

    def fresh(self, name):
        """Empty folders to read from and to write to."""
        self.folder, self.to = self.place / f"from {name}", self.place / f"to {name}"

    def write(self, made, size="3KB", dtype=torch.float32):
        kind, config = made
        module = kind(config).to(dtype)
        module.save_pretrained(self.folder, max_shard_size=size)
        return module

    def assert_same_layout(self, folder, other):
        one, two = stored(folder), stored(other)
        self.assertEqual({k: (f, t.dtype, t.shape) for k, (f, t) in one.items()}, {k: (f, t.dtype, t.shape) for k, (f, t) in two.items()})
        index = [json.loads((Path(f) / "model.safetensors.index.json").read_text()) if len({f for f, _ in one.values()}) > 1 else {} for f in (folder, other)]
        self.assertEqual(index[0].get("weight_map"), index[1].get("weight_map"))
        self.assertEqual(index[0].get("metadata", {}).get("total_size"), index[1].get("metadata", {}).get("total_size"))


class RoundTrip(Case):
    def test_shards_are_read_trained_and_written_back(self):
        for name, made, dtypes in (("llama", llama(), (torch.float32,)), ("tied llama", llama(tie_word_embeddings=True), (torch.bfloat16,)),
                                   ("gpt2", gpt2(), (torch.float32, torch.bfloat16))):
            for dtype in dtypes:
                with self.subTest(name, dtype=dtype):
                    self.fresh(f"{name} {dtype}")
                    self.write(made, "2KB", dtype)
                    self.assertGreater(len(list(self.folder.glob("*.safetensors"))), 2)
                    module = on_meta(made)
                    step = trained(module, weights=self.folder)
                    before = step.state_dict()
                    theirs = made[0].from_pretrained(self.folder, dtype=torch.float32)
                    for key, value in theirs.state_dict().items():
                        self.assertTrue(torch.equal(before[key], value), key)
                    batch = texts()
                    loss = step(batch)
                    self.assertAlmostEqual(loss.item(), theirs(**batch).loss.item(), delta=1e-5)
                    step.save_pretrained(self.to)
                    self.assert_same_layout(self.folder, self.to)
                    again = made[0].from_pretrained(self.to, dtype=torch.float32)
                    after = step.state_dict()
                    for key, value in again.state_dict().items():
                        self.assertTrue(torch.equal(after[key].to(dtype).float(), value), key)
                    self.assertFalse(torch.equal(after["lm_head.weight"], before["lm_head.weight"]))
                    self.assertEqual(json.loads((self.to / "config.json").read_text())["dtype"], str(dtype).removeprefix("torch."))
                    self.assertEqual(again.config.architectures, [made[0].__name__])

    def test_without_weights_keys_and_files_are_those_of_save_pretrained(self):
        bert = transformers.BertConfig(vocab_size=61, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
                                       max_position_embeddings=32)
        t5 = transformers.T5Config(vocab_size=61, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0)
        for made in (llama(), gpt2(), (transformers.BertForMaskedLM, bert), (transformers.T5ForConditionalGeneration, t5)):
            with self.subTest(made[0].__name__):
                self.fresh(made[0].__name__)
                module = self.write(made, "3KB")
                step = penstock.trainer(module, texts(), microbatches=2, dynamic=False)
                step.save_pretrained(self.to, "3KB")
                self.assert_same_layout(self.folder, self.to)
                again = made[0].from_pretrained(self.to)
                for key, value in module.state_dict().items():
                    self.assertTrue(torch.equal(again.state_dict()[key], value), key)

    def test_older_shards_go(self):
        step = penstock.trainer(self.write(llama()), texts(), microbatches=2, dynamic=False)
        step.save_pretrained(self.to, "3KB")
        step.save_pretrained(self.to)
        self.assertEqual([file.name for file in self.to.glob("model*")], ["model.safetensors"])

    def test_a_module_of_ones_own(self):
        module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        batch = torch.randn(8, 4), torch.randint(2, (8,))
        penstock.trainer(module, batch, loss=nn.CrossEntropyLoss(), microbatches=2).save_pretrained(self.to)
        with torch.device("meta"):
            other = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        found = penstock.trainer(other, batch, loss=nn.CrossEntropyLoss(), microbatches=2, weights=self.to).state_dict()
        for key, value in module.state_dict().items():
            self.assertTrue(torch.equal(found[key], value), key)


class Names(Case):
    def test_a_base_models_folder(self):
        kind, config = gpt2()
        base = transformers.GPT2Model(config)
        base.save_pretrained(self.folder, max_shard_size="3KB")
        step = trained(on_meta(gpt2()), weights=self.folder)
        self.assertTrue(torch.equal(step.parameter("transformer.h.0.mlp.c_fc.weight"), base.h[0].mlp.c_fc.weight))
        self.assertTrue(torch.equal(step.state_dict()["lm_head.weight"], base.wte.weight))
        step.save_pretrained(self.to)
        self.assert_same_layout(self.folder, self.to)

    def test_keys_that_from_pretrained_passes_over(self):
        for made, key in ((gpt2(), "transformer.h.0.attn.bias"), (llama(), "model.layers.0.self_attn.rotary_emb.inv_freq")):
            self.fresh(key)
            self.write(made, "1GB")
            metadata, tensors = saved.read(self.folder / "model.safetensors")
            older = {key: tensor.clone() for key, tensor in tensors.items()} | {key: torch.zeros(4)}
            saved.write(self.folder / "model.safetensors", metadata, older)
            self.assertEqual(Folder(self.folder, on_meta(made)).names.keys(), tensors.keys())

    def test_a_tied_tensor_that_is_there_twice(self):
        made = llama(tie_word_embeddings=True)
        self.write(made, "1GB")
        metadata, tensors = saved.read(self.folder / "model.safetensors")
        tensors = {key: tensor.clone() for key, tensor in tensors.items()}
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        saved.write(self.folder / "model.safetensors", metadata, tensors)
        self.assertEqual(Folder(self.folder, on_meta(made)).names["lm_head.weight"], "lm_head.weight")
        tensors["lm_head.weight"][0] += 1
        saved.write(self.folder / "model.safetensors", metadata, tensors)
        with self.assertRaisesRegex(penstock.PenstockError, 'embed_tokens.weight" and "lm_head.weight" differ, but the module ties them|lm_head.weight" and "model.embed_tokens.weight" differ'):
            Folder(self.folder, on_meta(made))


class Refusals(Case):
    def refused(self, text, made=None):
        with self.assertRaisesRegex(penstock.PenstockError, text):
            trained(on_meta(made or llama()), weights=self.folder)

    def test_keys(self):
        self.write(llama(), "1GB")
        metadata, tensors = saved.read(self.folder / "model.safetensors")
        tensors = {key: tensor.clone() for key, tensor in tensors.items()}
        without = {key: tensor for key, tensor in tensors.items() if key != "model.norm.weight"}
        saved.write(self.folder / "model.safetensors", metadata, without)
        self.refused(r"does not have what LlamaForCausalLM needs\n +missing: model.norm.weight\n +hint: take the class")
        saved.write(self.folder / "model.safetensors", metadata, tensors | {"model.extra": torch.zeros(2)})
        self.refused(r"not the module's: model.extra")
        saved.write(self.folder / "model.safetensors", metadata, without | {"model.normal.weight": torch.zeros(2)})
        self.refused(r"missing: model.norm.weight\n +not the module's: model.normal.weight\n +hint: if LlamaForCausalLM.from_pretrained reads it")
        saved.write(self.folder / "model.safetensors", metadata, tensors | {"model.norm.weight": torch.zeros(3)})
        self.refused(r'"model.norm.weight" is of shape \[3\], the module\'s "model.norm.weight" of \[16\]')

    def test_folders(self):
        self.refused("is no folder\n +hint: huggingface_hub.snapshot_download")
        self.folder.mkdir()
        self.refused("has neither model.safetensors nor model.safetensors.index.json")
        (self.folder / "pytorch_model.bin").write_bytes(b"")
        self.refused(r"has its weights in pytorch_model.bin, which is not read: [^$]*hint: AutoModel")
        (self.folder / "model.safetensors").write_bytes(b"12345678")
        self.refused("this is no safetensors file")

    def test_shards(self):
        self.write(llama())
        index = json.loads((self.folder / "model.safetensors.index.json").read_text())
        first = index["weight_map"]["model.norm.weight"]
        index["weight_map"]["model.other"] = first
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index))
        self.refused(rf'{first} has no tensor "model.other"')
        (self.folder / first).unlink()
        self.refused(f"there is no {first}")

    def test_a_module_without_values(self):
        with self.assertRaisesRegex(penstock.PenstockError, '"model.embed_tokens.weight" is on the meta device: it has no values\n +hint: weights='):
            trained(on_meta(llama()))

        class Angles(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 4)
                self.register_buffer("angles", torch.ones(4), persistent=False)

            def forward(self, x):
                return (self.linear(x) * self.angles).pow(2).mean()
        penstock.trainer(Angles(), torch.randn(4, 4), actors=1, microbatches=2).save_pretrained(self.folder)
        with torch.device("meta"):
            module = Angles()
        with self.assertRaisesRegex(penstock.PenstockError, 'no value for its buffer "angles"'):
            penstock.trainer(module, torch.randn(4, 4), actors=1, microbatches=2, weights=self.folder)

    def test_sizes(self):
        step = penstock.trainer(self.write(llama()), texts(), microbatches=2, dynamic=False)
        with self.assertRaisesRegex(penstock.PenstockError, "'5 apples' is no size of a file"):
            step.save_pretrained(self.to, "5 apples")


class Shards(unittest.TestCase):
    def test_cut_as_the_hub_cuts(self):
        from huggingface_hub import split_torch_state_dict_into_shards
        for seed in range(50):
            torch.manual_seed(seed)
            sizes = {f"t{i}": int(size) for i, size in enumerate(torch.randint(1, 60, (int(torch.randint(1, 12, ())),)))}
            theirs = split_torch_state_dict_into_shards({key: torch.zeros(size, dtype=torch.uint8) for key, size in sizes.items()},
                                                        max_shard_size=50, filename_pattern="model{suffix}.safetensors")
            self.assertEqual(shards_of(sizes, 50), {key: theirs.tensor_to_filename[key] if theirs.is_sharded else "model.safetensors" for key in sizes}, f"seed {seed}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
