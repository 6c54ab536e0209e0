# SPDX-License-Identifier: Apache-2.0
"""`transformers.Trainer` in several processes, each a device of its pipeline, is the Trainer of one process: losses, rates, evaluation, checkpoints.

usage: hugging_face_ranks_test.py
"""

import json
import os
import tempfile
import unittest
from pathlib import Path

import kept_exports  # noqa: F401
import ranks_test
import torch
import zoo
from forked_ranks import Server

import penstock

HAVE = zoo.have("transformers", "accelerate")
if HAVE:
    import hugging_face_test as alone


class Made(alone.Case if HAVE else object):
    """Makes Trainers in a folder that outlives the process."""

    def __init__(self, folder):
        super().__init__()
        self.folder = Path(folder)


def run(made, pipeline, name, resume=None):
    """Trains, with an evaluation and a checkpoint behind each epoch of three steps, and says what it logged, evaluated and became."""
    trainer = made.trainer(pipeline, alone.gpt2(), name=name, eval_strategy="epoch", save_strategy="epoch", per_device_train_batch_size=4,
                           gradient_accumulation_steps=2)
    trainer.train(resume_from_checkpoint=resume and str(made.folder / resume / "checkpoint-3"))
    evaluated = trainer.evaluate()["eval_loss"]
    state = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    return {"logs": trainer.logs, "evaluated": evaluated, "state": state, "optimizer": trainer.optimizer.state_dict()["state"]}


def main(folder, *_):
    """A rank: the same runs as the parent's one process."""
    rank = os.environ["LOCAL_RANK"] = os.environ["RANK"]
    torch.set_num_threads(1)
    made = Made(folder)
    pipeline = {"actors": 2, "schedule": "zb-h1", "microbatches": 4}
    found = {"whole": run(made, pipeline, "ranks"), "resumed": run(made, pipeline, "again", "ranks")}
    best = made.trainer(pipeline, alone.gpt2(), name="best", save_strategy="steps", save_steps=1, eval_strategy="steps", eval_steps=1, load_best_model_at_end=True,
                        metric_for_best_model="loss", greater_is_better=True)
    best.train()
    found["best"] = {"step": best.state.best_global_step, "state": best.model.state_dict()}
    torch.save(found, Path(folder) / f"{rank}.pt")
    said = []
    for given, plan in (({}, {"actors": 4}), ({"save_on_each_node": True}, {})):
        try:
            made.trainer({**pipeline, **plan}, alone.gpt2(), name="refused", **given).train()
        except penstock.PenstockError as error:
            said.append(str(error))

    class Stopping(alone.transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if rank == "1":
                raise ValueError("of one rank")
    trainer = made.trainer(pipeline, alone.gpt2(), name="stopped")
    trainer.add_callback(Stopping)
    try:
        trainer.train()
    except (ValueError, penstock.PenstockError) as error:
        said.append(f"{type(error).__name__}: {error}")
    print(json.dumps(said), flush=True)
    os._exit(0)  # the group of a rank that another has left does not end by itself


SERVER = Server(main) if __name__ == "__main__" and HAVE else None


@unittest.skipUnless(HAVE, "transformers or accelerate is not installed")
class Processes(unittest.TestCase):
    def test_two_processes_are_one(self):
        with tempfile.TemporaryDirectory(prefix="penstock-test-") as folder:
            made = Made(folder)
            theirs = run(made, None, "theirs")
            best = made.trainer({"microbatches": 4}, alone.gpt2(), name="their best", save_strategy="steps", save_steps=1, eval_strategy="steps", eval_steps=1,
                                load_best_model_at_end=True, metric_for_best_model="loss", greater_is_better=True)
            best.train()
            place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ranks_test.free_port())}
            ranks = SERVER.run(2, place, folder)
            self.assertEqual([done.returncode for done in ranks], [0, 0], "\n".join(done.stderr[-4000:] for done in ranks))
            for rank in range(2):
                found = torch.load(Path(folder) / f"{rank}.pt")
                self.assert_alike(found["whole"], theirs)
                found["resumed"]["logs"][:0] = theirs["logs"][:4]  # three steps and an evaluation
                self.assert_alike(found["resumed"], theirs)
                self.assertEqual(found["best"]["step"], best.state.best_global_step)
                for name, value in best.model.state_dict().items():
                    self.assertLess(alone.relative(found["best"]["state"][name], value), 1e-6, name)
            self.assertTrue((Path(folder) / "ranks" / "checkpoint-6" / "rng_state.pth").exists())
            said = [json.loads(done.stdout.splitlines()[-1]) for done in ranks]
        for each in said:
            self.assertRegex(each[0], r"there are 2 processes \(WORLD_SIZE\) for 4 devices\n  actors=4")
            self.assertRegex(each[1], "a Trainer with a pipeline does not run with save_on_each_node")
        self.assertEqual(said[1][2], "ValueError: of one rank")
        self.assertRegex(said[0][2], "PenstockError: (.*rank 1|.*another call)")

    def assert_alike(self, found, expected, bound=1e-6):
        self.assertEqual(len(found["logs"]), len(expected["logs"]))
        for ours, theirs in zip(found["logs"], expected["logs"], strict=True):
            self.assertEqual(ours.keys(), theirs.keys())
            for name, value in theirs.items():
                self.assertAlmostEqual(ours[name], value, delta=bound * max(abs(value), 1e-2), msg=name)
        self.assertAlmostEqual(found["evaluated"], expected["evaluated"], delta=bound)
        for name, value in expected["state"].items():
            self.assertLess(alone.relative(found["state"][name], value), bound, name)
        for i, entry in expected["optimizer"].items():
            self.assertLess(alone.relative(found["optimizer"][i]["exp_avg"], entry["exp_avg"]), 1e-5, i)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
