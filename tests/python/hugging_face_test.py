# SPDX-License-Identifier: Apache-2.0
"""The same scripts with `transformers.Trainer` and with its pipelined form: losses, rates, parameters, evaluation, checkpoints, refusals.

usage: hugging_face_test.py
"""

import tempfile
import unittest
from pathlib import Path
from unittest import mock

import kept_exports  # noqa: F401
import torch
import zoo
from evaluate import sampled  # finds the package

import penstock

if zoo.have("transformers", "accelerate"):
    zoo.stub_torchvision()
    import transformers

    import penstock.hugging_face

    class Logs(transformers.TrainerCallback):
        """Keeps what is logged of each step."""

        def __init__(self):
            self.seen = []

        def on_log(self, args, state, control, logs=None, **_):
            names = ("loss", "grad_norm", "learning_rate", "eval_loss")
            self.seen.append({name: value for name, value in logs.items() if name in names})


def gpt2(dropout=0.0, layers=1):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=zoo.VOCABULARY, n_positions=64, n_embd=16, n_layer=layers, n_head=2, bos_token_id=0, eos_token_id=0,
                                     resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout)
    return transformers.GPT2LMHeadModel(config).double()


def bert():
    torch.manual_seed(0)
    return zoo.without_dropout(transformers.BertForSequenceClassification(transformers.BertConfig(**zoo.sizes(num_labels=3)))).double()


def texts(samples=22, length=12):
    """Samples with unequally many labels."""
    torch.manual_seed(1)
    tokens = [zoo.tokens(length) for _ in range(samples)]
    return [{"input_ids": ids, "labels": ids.masked_fill(torch.rand(length) < i / samples, -100)} for i, ids in enumerate(tokens)]


def classes(samples=16):
    torch.manual_seed(1)
    return [{"input_ids": zoo.tokens(9), "labels": torch.tensor(i % 3)} for i in range(samples)]


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-9)).item()  # a key's bias is zero but for rounding


@unittest.skipUnless(zoo.have("transformers", "accelerate"), "transformers or accelerate is not installed")
class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def trainer(self, pipeline, model=None, data=None, name="run", make=None, optimizers=None, arguments=None, **settings):
        """A Trainer; with `pipeline` a pipelined one. Its logs are in `logs`."""
        given = {"per_device_train_batch_size": 8, "num_train_epochs": 2, "learning_rate": 1e-2, "warmup_steps": 2, "weight_decay": 0.1,
                 "max_grad_norm": 0.5, "seed": 3, "save_strategy": "no", **settings}
        args = (arguments or transformers.TrainingArguments)(output_dir=str(self.folder / name), use_cpu=True, report_to=[], logging_steps=1,
                                                             disable_tqdm=True, **given)
        make = make or (transformers.Trainer if pipeline is None else penstock.hugging_face.Trainer)
        model, data, logs = gpt2() if model is None else model, data or texts(), Logs()
        made = make(model=model, args=args, train_dataset=data, eval_dataset=data[:6], callbacks=[logs], **({} if pipeline is None else {"pipeline": pipeline}),
                    **({"optimizers": optimizers(model)} if optimizers else {}))
        made.remove_callback(transformers.PrinterCallback)
        made.logs = logs.seen
        return made

    def assert_alike(self, ours, theirs, bound=1e-6):
        self.assertEqual(len(ours.logs), len(theirs.logs))
        for found, expected in zip(ours.logs, theirs.logs):
            self.assertEqual(found.keys(), expected.keys())
            for name, value in expected.items():
                self.assertAlmostEqual(found[name], value, delta=bound * max(abs(value), 1e-2), msg=name)
        state = ours.model.state_dict()
        for name, value in theirs.model.state_dict().items():
            self.assertLess(relative(state[name], value), bound, name)


class Scripts(Case):
    """Each script once with Trainer, once with Trainer and a pipeline."""

    def compare(self, *pipelines, bound=1e-6, make=lambda: None, **given):
        start, theirs = make() or gpt2(), self.trainer(None, make(), **given)
        theirs.train()
        for pipeline in pipelines:
            with self.subTest(pipeline=pipeline):
                ours = self.trainer(pipeline, make(), **given)
                ours.train()
                changes = [relative(value, ours.model.get_parameter(name)) for name, value in start.named_parameters()]
                self.assertGreater(max(changes), 1e-2)  # it was trained
                self.assert_alike(ours, theirs, bound)
                self.assertIsNone(ours.step)

    def test_an_optimizer_whose_step_is_exported(self):
        self.compare({"microbatches": 4}, bound=1e-5, optim="adafactor")  # it normalises the keys' gradients, which are rounding alone

    def test_schedules_and_a_smaller_last_batch(self):
        plans = ({"actors": 2, "schedule": schedule, "microbatches": 4} for schedule in sampled(("1f1b", "zb-h1"), 1))
        self.compare(*plans, eval_strategy="epoch")  # of 22 samples 6 are left

    def test_accumulated_batches_are_micro_batches(self):
        self.compare(*sampled(({}, {"microbatches": 4}), 1), per_device_train_batch_size=4, gradient_accumulation_steps=2, lr_scheduler_type="cosine")

    def test_a_loss_that_does_not_take_the_count(self):
        self.compare({"microbatches": 4}, make=bert, data=classes(), optim="sgd", learning_rate=0.3)

    def test_a_part_of_the_loss_that_the_count_does_not_divide(self):
        class Penalised(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.embed, self.head = torch.nn.Embedding(zoo.VOCABULARY, 8), torch.nn.Linear(8, zoo.VOCABULARY)

            def forward(self, input_ids, labels, **others):
                logits = self.head(self.embed(input_ids).relu())
                return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / others["num_items_in_batch"]
                        + logits.square().mean()}
        self.compare({"microbatches": 4}, make=lambda: Penalised().double())

    def test_optimizers_that_the_script_made(self):
        def momentum(model):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        self.compare({"microbatches": 4}, optimizers=momentum, max_grad_norm=0.0)

    def test_bf16(self):
        self.compare({"microbatches": 4}, make=lambda: gpt2().float(), bf16=True, optim="sgd", learning_rate=0.3, bound=0.05)

    def test_plans(self):
        model, data = gpt2(), texts(24)
        batch = {name: torch.stack([sample[name] for sample in data[:8]]) for name in ("input_ids", "labels")}
        plan = penstock.plan(model, batch, devices=2, device="a100-80", microbatches=4, replicas=False, seconds=1)
        self.compare({"plan": plan}, data=data)

    def test_another_trainer_of_theirs(self):
        class Mine(penstock.hugging_face.Pipelined, transformers.Seq2SeqTrainer):
            pass
        torch.manual_seed(1)
        data = [{"input_ids": zoo.tokens(9), "labels": zoo.tokens(7)} for _ in range(16)]
        theirs, ours = (self.trainer(pipeline, zoo.make("t5", torch.float64)[0], data, make=make, arguments=transformers.Seq2SeqTrainingArguments)
                        for pipeline, make in ((None, transformers.Seq2SeqTrainer), ({"microbatches": 4}, Mine)))
        theirs.train()
        ours.train()
        self.assert_alike(ours, theirs)


class Checkpoints(Case):
    def test_either_goes_on_from_either(self):
        """Checkpoints after each epoch of three steps; the second epoch from each."""
        whole = {}
        for kind, pipeline in (("theirs", None), ("ours", {"microbatches": 4})):
            whole[kind] = self.trainer(pipeline, name=kind, save_strategy="epoch")
            whole[kind].train()
        self.assert_alike(whole["ours"], whole["theirs"])
        other = {"microbatches": 2, "schedule": "zb-h1"}
        for begun, pipeline in sampled((("theirs", other), ("ours", None), ("ours", other)), 2):
            with self.subTest(begun, pipeline=pipeline):
                resumed = self.trainer(pipeline, name="resumed")
                resumed.train(resume_from_checkpoint=str(self.folder / begun / "checkpoint-3"))
                resumed.logs[:0] = whole["theirs"].logs[:3]
                self.assert_alike(resumed, whole["theirs"])

    def test_dropout_goes_on(self):
        whole = self.trainer({"microbatches": 4}, gpt2(dropout=0.1), name="whole", save_strategy="epoch")
        whole.train()
        resumed = self.trainer({"microbatches": 4}, gpt2(dropout=0.1), name="resumed")
        resumed.train(resume_from_checkpoint=str(self.folder / "whole" / "checkpoint-3"))
        resumed.logs[:0] = whole.logs[:3]
        self.assert_alike(resumed, whole, 1e-9)

    def test_the_best_model_and_a_second_train(self):
        found = {}
        for kind, pipeline in (("theirs", None), ("ours", {"microbatches": 4})):
            # The best one, with the largest loss, is not the last.
            found[kind] = self.trainer(pipeline, name=kind, save_strategy="steps", save_steps=1, eval_strategy="steps", eval_steps=1,
                                       load_best_model_at_end=True, metric_for_best_model="loss", greater_is_better=True)
            found[kind].train()
            self.assertLess(found[kind].state.best_global_step, 3)
        self.assertEqual(found["ours"].state.best_global_step, found["theirs"].state.best_global_step)
        self.assert_alike(found["ours"], found["theirs"])
        for made in found.values():
            made.args.num_train_epochs, made.args.load_best_model_at_end = 1, False
            made.train()
        self.assert_alike(found["ours"], found["theirs"])


    def test_an_exception_in_a_callback_leaves_what_was_trained(self):
        class Stopping(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, **_):
                if state.global_step == 2:
                    raise KeyboardInterrupt
        found = []
        for pipeline in (None, {"microbatches": 4}):
            found.append(self.trainer(pipeline, gpt2(layers=2)))
            found[-1].add_callback(Stopping)
            with self.assertRaises(KeyboardInterrupt):
                found[-1].train()
        self.assert_alike(*reversed(found))


class Refusals(Case):
    def refused(self, text, **given):
        with self.assertRaisesRegex(penstock.PenstockError, text):
            self.trainer({"microbatches": 4, **given.pop("pipeline", {})}, **given).train()

    def test_what_the_trainer_says_already(self):
        self.refused('pipeline has "clip"[^$]*TrainingArguments.max_grad_norm', pipeline={"clip": 1.0})
        self.refused('pipeline has "optimizer"', pipeline={"optimizer": None})
        self.refused("(?s)pipeline has \"window\".*one step after the other", pipeline={"window": 2})

    def test_other_losses(self):
        class Other(penstock.hugging_face.Trainer):
            def compute_loss(self, *args, **kwargs):
                return 2 * super().compute_loss(*args, **kwargs)
        self.refused("does not run with a loss that is not the model's own", make=Other)
        self.refused("does not run with a loss that is not the model's own", label_smoothing_factor=0.1)

    def test_other_machinery(self):
        for attribute, text in (("is_deepspeed_enabled", "DeepSpeed"), ("is_fsdp_enabled", "FSDP")):
            made = self.trainer({"microbatches": 4})
            setattr(made, attribute, True)
            with self.assertRaisesRegex(penstock.PenstockError, f"does not run with {text}"):
                made.train()
        for attribute, value, text in (("device", torch.device("cuda:0"), "the device cuda:0"),):
            made = self.trainer({"microbatches": 4})
            with mock.patch.object(type(made.args), attribute, value), self.assertRaisesRegex(penstock.PenstockError, f"does not run with {text}"):
                made.train()
        made = self.trainer({"microbatches": 4})
        made.accelerator.scaler = torch.amp.GradScaler("cpu")
        with self.assertRaisesRegex(penstock.PenstockError, "does not run with fp16"):
            made.train()

    def test_optimizers(self):
        self.refused("the optimizer LBFGS is not supported: its step\\(\\) needs closure",
                     optimizers=lambda model: (torch.optim.LBFGS(model.parameters()), None))

    def test_batches_of_several_lengths_that_accumulate(self):
        data = texts(8) + texts(8, length=9)
        self.refused(r'the batches of a step cannot be joined: "input_ids" is of shapes \[8, \d+\], \[8, \d+\]', data=data, gradient_accumulation_steps=2,
                     train_sampling_strategy="sequential")


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
