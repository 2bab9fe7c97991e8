"""What the views advise about a training that hangs: the command is about the rank that is behind, and it runs."""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from tests.drawn import cases, seeds

from gpugauge.cli import stack
from gpugauge.cli.common import with_scheme
from gpugauge.doctor import DEFAULT_URL
from gpugauge.faults.repair import Site
from gpugauge.node.node import Judged, Node, Verdict
from gpugauge.sessions.inquiry import ELSEWHERE, SILENT, WAITING, Inquiry
from gpugauge.sessions.session import Session
from gpugauge.snapshot import Snapshot
from gpugauge.status.history import History
from gpugauge.status.node import build
from gpugauge.terminal.reply import Reply
from gpugauge.wire import messages as wire

NOW = 1.7e9


def drawn(chance: random.Random) -> Iterator[tuple[str, Session, str]]:
    """Yield the label of each rank, its session, and what the rank that is behind does."""
    for number in range(chance.randint(1, 3)):
        size, here = chance.randint(2, 6), chance.random() < 0.7
        fault = chance.choice(["elsewhere", "silent", "stopped", "ended"]) if here else "away"
        culprit = chance.randrange(size) if here else size  # on another node
        for rank in range(size):
            at: dict[str, Any] = {"position": WAITING}
            if rank == culprit:
                at = {"position": ELSEWHERE if fault == "elsewhere" else SILENT, "stopped": fault == "stopped"}
            facts = {"rank": str(rank), "world_size": str(size + (not here)), "command": "train.py"}
            gone: dict[str, Any] = {"ended_at": NOW - 700.0} if (rank, fault) == (culprit, "ended") else {}
            inquiry = Inquiry(NOW - 600.0, answered=NOW - 1.0, **at)
            owner = ("slurm", str(number), "", "", "")
            hello = wire.Hello(f"{number}{rank}" * 16, 0, 1, None, NOW - 1e4, facts)
            pid = 1000 * (number + 1) + rank
            yield f"{number}-{rank}", Session(hello, pid, 1000, owner=owner, inquiry=inquiry, **gone), fault


@seeds(range(40))
def test_the_command_is_about_the_rank_that_is_behind(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, asked = random.Random(seed), list[str]()
    ranks = {label: (session, fault) for label, session, fault in drawn(chance)}
    sessions = {label: session for label, (session, _) in ranks.items()}
    judged = {label: Judged(Verdict("stalled", "inside")) for label, s in sessions.items() if s.connected}
    url = chance.choice(["", "127.0.0.1:9999", "https://[::1]:10478"])
    node = Node(timestamp=NOW, monotonic=1e4, sessions=sessions, judged=judged)
    status = build(Snapshot(NOW, 1e4, (), {}, node), History(), site=Site(url=url))

    def fetch(address: str) -> Reply:
        asked.append(address)
        return Reply(status, {})

    monkeypatch.setattr(stack, "fetch", fetch)
    late = {label[0]: session for label, (session, fault) in ranks.items() if _is_behind(session, fault)}
    for process in status.without_gpu:
        session, fault = ranks[process.process]
        culprit = late.get(process.process[0])
        pid, advice = culprit.peer_pid if culprit else session.peer_pid, process.advice or ""
        if fault == "ended":
            assert culprit
            assert f"rank {culprit.facts['rank']}, which has ended" in advice, advice
            continue
        program, *words = shlex.split(advice.rpartition(": ")[2])
        if fault == "stopped":
            assert [program, *words] == ["kill", "-CONT", str(pid)], advice
        elif fault == "silent":
            assert [program, *words] == ["py-spy", "dump", "--native", "--pid", str(pid)], advice
        else:
            assert (program, words[0]) == ("gpugauge", "stack"), advice
            asked.clear()
            done = CliRunner().invoke(stack.command, words[1:])
            assert done.exit_code == 0, done.output
            assert f"pid {pid}:" in done.output
            assert asked == [with_scheme(url) if url else DEFAULT_URL]
        assert ("another node" in advice) == (fault == "away"), advice


@cases(
    ("facts", "words"),
    [
        (
            {},
            "only ranks of a distributed training send theirs (last step 2.0 s ago); to see it: py-spy dump --pid 7\n",
        ),
        ({"rank": "0", "world_size": "4"}, "has no stack: its ranks make progress (last step 2.0 s ago); to see "),
    ],
)
def test_a_training_that_goes_on_has_no_stack(
    facts: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    snap = wire.Snap("a" * 32, 1, steps=wire.Progress(9, 1.0, NOW - 2.0))
    session = Session(wire.Hello("a" * 32, 0, 7, None, NOW - 1e4, {"command": "train.py", **facts}), 7, 1000, snap)
    node = Node(
        timestamp=NOW, monotonic=1e4, sessions={"p": session}, judged={"p": Judged(Verdict("training", "inside"))}
    )
    status = build(Snapshot(NOW, 1e4, (), {}, node), History())
    monkeypatch.setattr(stack, "fetch", lambda _: Reply(status, {}))

    done = CliRunner().invoke(stack.command, ["7"])
    assert done.exit_code == 1
    assert done.output.startswith("gpugauge: 7 has no stack: ")
    assert words in done.output


def _is_behind(session: Session, fault: str) -> bool:
    ended = session.ended_at is not None
    return fault != "away" and (ended or (session.inquiry is not None and session.inquiry.position != WAITING))
