"""Commands typed into real shells in real terminals: what one line starts is one launch, drawn and nested."""

from __future__ import annotations

import os
import pty
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.drawn import seeds

from gpugauge.workload.launch import launch_of
from gpugauge.workload.procfs import Procfs

_WAIT_SECONDS = 20.0


class Typist:
    """Draws lines. Each leaf is a process that has written its pid to `folder`/<line>.<number>."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random, self._folder = random.Random(seed), folder
        self.lines = self.leaves = 0

    def line(self) -> str:
        """Return a command for the background."""
        self.lines += 1
        return self.random.choice(self._kinds())() + " &\n"

    def script(self) -> Path:
        """Return a script with several leaves."""
        commands = [self.random.choice((self._leaf, self._timed, self._own_session))() for _ in range(2)]
        path = self._folder / f"run{self.lines}.sh"
        path.write_text("#!/bin/bash\n" + "".join(f"{command} &\n" for command in commands) + "wait\n")
        path.chmod(0o755)
        return path

    def _kinds(self) -> list[Callable[[], str]]:
        return [
            self._leaf,
            self._timed,
            lambda: f"{self._leaf()} | cat",
            lambda: f"bash {self.script()}",
            lambda: f"bash -eu {self.script()}",
            lambda: str(self.script()),
            lambda: f'bash -c "{self.script()}; true"',
            lambda: f"nohup {self.script()} >/dev/null",
        ]

    def _leaf(self) -> str:
        self.leaves += 1
        return f"sh -c 'echo $$ > {self._folder}/{self.lines}.{self.leaves}; exec sleep 300'"

    def _timed(self) -> str:
        """timeout(1) makes a process group of its own."""
        return f"timeout 300 {self._leaf()}"

    def _own_session(self) -> str:
        return f"setsid {self._leaf()}"

    def pids(self) -> dict[int, list[int]]:
        """Return the pids of all leaves by line."""
        end = time.monotonic() + _WAIT_SECONDS
        while True:
            found = [(path, path.read_text()) for path in self._folder.glob("*.*[0-9]")]
            if len(found) == self.leaves and all(text.endswith("\n") for _, text in found):
                break
            assert time.monotonic() < end, (len(found), self.leaves)
            time.sleep(0.02)
        lines: defaultdict[int, list[int]] = defaultdict(list)
        for path, text in found:
            lines[int(path.name.partition(".")[0])].append(int(text))
        return lines


@contextmanager
def terminal(*argv: str) -> Iterator[int]:
    """Run a program in a terminal of its own; yield the terminal's other end."""
    pid, end = pty.fork()
    if pid == 0:
        os.execvp(argv[0], argv)
    try:
        yield end
    finally:
        os.close(end)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def launches(lines: dict[int, list[int]]) -> dict[str, set[int]]:
    """Return the lines by launch."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for line, pids in lines.items():
        for pid in pids:
            found[launch_of(Procfs(), pid, os.getuid()).name].add(line)
    return found


@seeds(range(20))
def test_each_line_is_a_launch(tmp_path: Path, seed: int) -> None:
    typist = Typist(tmp_path, seed)
    lines: dict[int, list[int]] = {}
    with terminal("bash", "--norc", "--noprofile", "-i") as end:
        try:
            for _ in range(6):
                if typist.random.random() < 0.4:
                    nested = ("bash --norc", "bash --rcfile /dev/null -i", "sh", "bash --norc -O extglob")
                    os.write(end, f"{typist.random.choice(nested)}\n".encode())
                os.write(end, typist.line().encode())
                typist.pids()
            lines = typist.pids()
            found = launches(lines)
        finally:
            for pid in (pid for pids in lines.values() for pid in pids):
                os.kill(pid, signal.SIGKILL)

    assert sorted(map(sorted, found.values())) == [[line] for line in range(1, typist.lines + 1)]


@seeds(range(8))
def test_a_script_as_the_program_of_a_terminal_is_a_launch(tmp_path: Path, seed: int) -> None:
    """As `tmux new 'bash run.sh'` starts it."""
    typist = Typist(tmp_path, seed)
    with terminal("bash", str(typist.script())):
        lines = typist.pids()
        found = launches(lines)
        for pid in lines[0]:
            os.kill(pid, signal.SIGKILL)

    assert len(found) == 1
