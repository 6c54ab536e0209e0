# SPDX-License-Identifier: Apache-2.0
"""A user's program whose model has collectives of its own, on threads and as processes over Gloo."""

import os
import unittest

from support import ProgramTest, read_state, run, run_all

PROGRAM = os.environ["EXCHANGE_MODEL"]
MODEL = ["--set", "model.name=exchange", "--batch", 8, "--microbatches", 4, "--dtype", "f64"]
SHORT = ["--steps", 3, "--set", "validation_every=2", "--set", "validation_batches=1"]


class OwnCollectives(ProgramTest):
    def test_check(self):
        for mesh in ("tensor=2", "pipe=2,tensor=2"):
            result = run("check", *MODEL, "--mesh", mesh, "--json", program=PROGRAM)
            self.assertEqual(result.code, 0, result.err)
            self.assertTrue(result.json()["equal"], result.out)

    def test_over_gloo(self):
        results = run_all(4, "check", *MODEL, "--mesh", "pipe=2,tensor=2", "--backend", "gloo", "--json", program=PROGRAM)
        for rank, result in enumerate(results):
            self.assertEqual(result.code, 0, f"rank {rank}: {result.err}")
        self.assertTrue(results[0].json()["equal"], results[0].out)

    def test_train(self):
        for backend in ("threads", "gloo"):
            arguments = ["train", *MODEL, *SHORT, "--set", "vocabulary=256", "--text", self.text, "--mesh", "tensor=2", "--out", self.folder / backend, "--backend", backend]
            results = [run(*arguments, program=PROGRAM)] if backend == "threads" else run_all(2, *arguments, program=PROGRAM)
            for result in results:
                self.assertEqual(result.code, 0, result.err)
        self.assertEqual(read_state(self.folder / "gloo" / "checkpoint-3"), read_state(self.folder / "threads" / "checkpoint-3"))

    def test_another_mesh(self):
        result = run("check", *MODEL, "--mesh", "tensor=3", program=PROGRAM)
        self.assert_fails(result, 'reduce_gradient is along axis "tensor" of 2 members, the mesh\'s has 3')


if __name__ == "__main__":
    unittest.main()
