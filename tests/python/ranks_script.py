# SPDX-License-Identifier: Apache-2.0
"""The work of several processes, which ranks_test.py starts or forks.

usage: ranks_script.py plans|four|calls|device|ends WHO-HOW   (a launcher's variables say which rank this is)

Each rank says `RANK: WHAT` for what it has compared, and fails with a traceback where something differs.
"""

import json
import os
import signal
import sys

import evaluate  # noqa: F401  finds the package
import torch
import torch.nn as nn
import zoo
from small_modules import Model, autograd, relative, seeded, texts, token_loss
from torch.nn import functional

import penstock


def rank():
    return int(os.environ["RANK"])


def say(*words):
    os.write(1, f"{rank()}: {' '.join(map(str, words))}\n".encode())  # in one piece: the ranks share a pipe


def two_layers():
    return Model(layers=2)


def read_here(make):
    """A module whose values rank 0 reads; the others have none."""
    if rank() == 0:
        return seeded(make)
    with torch.device("meta"):
        return make().double()


def assert_alike(found, theirs, bound=1e-11):
    assert found.keys() == theirs.keys(), found.keys() ^ theirs.keys()
    for name in theirs:
        assert relative(found[name], theirs[name]) < bound, (name, relative(found[name], theirs[name]))


def compare_gradients(schedule, **plan):
    def layers():
        return Model(layers=2 * plan["actors"])  # as many as zb-v has stages
    torch.manual_seed(1)
    batch = texts()
    loss, theirs = autograd(seeded(layers), batch)
    step = penstock.trainer(read_here(layers), batch, loss=token_loss, schedule=schedule, microbatches=8, **plan)
    found, gradients = step.gradients(batch)
    torch.testing.assert_close(found.item(), loss, rtol=1e-12, atol=1e-12)
    assert_alike(gradients, theirs)
    owned = {piece[0] for piece in step._session.pieces() if piece[1] == rank()}
    assert len(owned) < len(theirs), owned
    assert owned or plan.get("data", 1) > 1, plan  # without updates there are no shares: one device of each group is the owner
    say("gradients", schedule, *(f"{key}={value}" for key, value in plan.items()))


def compare_steps(make=torch.optim.AdamW, **plan):
    """Five steps of an optimiser, and everything else that a trainer does, on every rank."""
    torch.manual_seed(1)
    batches = [texts() for _ in range(5)]
    twin = seeded(two_layers)
    theirs = make(twin.parameters(), lr=1e-2)
    module = read_here(two_layers)
    ours = make(module.parameters(), lr=1e-2)
    rates = [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5) for optimizer in (ours, theirs)]
    step = penstock.trainer(module, batches[0], loss=token_loss, optimizer=ours, microbatches=4, **plan)
    pieces = step._session.pieces()
    own, every = (sum(end - begin for _, device, begin, end in pieces if device in devices) for devices in ([rank()], range(4)))
    assert 0 < own < every, (own, every)
    for batch in batches:
        loss = step(batch)
        theirs.zero_grad()
        their_loss = token_loss(twin(batch[0]), batch[1])
        their_loss.backward()
        theirs.step()
        for rate in rates:
            rate.step()
        assert abs(loss.item() - their_loss.item()) < 1e-6 * abs(their_loss.item()), (loss, their_loss)
    state = step.state_dict()
    assert list(state) == list(twin.state_dict())
    assert state["head.weight"] is state["embed.weight"]
    assert_alike(state, twin.state_dict(), 1e-6)
    assert torch.equal(step.parameter("layers.0.up.weight"), state["layers.0.up.weight"])
    step.load_state_dict(seeded(two_layers).state_dict())
    longer = texts(length=9)  # a program that is made for it
    torch.testing.assert_close(step(longer).item(), autograd(seeded(two_layers), longer)[0], rtol=1e-12, atol=1e-12)
    assert step.explain().startswith("stages: 0 at the start, 1 at layers.")
    assert step.predict().seconds > 0 and step.predict(schedule="1f1b").bubble > 0
    assert step.program().startswith("penstock program 1")
    page = f"{os.environ['PAGE']}{rank()}.html"
    step.show(page)
    assert os.path.exists(page) == (rank() == 0)
    say("five steps", make.__name__, *(f"{key}={value}" for key, value in plan.items()))


def compare_micro_batches():
    torch.manual_seed(2)
    parts = [texts(*shape) for shape in ((2, 5), (3, 9), (1, 12), (2, 5))]
    twin = seeded(two_layers)
    count = sum((targets != -100).sum() for _, targets in parts)
    their_loss = sum(functional.cross_entropy(twin(x).flatten(0, 1), y.flatten(), reduction="sum") for x, y in parts) / count
    their_loss.backward()
    theirs = {name: p.grad.clone() for name, p in twin.named_parameters()}
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    module = read_here(two_layers)
    step = penstock.trainer(module, texts(), loss=token_loss, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), schedule="zb-h1", microbatches=4)
    batch = penstock.MicroBatches(parts)
    assert_alike(step.gradients(batch)[1], theirs)
    torch.testing.assert_close(step(batch).item(), their_loss.item(), rtol=1e-12, atol=1e-12)
    assert_alike(step.state_dict(), twin.state_dict(), 1e-6)  # a rate is f32
    say("micro-batches of four shapes")


def compare_with_threads():
    """Windows, planned batches, axes and slices have the bits that they have on threads."""
    torch.manual_seed(3)
    batches = [texts() for _ in range(5)]
    samples = [tuple(tensor[0] for tensor in texts(1, length, ignored=False)) for length in (9, 2, 5, 3, 9, 12)]

    def collate(some):
        return [nn.utils.rnn.pad_sequence([sample[i] for sample in some], batch_first=True, padding_value=value) for i, value in ((0, 0), (1, -100))]
    found = []
    for backend in (None, "threads"):
        results = []
        for plan in ({"schedule": "zb-h1", "window": 2}, {"actors": 1, "tensor": 2}, {"schedule": "slimpipe", "slices": 2}):
            module = seeded(two_layers)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            step = penstock.trainer(module, batches[0], loss=token_loss, optimizer=optimizer, microbatches=2, backend=backend, **plan)
            if "window" in plan:
                results += [step(window) for window in penstock.windows(batches, 2, scheduler)]
                planner = penstock.BatchPlanner(step, collate=lambda some: tuple(collate(some)), length=lambda sample: len(sample[0]), fixed=0.01)
                results.append(step(planner(samples)))
            else:
                results += [step(batch) for batch in batches]
            results += step.state_dict().values()
        found.append(results)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))
    say("windows, planned batches, axes and slices")


def compare_zoo():
    torch.manual_seed(0)
    module, batch = zoo.make("gpt2")
    module = module.double()
    batch = {key: torch.cat([value] * 4) for key, value in batch.items()}
    module.zero_grad()
    module(**batch).loss.backward()
    theirs = {name: p.grad for name, p in module.named_parameters()}
    module.zero_grad()
    step = penstock.trainer(module, batch, schedule="interleaved-1f1b", microbatches=4)
    assert_alike(step.gradients(batch)[1], theirs, 1e-6)  # its loss is computed in f32
    say("gpt2")


def compare_checkpoints(**plan):
    """Saved by the ranks, resumed by other processes with a plan of their own, each of which draws as rank 0 did."""
    folder, batches = f"{os.environ['PAGE']}-checkpoints", [texts() for _ in range(4)]

    def begun(make, **given):
        module = make(two_layers)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return penstock.trainer(module, batches[0], loss=token_loss, optimizer=optimizer, microbatches=8, **given), optimizer, scheduler

    def steps(step, scheduler, batches):
        losses = []
        for batch in batches:
            losses.append(step(batch).item())
            scheduler.step()
        return losses
    whole, optimizer, scheduler = begun(read_here, **plan)
    assert penstock.resume(folder, whole, begin=True, scheduler=scheduler) == 0
    steps(whole, scheduler, batches[:2])
    torch.manual_seed(3 + rank())
    assert whole.save(folder, scheduler=scheduler).name == "step-2.safetensors"
    drawn, rate = torch.rand(1).item() if rank() == 0 else None, optimizer.param_groups[0]["lr"]
    losses, state = steps(whole, scheduler, batches[2:]), whole.state_dict()
    for make, given, bound in ((read_here, plan, 0), (seeded, {"backend": "threads", "schedule": "zb-h1"}, 1e-10)):
        step, optimizer, scheduler = begun(make, **given)
        assert penstock.resume(folder, step, scheduler=scheduler) == step.steps == 2
        assert optimizer.param_groups[0]["lr"] == rate == 2.5e-3 and drawn in (None, torch.rand(1).item())
        found = steps(step, scheduler, batches[2:])
        assert all(abs(a - b) <= bound * abs(b) for a, b in zip(found, losses, strict=True)), (found, losses)
        assert_alike(step.state_dict(), state, bound or 1e-300)
    try:
        penstock.resume(folder, whole, schedule=scheduler)
    except penstock.PenstockError as error:
        assert 'has no "schedule"' in str(error), error
    say("goes on from a checkpoint")


def plans():
    torch.distributed.init_process_group("gloo")  # the script's own
    for schedule in ("1f1b", "zb-h1", "interleaved-1f1b", "zb-v"):
        compare_gradients(schedule, actors=2)
    compare_steps(schedule="zb-h1")
    compare_steps(torch.optim.NAdam, schedule="zb-h1")
    compare_micro_batches()
    compare_with_threads()
    # Not at the script's end: c10d's thread drops the tensor afterwards, for which it takes Python's lock, and a thread that asks for that while
    # the interpreter ends is ended in the middle of a C++ destructor, which aborts the process (torch 2.13).
    total = torch.tensor([rank() + 1.0])
    torch.distributed.all_reduce(total)
    assert total.item() == 3
    compare_zoo()
    torch.distributed.destroy_process_group()


def four():
    compare_gradients("1f1b", actors=4)
    compare_gradients("zb-v", actors=4)
    for zero in (0, 3):
        compare_gradients("1f1b", actors=2, data=2, zero=zero)
    compare_steps(schedule="1f1b", data=2, zero=3)
    compare_checkpoints(schedule="1f1b", data=2, zero=3)
    compare_steps(torch.optim.NAdam, schedule="1f1b", data=2, zero=1)


def small():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))


def small_trainer(deadline=60.0, schedule="1f1b", **more):
    module, batch = seeded(small), (torch.linspace(0, 1, 32, dtype=torch.float64).reshape(8, 4), torch.arange(8) % 3)
    step = penstock.trainer(module, batch, loss=functional.cross_entropy, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), microbatches=4,
                            schedule=schedule, deadline=deadline, **more)
    return step, batch


def refused(call):
    try:
        call()
    except penstock.PenstockError as error:
        say(json.dumps(str(error)))
    else:
        raise AssertionError("nothing was refused")


def calls():
    """Mistakes that all ranks are told of, after which the trainer works as before."""
    step, (inputs, labels) = small_trainer()
    refused(lambda: step((inputs, labels) if rank() == 0 else (inputs[:4], labels[:4])))
    refused(lambda: step((inputs + rank(), labels)))
    refused(lambda: step((inputs, labels)) if rank() == 0 else step.parameter("0.weight"))
    refused(lambda: step((inputs[:6], labels)))
    refused(lambda: step.parameter("0.wieght"))
    refused(lambda: step.load_state_dict({"1.weight": inputs}))
    refused(lambda: step.predict(schedule="zb-h2 "))
    refused(lambda: small_trainer(schedule="1f1b" if rank() == 0 else "gpipe"))
    refused(lambda: small_trainer(actors=2, data=2))
    refused(lambda: small_trainer(backend="mpi"))
    refused(lambda: small_trainer(backend="nccl"))
    module = seeded(small)
    refused(lambda: penstock.trainer(module, (inputs, labels), loss=functional.cross_entropy, microbatches=4)((inputs, labels)))
    before = step.state_dict()
    refused(lambda: step((inputs, labels + 100)))  # fails on one device; connections are made anew for the next step
    assert all(torch.equal(value, before[name]) for name, value in step.state_dict().items())
    assert step.steps == 0
    first = step((inputs, labels)).item()
    second = step((inputs, labels)).item()
    assert second < first
    alone = small_trainer(backend="threads")[0]
    assert [alone((inputs, labels)).item() for _ in range(2)] == [first, second]
    assert (step.steps, step.gradient_norm) == (alone.steps, alone.gradient_norm)
    step.sync()
    assert all(torch.equal(value, step.module.state_dict()[name]) for name, value in alone.state_dict().items())
    say("steps as ever")


def device():
    """Steps on devices that work by themselves have the bits of threads on such devices, sent from device to device or through the host."""
    alone, batch = small_trainer(backend="threads", device="standin")
    expected = [alone(batch).item() for _ in range(4)]
    theirs = alone.state_dict()
    trainers = {backend: small_trainer(backend=backend, device="standin")[0] for backend in ("nccl", "gloo")}  # the first serves the store
    for backend, over in trainers.items():
        losses = [over(batch).item()]
        refused(lambda over=over: over.gradients((batch[0], batch[1] + 100)))  # writes no state; connections are made anew for the next step
        losses += [over(batch).item() for _ in range(3)]
        assert losses == expected, (backend, losses, expected)
        assert all(torch.equal(value, theirs[name]) for name, value in over.state_dict().items())
    say("as threads")


def what_is_left(step, batch):
    """Rank 1 is gone: the state of rank 0's device is there, that of the other is not, and no step is made."""
    assert torch.isfinite(step.parameter("0.weight")).all()
    for call, text in ((step.state_dict, "no device that is left has a state named"), (lambda: step(batch), "the devices stopped after an earlier failure")):
        try:
            call()
        except penstock.PenstockError as error:
            assert str(error).startswith(text), error
        else:
            raise AssertionError(text)


def ends(how):
    """A rank ends in the third step; the other says what it heard."""
    who, how = how.split("-")
    step, batch = small_trainer(deadline=300.0)  # nobody waits for it

    def loader():
        yield batch
        yield batch
        if str(rank()) == who:
            if how == "raises":
                raise ValueError("no more samples")
            if how == "stops":
                sys.exit(0)
            os.kill(os.getpid(), {"killed": signal.SIGKILL, "interrupted": signal.SIGINT}[how])
        yield batch
    try:
        for each in loader():
            step(each)
    except penstock.PenstockError as error:
        say(json.dumps(str(error)))
        if rank() == 0:
            what_is_left(step, batch)
    say("ends")


def run(what, *arguments):
    torch.set_num_threads(1)
    {"plans": plans, "four": four, "calls": calls, "device": device, "ends": ends}[what](*arguments)


if __name__ == "__main__":
    run(*sys.argv[1:])
