"""Runs drawn jobs, and compares the rank that is named, and its line, with the planted one.

`python -m qa.ranks.score FIRST COUNT` prints the table for so many seeds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gpugauge.collectors.base import Tick
from gpugauge.collectors.training import verdict as verdict_collector
from gpugauge.collectors.training.verdict import VerdictCollector
from gpugauge.driver.api import DriverView
from gpugauge.node import training
from gpugauge.node.node import Node
from gpugauge.sessions import inquiry, intake, reception
from gpugauge.sessions.listener import Sessions
from gpugauge.status.processes import standstills
from gpugauge.status.standstill import place
from gpugauge.verdict import states
from gpugauge.wire import messages as wire

PROGRAM = Path(__file__).with_name("program.py")
KINDS = ("ddp", "hand", "groups", "pipeline", "fsdp")
HEALTHY = ("none", "pause", "saves")  # the last is in a phase for longer than the patience
STUCK = ("loader", "own", "save", "eval")
FAULTS = (*STUCK, *STUCK, "mismatch", "stopped", "ended", "ended", *HEALTHY)
STALLED_SECONDS = 2.0  # and so six times as long in a phase without steps
BLOCKS = ("sleep", "lock", "queue", "storage", "child")
QUIET_SECONDS, SILENT_SECONDS, PATIENCE = 2.0, 20.0, 4.0
DEADLINE = 40.0  # of a case, plus what the ranks take to begin


def draw(seed: int) -> dict[str, Any]:
    """Return a case."""
    chance = random.Random(seed)
    size = chance.choice((2, 3, 3, 4, 4, 5, 6, 8))
    fault = chance.choice(FAULTS)
    return {
        "kind": chance.choice(KINDS),
        "size": size,
        "fault": fault,
        "rank": chance.randrange(size),
        "step": chance.randrange(12, 40),
        "block": chance.choice(BLOCKS),
        "handles": chance.random() < 0.5,
        "pause": round(chance.uniform(0.2, 1.5), 2),
        "killed": chance.random() < 0.5,
        "phase": fault == "saves" or chance.random() < 0.5,
        "saves": 8.0,
    }


def lines() -> dict[str, int]:
    """Return the number of the line of each fault in the program."""
    text = PROGRAM.read_text().splitlines()
    return {line.partition("# stuck: ")[2]: number for number, line in enumerate(text, 1) if "# stuck: " in line}


class Ranks:
    """The process that forks ranks, and a daemon's end of the hook's socket."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = str(folder / "hook.sock")
        self.sessions = Sessions(path)
        self.sessions.start()
        environment = {**os.environ, wire.SOCKET_VARIABLE: path, "OMP_NUM_THREADS": "1"}
        code = f"import sys; sys.argv = [{str(PROGRAM)!r}]; from gpugauge.hook import arming; arming.arm(); " + (
            f"import runpy; runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
        )
        pipe = subprocess.PIPE
        self._server = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )
        self._read()

    def _read(self) -> str:
        assert self._server.stdout
        return self._server.stdout.readline()

    def _write(self, text: str) -> None:
        assert self._server.stdin
        self._server.stdin.write(text + "\n")
        self._server.stdin.flush()

    @contextmanager
    def job(self, case: Mapping[str, Any], name: str) -> Iterator[list[int]]:
        """Start the ranks of a case; yield their pids in the order of the ranks."""
        self._write(json.dumps({**case, "meeting": str(self._folder / name)}))
        pids: list[int] = json.loads(self._read())
        try:
            yield pids
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(FileNotFoundError, ProcessLookupError):
                os.kill(int((self._folder / f"{name}.child").read_text()), signal.SIGKILL)
            self._write("end")

    def node(self, pids: list[int]) -> Node:
        """Return the sessions of these processes, by their rank, also of one that has ended."""
        of_pid = {session.peer_pid: session for session in self.sessions.view()}
        found = {str(rank): of_pid[pid] for rank, pid in enumerate(pids) if pid in of_pid}
        return Node(timestamp=time.time(), monotonic=time.monotonic(), sessions=found)

    def close(self) -> None:
        """End the process that forks."""
        self._server.kill()
        self._server.wait()
        self.sessions.stop()


def run(ranks: Ranks, case: Mapping[str, Any], name: str) -> tuple[set[int], dict[int, str], str]:
    """Return the ranks that are named, where each rank is, and a description of what was seen."""
    with ranks.job(case, name) as pids:
        deadline, began, stopped = time.monotonic() + 4 * DEADLINE, 0.0, False
        named, since = frozenset[int](), 0.0
        still: dict[str, Any] = {}
        judge, off = VerdictCollector(STALLED_SECONDS), DriverView(up=False, reason="off")
        while time.monotonic() < deadline:
            time.sleep(0.2)  # what is measured is real time
            node, now = ranks.node(pids), time.monotonic()
            steps = [training.steps(session) or 0 for session in node.sessions.values()]
            if not began and len(steps) == len(pids) and min(steps) >= case["step"] - 1:
                began, deadline = now, now + DEADLINE
            if case["fault"] == "stopped" and began and not stopped:
                os.kill(pids[case["rank"]], signal.SIGSTOP)
                stopped = True
            judge.collect(Tick(node.timestamp, node.monotonic, off, node=node))
            still = standstills(node)
            found = frozenset(int(rank) for rank, one in still.items() if one.behind and len(still) == len(pids))
            if found != named:
                named, since = found, now
            if named and now - since >= PATIENCE:
                break
            lasts = 2 * PATIENCE + 2.0 + (2 * case["saves"] if case["fault"] == "saves" else 0.0)
            if case["fault"] in HEALTHY and began and now - began > lasts:
                break
        seen = {int(rank): place(one) for rank, one in still.items()}
        settled = named if named and time.monotonic() - since >= PATIENCE else frozenset[int]()
        return set(settled), seen, str({rank: (one.position, one.function) for rank, one in still.items()})


def verdict(case: Mapping[str, Any], named: set[int], seen: Mapping[int, str]) -> str:
    """Return right, wrong, missed, or for the rank alone right: line."""
    if case["fault"] in HEALTHY:
        return "wrong" if named else "right"
    if named != {case["rank"]}:
        return "wrong" if named else "missed"
    line = lines().get(case["fault"])
    return "right" if line is None or seen.get(case["rank"]) == f"{PROGRAM.name}:{line}" else "line"


@contextmanager
def quick() -> Iterator[None]:
    """Ask sooner than the daemon does."""
    # Everything else waits for longer: the machine is shared with other tests.
    changes = {
        (inquiry, "QUIET_SECONDS"): QUIET_SECONDS,
        (inquiry, "SILENT_SECONDS"): SILENT_SECONDS,
        (intake, "START_SECONDS"): 300.0,
        (reception, "STUCK_SECONDS"): 300.0,
        (verdict_collector, "_INTERVAL_SECONDS"): 1.0,
        (states, "STALLED_STEPS"): 0.0,
    }
    before = {key: getattr(*key) for key in changes}
    for (module, name), value in (*changes.items(),):
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)


def main(first: int, count: int) -> None:
    """Print each case that is not right, and the table."""
    table: dict[str, Counter[str]] = {}
    with quick(), tempfile.TemporaryDirectory() as folder:
        ranks = Ranks(Path(folder))
        for seed in range(first, first + count):
            case = draw(seed)
            named, seen, positions = run(ranks, case, str(seed))
            said = verdict(case, named, seen)
            table.setdefault(case["fault"], Counter())[said] += 1
            print(seed, said, case, named, seen, positions, flush=True)
        ranks.close()
    for fault, found in sorted(table.items()):
        print(
            f"| {fault} | {sum(found.values())} | "
            + " | ".join(str(found[k]) for k in ("right", "line", "wrong", "missed"))
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
