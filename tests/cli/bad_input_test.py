# SPDX-License-Identifier: Apache-2.0
"""A user's mistake is an error that says what is wrong and where; exit code 1; nothing is overwritten."""

import json
import shutil
import struct
import unittest

from support import SMALL, ProgramTest, read_tensors, run


def write_part(path, source, names):
    """Some tensors of a safetensors file as a file of their own."""
    content = source.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    entries, values, header, end = json.loads(content[8 : 8 + length]), read_tensors(source), {}, 0
    for name in names:
        header[name] = {**entries[name], "data_offsets": [end, end := end + len(values[name])]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(values[name] for name in names))


class BadInput(ProgramTest):
    def fails(self, arguments, *parts):
        """Training fails and leaves no folder behind."""
        out = self.folder / "out"
        before = out.exists()
        self.assert_fails(run("train", *SMALL, "--out", out, "--steps", 2, *arguments), *parts)
        self.assertEqual(out.exists(), before)

    def test_text(self):
        empty = self.folder / "empty.txt"
        empty.write_text("")
        short = self.folder / "short.txt"
        short.write_text("too short")
        self.fails(["--text", self.folder / "none.txt"], "none.txt: No such file or directory")
        self.fails(["--text", empty], "empty.txt is empty")
        self.fails(["--text", short], "shorter than one batch", "8 sequences of 16 tokens")

    def test_configuration(self):
        config = self.folder / "run.toml"
        config.write_text("[train]\nstesp = 3\n")
        self.fails([config, "--text", self.text], 'run.toml:2:1: unknown key of [train] "stesp"', 'did you mean "steps"?')
        config.write_text('[train]\nwarmup = "long"\n')
        self.fails([config, "--text", self.text], "run.toml:2:10: train.warmup needs a whole number, this is a text")
        config.write_text("[train\n")
        self.fails([config, "--text", self.text], "run.toml:1:7: ")
        self.fails([self.folder / "none.toml"], "none.toml: No such file or directory")
        self.fails(["--set", "widht=3"], 'unknown key "widht"', 'did you mean "model.width"?')
        self.fails(["--set", "width=wide"], "model.width needs a number, this is a text")
        self.fails(["--batch", 10], "train.batch = 10 is not divisible by pipeline.microbatches = 4")
        self.fails(["--set", "vocabulary=100"], "model.vocabulary is 100; tokenizer bytes has 256 tokens")
        self.fails(["--set", "heads=3"], "3", "heads")
        self.fails(["--schedule", "1f1c"], '1f1b')

    def test_layout(self):
        config = self.folder / "run.toml"
        config.write_text('[layout]\nheads = "tenso"\n')
        self.fails([config, "--text", self.text], 'run.toml:2:9: unknown axis "tenso"', 'did you mean "tensor"?')
        config.write_text('[layout]\nheads = ["tensor", "context"]\n')
        self.fails([config, "--text", self.text], "run.toml:2:9: layout.heads names 2 axes: tensor, context", "a dim is split over one axis")
        self.fails(["--set", "layout.haeds=tensor"], 'layout.haeds = "tensor": model "gpt" has no dim "haeds"',
                   'the dims of model "gpt": batch, embed, heads, mlp, position, sequence, vocab', 'did you mean "heads"?')  # fmt: skip
        self.fails(["--set", "layout.batch=tensor"], 'layout.batch = "tensor": the batch is split over data', "--mesh data=N")
        self.fails(["--mesh", "expert=2"], "pipeline.expert = 2: nothing is split over axis expert", "--set layout.NAME=expert")
        self.fails(["--mesh", "tensor=4"], 'pipeline.tensor = 4: "heads" has 2 in h.0.attn.c_attn.weight', "--set layout.heads=")
        self.fails(["--mesh", "tensor=2", "--set", "layout.choose=context"], 'layout.choose = "context": the mesh has no axis context')
        self.fails(["--mesh", "tensor=2,tensor=2"], "names the axis tensor twice")
        self.fails(["--set", 'axes=["tensor", "tensor"]'], 'pipeline.axes names "tensor" twice')

    def test_schedule(self):
        table = self.folder / "plan.csv"
        text = ["--text", self.text, "--schedule", table]
        # Five stages for a model with four layers.
        table.write_text("\n".join(f"{s}F0,{s}F1,{s}F2,{s}F3,{s}B0,{s}B1,{s}B2,{s}B3" for s in range(5)) + "\n")
        self.fails([*text, "--actors", 5], "5 stages", "4 layers")
        self.fails([*text, "--actors", 2], "plan.csv has 5 actors, pipeline.actors is 2")
        # Actor 0 wants its backward before its forward has fed actor 1.
        table.write_text("0F0,0B1,0F1,0F2,0F3,0B0,0B2,0B3\n1F0,1F1,1F2,1F3,1B0,1B1,1B2,1B3\n")
        self.fails(text, "plan.csv:1:2: ", "0B1")
        table.write_text("0F0,0F1,0F2,0F3,0B0,0B1,0B2,0X3\n1F0,1F1,1F2,1F3,1B0,1B1,1B2,1B3\n")
        self.fails(text, "plan.csv:1:8: ")
        self.fails(["--text", self.text, "--schedule", self.folder / "none.csv"], "none.csv: No such file or directory")

    def test_ways_out(self):
        """The hint of each is what mends it."""
        check = lambda *arguments: run("check", *SMALL, *arguments)
        exchange = ["--schedule", "slimpipe-exchange", "--actors", 2, "--slices", 4]
        helix = ["--schedule", "helixpipe", "--actors", 2]
        for arguments, stages in ((exchange, 6), (helix, 5), (["--schedule", "interleaved-1f1b", "--chunks", 3], 6)):
            self.assert_fails(check(*arguments), f"with 4 layers cannot be cut into {stages} stages", f"{arguments[1]} has {stages} stages for 2 actors and ",
                              "hint: --chunks 2\n")
            self.assertEqual(check(*arguments, "--chunks", 2).code, 0)
        t5 = [*helix, "--set", "model.name=t5", "--set", "layers=2"]
        self.assert_fails(check(*t5, "--chunks", 2), "with 2 encoder and 2 decoder layers cannot be cut into 9 stages", "hint: --chunks 3\n")
        self.assertEqual(check(*t5, "--chunks", 3).code, 0)
        self.assert_fails(check(*t5, "--actors", 4), "hint: use 1 to 4 stages (actors times chunks); a schedule that sets attentions apart, as helixpipe, takes 13")
        # Models that can be cut into as many stages between their layers.
        self.assert_fails(check(*helix, "--set", "layers=6"), 'model "gpt" is cut into 5 stages between its layers, none for attention',
                          "helixpipe has 5 stages for 2 actors and 1 chunk each\n  every second is for attention\n  hint: --chunks 3\n")
        self.assert_fails(check(*helix, "--set", "model.name=reference", "--set", "layers=6"), "none for attention", "as gpt and t5 do")
        for chunks in (1, 2):  # HelixPipe has as many stages as one of these
            refused = check("--schedule", "slimpipe-exchange", "--actors", 3, "--slices", 4, "--chunks", chunks)
            self.assert_fails(refused, f"with 4 layers cannot be cut into {6 * chunks + 3} stages of slimpipe-exchange", f"actors times chunks layers, which are {3 * chunks}\n",
                              f"hint: --set layers={3 * chunks}, or --actors 2 --chunks 2\n")
        self.assertEqual(check("--schedule", "slimpipe-exchange", "--actors", 3, "--slices", 4, "--set", "layers=3").code, 0)
        takes = check("--schedule", "1f1b", "--group", 2)
        self.assert_fails(takes, "1f1b takes no --group", "it takes --in-flight, --self-conditioning\n")
        self.fails(["--set", "prefetch=true"], 'unknown key "prefetch"', "its whole name is pipeline.prefetch")
        table = self.folder / "old.csv"
        table.write_text("".join(",".join(f"{s}{kind}{m}" for m in range(4) for kind in "FBW") + "\n" for s in range(2)))
        self.fails(["--text", self.text, "--schedule", table], "0W0 repeats work of 0B0", "hint: beside a W write I for the gradients of inputs")

    def test_checkpoint(self):
        self.train("run", 4, "--set", "checkpoint_every=2")
        run_folder, newest = self.folder / "run", self.folder / "run" / "checkpoint-4"
        again = ["--text", self.text, "--resume", run_folder, "--steps", 6]

        def damaged(name, content):
            copy = self.folder / "damaged"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(newest, copy)
            (copy / name).write_bytes(content)
            return ["--text", self.text, "--resume", copy, "--steps", 6]

        data = (newest / "device-1.safetensors").read_bytes()
        self.fails(damaged("device-1.safetensors", data[:-100]), "device-1.safetensors: it has", "its manifest says")
        self.fails(damaged("device-1.safetensors", data[:-1] + b"?"), "its content is not what its manifest says")
        self.fails(damaged("manifest.json", b'{"weights": 1}'), "not the manifest of a Penstock checkpoint")
        self.fails(["--text", self.text, "--resume", self.folder], "no checkpoint in")
        self.fails([*again, "--set", "width=64"], "is of another model", "width: 32, here 64")
        self.fails([*again, "--steps", 4], "has done 4 of 4 steps")
        self.fails([*again, "--set", "optimiser=sgd", "--dtype", "f64"], "checkpoint-4", "f32")
        self.assert_fails(run("generate", self.folder), "no checkpoint in")

    def test_a_run_is_not_overwritten(self):
        self.train("run", 2)
        manifest = (self.folder / "run" / "checkpoint-2" / "manifest.json").read_bytes()
        metrics = (self.folder / "run" / "metrics.jsonl").read_bytes()
        self.assert_fails(run(*self.train_arguments("run", 2)), "already has checkpoint-2; it is not overwritten", "--resume")
        self.assertEqual((self.folder / "run" / "checkpoint-2" / "manifest.json").read_bytes(), manifest)
        self.assertEqual((self.folder / "run" / "metrics.jsonl").read_bytes(), metrics)
        self.train("other", 4, "--set", "checkpoint_every=2")
        for checkpoint in ["other/checkpoint-2", "other/checkpoint-4"]:
            result = run("train", "--resume", self.folder / checkpoint, "--steps", 6, "--out", self.folder / "run")
            self.assert_fails(result, "run already has checkpoint-2; it is not overwritten")
        file = self.folder / "file"
        file.write_text("mine")
        self.assert_fails(run(*self.train_arguments("file", 2)), "file is not a folder")
        self.assertEqual(file.read_text(), "mine")

    def test_parameters(self):
        junk = self.folder / "junk.safetensors"
        junk.write_bytes(b"not a model at all")
        self.fails(["--text", self.text, "--init", junk], "junk.safetensors: the header should have")
        dump = self.folder / "dump"
        self.assertEqual(run("check", *SMALL, "--dump", dump).code, 0)
        parameters = dump / "parameters.safetensors"
        self.fails(["--text", self.text, "--init", parameters, "--set", "layers=6"], '"h.4.attn.c_attn.weight" is missing')
        self.fails(["--text", self.text, "--init", parameters, "--set", "layers=2"], '"h.2.attn.c_attn.bias" is unknown to the model')
        self.fails(["--text", self.text, "--init", parameters, "--set", "width=64"], '"wte.weight" is f32[256,32], the model\'s is f32[256,64]')

    def test_folders_of_save_pretrained(self):
        """Whole or in shards they give what the one file gives."""
        dump = lambda name, *more: self.assertEqual(run("check", *SMALL, "--seed", 7, "--dump", self.folder / name, *more).code, 0)
        dump("drawn")
        source = self.folder / "drawn" / "parameters.safetensors"
        whole, shards = self.folder / "whole", self.folder / "shards"
        whole.mkdir()
        shards.mkdir()
        for folder in (whole, shards):
            (folder / "config.json").write_text('{"model_type": "gpt2"}')
        shutil.copy(source, whole / "model.safetensors")
        names, index = sorted(read_tensors(source)), {}
        for number in (0, 1, 2):
            file = f"model-0000{number + 1}-of-00003.safetensors"
            write_part(shards / file, source, names[number::3])
            index |= dict.fromkeys(names[number::3], file)
        (shards / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
        for name, path in (("whole", whole), ("sharded", shards), ("by index", shards / "model.safetensors.index.json")):
            dump(name, "--init", path, "--seed", 8)
            self.assertEqual(read_tensors(self.folder / name / "parameters.safetensors"), read_tensors(source), name)
        (shards / "model-00002-of-00003.safetensors").unlink()
        self.fails(["--text", self.text, "--init", shards], "model-00002-of-00003.safetensors is not there", "index.json names it")
        self.fails(["--text", self.text, "--init", whole, "--set", "width=64"], "these are not the parameters of this model", '"wte.weight" is f32[256,32]')

    def test_a_loss_that_is_not_finite_stops_the_run(self):
        result = run(*self.train_arguments("run", 40, "--set", "learning_rate=1e30", "--set", "warmup=0", "--set", "clip=0",
                                           "--set", "checkpoint_every=1"))
        self.assert_fails(result, "the loss is ", "the last checkpoint is ", "learning rate ")
        self.assertTrue(any((self.folder / "run").glob("checkpoint-*/manifest.json")))

    def test_usage(self):
        self.assertIn('hint: did you mean "train"?', run("trian", "--steps", 3).err)
        self.assertIn('hint: there is no "frobnicate"', run("frobnicate").err)
        for arguments in [["trian"], ["train", "--no-such-flag"], ["generate"]]:
            result = run(*arguments)
            self.assertEqual(result.code, 2, arguments)
            self.assertIn("error: ", result.err)
            self.assertEqual(result.out, "")

    def test_hints_name_what_is_meant(self):
        for command, key in [("train.lr", "train.learning_rate"), ("hidden_size", "model.width"), ("max_steps", "train.steps")]:
            self.assertIn(f'hint: did you mean "{key}"?', run("train", "--set", f"{command}=3").err)
        for option, key in [("--learning-rate", "train.learning_rate"), ("--layers", "model.layers"), ("--weight_decay", "train.weight_decay")]:
            result = run("train", option, 3)
            self.assertEqual(result.code, 2)
            self.assertIn(f"hint: it is a key of the configuration: --set {key}=VALUE", result.err)
        for option, meant in [("--tp", "--mesh pipe=2,tensor=2"), ("--gpus", "--mesh pipe=2,data=2"), ("--epochs", "a run counts steps"), ("--pp", "--actors N"),
                              ("--batch-size", "--batch N"), ("--bf16", "--dtype f32, f64 or bf16"), ("--output-dir", "--out DIR")]:
            result = run("train", option, 3)
            self.assertEqual(result.code, 2)
            self.assertRegex(result.err, f"hint: .*{meant}")
        # It has no --steps.
        self.assertIn("hint: its options: --help, --memory-limit, --staleness, ", run("verify", "x", "--epochs", 3).err)
        self.assertIn("hint: did you mean --version?", run("version").err)
        self.assertIn("hint: did you mean --memory-limit?", run("verify", "x", "--memory-limi", 3).err)
        self.assertIn('hint: did you mean "h100-pcie" or "h100-sxm"?', run("simulate", self.program(), "--device", "h100").err)
        self.fails(["--dtype", "f16"], 'unknown dtype "f16"', 'did you mean "bf16"?')

    def test_the_parsers_own_words_are_put_plainly(self):
        for arguments, words, code in [
            (["simulate", "1f1b", "--microbatches", "many"], '--microbatches is "many", which is not a number that it takes', 1),
            (["simulate", "1f1b", "--microbatches", 10**12], '--microbatches is "1000000000000", which is not a number that it takes', 1),
            (["train", "--steps"], "--steps needs a value", 2),
        ]:
            result = run(*arguments)
            self.assertEqual(result.code, code)
            self.assertIn(f"error: {words}\n", result.err)

    def program(self):
        path = self.folder / "program.txt"
        path.write_text(run("compile", *SMALL).out)
        return path

    def test_what_is_no_text(self):
        texts = self.folder / "texts"
        texts.mkdir()
        (texts / "words.txt").write_text("all the words there are\n" * 500)
        tokens = texts / "tokens.bin"
        tokens.write_bytes(bytes(range(256)) * 40)
        self.fails(["--text", tokens], "tokens.bin is no text: it has zero bytes", "files of tokens")
        parameters = texts / "parameters.safetensors"
        parameters.write_bytes((2).to_bytes(8, "little") + b'{"' + b"x" * 5000)
        self.fails(["--text", parameters], "parameters.safetensors is no text: it is a safetensors file", "--init")
        # Of a folder they are left out, and counted; train_arguments names a file too.
        result = run(*self.train_arguments("run", 1), "--text", texts)
        self.assertIn(" of text in 2 files (2 files without text left out)", result.err)

    def test_paths_that_the_system_refuses(self):
        long = self.folder / ("x" * 300)
        self.fails(["--text", long], "cannot read ", "File name too long")
        for arguments in [["simulate", long], ["plan", long, "--devices", 2, "--bandwidth", 1], ["train", "--resume", long], ["show", long]]:
            result = run(*arguments)
            self.assertEqual(result.code, 1, arguments)
            self.assertNotIn("filesystem error", result.err)
            self.assertNotIn("terminate", result.err)

    def test_models_beyond_all_limits(self):
        huge = ["--text", self.text, "--set", "heads=2"]
        self.fails([*huge, "--set", "layers=1e9"], "more than 100000 parameter tensors", "fewer layers")
        self.fails([*huge, "--set", "width=1e9"], "elements", "width")
        self.fails([*huge, "--set", "validation_batches=1000000000"], "train.validation_batches is 1000000000", "at most 10000")

    def test_a_model_without_room(self):
        huge = ["--text", self.text, "--set", "layers=4", "--set", "width=131072", "--set", "heads=2"]
        self.fails(huge, "needs ", "TiB of memory; ", "device 1 plans ", "hint: a smaller model or batch")
        for command in ["check", "profile"]:
            out = ["--out", self.folder / "costs.json"]
            self.assert_fails(run(command, *SMALL, *huge, *out), "TiB of memory; ")

    def test_help_has_an_example(self):
        for command in ["train", "generate", "check", "compile", "config"]:
            result = run(command, "--help")
            self.assertEqual(result.code, 0)
            self.assertIn(f"Example:\n  penstock {command}", result.out)


if __name__ == "__main__":
    unittest.main()
