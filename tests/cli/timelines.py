# SPDX-License-Identifier: Apache-2.0
"""Made-up timelines in the form that penstock show reads: zero-bubble 1F1B steps with transfers, memory and causes."""

import json
import random

LANES = ["compute", "transfer", "host"]
KINDS = ["F", "B", "I", "W"]
CLASSES = ["parameters", "optimiser", "gradients", "activations", "communication", "scratch"]
COLUMNS = ["begin", "end", "device", "peer", "lane", "kind", "stage", "microbatch", "task", "item", "cause", "bytes"]

MIB = 1 << 20


def row_of(actor, actors, microbatches):
    """The actor's actions: a warm-up of F, then F and I in turn with W in between, then what is left."""
    warmup = min(microbatches, actors - actor)
    row = [("F", m) for m in range(warmup)]
    for m in range(microbatches):
        row.append(("I", m))
        if warmup + m < microbatches:
            row.append(("F", warmup + m))
        if m >= actor:
            row.append(("W", m - actor))
    return row + [("W", m) for m in range(max(0, microbatches - actor), microbatches)]


class Step:
    def __init__(self, actors, microbatches, seed, jitter=0.1):
        self.random = random.Random(seed)
        self.jitter = jitter
        self.columns = {name: [] for name in COLUMNS}
        self.actors = actors
        self.clock = [0.0] * actors
        self.last = [-1] * actors  # each actor's last activity
        self.arrived = {}  # (kind, stage, micro-batch) -> its transfer
        self.rows = [row_of(a, actors, microbatches) for a in range(actors)]
        next_action = [0] * actors
        while sum(next_action) < sum(map(len, self.rows)):
            for actor in range(actors):
                while next_action[actor] < len(self.rows[actor]) and self.run(actor, *self.rows[actor][next_action[actor]]):
                    next_action[actor] += 1
        for actor in range(actors):
            self.add(begin=self.clock[actor], seconds=0.8e-3, device=actor, task=0, cause=self.last[actor])

    def add(self, begin, seconds, **values):
        activity = {"peer": -1, "lane": 0, "kind": -1, "stage": -1, "microbatch": -1, "task": -1, "item": -1, "cause": -1, "bytes": 0}
        activity.update(values, begin=begin, end=begin + seconds * (1 + self.jitter * self.random.random()))
        for name in COLUMNS:
            self.columns[name].append(activity[name])
        return len(self.columns["begin"]) - 1

    def run(self, actor, kind, microbatch):
        """False: it must wait."""
        source = {"F": actor - 1, "I": actor + 1}.get(kind, -1)
        begin, cause = self.clock[actor], self.last[actor]
        if 0 <= source < self.actors:
            transfer = self.arrived.get((kind, source, microbatch))
            if transfer is None:
                return False
            if self.columns["end"][transfer] > begin:
                begin, cause = self.columns["end"][transfer], transfer
        seconds = {"F": 1e-3, "I": 1.1e-3, "W": 0.9e-3}[kind]
        box = self.add(begin, seconds, device=actor, kind=KINDS.index(kind), stage=actor, microbatch=microbatch, cause=cause)
        self.clock[actor] = self.columns["end"][box]
        self.last[actor] = box
        target = {"F": actor + 1, "I": actor - 1}.get(kind, -1)
        if 0 <= target < self.actors:
            action = {"kind": KINDS.index(kind), "stage": actor, "microbatch": microbatch}
            host = self.add(self.clock[actor], 8e-6, device=actor, lane=2, task=1, cause=box, **action)
            self.clock[actor] = self.columns["end"][host]
            self.arrived[(kind, actor, microbatch)] = self.add(
                self.clock[actor], 1.2e-4, device=actor, peer=target, lane=1, cause=host, bytes=2 * MIB, **action
            )
        return True

    def memory(self, actor):
        """F keeps what I needs half of and W the rest."""
        c = self.columns
        live = 0
        points = {"time": [], **{name: [] for name in CLASSES}}
        for i in range(len(c["begin"])):
            if c["device"][i] != actor or c["lane"][i] != 0 or c["kind"][i] < 0:
                continue
            kind = KINDS[c["kind"][i]]
            live += {"F": 12, "I": -5, "W": -7}[kind] * MIB
            amounts = [60 * MIB, 120 * MIB, (60 if c["microbatch"][i] or kind != "F" else 0) * MIB, live, 4 * MIB, 9 * MIB * (kind == "I")]
            points["time"].append(c["begin"][i] if kind == "F" else c["end"][i])
            for name, amount in zip(CLASSES, amounts):
                points[name].append(amount)
        return points


def step(actors, microbatches, seed=0, title="made up", jitter=0.1):
    made = Step(actors, microbatches, seed, jitter)
    return {
        "timeline": 1,
        "title": title,
        "seconds": True,
        "makespan": max(made.columns["end"]),
        "devices": [f"device {a}" for a in range(actors)],
        "tasks": ["after.0", "send"],
        "lanes": LANES,
        "kinds": KINDS,
        "activities": made.columns,
        "memory": [made.memory(a) for a in range(actors)],
    }


def in_chunks(made):
    """The step with two stages on each actor: the odd micro-batches are those of the second."""
    columns, actors = made["activities"], len(made["devices"])
    for i, microbatch in enumerate(columns["microbatch"]):
        if microbatch % 2 == 1 and columns["stage"][i] >= 0:
            columns["stage"][i] += actors
    return made


def write(path, *arguments, **options):
    path.write_text(json.dumps({"penstock": step(*arguments, **options)}))
    return path
