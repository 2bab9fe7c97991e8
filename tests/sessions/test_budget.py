"""The budget of series: maximal snapshots of many sessions, the sessions of others beside them, and its estimate."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpugauge.collectors.training.training import LASTING, LIVE
from gpugauge.metric import HistogramValue, families
from gpugauge.sessions.budget import NOTHING, PLAIN, PLAIN_SERIES, WHOLE, Budget, series_of
from gpugauge.sessions.connection import Connection
from gpugauge.sessions.receiver.protocol import PEER
from gpugauge.sessions.session import Session
from gpugauge.wire import messages as wire

GOLDEN = Path(__file__).parents[1] / "golden"


def connection(uid: int, session: str, cgroup: str = "/c") -> Connection:
    made = Connection(1, PEER.pack(1, uid, 1, 1.0, 1) + cgroup.encode())
    made.session = session
    return made


def maximal(session: str) -> wire.Snap:
    parameters = tuple(wire.Parameters(f"d{i}", f"t{i}", 1, 1, 1) for i in range(wire.MAX_ENTRIES))
    figures: dict[str, Any] = dict.fromkeys(
        ("allocated", "allocated_peak", "reserved", "active", "inactive_split", "retries"), 1
    )
    devices = tuple(
        wire.Device(i, f"GPU-{i}", **figures, ooms=1, device_allocs=1, device_frees=1) for i in range(wire.MAX_DEVICES)
    )
    steps = wire.Progress(1, 1.0, 1.0, (1,) * wire.LOG2_BUCKETS)
    counts: dict[str, Any] = {"samples": 1, "tokens": 1, "flops": dict.fromkeys(wire.FLOP_SOURCES, 1.0)}
    counts["loader"] = wire.Loader(1, 1, *(1.0,) * 5, 1, 1, 1.0, 1.0, 1, 1.0, 1.0)
    return wire.Snap(session, 1, 1, steps, steps, parameters, devices, optimizer_state=parameters, **counts)


def exported(*sessions: Session) -> int:
    """Return the number of series of the rows of a training process, without its verdict."""
    subjects = [((str(number),), session) for number, session in enumerate(sessions)]
    found = families(LIVE + LASTING, subjects)
    values = [value for family in found for _, value in family.samples]
    return sum(len(v.counts) + 2 if isinstance(v, HistogramValue) else 1 for v in values)


def test_users_with_few_series_have_room_when_all_is_used() -> None:
    budget = Budget(series=2000, series_by_owner=1000)
    for number in range(4):
        budget.place(f"big {number}", number % 2, f"/{number % 2}", 500)
    assert budget.place("another", 2, "/2", 100).level == WHOLE
    assert budget.place("one of the first", 1, "/9", 100).level == NOTHING


def test_what_is_cut_returns_with_room_to_spare() -> None:
    budget = Budget(series=10**6, series_by_owner=1000)
    assert budget.place("a", 1, "/a", 900).level == WHOLE
    assert budget.place("b", 1, "/b", 200).level == PLAIN
    assert budget.place("c", 1, "/c", 100).level == NOTHING
    assert budget.place("a", 1, "/a", 760).level == WHOLE
    assert budget.place("c", 1, "/c", 100).level == NOTHING  # not yet: 90 % of the limit
    assert budget.place("a", 1, "/a", 500).level == WHOLE
    assert budget.place("c", 1, "/c", 100).level == WHOLE
    for name in ("a", "b", "c"):
        budget.release(name)
    assert budget.place("d", 1, "/d", 1000).level == WHOLE


def test_the_estimate_is_no_less_than_what_is_exported() -> None:
    snap = maximal("1" * 32)
    session = Session(wire.Hello("1" * 32, 1), 1, 1, snap)
    verdicts = 34  # see the next test
    most = exported(session) + verdicts
    assert most <= series_of(snap) <= 1.3 * most  # a larger one cuts what there is room for


def test_the_estimate_of_a_loader_is_no_less_than_what_is_exported() -> None:
    loader = series_of(maximal("1" * 32)) - series_of(replace(maximal("1" * 32), loader=None))
    text = (GOLDEN / "node.text").read_text()
    named = Counter(
        re.findall(r'^(?:torch_loader_(?!info)|training_loader_)\w+\{.*?process="(\w+)"', text, re.MULTILINE)
    )

    assert max(named.values()) <= loader <= 2 * max(named.values())


def test_a_session_without_details_has_at_most_the_plain_series() -> None:
    text = (GOLDEN / "node.text").read_text()
    named = re.findall(
        r"^(?!torch_loader_(?!info)|training_loader_)(?:training_|torch_|gpugauge_hook_)\w+"
        r'\{(?![^}]*(?:uuid|device)=)[^}]*process="(\w+)"',
        text,
        re.MULTILINE,
    )
    assert 20 < max(Counter(named).values()) <= PLAIN_SERIES
