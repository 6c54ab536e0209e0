# SPDX-License-Identifier: Apache-2.0
"""A trainer after steps that fail or are interrupted, and what it says of changes that it cannot heed.

usage: failures_test.py [ROUNDS [SEED]]
"""

import copy
import gc
import io
import logging
import os
import random
import signal
import sys
import threading
import traceback
import unittest
import warnings
import weakref
from unittest import mock

import evaluate  # noqa: F401  finds the package
import kept_exports  # noqa: F401
import torch
import torch.nn as nn
from small_modules import Case, Model, autograd, relative, seeded, texts, token_loss
from torch.nn import functional

import penstock
import penstock.programs

ROUNDS, SEED = 2, 1


def eager_step(twin, optimizer, batch):
    optimizer.zero_grad()
    token_loss(twin(batch[0]), batch[1]).backward()
    optimizer.step()


class BadBatches(Case):
    def bad(self, draw, batch):
        """The batch with a token or a label that there is not, in any of its samples."""
        tokens, targets = (tensor.clone() for tensor in batch)
        wrong = draw.choice((tokens, targets))
        wrong[draw.randrange(wrong.shape[0]), draw.randrange(wrong.shape[1])] = draw.choice((19, 1000, -7))
        return tokens, targets

    def drawn(self, seed):
        draw = random.Random(seed)
        torch.manual_seed(seed)
        module, twin = seeded(Model), seeded(Model)
        make = draw.choice((lambda p: torch.optim.AdamW(p, lr=1e-2), lambda p: torch.optim.SGD(p, lr=0.125, momentum=0.5)))
        ours, theirs = make(module.parameters()), make(twin.parameters())
        data = draw.choice((1, 1, 2))
        plan = {"actors": draw.randint(1, 3), "schedule": draw.choice(("1f1b", "zb-h1", "gpipe")), "data": data, "zero": draw.choice((0, 1, 3)) if data > 1 else 0,
                "clip": draw.choice((0.0, 0.05))}
        plan["chunks"] = 1
        calls = draw.choices(("step", "gradients", "evaluate", "bad step", "bad gradients", "bad evaluate"), k=8)
        with self.subTest(seed=seed, calls=calls, **plan):
            step, done = penstock.trainer(module, texts(), loss=token_loss, optimizer=ours, microbatches=4, **plan), 0
            for call in calls:
                batch = texts()
                call, is_bad = call.removeprefix("bad "), call.startswith("bad ")
                does = {"step": step, "gradients": step.gradients, "evaluate": step.evaluate}[call]
                if is_bad:
                    with self.assertRaises(penstock.PenstockError):
                        does(self.bad(draw, batch))
                elif call == "step":
                    if plan["clip"]:
                        theirs.zero_grad()
                        token_loss(twin(batch[0]), batch[1]).backward()
                        nn.utils.clip_grad_norm_(twin.parameters(), plan["clip"])
                        theirs.step()
                    else:
                        eager_step(twin, theirs, batch)
                    does(batch)
                    done += 1
                else:
                    does(batch)
                self.assertEqual(step.steps, done)
                for name, value in twin.state_dict().items():
                    self.assertLess(relative(step.state_dict()[name], value), 1e-7, f"{name} after {call}")
                states = step.optimizer_state_dict()["state"]
                self.assertEqual(states.keys(), theirs.state_dict()["state"].keys())
                if done and isinstance(theirs, torch.optim.AdamW):
                    self.assertEqual(states[0]["step"].item(), done)

    def test_drawn_plans_and_calls(self):
        for seed in range(SEED, SEED + ROUNDS):
            self.drawn(seed)


class Interrupted(Case):
    def test_steps_rates_and_state_agree(self):
        """Ctrl-C at drawn moments of steps: what was interrupted is done and counted, or not begun.

        An interrupt may also come between two steps, where no order of the test's own calls is sure; so rates are set from `steps`.
        """
        draw = random.Random(0)
        torch.manual_seed(0)
        module = nn.Sequential(*[nn.Linear(192, 192) for _ in range(6)]).double()
        twin = copy.deepcopy(module)
        batch = torch.randn(1024, 192).double(), torch.randn(1024, 192).double()
        ours, theirs = (torch.optim.AdamW(m.parameters(), lr=2.0**-10) for m in (module, twin))
        step = penstock.trainer(module, batch, loss=nn.MSELoss(), microbatches=4, optimizer=ours)
        done, given_up = 0, 0
        for _ in range(6):
            threading.Timer(draw.uniform(0.0, 0.15), os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                while True:
                    before = step.steps
                    ours.param_groups[0]["lr"] = 2.0**-10 / (1 + before)
                    step(batch)
            except KeyboardInterrupt as interrupt:
                last = traceback.extract_tb(interrupt.__traceback__)[-1]
            if last.line == "raise late":  # of a step before
                self.assertEqual(step.steps, before)
            elif "_session.step(" in last.line:  # given up, or done: one that comes as the engine returns is seen in this line too
                self.assertIn(step.steps, (before, before + 1))
                given_up += step.steps == before
            state = step.state_dict()
            if step.steps:
                self.assertEqual(step.optimizer_state_dict()["state"][0]["step"].item(), step.steps)
            while done < step.steps:
                theirs.param_groups[0]["lr"] = 2.0**-10 / (1 + done)
                theirs.zero_grad()
                functional.mse_loss(twin(batch[0]), batch[1]).backward()
                theirs.step()
                done += 1
            for name, value in twin.state_dict().items():
                self.assertLess(relative(state[name], value), 1e-6, name)
        print(f"steps that were given up while they ran: {given_up} of 6")

    def test_a_handler_of_ones_own_stops_no_step(self):
        module, batch, seen = seeded(Model), texts(), []
        step = penstock.trainer(module, batch, loss=token_loss, microbatches=4, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
        before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
        try:
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
            while not seen:
                step(batch)
        finally:
            signal.signal(signal.SIGINT, before)
        step(batch)


class Changes(Case):
    def test_what_is_trained(self):
        module, batch = seeded(Model), texts()
        step = penstock.trainer(module, batch, loss=token_loss, microbatches=4, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
        step(batch)
        before = step.state_dict()
        module.layers[0].requires_grad_(False)
        for call in (step, step.gradients):
            with self.assertRaisesRegex(penstock.PenstockError, r'requires_grad of "layers.0.norm.weight" was set to False[^$]*6 of 25 parameters[^$]*step.sync'):
                call(batch)
        self.assertTrue(all(torch.equal(value, before[name]) for name, value in step.state_dict().items()))
        step.evaluate(batch)
        module.layers[0].requires_grad_(True)
        step(batch)

    def test_a_scheduler_does_not_warn(self):
        module, batch = seeded(Model), texts()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        step = penstock.trainer(module, batch, loss=token_loss, microbatches=4, optimizer=optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step(batch)
            rates.step()

    def test_gradients_by_frequency(self):
        class Counted(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed, self.head = nn.Embedding(19, 8, scale_grad_by_freq=True), nn.Linear(8, 19)

            def forward(self, tokens):
                return self.head(self.embed(tokens))
        batch = texts()
        with self.assertRaisesRegex(penstock.PenstockError, r"scale_grad_by_freq=True divides[^$]*in module embed\n[^$]*each of 4 micro-batches[^$]*microbatches=1"):
            penstock.trainer(seeded(Counted), batch, loss=token_loss, microbatches=4)
        loss, theirs = autograd(seeded(Counted), batch)
        step = penstock.trainer(seeded(Counted), batch, loss=token_loss, microbatches=1, actors=1)
        self.assert_alike(step.gradients(batch)[1], theirs)

    def test_small_norms_are_clipped_as_in_pytorch(self):
        for scale in (1e-3, 3e-8):
            module, twin = seeded(Model), seeded(Model)
            ours, theirs = (torch.optim.SGD(m.parameters(), lr=1.0) for m in (module, twin))

            def loss(logits, targets, scale=scale):
                return token_loss(logits, targets) * scale
            step = penstock.trainer(module, batch := texts(), loss=loss, microbatches=4, optimizer=ours, clip=1e-7)
            step(batch)
            loss(twin(batch[0]), batch[1]).backward()
            nn.utils.clip_grad_norm_(twin.parameters(), 1e-7)
            theirs.step()
            start = seeded(Model).state_dict()
            for name, value in twin.state_dict().items():
                self.assertLess(relative(step.state_dict()[name] - start[name], value - start[name]), 1e-5, (scale, name))

    def test_what_is_printed(self):
        module, batch = seeded(Model), texts()
        step = penstock.trainer(module, batch, loss=token_loss, microbatches=4, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
        step(batch)
        self.assertEqual(repr(step), "<penstock trainer of Model: 2 devices, schedule 1f1b, 4 micro-batches, 1 steps done>")
        found = penstock.compare(module, batch, loss=token_loss, microbatches=4, names=["1f1b", "zb-h1"])
        self.assertEqual([line.split()[0] for line in str(found).splitlines()], list(found))
        self.assertRegex(str(found), r"(?m)^zb-h1  step [\d.]+ ms, bubble [\d.]+ %")

    def test_sync(self):
        module, batch = seeded(Model), texts()
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        step = penstock.trainer(module, batch, loss=token_loss, microbatches=4, optimizer=optimizer)
        step(batch)
        step.sync()
        state = step.state_dict()
        for name, value in module.state_dict().items():
            self.assertTrue(torch.equal(value, state[name]), name)
        self.assertEqual(optimizer.state_dict()["state"][0]["step"].item(), 1)
        step(batch)
        eager_step(module, optimizer, batch)
        for name, value in module.state_dict().items():
            self.assertLess(relative(step.state_dict()[name], value), 1e-6, name)
        with torch.device("meta"):
            other = Model().double()
        with self.assertRaisesRegex(penstock.PenstockError, "on the meta device"):
            penstock.trainer(other, batch, loss=token_loss, microbatches=4).sync()


class Kept(Case):
    def test_so_many_programs_are_kept(self):
        module, twin = seeded(Model), seeded(Model)
        ours, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, twin))
        with mock.patch.object(penstock.programs, "KEPT", 3):
            step = penstock.trainer(module, texts(length=4), loss=token_loss, microbatches=4, optimizer=ours)
            for length in (4, 5, 6, 7, 8, 5, 4, 9, 4):
                batch = texts(length=length)
                self.assertAlmostEqual(step.gradients(batch)[0].item(), autograd(twin, batch)[0], delta=1e-6)
                eager_step(twin, theirs, batch)
                step(batch)
                step.evaluate(batch)
                kinds = [key[0] for key in step._programs._ready]
                self.assertLessEqual(max(kinds.count(kind) for kind in kinds), 3)
            self.assertEqual(kinds.count("training"), 3)
            self.assertEqual([key[-1][0][1][1] for key in step._programs._ready if key[0] == "training"], [5, 9, 4])
            for name, value in twin.state_dict().items():
                self.assertLess(relative(step.state_dict()[name], value), 1e-5, name)
            self.assertEqual(step.optimizer_state_dict()["state"][0]["step"].item(), 9)

    def test_a_dropped_trainer_leaves_nothing(self):
        def made():
            module, batch = seeded(Model), texts()
            step = penstock.trainer(module, batch, loss=token_loss, microbatches=4, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
            step(batch)
            step.evaluate(batch)
            return [weakref.ref(each) for each in (step, module, step._session, step.exports, step.exports.first, step._first.program)]
        gone = made()
        gc.collect()
        self.assertEqual([ref() for ref in gone], [None] * len(gone))


class Skipped(Case):
    class Net(nn.Module):
        """Beside the layers that are trained, one that the loss does not reach: `kind` says how."""

        def __init__(self, kind):
            super().__init__()
            self.a, self.h, self.kind = nn.Linear(6, 6), nn.Linear(6, 4), kind
            if kind in ("unread", "detached", "other result"):
                self.pooler = nn.Linear(6, 6)
            if kind == "parameter":
                self.masked_spec_embed = nn.Parameter(torch.ones(3))

        def forward(self, x):
            y = torch.tanh(self.a(x))
            if self.kind == "detached":
                y = y + self.pooler(y).detach()
            return (self.h(y), self.pooler(y)) if self.kind == "other result" else self.h(y)

    OPTIMISERS = {"AdamW": lambda p: torch.optim.AdamW(p, lr=0.125, weight_decay=0.5), "SGD": lambda p: torch.optim.SGD(p, lr=0.125, weight_decay=0.5),
                  "RMSprop": lambda p: torch.optim.RMSprop(p, lr=2.0**-6, weight_decay=0.5)}

    def test_parameters_without_gradients(self):
        batch = torch.randn(8, 6).double(), torch.randint(4, (8,))

        def loss(output, target):
            return functional.cross_entropy(output[0] if isinstance(output, tuple) else output, target)
        for kind in ("unread", "detached", "other result", "parameter"):
            for name, make in self.OPTIMISERS.items():
                if name != "AdamW" and kind != "unread":
                    continue
                with self.subTest(kind, optimizer=name):
                    torch.manual_seed(0)
                    module = self.Net(kind).double()
                    twin = copy.deepcopy(module)
                    ours, theirs = make(module.parameters()), make(twin.parameters())
                    log = io.StringIO()
                    logger, handler = logging.getLogger("penstock"), logging.StreamHandler(log)
                    logger.addHandler(handler)
                    logger.setLevel(logging.INFO)
                    try:
                        step = penstock.trainer(module, batch, loss=loss, microbatches=4, optimizer=ours)
                    finally:
                        logger.removeHandler(handler)
                    self.assertIn("no loss reaches masked_spec_embed:" if kind == "parameter" else "no loss reaches pooler.weight, pooler.bias:", log.getvalue())
                    for _ in range(3):
                        step(batch)
                        theirs.zero_grad()
                        loss(twin(batch[0]), batch[1]).backward()
                        theirs.step()
                    state = step.state_dict()
                    self.assertEqual(state.keys(), twin.state_dict().keys())
                    for key, value in twin.state_dict().items():
                        self.assertLess(relative(state[key], value), 1e-7, key)
                    given, wanted = step.optimizer_state_dict(), theirs.state_dict()
                    self.assertEqual(given["param_groups"], wanted["param_groups"])
                    self.assertEqual(given["state"].keys(), {i for i, entry in wanted["state"].items() if any(v is not None for v in entry.values())})
                    ours.load_state_dict(given)


if __name__ == "__main__":
    torch.set_num_threads(1)
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    ROUNDS, SEED = [*numbers, *(ROUNDS, SEED)[len(numbers):]]
    unittest.main(argv=[argument for argument in sys.argv if not argument.isdigit()])
