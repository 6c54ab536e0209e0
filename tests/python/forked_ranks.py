# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes that a copy of this process becomes, as importing PyTorch and the package takes longer than what most of them do.

A copy goes on where the server was made, as a rank, and ends as a script does, with all that the interpreter does at its end. Copies share the seed of
hashes and most addresses, so what depends on the order of a set is seen by ranks that torchrun starts.
"""

import atexit
import faulthandler
import json
import os
import shutil
import signal
import socket
import tempfile
from pathlib import Path

SECONDS = 400  # a rank that has not ended by then says where it is


class Done:
    """The end of a rank: its `returncode`, `stdout` and `stderr`."""

    def __init__(self, returncode, out, error):
        self.returncode, self.stdout, self.stderr = returncode, out.read_text(), error.read_text()


class Server:
    """Forks the ranks: a copy of the process as it was when this was made, before tests had changed it or started threads."""

    def __init__(self, main):
        """`main` is what a rank calls with its arguments."""
        self._requests, theirs = socket.socketpair()
        server = os.fork()
        if server == 0:
            self._requests.close()
            atexit.unregister(shutil.rmtree)  # of the exports kept for all
            main(*_serve(theirs))
            raise SystemExit(0)
        theirs.close()
        atexit.register(self._end, server)

    def run(self, processes, environment, *arguments):
        """Runs so many ranks to their ends, each with `environment` and its RANK, and gives a Done for each."""
        with tempfile.TemporaryDirectory(prefix="penstock-test-") as folder:
            request = {"processes": processes, "environment": environment, "folder": folder, "arguments": arguments}
            self._requests.sendall((json.dumps(request) + "\n").encode())
            with self._requests.makefile() as answers:
                codes = json.loads(answers.readline())
            return [Done(code, Path(folder, f"{rank}.out"), Path(folder, f"{rank}.error")) for rank, code in enumerate(codes)]

    def _end(self, server):
        self._requests.close()
        os.waitpid(server, 0)


def _serve(requests):
    """Forks ranks until there are no more requests; returns in each of them, with its arguments."""
    for line in requests.makefile():
        request = json.loads(line)
        ranks = {}
        for rank in range(request["processes"]):
            process = os.fork()
            if process == 0:
                requests.close()
                _become(rank, request)
                return request["arguments"]
            ranks[process] = rank
        codes = [0] * len(ranks)
        while ranks:
            process, status = os.wait()
            codes[ranks.pop(process)] = os.waitstatus_to_exitcode(status)
        requests.sendall((json.dumps(codes) + "\n").encode())
    os._exit(0)


def _become(rank, request):
    os.environ.update(request["environment"], RANK=str(rank))
    for standard, name in ((1, "out"), (2, "error")):
        os.dup2(os.open(f"{request['folder']}/{rank}.{name}", os.O_WRONLY | os.O_CREAT, 0o600), standard)
    faulthandler.dump_traceback_later(SECONDS)
    signal.alarm(SECONDS + 10)  # also while the interpreter ends, or behind it; no rank is expected to end by this signal
