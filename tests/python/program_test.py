# SPDX-License-Identifier: Apache-2.0
"""Exported modules in the program `penstock`, without Python: their losses are those of PyTorch's own training loop on the same batches.

usage: program_test.py, with PENSTOCK the program's path
"""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import kept_exports  # noqa: F401
import torch
import zoo
from evaluate import sampled  # finds the package

import penstock
from penstock import saved

PROGRAM = os.environ.get("PENSTOCK", "build/penstock")
CONTEXT, WINDOWS = 16, 16
RATE = 2**-7  # a step's learning rate is an f32: this one is exact
TEXT = "".join(chr(32 + (i * i // 3 + 7 * i) % 90) for i in range(CONTEXT * WINDOWS + 1))
# Every step reads the whole text, so its batch is known, but for its order.
WHOLE = ["--batch", WINDOWS, "--microbatches", 4, "--set", "data.validation=0", "--set", "warmup=0", "--set", "decay=constant", "--lr", RATE]


def windows():
    tokens = torch.tensor(list(TEXT.encode()))
    return torch.stack([tokens[i * CONTEXT : (i + 1) * CONTEXT] for i in range(WINDOWS)])


def gpt2(**options):
    import transformers

    sizes = {"vocab_size": 256, "n_positions": 2 * CONTEXT, "n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**sizes, **none, **options}))


def llama(layers=1):
    import transformers

    sizes = {**zoo.sizes(num_key_value_heads=2), "vocab_size": 256, "num_hidden_layers": layers}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))


def export(module, path, dtype=torch.float32, **options):
    tokens = windows()[:2]
    exported = penstock.export(module.to(dtype), (), {"input_ids": tokens, "labels": tokens}, dynamic=True, **options)
    exported.save(path)
    return path


def pytorch_losses(module, steps, dtype):
    """PyTorch's own loop: AdamW with decay of matrices and clipping, as the program's defaults are."""
    module = module.to(dtype)
    matrices = [p for p in module.parameters() if p.dim() >= 2]
    others = [p for p in module.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)
    losses, tokens = [], windows()
    for _ in range(steps):
        optimizer.zero_grad()
        logits = module(input_ids=tokens).logits  # whose own loss would be in f32
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in module.parameters()]).norm()
        for p in module.parameters():
            p.grad /= max(1.0, float(norm))  # torch's clip_grad_norm_ adds 1e-6 to the norm
        optimizer.step()
        losses.append(float(loss))
    return losses


class Classifier(torch.nn.Module):
    """A module with all kinds of state: batch norms, dropout, a tied weight and a frozen one."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.blocks = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Dropout(0.2)) for _ in range(3)])
        self.head = torch.nn.Linear(8, 5)
        self.blocks[2][0].weight = self.blocks[0][0].weight
        self.blocks[1][0].weight.requires_grad_(False)

    def forward(self, pixel_values, labels):
        x = torch.relu(self.norm(self.stem(pixel_values))).mean((2, 3))
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.text = self.folder / "text.txt"
        self.text.write_text(TEXT)
        torch.manual_seed(0)
        zoo.stub_torchvision()

    def run_program(self, *arguments):
        return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300)

    def succeed(self, *arguments):
        result = self.run_program(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def train(self, out, *arguments):
        """The losses, and what else is measured, of a run's steps."""
        self.succeed("train", *arguments, "--out", self.folder / out)
        lines = [json.loads(line) for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines], lines

    def assert_losses(self, found, wanted, tolerance):
        self.assertEqual(len(found), len(wanted))
        for a, b in zip(found, wanted):
            self.assertLess(abs(a - b), tolerance * abs(b), (found, wanted))

    def fails(self, wanted, *arguments):
        """The program ends with this error, and nothing else."""
        result = self.run_program(*arguments)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stderr.rstrip("\n"), "error: " + wanted)


@unittest.skipUnless(zoo.have("transformers"), "no transformers")
class Texts(Program):
    def test_losses_are_pytorchs(self):
        for make in sampled((gpt2, llama), 1):
            torch.manual_seed(1)
            module = make()
            file = export(module, self.folder / f"{make.__name__}.safetensors")
            wanted = pytorch_losses(module, 4, torch.float32)
            arguments = [file, "--text", self.text, *WHOLE, "--steps", 4]
            plans = {"1f1b": ["--schedule", "1f1b"], "zb": ["--schedule", "zb-h1"], "data": ["--mesh", "pipe=2,data=2"]}
            for name, plan in sampled(plans.items(), 1):
                with self.subTest(make.__name__, plan=name):
                    losses, _ = self.train(f"{make.__name__}-{name}", *arguments, *plan)
                    self.assert_losses(losses, wanted, 1e-5)

    def test_a_process_for_each_actor(self):
        module = gpt2()
        file = export(module, self.folder / "gpt2.safetensors")
        self.succeed("launch", "-n", 2, "--", "train", file, "--text", self.text, *WHOLE, "--steps", 3, "--backend", "gloo", "--out", self.folder / "run")
        lines = (self.folder / "run" / "metrics.jsonl").read_text().splitlines()
        self.assert_losses([json.loads(line)["loss"] for line in lines], pytorch_losses(module, 3, torch.float32), 1e-5)

    def test_a_file_of_f32_runs_in_f64(self):
        module = gpt2()
        file = export(module, self.folder / "gpt2.safetensors")
        losses, _ = self.train("run", file, "--text", self.text, *WHOLE, "--steps", 4, "--dtype", "f64", "--schedule", "zb-h1")
        self.assert_losses(losses, pytorch_losses(module, 4, torch.float64), 1e-10)

    def test_check_and_looking_ahead(self):
        file = export(llama(layers=2), self.folder / "llama.safetensors")
        few = ["--microbatches", 4]
        for plan in sampled((["--schedule", "zb-h1"], ["--mesh", "pipe=2,data=2"], ["--schedule", "interleaved-1f1b", "--chunks", 2]), 2):
            with self.subTest(plan=plan):
                found = json.loads(self.succeed("check", file, *few, "--dtype", "f64", "--json", *plan).stdout)
                self.assertLess(found["loss_difference"], 1e-10)
                self.assertLess(found["gradient_difference"], 1e-10)
        self.assertIn("stage 1", self.succeed("compile", file, *few, "--emit", "stages").stdout)
        self.succeed("simulate", file, "--device", "a100-80", "--network", "nvlink3")
        self.succeed("profile", file, *few, "--rounds", 1, "--out", self.folder / "costs.json")
        plan = self.folder / "plan.json"
        self.succeed("plan", file, "--devices", 2, "--bandwidth", 1e10, "--micro-batches", "2,4", "--seconds", 0.5, "--out", plan)
        losses, _ = self.train("planned", file, "--text", self.text, "--plan", plan, "--steps", 2, "--set", "data.validation=0", "--batch", 16)
        self.assertEqual(len(losses), 2)

    def test_stages_begin_where_they_are_told(self):
        file = export(gpt2(n_layer=4), self.folder / "gpt2.pt2")
        told = ["compile", file, "--microbatches", 4, "--emit", "stages"]
        self.assertNotEqual(self.succeed(*told, "--set", "split=transformer.h.3").stdout, self.succeed(*told).stdout)
        self.fails('no op comes from the module "transformer.h.4"\n  hint: did you mean "transformer.h.0"?', *told, "--set", "split=transformer.h.4")
        self.fails("model.split names where 3 stages begin, there are 2\n  hint: name the modules at which the second and each further one begins, "
                   "or none", *told, "--set", "split=transformer.h.1,transformer.h.2")

    def test_resumes_and_generates(self):
        module = gpt2()
        file = export(module, self.folder / "gpt2.safetensors")
        arguments = ["--text", self.text, *WHOLE, "--dtype", "f64"]
        whole, _ = self.train("whole", file, *arguments, "--steps", 20)
        self.train("parts", file, *arguments, "--steps", 10)
        self.succeed("train", "--resume", self.folder / "parts", "--steps", 20, "--schedule", "zb-h1")
        lines = [json.loads(line) for line in (self.folder / "parts" / "metrics.jsonl").read_text().splitlines()]
        self.assert_losses([line["loss"] for line in lines], whole, 1e-12)

        pytorch_losses(module, 20, torch.float64)
        prompt, tokens = TEXT[: CONTEXT // 2], list(TEXT.encode())[: CONTEXT // 2]
        for _ in range(CONTEXT // 2):
            tokens.append(int(module(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
        generated = self.succeed("generate", self.folder / "parts", "--prompt", prompt, "--tokens", CONTEXT // 2, "--temperature", 0, "--json")
        self.assertEqual(prompt + json.loads(generated.stdout)["text"], bytes(tokens).decode())

    def test_validation_is_without_dropout(self):
        module = gpt2(resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5, attn_implementation="eager")
        file = export(module, self.folder / "gpt2.safetensors")
        window = TEXT[:CONTEXT]
        self.text.write_text(window * 200)  # every sample is the same
        for plan in sampled((["--schedule", "1f1b"], ["--mesh", "pipe=2,data=2", "--microbatches", 4]), 1):
            losses, lines = self.train(f"run{len(plan)}{plan[1]}", file, "--text", self.text, "--batch", 16, "--microbatches", 4, "--lr", 0, "--steps", 1, *plan)
            tokens = torch.tensor([list(window.encode())])
            wanted = float(module.eval()(input_ids=tokens, labels=tokens).loss)
            self.assertLess(abs(lines[0]["validation_loss"] - wanted), 1e-5 * wanted)
            self.assertGreater(abs(losses[0] - wanted), 1e-3)

    def test_a_mask_and_positions(self):
        tokens = windows()[:2]
        module = llama()
        batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "position_ids": torch.arange(CONTEXT).expand(2, -1).contiguous(),
                 "labels": tokens}
        file = self.folder / "llama.safetensors"
        penstock.export(module, (), batch, dynamic=True).save(file)
        wanted = pytorch_losses(module, 3, torch.float32)
        losses, _ = self.train("run", file, "--text", self.text, *WHOLE, "--steps", 3)
        self.assert_losses(losses, wanted, 1e-5)
        losses, _ = self.train("told", file, "--text", self.text, *WHOLE, "--steps", 3, "--set", "inputs=attention_mask=ones,labels=tokens")
        self.assert_losses(losses, wanted, 1e-5)

    def test_padded_documents(self):
        """Padding is not learnt, and a mean is over the whole batch's targets."""
        generator = torch.Generator().manual_seed(3)
        texts = ["".join(chr(97 + int(c)) for c in torch.randint(26, (int(n),), generator=generator)) for n in torch.randint(3, CONTEXT, (WINDOWS,), generator=generator)]
        documents = self.folder / "documents.jsonl"
        documents.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        module = llama()
        tokens = windows()[:2]
        file = self.folder / "llama.safetensors"
        penstock.export(module, (), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}, dynamic=True).save(file)
        losses, _ = self.train("run", file, "--set", f"data.documents={documents}", *WHOLE, "--steps", 1)
        ids = torch.zeros(WINDOWS, CONTEXT, dtype=torch.int64)
        labels = torch.full_like(ids, -100)
        for row, text in enumerate(texts):
            # A document's last token is predicted, but no input.
            of_text = torch.tensor(list(text.encode()))[: CONTEXT + 1]
            ids[row, : len(of_text) - 1] = of_text[:-1]
            labels[row, 1 : len(of_text)] = of_text[1:][: CONTEXT - 1]
        self.assert_losses(losses, [float(module(input_ids=ids, attention_mask=(labels.roll(-1, 1) != -100).long(), labels=labels).loss)], 1e-5)

    @unittest.skipUnless(zoo.have("tokenizers"), "no tokenizers")
    def test_tokens_of_a_tokenizer(self):
        import tokenizers

        tokenizer = tokenizers.ByteLevelBPETokenizer()
        tokenizer.train_from_iterator([TEXT * 3], vocab_size=300, min_frequency=1)
        path = self.folder / "tokenizer.json"
        tokenizer.save(str(path))
        file = export(gpt2(vocab_size=320), self.folder / "gpt2.safetensors")
        losses, _ = self.train("run", file, "--text", self.text, "--set", f"data.tokenizer={path}", "--steps", 3, "--batch", 8, "--microbatches", 4,
                               "--set", "data.validation=0")
        self.assertEqual(len(losses), 3)
        small = export(gpt2(), self.folder / "small.safetensors")
        size = tokenizer.get_vocab_size()
        self.fails(f"model.vocabulary is 256; tokenizer {path} has {size} tokens\n  hint: --set vocabulary={size}",
                   "train", small, "--text", self.text, "--set", f"data.tokenizer={path}", "--out", self.folder / "no")

    def test_refused(self):
        file = export(gpt2(), self.folder / "gpt2.safetensors")
        train = ["train", "--text", self.text, "--set", "data.validation=0", "--out", self.folder / "no"]
        self.fails('GPT2LMHeadModel was exported for 2 and more along dim 0 of "input_ids", not for 1\n  hint: take micro-batches of another size, '
                   "or export it with an example of this one", *train, file, "--batch", 16, "--microbatches", 16)
        self.fails('model.inputs: GPT2LMHeadModel has no input "input_id"\n  known: input_ids, labels\n  hint: did you mean "input_ids"?',
                   *train, file, "--set", "inputs=input_id=tokens")
        self.fails('model.inputs: there is no data "token"\n  known: tokens, targets, labels, mask, ones, positions, classes, normal, uniform\n'
                   '  hint: did you mean "tokens"?', *train, file, "--set", "inputs=input_ids=token")
        self.fails('model.inputs: "input_ids" is no input and what it reads\n  hint: --set inputs=input_ids=tokens,labels=labels',
                   *train, file, "--set", "inputs=input_ids")
        self.fails(f'"transformer.wte.weight" is f32[256,16] in {file}, train.dtype is bf16\n  an exported module computes in its own dtype; '
                   "one of f32 in f64 too\n  hint: --dtype f32", *train, file, "--dtype", "bf16")
        self.fails('input "labels" of GPT2LMHeadModel reads "classes", which is drawn\n  others read a text, and a model reads a text or what is '
                   "drawn, not both\n  hint: export the module without it", *train, file, "--set", "inputs=labels=classes")
        other = self.folder / "other.safetensors"
        saved.write(other, {}, {"w": torch.ones(1)})
        self.fails(f"{other} is no exported module\n  hint: penstock.export(...).save(FILE) writes one in Python; a file of parameters is taken by --init {other}", *train, other)
        theirs = self.folder / "theirs.pt2"
        torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), theirs)
        self.fails(f"{theirs} is an archive, as torch.export.save writes it: it has no backward\n"
                   "  hint: penstock.export(module, ...).save(FILE) writes a module with its backward in Python", *train, theirs)
        self.fails("model.file names no file\n  hint: --set model.file=FILE, which exported.save(FILE) wrote in Python",
                   *train, "--set", "model.name=exported")
        documents = self.folder / "documents.jsonl"
        documents.write_text("".join(json.dumps({"text": "a document"}) + "\n" for _ in range(WINDOWS)))
        self.fails("the model's loss is no sum over the targets of a batch, whichever way that is cut\n  so micro-batches of shapes of their own "
                   "would weigh samples as the cut has it\n  hint: --set batch.planner=pad", "train", file, "--set", f"data.documents={documents}",
                   "--set", "data.validation=0", "--set", "batch.planner=dynapipe", "--out", self.folder / "no")
        fixed = self.folder / "fixed.safetensors"
        tokens = windows()[:2]
        penstock.export(gpt2(), (), {"input_ids": tokens, "labels": tokens}).save(fixed)
        self.fails('input "input_ids" of GPT2LMHeadModel is i64[2,16] in the export, not i64[4,16]\n  hint: give it batches of that shape, or '
                   "export the module with dynamic=True", *train, fixed, "--batch", 16, "--microbatches", 4)
        losses, _ = self.train("fixed", fixed, "--text", self.text, *WHOLE, "--microbatches", 8, "--steps", 1)
        self.assertEqual(len(losses), 1)
        with torch.device("meta"):
            export(gpt2(), self.folder / "empty.safetensors")
        empty = self.folder / "empty.safetensors"
        result = self.run_program(*train, empty, "--batch", 8, "--microbatches", 4)
        self.assertIn(f'error: {empty} has no values for parameters to begin with\n  "transformer.wte.weight" is missing\n', result.stderr)
        self.assertTrue(result.stderr.endswith("more\n  hint: --init FILE.safetensors takes them from another file\n"), result.stderr)
        filled, _ = self.train("filled", empty, "--init", file, "--text", self.text, *WHOLE, "--steps", 2)
        usual, _ = self.train("usual", file, "--text", self.text, *WHOLE, "--steps", 2)
        self.assertEqual(filled, usual)


class Images(Program):
    def export(self, module=None, **more):
        file = self.folder / "classifier.safetensors"
        batch = {"pixel_values": torch.randn(4, 3, 8, 8), "labels": torch.randint(5, (4,)), **more}
        penstock.export(module or Classifier(), (), batch, dynamic=True).save(file)
        return file

    def test_state_of_all_kinds(self):
        """Batch norms, dropout, tied and frozen weights: the same under every plan, and after a resumption."""
        module = Classifier()
        file = self.export(module)
        arguments = ["--batch", 32, "--microbatches", 4, "--dtype", "f64"]
        one, _ = self.train("one", file, *arguments, "--steps", 6, "--actors", 1)
        for name, plan in {"two": ["--schedule", "zb-h1"], "three": ["--actors", 3]}.items():
            losses, _ = self.train(name, file, *arguments, "--steps", 6, *plan)
            self.assert_losses(losses, one, 1e-12)
        self.train("parts", file, *arguments, "--steps", 6, "--set", "checkpoint_every=3")
        self.succeed("train", "--resume", self.folder / "parts" / "checkpoint-3", "--steps", 6, "--out", self.folder / "resumed")
        lines = [json.loads(line)["loss"] for line in (self.folder / "resumed" / "metrics.jsonl").read_text().splitlines()]
        self.assert_losses(lines, one[3:], 1e-12)
        states = [self.state(name) for name in ("one", "two", "resumed")]
        self.assertEqual(int(states[0]["norm.num_batches_tracked"]), 24)
        for name, value in states[0].items():
            for other in states[1:]:
                torch.testing.assert_close(other[name], value, rtol=1e-10, atol=1e-12)
        frozen = states[0]["blocks.1.0.weight"].float()
        self.assertTrue(torch.equal(frozen, module.blocks[1][0].weight))
        self.assertFalse(torch.equal(states[0]["blocks.0.0.weight"].float(), module.blocks[0][0].weight))
        self.assertNotIn("blocks.2.0.weight", states[0])  # tied

    def state(self, out):
        found = {}
        for file in sorted((self.folder / out / "checkpoint-6").glob("*.safetensors")):
            found |= saved.read(file)[1]
        return found

    def test_refused(self):
        class Odd(Classifier):
            def forward(self, pixel_values, labels, weights):
                return super().forward(pixel_values * weights[:, None, None, None], labels)["loss"]

        file = self.export(Odd(), weights=torch.ones(4))
        self.fails('input "weights" of Odd is none that the program has data for\n  known: tokens (of a text), targets (the token behind each, -100 '
                   "where it is not learnt), labels (the targets one place further, as modules that shift them themselves take them), mask (1 for a "
                   "token, 0 for padding), ones (1 for every place), positions (0, 1, 2, ...), classes (drawn below model.vocabulary), normal (drawn, "
                   "with a pattern of the sample's class where there is one), uniform (drawn from 0 to 1)\n  hint: say what it reads, --set "
                   "inputs=weights=ones, or export the module without it", "train", file, "--out", self.folder / "no")
        losses, _ = self.train("run", file, "--set", "inputs=weights=uniform", "--set", "vocabulary=5", "--steps", 2, "--batch", 16, "--microbatches", 4)
        self.assertEqual(len(losses), 2)
        self.train("text", file, "--set", "inputs=weights=uniform", "--set", "vocabulary=5", "--steps", 1, "--batch", 16, "--microbatches", 4)
        self.fails('Odd returns no "logits", so it cannot continue a text\n  hint: export a module that returns them beside its loss: {"loss": loss, '
                   '"logits": logits}', "generate", self.folder / "text", "--prompt", "a")


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
