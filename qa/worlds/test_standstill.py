"""Ranks that make no progress: drawn jobs with a known rank that holds the others up, drawn lives of a connection whose
process is asked, and a real question over the hook's socket.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from tests.drawn import seeds

from gpugauge.hook.client import Client
from gpugauge.sessions import inquiry
from gpugauge.sessions.inquiry import ELSEWHERE, QUIET_SECONDS, SILENT, SILENT_SECONDS, WAITING, Inquirer
from gpugauge.sessions.listener import Sessions
from gpugauge.status.model import Frame, ProcessStatus, Standstill
from gpugauge.status.standstill import roll_call, words
from gpugauge.verdict.ranks import behind
from gpugauge.wire import messages as wire
from gpugauge.wire.record import SharedRecord

FUNCTIONS = ("all_reduce", "backward", "barrier", "recv", "send", "")


@seeds(range(40))
def test_the_rank_that_holds_the_others_up_is_the_planted_one(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(25):
        _one_job(chance)


def _one_job(chance: random.Random) -> None:
    size, kind = chance.randint(2, 16), chance.choice(["stuck", "mismatch", "chain", "none", "apart"])
    culprit, common = f"r{chance.randrange(size)}", chance.choice(FUNCTIONS)
    positions = {f"r{rank}": (WAITING, common) for rank in range(size)}
    expected = {culprit}
    if kind == "stuck":
        positions[culprit] = (chance.choice([ELSEWHERE, SILENT]), "")
    elif kind == "chain":  # of a pipeline: each waits for a neighbour, but one
        positions = {rank: (WAITING, chance.choice(FUNCTIONS)) for rank in positions} | {culprit: (ELSEWHERE, "")}
    elif kind == "mismatch":  # and some wait for one of the others
        positions = dict.fromkeys(positions, (WAITING, "all_reduce")) | {culprit: (WAITING, "broadcast")}
        apart = chance.sample(sorted(positions.keys() - {culprit}), chance.randrange(size))
        positions |= {rank: (WAITING, chance.choice(["send", "recv"])) for rank in apart}
        expected = {culprit} if size - 1 - len(apart) > 1 else set()  # of two, neither is the majority
    else:
        expected = set()
        if kind == "apart":  # most compute, and one has come early
            positions = dict.fromkeys(positions, (ELSEWHERE, "")) | {culprit: (WAITING, common)}
            expected = set(positions) - {culprit} if size == 2 else set()
    assert behind(positions) == expected, (kind, size, common)


@seeds(range(40))
def test_a_process_is_asked_while_it_makes_no_progress(seed: int) -> None:
    chance = random.Random(seed)
    inquirer, now, steps, since = Inquirer(), 100.0, 0, 100.0
    inquirer.answers = answers = chance.random() < 0.9
    patient = chance.random() < 0.5  # whether it answers each question
    questions: list[float] = []
    unanswered: float | None = None
    inquirer.is_due(_record(0), now, now)
    for _ in range(chance.randint(20, 120)):
        now += 1.0
        if chance.random() < 0.03:
            steps, since, unanswered, questions = steps + 1, now, None, []
        if inquirer.is_due(_record(steps), now, now):
            assert inquirer.current is not None
            questions.append(now)
            inquirer.current = inquirer.current.ask(now, stopped=False)
            unanswered = now if unanswered is None else unanswered
            if patient:
                inquirer.take(wire.Answer("s", 1), now)
                unanswered = None
        moments = [since, *questions]
        assert all(late - early == QUIET_SECONDS for early, late in zip(moments, questions, strict=False))
        assert bool(questions) == (answers and now - since >= QUIET_SECONDS)
        silent = unanswered is not None and any(asked - unanswered >= SILENT_SECONDS for asked in questions)
        expected = None if not questions else SILENT if silent else ELSEWHERE if patient else None
        assert (inquirer.current.position if inquirer.current else None) == expected
        assert inquirer.current is None or inquirer.current.progress == since


def _record(steps: int) -> SharedRecord:
    return SharedRecord("training", 1.0, steps, 0, {})


@seeds(range(20))
def test_collectives_are_in_flight_since_they_were_first_seen(seed: int) -> None:
    chance = random.Random(seed)
    found, since = inquiry.Inquiry(0.0), dict[str, float]()
    counts = {name: [0, 0] for name in "abc"}
    for now in range(1, 40):
        for name, count in counts.items():
            before = list(count)
            if chance.random() < 0.3:
                count[0] += chance.randrange(3)
                count[1] = chance.randint(count[1], count[0])
            if count[1] == count[0]:
                since.pop(name, None)
            elif count != before:
                since[name] = float(now)
        groups = tuple(wire.Group(name, "?", 2, *count) for name, count in counts.items())
        waits_in = chance.choice(["wait", None])
        found = found.take(wire.Answer("s", now, waits_in, (), groups), float(now))
        assert found.in_flight == since
        assert found.position == (WAITING if waits_in else ELSEWHERE)


@seeds(range(20))
def test_the_roll_call_counts_each_rank_once(seed: int) -> None:
    chance = random.Random(seed)
    ranks = []
    for rank in range(chance.randint(2, 12)):
        frame = Frame(file=f"a/{chance.choice('xy')}.py", line=chance.choice([3, 8]), function="f")
        waits = chance.random() < 0.7
        still = Standstill(
            position=WAITING if waits else ELSEWHERE,
            function=chance.choice(FUNCTIONS) or None if waits else None,
            since=0.0,
            stack=(frame, Frame(file="torch/x.py", line=1, function="g", own=False)),
            behind=not waits,
        )
        ranks.append(ProcessStatus(process=f"p{rank}", rank=rank, standstill=still))
    lines = roll_call(ranks)
    called = [number for line in lines for number in _numbers(line)]
    assert sorted(called) == list(range(len(ranks)))
    for process in ranks:
        assert process.standstill is not None
        place = process.standstill.stack[0]
        own = [line for line in lines if process.rank in _numbers(line)]
        assert f"at {place.file[2:]}:{place.line}" in own[0]
        assert ("wait for" in own[0]) == process.standstill.behind or "other ranks" in words(process.standstill)


def _numbers(line: str) -> list[int]:
    found = list[int]()
    for part in line.removeprefix("ranks ").removeprefix("rank ").split(", "):
        first, _, last = part.split(" ")[0].partition("-")
        if first.isdecimal():
            found += range(int(first), int(last or first) + 1)
    return found


def test_a_question_is_answered_over_the_socket_of_the_hook(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "hook.sock"))
    sessions.start()
    client, asked = Client([str(tmp_path / "hook.sock")]), []

    def answer() -> bytes:
        asked.append(time.monotonic())
        frame = wire.Frame("data.py", 31, "next_batch", 1)
        return wire.encode(wire.Answer("a" * 32, 2, "wait", (frame,), (wire.Group("0", "default_pg", 2, 7, 5),)))

    try:
        assert client.connect(0, lambda: (wire.encode(wire.Hello("a" * 32, 0)), None))
        assert client.listen(answer)
        assert client.send(1, wire.encode(wire.Snap("a" * 32, 1, answers=1)))
        _wait(lambda: any(session.snap for session in sessions.view()))
        for number, connection in sessions._connections.items():
            connection.inquirer.current = inquiry.Inquiry(0.0)
            sessions._reception.command(66, number)
            _wait(lambda current=connection.inquirer: current.current.answer is not None)
            found = connection.inquirer.current
            assert found is not None
            assert found.answer is not None
            assert (found.answer.frames[0].function, found.position) == ("next_batch", WAITING)
        client.close()  # the thread does not keep the connection
        _wait(lambda: not any(session.connected for session in sessions.view()))
        assert len(asked) == 1
    finally:
        sessions.stop()


def _wait(condition: Callable[..., bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
