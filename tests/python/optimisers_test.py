# SPDX-License-Identifier: Apache-2.0
"""Optimisers whose own step is exported, against PyTorch: steps under plans, their state both ways, and what must be refused.

usage: optimisers_test.py
"""

import contextlib
import copy
import math
import unittest

import kept_exports  # noqa: F401
import torch
import torch.nn as nn
from evaluate import sampled  # finds the package
from small_modules import Case, Model, seeded, texts, token_loss

import penstock

optim = torch.optim


class Slow(optim.Optimizer):
    """As users write them: numbers for steps and rates, math's functions, `.data`, and a state that begins as the parameter."""

    def __init__(self, params, lr=1e-2, beta=0.9, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "beta": beta, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"], state["average"], state["slow"], state["kind"] = 0, torch.zeros_like(p), p.data.clone(), "slow"
                state["step"] += 1
                state["average"].mul_(group["beta"]).add_(p.grad, alpha=1 - group["beta"])
                size = group["lr"] / math.sqrt(1 - group["beta"] ** state["step"])
                p.data.mul_(1 - group["lr"] * group["weight_decay"]).add_(state["average"], alpha=-size)
                state["slow"].lerp_(p.data, 0.3)
                p.data = p.data + max(0.0, 0.1 / state["step"]) * (state["slow"] - p.data)


class Lars(optim.Optimizer):
    """A parameter's rate is by its norm, which devices that have parts of it sum."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                rate = group["lr"] * p.norm().item() / (p.grad.norm().item() + 1e-3)
                p.sub_(p.grad, alpha=rate)


# An optimiser may compute these of a whole parameter p, its gradient g and what was kept of the step before, k; each says whether parts of
# them are enough for it.
REDUCTIONS = {
    "norm": (lambda p, g, k: p.norm() / (1 + g.norm()), True),
    "squares": (lambda p, g, k: p.pow(2).sum().sqrt() + g.square().sum(), True),
    "sizes": (lambda p, g, k: p.abs().sum() / p.numel() + p.norm(1), True),
    "product": (lambda p, g, k: (p * g).sum() + (p * k).sum(), True),
    "kept": (lambda p, g, k: k.norm() - (k + g).sum(), True),
    "deviation": (lambda p, g, k: (p - p.sum() / p.numel()).pow(2).sum(), True),
    "of the stepped": (lambda p, g, k: (p - 0.1 * g / (1 + g.norm())).norm(), True),
    "mean": (lambda p, g, k: p.mean() + g.abs().mean(), False),
    "variance": (lambda p, g, k: p.var() + g.std(), False),
    "largest": (lambda p, g, k: p.abs().max() - g.amin(), False),
    "infinite norm": (lambda p, g, k: p.norm(math.inf) + p.norm(3), False),
    "rows": (lambda p, g, k: p.norm(dim=-1, keepdim=True) + g.sum(-1, keepdim=True), False),
    "matrix": (lambda p, g, k: (p.flatten() @ g.flatten()).tanh(), False),
}


class Reducing(optim.Optimizer):
    """Rates are what `reduce` makes of the whole tensors."""

    def __init__(self, params, reduce):
        super().__init__(params, {"lr": 0.05})
        self.reduce = reduce

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p].setdefault("kept", torch.zeros_like(p))
                rate = group["lr"] * torch.sigmoid(self.reduce(p, p.grad, kept))
                kept.mul_(0.5).add_(p.grad)
                p.sub_(rate * kept)


OPTIMISERS = {
    "RMSprop": lambda p: optim.RMSprop(p, lr=3e-3, momentum=0.9, centered=True, eps=1e-3),
    "Adagrad": lambda p: optim.Adagrad(p, lr=1e-2, lr_decay=0.1, initial_accumulator_value=0.1),
    "Adamax": lambda p: optim.Adamax(p, lr=1e-2),
    "NAdam": lambda p: optim.NAdam(p, lr=1e-2, decoupled_weight_decay=True),
    "RAdam": lambda p: optim.RAdam(p, lr=1e-2, betas=(0.8, 0.9)),
    "Adadelta": lambda p: optim.Adadelta(p, lr=1.0, eps=1e-4),
    "ASGD": lambda p: optim.ASGD(p, lr=0.1, t0=2, lambd=0.01),
    "Rprop": lambda p: optim.Rprop(p, lr=1e-2),
    "Adafactor": lambda p: optim.Adafactor(p, lr=1e-1),
    "AMSGrad": lambda p: optim.AdamW(p, lr=1e-2, amsgrad=True),
    "Adam": lambda p: optim.Adam(p, lr=1e-2, maximize=True),
    "dampening": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5, maximize=True),
    "Slow": Slow,
    "Lars": lambda p: Lars(p, {"lr": 0.1}),
}
PLANS = ({"schedule": "zb-h1"}, {"data": 2}, {"data": 2, "zero": 1}, {"data": 2, "zero": 3}, {"schedule": "zb-h1", "data": 2, "zero": 1})


@contextlib.contextmanager
def default_dtype(dtype):
    """PyTorch keeps an optimiser's scalars in it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def groups(module):
    """Vectors in a group of their own, of another rate and no decay."""
    return [{"params": [p for p in module.parameters() if p.dim() == 2], "weight_decay": 0.1},
            {"params": [p for p in module.parameters() if p.dim() < 2], "lr": 5e-3, "weight_decay": 0.0}]


def trained(module, batch, optimizer, **plan):
    return penstock.trainer(module, batch, loss=token_loss, optimizer=optimizer, **{"microbatches": 4, "dynamic": False, **plan})


def in_pytorch(module, optimizer, batches):
    for tokens, targets in batches:
        optimizer.zero_grad()
        token_loss(module(tokens), targets).backward()
        optimizer.step()


class Steps(Case):
    def compare(self, make, dtype, bound, clip=0.0, layers=1, **plan):
        """Five steps with groups and a scheduler here and in PyTorch."""
        with default_dtype(dtype):
            module, twin = (seeded(Model, layers=layers, dtype=dtype) for _ in range(2))
            ours, theirs = make(groups(module)), make(groups(twin))
            rates = [optim.lr_scheduler.ExponentialLR(optimizer, 0.7) for optimizer in (ours, theirs)]
            batches = [texts() for _ in range(5)]
            step = trained(module, batches[0], ours, clip=clip, **plan)
            for tokens, targets in batches:
                loss = step((tokens, targets))
                theirs.zero_grad()
                their_loss = token_loss(twin(tokens), targets)
                their_loss.backward()
                if clip:
                    nn.utils.clip_grad_norm_(twin.parameters(), clip)
                theirs.step()
                for rate in rates:
                    rate.step()
                self.assertAlmostEqual(loss.item(), their_loss.item(), delta=bound * abs(their_loss.item()))
            self.assert_alike(step.state_dict(), twin.state_dict(), bound)
        return step

    def test_in_f64_on_two_actors(self):
        for name, make in sampled(OPTIMISERS.items(), 1):
            with self.subTest(name):
                self.compare(make, torch.float64, 1e-10)

    def test_in_f32_under_plans(self):
        for i, (name, make) in sampled(enumerate(OPTIMISERS.items()), 4):
            plan = PLANS[i % len(PLANS)]
            with self.subTest(name, **plan):
                self.compare(make, torch.float32, 1e-5, **plan)

    def test_zero_and_clipping(self):
        for name, zero, clip in sampled((("RMSprop", 3, 0.05), ("Adafactor", 1, 0.0), ("Lars", 3, 0.0), ("NAdam", 1, 0.05)), 1):
            with self.subTest(name, zero=zero):
                step = self.compare(OPTIMISERS[name], torch.float64, 1e-10, clip, 2, data=2, zero=zero)
                cut = {piece[0].rpartition(":")[0] for piece in step._session.pieces() if piece[2] > 0}
                self.assertEqual(cut, {"RMSprop": {"", "square_avg", "momentum_buffer", "grad_avg"}, "NAdam": {"exp_avg", "exp_avg_sq"},
                                       "Lars": {""}}.get(name, set()))

    def test_reductions_of_whole_tensors(self):
        for i, (name, (reduce, of_parts)) in sampled(enumerate(REDUCTIONS.items()), 2):
            for zero in {3, i % 3}:
                with self.subTest(name, zero=zero):
                    step = self.compare(lambda p, reduce=reduce: Reducing(p, reduce), torch.float64, 1e-10, (i % 4 == 1) * 0.05, data=2, zero=zero)
                    cut = {piece[0].rpartition(":")[0] for piece in step._session.pieces() if piece[2] > 0}
                    if zero == 3:
                        self.assertEqual(cut, {"", "kept"} if of_parts else set())

    def test_planned(self):
        module, twin, batch = seeded(Model, layers=2), seeded(Model, layers=2), texts()
        ours, theirs = OPTIMISERS["RMSprop"](module.parameters()), OPTIMISERS["RMSprop"](twin.parameters())
        plan = penstock.plan(module, batch, loss=token_loss, devices=2, microbatches=4, replicas=False, seconds=0.2, dynamic=False, optimizer=ours)
        step = penstock.trainer(module, batch, loss=token_loss, plan=plan, dynamic=False, optimizer=ours)
        step(batch)
        in_pytorch(twin, theirs, [batch])
        self.assert_alike(step.state_dict(), twin.state_dict(), 1e-10)


class OptimiserState(Case):
    def test_from_and_to_pytorch(self):
        batches = [texts() for _ in range(6)]
        for name in sampled(("RMSprop", "Adagrad", "NAdam", "ASGD", "Adafactor", "dampening", "Slow"), 1):
            with self.subTest(name), default_dtype(torch.float64):
                make, twin = OPTIMISERS[name], seeded(Model, layers=1)
                theirs = make(groups(twin))
                in_pytorch(twin, theirs, batches[:3])
                halfway = {key: value.clone() for key, value in twin.state_dict().items()}
                state = theirs.state_dict()
                kept = {i: {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in entry.items()}
                        for i, entry in state["state"].items()}
                in_pytorch(twin, theirs, batches[3:])

                module = seeded(Model, layers=1)
                ours = make(groups(module))
                step = trained(module, batches[0], ours)
                self.assertEqual(step.optimizer_state_dict()["state"], {})
                for batch in batches[:3]:
                    step(batch)
                given = step.optimizer_state_dict()
                self.assertEqual(given["param_groups"], state["param_groups"])
                for i, entry in kept.items():
                    for key, value in entry.items():
                        self.assertIs(type(given["state"][i][key]), type(value))
                        if isinstance(value, torch.Tensor):
                            self.assertEqual((given["state"][i][key].shape, given["state"][i][key].dtype), (value.shape, value.dtype), key)
                            torch.testing.assert_close(given["state"][i][key], value, rtol=1e-10, atol=1e-14, msg=key)
                        elif value is not None:
                            self.assertEqual(given["state"][i][key], value, key)
                back = seeded(Model, layers=1)
                other = make(groups(back))
                back.load_state_dict(step.state_dict())
                other.load_state_dict(given)
                in_pytorch(back, other, batches[3:])
                self.assert_alike(back.state_dict(), twin.state_dict(), 1e-10)

                step.load_state_dict(seeded(Model, layers=1).state_dict())
                step(batches[5])
                step.load_state_dict(halfway)
                step.load_optimizer_state_dict({**state, "state": kept})
                for batch in batches[3:]:
                    step(batch)
                self.assert_alike(step.state_dict(), twin.state_dict(), 1e-10)

    def test_the_state_that_the_optimizer_has(self):
        """Two steps in PyTorch; then a trainer of the module and the optimizer as they are does two more, as PyTorch does."""
        batches = [texts() for _ in range(4)]
        own = {"AdamW": lambda p: optim.AdamW(p, lr=1e-2), "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9), "SGD": lambda p: optim.SGD(p, lr=0.1),
               "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), "plain Adam": lambda p: optim.Adam(p, lr=1e-2, weight_decay=0.1)}
        for name, make in sampled((OPTIMISERS | own).items(), 2):
            with self.subTest(name), default_dtype(torch.float64):
                twin = seeded(Model, layers=1)
                theirs = make(groups(twin))
                theirs.param_groups[0]["lr"] = 2.0**-7  # f32 has it too
                theirs.param_groups[1]["lr"] = 2.0**-8
                in_pytorch(twin, theirs, batches[:2])
                module = copy.deepcopy(twin)
                ours = make(groups(module))
                ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
                step = trained(module, batches[0], ours)
                given, wanted = step.optimizer_state_dict()["state"], theirs.state_dict()["state"]
                self.assertEqual(given.keys(), {i for i, entry in wanted.items() if any(value is not None for value in entry.values())})
                for i, entry in given.items():
                    for key, value in entry.items():
                        if isinstance(value, torch.Tensor):
                            torch.testing.assert_close(value, wanted[i][key], rtol=1e-12, atol=1e-14, check_dtype=key != "step", msg=f"{i} {key}")
                        else:
                            self.assertEqual(value, wanted[i][key], key)
                in_pytorch(twin, theirs, batches[2:])
                for batch in batches[2:]:
                    step(batch)
                self.assert_alike(step.state_dict(), twin.state_dict(), 1e-10)

    def test_a_state_that_a_trainer_cannot_take(self):
        module, batch = seeded(Model, layers=1), texts()
        optimizer = optim.AdamW(module.parameters(), lr=1e-2)
        in_pytorch(module, optimizer, [batch])
        optimizer.state[module.embed.weight]["step"] += 1
        with self.assertRaisesRegex(penstock.PenstockError, "parameters have done different numbers of steps\n  1, 2\n"):
            trained(module, batch, optimizer)
        del optimizer.state[module.embed.weight]
        with self.assertRaisesRegex(penstock.PenstockError, "parameters have done different numbers of steps\n  0, 1\n"):
            trained(module, batch, optimizer)

    def test_what_is_missing(self):
        module, batch = seeded(Model, layers=1), texts()
        step = trained(module, batch, optim.RMSprop(module.parameters()))
        step(batch)
        state = step.optimizer_state_dict()
        self.assertEqual(step.parameter("square_avg:embed.weight").shape, (19, 8))
        del state["state"][0]["square_avg"]
        with self.assertRaisesRegex(penstock.PenstockError, 'has no "square_avg" of "embed.weight"[^$]*the state of this RMSprop'):
            step.load_optimizer_state_dict(state)


def stepping(update, **attributes):
    """A class whose step does `update(optimizer, group, parameters)` for each group."""
    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                update(self, group, group["params"])
    return type("Mine", (optim.Optimizer,), {"step": step, **attributes})


def on_values(self, group, parameters):
    for p in parameters:
        if p.grad.norm() > 1:
            p.sub_(p.grad, alpha=group["lr"])


def all_at_once(self, group, parameters):
    norm = torch.stack([p.grad.norm() for p in parameters]).norm()
    for p in parameters:
        p.sub_(p.grad / norm, alpha=group["lr"])


def at_random(self, group, parameters):
    for p in parameters:
        p.sub_(p.grad + torch.randn_like(p), alpha=group["lr"])


def counting(self, group, parameters):
    group["count"] = group.get("count", 0) + 1
    for p in parameters:
        p.sub_(p.grad, alpha=group["lr"] / group["count"])


def listing(self, group, parameters):
    for p in parameters:
        self.state[p].setdefault("history", []).append(p.grad)


def summing(self, group, parameters):
    for p in parameters:
        self.state[p]["product"] = self.state[p].get("product", 1.0) * 0.9
        p.sub_(p.grad, alpha=group["lr"] * self.state[p]["product"])


def named_badly(self, group, parameters):
    for p in parameters:
        self.state[p]["gradient"] = p.grad.clone()


def by_table(self, group, parameters):
    for p in parameters:
        p.sub_(p.grad * torch.tensor([group["beta"], 1.0]).sum(), alpha=group["lr"])


def by_kind(self, group, parameters):
    for p in parameters:
        p.sub_(p.grad, alpha=group["lr"] if isinstance(group["lr"], float) else 2 * group["lr"])


class Refusals(Case):
    def refused(self, text, call):
        with self.assertRaisesRegex(penstock.PenstockError, text):
            call()

    def test_steps_that_cannot_be_exported(self):
        cases = (
            (r"LBFGS is not supported: its step\(\) needs closure\n[^$]*hint: train with another", lambda m: optim.LBFGS(m.parameters())),
            (r"SparseAdam cannot be exported: RuntimeError: SparseAdam does not support dense gradients.*\n  .*sparse_adam.py:\d+: raise",
             lambda m: optim.SparseAdam(m.parameters())),
            (r"Mine cannot be exported: what it does depends on values\n  .*optimisers_test.py:\d+: if p.grad.norm\(\) > 1:\n  hint: .*torch.where",
             stepping(on_values)),
            (r"Mine cannot be exported: aten::stack reads several parameters\n  .*optimisers_test.py:\d+: norm = torch.stack.*\n  hint: .*clip=",
             stepping(all_at_once)),
            (r"Mine draws random numbers", stepping(at_random)),
            (r'Mine keeps group\["count"\] from one step for the next\n  hint: keep it as a tensor in self.state', stepping(counting)),
            (r'Mine keeps "history" of a parameter, a list that changes', stepping(listing)),
            (r'Mine keeps "product" of a parameter, a float that changes', stepping(summing)),
            (r"cannot be exported: it reads a tensor of shape \[2\] that step\(\) makes of numbers\n  .*optimisers_test.py:\d+:[^$]*keep it as state",
             stepping(by_table)),
            (r'Mine keeps a tensor of a parameter as "gradient"\n  hint: give it another name', stepping(named_badly)),
            (r"Mine does something else when it is traced than when it runs", stepping(by_kind)),
        )
        batch = texts()
        for text, make in cases:
            with self.subTest(text):
                module = seeded(Model, layers=1)
                optimizer = make(module.parameters(), {"lr": 0.1, "beta": 0.9}) if isinstance(make, type) else make(module)
                self.refused(text, lambda module=module, optimizer=optimizer: trained(module, batch, optimizer))

    def test_what_is_not_the_optimizers(self):
        module, batch = seeded(Model, layers=1), texts()
        keeping = optim.RMSprop(module.parameters())
        keeping.special = {id(module.embed.weight): module.embed.weight}
        self.refused(r"RMSprop is not supported: it keeps tensors in self.special", lambda: trained(module, batch, keeping))
        hooked = optim.SGD(module.parameters(), lr=0.1)
        hooked.register_step_post_hook(lambda *_: None)
        self.refused("SGD has hooks on its step", lambda: trained(module, batch, hooked))

    def test_settings_that_change(self):
        module, batch = seeded(Model, layers=1), texts()
        optimizer = optim.Adam(module.parameters(), lr=1e-2)
        step = trained(module, batch, optimizer)
        schedule = optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=10)
        self.refused(r"betas of the optimizer's group 0 was changed from \(0.9, 0.999\) to \(0.95, 0.999\)\n[^$]*cycle_momentum=False", lambda: step(batch))
        del schedule
        optimizer.param_groups[0]["betas"] = (0.9, 0.999)
        optimizer.param_groups[0]["weight_decay"] = 0.5
        self.refused(r"weight_decay of the optimizer's group 0 was changed from 0 to 0.5\n[^$]*set weight_decay back, or make a trainer",
                     lambda: step(batch))
        optimizer.param_groups[0]["weight_decay"] = 0
        step(batch)


if __name__ == "__main__":
    unittest.main()
