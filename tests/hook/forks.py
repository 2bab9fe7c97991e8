"""Programs that run in forks of an interpreter which has loaded torch: its import takes seconds of CPU."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

SCRIPT = "program.py"  # in the current folder of a fork
PIPE_BYTES = 1 << 20  # what a program may write to stderr before its stdout is read to the end


class Fork:
    """A running program, with the attributes of subprocess.Popen."""

    def __init__(self, status: socket.socket, stdin: IO[str], stdout: IO[str], stderr: IO[str]) -> None:
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self._status = status
        pid, descriptors, _, _ = socket.recv_fds(status, 99, 1)
        self.pid, (self._pidfd,) = int(pid), descriptors
        self._code: int | None = None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def communicate(self, given: str = "") -> tuple[str, str]:
        """Write to stdin; return what the program writes, once it has ended."""
        with self.stdin, contextlib.suppress(BrokenPipeError):
            self.stdin.write(given)
        with self.stdout, self.stderr:
            output, errors = self.stdout.read(), self.stderr.read()
        self.wait()
        # With torch 2.15, triton lists its own leaks when the interpreter ends.
        return output, errors.partition("nanobind: leaked")[0]

    def wait(self) -> int:
        """Return the exit code, negative for a signal, once the program has ended."""
        if self._code is None:
            with self._status:
                self._code = int(self._status.recv(99))
        return self._code

    @property
    def returncode(self) -> int | None:
        """The exit code that wait() has found."""
        return self._code

    def close(self) -> None:
        """Kill the program, and close what is open."""
        self.send_signal(signal.SIGKILL)
        self.wait()
        os.close(self._pidfd)
        for stream in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(BrokenPipeError):
                stream.close()


class Server:
    """The interpreter that forks, with `packages` loaded. `folder` is empty."""

    def __init__(self, folder: Path, *packages: str) -> None:
        (folder / "sitecustomize.py").symlink_to(Path(__file__).with_name("forkserver.py"))
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._environ = {**os.environ, "PYTHONWARNINGS": "ignore"}
        with theirs:
            # The path of the script is fixed at the start. In a fork it is that of a script in its current folder.
            self._process = subprocess.Popen(
                [sys.executable, f"/proc/self/cwd/{SCRIPT}"],
                env={
                    **self._environ,
                    "PYTHONPATH": str(folder),
                    "GPUGAUGE_FORKS": str(theirs.fileno()),
                    "GPUGAUGE_FORKS_PACKAGES": " ".join(packages),
                    # Threads of libraries would be missing in a fork.
                    "OMP_NUM_THREADS": "1",
                    "OPENBLAS_NUM_THREADS": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def run(self, folder: Path, arguments: Sequence[str], environ: Mapping[str, str]) -> Fork:
        """Start the script of a folder, which becomes the current folder."""
        assert _at_start(environ) == _at_start(self._environ), "the server has started with other options"
        request = {"folder": str(folder), "arguments": [str(folder / SCRIPT), *arguments], "environ": dict(environ)}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        (stdin, give), (take, stdout), (take_errors, stderr) = os.pipe(), os.pipe(), os.pipe()
        fcntl.fcntl(take_errors, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        passed = [stdin, stdout, stderr, theirs.detach()]
        socket.send_fds(self._control, [json.dumps(request).encode()], passed)
        for descriptor in passed:
            os.close(descriptor)
        return Fork(ours, os.fdopen(give, "w"), os.fdopen(take), os.fdopen(take_errors))

    def close(self) -> None:
        """End the server; its forks go on."""
        self._control.close()
        self._process.wait()


def _at_start(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an interpreter reads before it can run a line of Python, but for the path."""
    return {name: value for name, value in environ.items() if name.startswith("PYTHON") and name != "PYTHONPATH"}
