"""Sizing: the lemmas' values, what is simulated beside them, and figures that say nothing."""

import unittest

from support import ProgramTest, run


class Size(ProgramTest):
    def test_gpus(self):
        for overhead, gpus, efficiency in ((0.1, 4, 0.7857), (0.05, 8, 0.75), (0.02, 16, 0.7727)):
            found = run("size", "--overhead", overhead, "--gpus", gpus, "--json").json()
            self.assertAlmostEqual(found["efficiency"], efficiency, delta=5e-5)
            self.assertAlmostEqual(found["simulated_efficiency"], efficiency, delta=0.02 * efficiency)
        for overhead, most in ((0.1, 3), (0.05, 6)):
            self.assertEqual(run("size", "--overhead", overhead, "--alpha", 0.8, "--json").json(), {"format": 1, "most_gpus": most})
        self.assertIn("(1 + R) / (1 + G R)", run("size", "--overhead", 0.1, "--gpus", 4).out)

    def test_servers(self):
        for parameters, workers, bandwidth, compute, servers in ((0.1, 8, 1.25, 0.5, 3), (0.5, 4, 1.25, 1, 4), (1, 16, 10, 0.8, 4), (0.25, 2, 1, 1, 1)):
            found = run("size", "--parameters", parameters, "--workers", workers, "--bandwidth", bandwidth, "--compute", compute, "--json").json()
            self.assertEqual((found["servers"], found["exposed_seconds"]), (servers, 0))
            self.assertEqual("exposed_with_one_fewer" in found, servers > 1)
            self.assertGreater(found.get("exposed_with_one_fewer", 1), 0)

    def test_refused(self):
        servers = ("--parameters", 1, "--workers", 4, "--bandwidth", 1)
        for arguments, why in (((), "nothing is given"), (("--overhead", 0.1), "--overhead alone says nothing"), (("--gpus", 4), "need --overhead"),
                               (servers, "servers follow from four figures, and 3 are given"), (("--overhead", -1, "--gpus", 4), "the overhead is -1"),
                               ((*servers[:-1], 0, "--compute", 1), "a server's bandwidth is 0"), (("--overhead", 0.1, "--gpus", 0), "the number of GPUs is 0"),
                               (("--overhead", 0.1, "--alpha", 2), "the efficiency is 2"), ((*servers, "--compute", 0), "the computing time is 0")):  # fmt: skip
            result = run("size", *arguments)
            self.assertEqual(result.code, 1, result.out)
            self.assertIn(why, result.err)


if __name__ == "__main__":
    unittest.main()
