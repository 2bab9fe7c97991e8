"""What the verdict counts over the life of a process is what it shows at each moment, added up."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.drawn import seeds
from tests.virtual import VirtualDaemon

from gpugauge.collectors.base import Tick
from gpugauge.collectors.training.verdict import VerdictCollector
from gpugauge.driver.api import DriverView
from gpugauge.node.node import Node, Use
from gpugauge.sessions.session import Session
from gpugauge.simulator.scenario.load import load_scenario
from gpugauge.snapshot import Section
from gpugauge.verdict.causes import CAUSES
from gpugauge.verdict.states import STARTUP_STALL_FACTOR
from gpugauge.wire import messages as wire
from gpugauge.wire.record import PHASES, SharedRecord
from gpugauge.workload.processfiles import HostProcess
from gpugauge.workload.procfs import Stat

OFF = DriverView(up=False, reason="off")
START, LIMIT = 1.7e9, 40.0
INTERVAL = 5.0  # between two verdicts
Values = Mapping[tuple[str, ...], float]


def shown(section: Section) -> dict[str, Values]:
    return {
        f.metric.name: {labels: value for labels, value in f.samples if isinstance(value, (int, float))}
        for f in section.families
    }


def test_the_lost_time_is_the_share_of_the_time_that_is_held(tmp_path: Path) -> None:
    daemon, before, counted, section = (
        VirtualDaemon(load_scenario("bottlenecks"), tmp_path),
        dict[str, Values](),
        0,
        None,
    )
    for _ in range(40):
        snapshot = daemon.second()
        found = next(s for s in snapshot.sections if s.collector == VerdictCollector.name)
        if found is section:
            continue
        section, now = found, shown(found)
        gpus = Counter(process for process, _ in snapshot.node.uses)
        held, earlier = (
            now.get("training_gpu_held_seconds_total", {}),
            before.get("training_gpu_held_seconds_total", {}),
        )
        lost, states = now.get("training_lost_seconds_total", {}), now["training_seconds_total"]
        for (process,), total in held.items() if before else ():
            more = total - earlier.get((process,), 0.0)
            spent = sum(
                value - before["training_seconds_total"].get(labels, 0.0)
                for labels, value in states.items()
                if labels[0] == process
            )
            assert -1e-6 <= more <= spent * gpus[process] + 1e-6, process
            for cause in CAUSES if (process,) in earlier else ():
                key = (process, cause)
                share = now.get("training_limited_by_ratio", {}).get(key, 0.0)
                rise = lost.get(key, 0.0) - before.get("training_lost_seconds_total", {}).get(key, 0.0)
                assert rise == pytest.approx(more * share, abs=1e-6), key
                counted += rise > 0
        before = now
    daemon.close()
    assert counted > 10


@seeds(range(10))
def test_a_process_without_a_record_spends_what_passes_between_two_verdicts(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance, collector, now, spent, before = random.Random(seed), VerdictCollector(LIMIT), 0.0, 0.0, 0.0
    peaks = [chance.randint(1, 99) << 30 for _ in range(chance.randint(1, 8))]
    top = 0
    with caplog.at_level(logging.INFO):
        for number in range(30):
            ends = number == 29
            steps = wire.Progress(number, float(number), 1.7e9 + now)
            share = chance.choice([1, 2, 3])  # a program may reset its peaks
            top = max(top, 0 if ends else sum(peak // share for peak in peaks))
            devices = tuple(wire.Device(i, f"GPU-{i}", 1, peak // share) for i, peak in enumerate(peaks))
            snap = wire.Snap("a" * 32, 1, steps=steps, devices=devices)
            session = Session(wire.Hello("a" * 32, 0, 1, None, 1.7e9), 4242, 1000, snap, 1.7e9 + now if ends else None)
            node = Node(timestamp=1.7e9 + now, monotonic=now, sessions={"p": session})
            values = shown(collector.collect(Tick(1.7e9 + now, now, OFF, node=node)))
            spent += 0.0 if ends else min(now - before, 3 * INTERVAL)
            assert sum(values["training_seconds_total"].values()) == pytest.approx(spent), now
            before, now = now, now + chance.choice([5.0, 5.0, 7.0, 14.0, 60.0])
    (line,) = (record for record in caplog.records if record.getMessage() == "training ended")
    assert top == 0 or abs(line.__dict__["fields"]["peak_memory_bytes"] - top) < 1


@seeds(range(40))
def test_counts_that_stand_still_are_a_standstill(seed: int) -> None:
    """Also of a daemon that starts in the middle: the time before its start counts."""
    chance = random.Random(seed)
    counts = chance.choice([{"steps"}, {"batches"}, {"steps", "batches"}])
    stands = chance.choice([200.0, 1e9])  # from when on nothing is counted
    begins = chance.choice([0.0, 190.0, 215.0, 300.0])  # the daemon
    since = chance.choice([0.0, 100.0])  # of the phase
    limit = LIMIT if "steps" in counts else STARTUP_STALL_FACTOR * LIMIT
    collector, now = VerdictCollector(LIMIT), begins
    while now < begins + 250.0 + limit:
        made = int(min(now, stands))
        last = START + made if "steps" in counts else None
        steps = wire.Progress(made, float(made), last) if "steps" in counts else None
        snap = wire.Snap("a" * 32, 1, steps=steps, batches=wire.Progress(made) if "batches" in counts else None)
        spent = dict.fromkeys(PHASES, 0.0) | {"starting": since, "training": now - since}
        begun = START + (since if steps else made)  # each wait for a batch ends with a new phase
        record = SharedRecord("training", begun, made if steps else 0, made, spent, last)
        hello = wire.Hello("a" * 32, 0, 1, None, START)
        node = Node(START + now, now, sessions={"p": Session(hello, 4242, 1000, snap, record=record)})
        collector.collect(Tick(START + now, now, OFF, node=node))
        stood = now - stands
        quiet = node.judged["p"].verdict.state in ("stalled", "not_training")
        assert not quiet or stood >= limit, (now, counts)
        assert quiet or stood <= limit + 2 * INTERVAL, (now, counts)
        now += INTERVAL


@seeds(range(20))
def test_no_time_is_counted_twice_where_the_hook_comes_late(seed: int) -> None:
    """A program is known by its GPU before its hook reports: the session's time until then is counted already."""
    chance, collector = random.Random(seed), VerdictCollector(LIMIT)
    begins = INTERVAL * chance.randint(0, 10)  # the daemon; the program at 0
    reports = begins + INTERVAL * chance.randint(0, 20)  # the hook, from the start of the program on
    known = chance.random() < 0.6
    now = begins
    while now <= reports + 60.0:
        node = Node(START + now, now)
        if known:
            node.uses = {("p", "GPU-0"): Use(1, 0.0)}
            node.hosts = {"p": HostProcess("p", 4242, Stat("R", 1, 0, 0.0, 0.0, 1, 0, 0, 1, 1, False), "cuda")}
        if now >= reports:
            spent = dict.fromkeys(PHASES, 0.0) | {"training": now}
            record = SharedRecord("training", START, 0, 0, spent)
            snap = wire.Snap("a" * 32, 1)
            session = Session(wire.Hello("a" * 32, 0, 1, None, START), 4242, 1000, snap, record=record)
            node.sessions = {"p": session}
        values = shown(collector.collect(Tick(START + now, now, OFF, node=node)))
        total = sum(values.get("training_seconds_total", {}).values())
        if now >= reports:
            whole = begins == 0.0 and not known  # it began and reported while the daemon was there
            seen = now - (begins if known else reports)
            assert total == pytest.approx(now if whole else seen, abs=1.0), (now, begins, reports, known)
        now += INTERVAL
