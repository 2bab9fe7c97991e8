"""Drawn programs that follow one another in one process (exec): no count falls, and each ends as the sum of all."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from tests.collectors.training.test_training import SESSION, SNAP, TICK, FakeSessions, collector
from tests.drawn import seeds

from gpugauge import catalog
from gpugauge.collectors.training.training import TrainingCollector
from gpugauge.metric import HistogramValue
from gpugauge.node import training
from gpugauge.sessions.inquiry import Inquiry
from gpugauge.sessions.session import Session, ThreadTime
from gpugauge.wire import messages as wire
from gpugauge.wire.record import PHASES, SharedRecord
from gpugauge.workload.identity import JOB_LABELS
from qa.worlds.scraped import node_of

START = 1_700_000_000.0
FROM_RECORD = ("steps", "batches", "samples", "tokens")
ROWS = {row.name: row for row in catalog.metrics()}
INFOS = ("torch_process_info", "torch_build_info", "torch_settings_info")
GAUGES = {"slowest", "worker_bytes"}
DEVICE_COUNTS = ("retries", "ooms", "device_allocs", "device_frees")
OPTIONAL = (
    *("samples", "tokens", "errors", "compilations", "exposed_wait_seconds", "local_work_seconds"),
    *("waits", "flops", "loader", "steps", "batches"),
)
LOADER = tuple(field.name for field in fields(wire.Loader) if field.name not in GAUGES)
DEVICE_FIGURES = (
    *("allocated", "allocated_peak", "step_allocated", "limit", "reserved"),
    *DEVICE_COUNTS,
)
Values = dict[tuple[str, ...], float]


@dataclass(frozen=True)
class Program:
    """A program whose counts grow by a whole number in each tick, from 0 on; `known` are those that it reports. Its
    messages are `lag` ticks late, and its shared record is not.
    """

    name: str
    begin: int
    ticks: int
    known: frozenset[str]
    lag: int
    devices: tuple[str, ...]
    weights: dict[str, int]
    recorded: bool

    def count(self, name: str, ticks: int) -> int:
        return self.weights.setdefault(name, 1 + len(self.weights) % 7) * ticks

    def snap(self, ticks: int) -> wire.Snap | None:
        if ticks <= 0:
            return None
        figures: dict[str, Any] = {name: self.count(name, ticks) for name in OPTIONAL[:6] if name in self.known}
        steps, batches = self.count("steps", ticks), self.count("batches", ticks)
        loader: dict[str, Any] = {
            name: self.count(f"loader {name}", ticks) for name in LOADER if f"loader {name}" in self.known
        }
        last = START + self.begin + ticks
        return wire.Snap(
            self.name,
            ticks,
            steps=wire.Progress(steps, steps * 0.5, last, (0,) * 19 + (steps,)) if "steps" in self.known else None,
            batches=wire.Progress(batches, batches * 0.25, last) if "batches" in self.known else None,
            devices=tuple(
                wire.Device(
                    i, uuid, 10 + i, **dict[str, Any]({n: self.count(f"{uuid} {n}", ticks) for n in DEVICE_COUNTS})
                )
                for i, uuid in enumerate(self.devices)
            ),
            parameters=(wire.Parameters(self.name, "float32", 1, 2, 8),),
            facts={"backend": self.name},
            waits=self.by("waits", PHASES, ticks) if "waits" in self.known else None,
            flops=self.by("flops", wire.FLOP_SOURCES, ticks) if "flops" in self.known else None,
            loader=wire.Loader(**{"batches": 0, **loader}, slowest=0.5) if "loader" in self.known else None,
            **figures,
        )

    def by(self, name: str, keys: tuple[str, ...], ticks: int) -> dict[str, float]:
        return {key: float(self.count(f"{name} {key}", ticks)) for key in keys if f"{name} {key}" in self.known}

    def session(self, now: int) -> Session:
        ticks = min(now - self.begin, self.ticks)
        ended = now - self.begin > self.ticks
        snap = self.snap(ticks - self.lag)
        reported = ticks if self.ticks % 2 or snap else 0
        last = START + self.begin + ticks if reported and "steps" in self.known else None
        steps, batches, samples, tokens = (
            self.count(name, reported) if name in self.known else 0 for name in FROM_RECORD
        )
        waits = self.by("waits", PHASES, reported) if "waits" in self.known else {}
        spent = {phase: float(self.count(f"phase {phase}", ticks)) for phase in PHASES}
        phase = PHASES[int(self.name) % len(PHASES)]
        record = SharedRecord(phase, START + self.begin, steps, batches, spent, last, samples, tokens, waits)
        thread = {p: ThreadTime(*(float(self.count(f"{p} {i}", ticks)) for i in range(3))) for p in PHASES[:3]}
        hello = wire.Hello(self.name, 0, 1, None, START + self.begin, {"torch": self.name})
        at = START + self.begin + self.ticks if ended else None
        shown = record if self.recorded else None
        return Session(hello, 4242, 1000, snap, at, "other" if ended else "", record=shown, thread=thread)


def drawn(chance: random.Random) -> list[Program]:
    found, begin, recorded = [], 0, chance.random() < 0.7
    names = [f"{kind} {key}" for kind, keys in (("waits", PHASES), ("flops", wire.FLOP_SOURCES)) for key in keys]
    share = chance.choice([0.3, 0.8, 1.0])
    for number in range(chance.randint(1, 4)):
        ticks = chance.randint(1, 5)
        every = [*OPTIONAL, *names, *(f"loader {name}" for name in LOADER)]
        known = frozenset(name for name in every if chance.random() < share)
        devices = tuple(f"GPU-{i}" for i in range(5) if chance.random() < 0.5)
        found.append(Program(f"{number:032}", begin, ticks, known, chance.randint(0, 2), devices, {}, recorded))
        begin += ticks + chance.randint(1, 3)
    return found


def figures(under_test: TrainingCollector) -> Iterator[tuple[str, str, Values]]:
    """Yield name, kind and values of the families of the process; a histogram as its counts and its sum."""
    for family in under_test.collect(TICK).families:
        metric = family.metric
        if not metric.labels or metric.labels[0] != "process":
            continue
        found: Values = {}
        for labels, value in family.samples:
            if isinstance(value, HistogramValue):
                found |= {(str(place),): count for place, count in enumerate(value.counts)} | {("sum",): value.total}
            else:
                found[labels[1:]] = value
        yield metric.name, metric.kind, found


def alone(session: Session) -> dict[str, Values]:
    return {name: found for name, _, found in figures(collector(FakeSessions(session)))}


def expected(views: Sequence[Session]) -> dict[str, Values]:
    """Return the sums of what each shows alone; before its first message, the record has its counts."""
    sums: dict[str, Values] = {}
    for view in views:
        known = alone(view)
        if view.snap is None and view.record:
            early: dict[str, Values] = {
                f"torch_{name}_total": {(): float(getattr(view.record, name))} for name in FROM_RECORD
            }
            known |= {name: values for name, values in early.items() if name in sums}
        for name, values in known.items():
            sums.setdefault(name, {}).update({k: v + sums[name].get(k, 0.0) for k, v in values.items()})
    return sums


@seeds(range(200))
def test_no_count_falls_where_a_program_follows_another(seed: int) -> None:
    chance = random.Random(seed)
    programs, sessions, kept, shown = drawn(chance), FakeSessions(), 0, 0
    ours, before = collector(sessions), dict[tuple[str, tuple[str, ...]], float]()
    for now in range(programs[-1].begin + programs[-1].ticks + 2):
        views = [program.session(now) for program in programs if program.begin <= now]
        kept = chance.choice([kept, max(kept, shown - 1)])  # those before are dropped some time after
        shown = len(views)
        sessions.sessions = tuple(views[kept:])
        sums, own = expected(views), alone(views[-1])
        for name, kind, values in figures(ours):
            if kind in ("counter", "histogram"):
                total = sums.pop(name)
                if kind == "counter" or all(view.snap for view in views):
                    assert values == pytest.approx(total), (now, name)
                for labels, value in values.items():
                    assert value >= before.get((name, labels), 0.0) - 1e-6, (now, name, labels)
                    before[name, labels] = value
            elif name == "training_start_timestamp_seconds":
                assert values == {(): START}
            elif name == "training_last_step_timestamp_seconds":
                ends = [alone(view).get(name, {}).get((), 0.0) for view in views]
                assert values[()] >= max(ends), now
            elif name != "torch_step_source":
                assert values == own[name], (now, name)
        assert not any(name.endswith("_total") for name in sums), (now, sums.keys())
    assert before


def whole(chance: random.Random) -> Session:
    """Return a session in which each figure that a program can report is another number, or is not known."""
    numbers = itertools.count(chance.randint(2, 9))

    def some(name: str) -> Any:
        return next(numbers) if chance.random() < known else None

    known = chance.choice([0.0, 0.6, 1.0])
    steps = chance.randint(0, 3)
    log2 = tuple(next(numbers) if steps and place > 9 else 0 for place in range(wire.LOG2_BUCKETS))
    texts = {n for row in INFOS for n in ROWS[row].labels[1:]} - {"pid", "container_pid", *JOB_LABELS}
    loader = {f"loader_{n}" for n in ROWS["torch_loader_info"].labels[1:]}
    facts = {name: f"{name}-{next(numbers)}" for name in sorted(texts | loader) if chance.random() < known}
    devices = tuple(
        wire.Device(index, f"GPU-{index}" if index else None, **{name: some(name) for name in DEVICE_FIGURES})
        for index in range(4)
    )
    named = tuple(replace(d, name=f"H{d.index}", capability=f"9.{d.index}") for d in devices)
    snap = wire.Snap(
        "a" * 32,
        1,
        steps=wire.Progress(sum(log2), float(next(numbers)), START + next(numbers), log2) if steps else None,
        batches=wire.Progress(next(numbers)) if chance.random() < known else None,
        parameters=(wire.Parameters("cuda:0", "float32", 1, 2, next(numbers)), wire.Parameters("cpu", "int8", 1, 1, 1)),
        devices=named,
        facts=dict(itertools.islice(facts.items(), chance.randint(0, 5), None)),
        exposed_wait_seconds=some("exposed"),
        local_work_seconds=some("local"),
        waits={phase: float(next(numbers)) for phase in PHASES if chance.random() < known},
        flops={source: float(next(numbers)) for source in wire.FLOP_SOURCES if chance.random() < known},
        samples=some("samples"),
        tokens=some("tokens"),
        loader=wire.Loader(
            **{"batches": 1} | {field.name: some(field.name) for field in fields(wire.Loader)} | {"slowest": 0.5}
        ),
    )
    thread = {p: ThreadTime(*(float(next(numbers)) for _ in range(3))) for p in PHASES if chance.random() < known}
    spent = {phase: float(next(numbers)) for phase in PHASES}
    phase, last = chance.choice(PHASES), snap.steps.last if snap.steps else None
    record = SharedRecord(phase, START + next(numbers), 0, 0, spent, last) if chance.random() < known else None
    ended, status = chance.choice([(None, None), (START + 1e6, 3 << 8), (START + 1e6, 9), (START + 1e6, None)])
    hello = wire.Hello("a" * 32, 0, 77, None, chance.choice([None, START + next(numbers)]), facts)
    return Session(hello, 4242, 1000, snap, ended, "error" if ended else "", status, record, thread)


@seeds(range(100))
def test_each_figure_of_a_program_is_shown_under_its_name(seed: int) -> None:
    session = whole(random.Random(seed))
    section = collector(FakeSessions(session)).collect(TICK)
    (process,) = {
        labels[0] for f in section.families if f.metric.name == "torch_process_info" for labels, _ in f.samples
    }
    shown = node_of([section]).sessions[process]
    live, sent, back = session.connected, session.snap, shown.snap
    assert sent
    assert back
    lasting = {name for row in INFOS if live or row != "torch_loader_info" for name in ROWS[row].labels}
    loader = {f"loader_{n}" for n in ROWS["torch_loader_info"].labels[1:]}
    own = {n: v for n, v in session.facts.items() if n in lasting - {*JOB_LABELS} or (live and n in loader)}
    hidden = {"pid": "4242", "container_pid": "77"}
    assert {n: v for n, v in shown.facts.items() if n not in JOB_LABELS and n not in hidden} == own
    assert (shown.hello.started, shown.ended_at, shown.end_reason) == (
        session.hello.started,
        session.ended_at,
        session.end_reason,
    )
    assert (shown.end_status, shown.thread) == (session.end_status, session.thread)
    gone: dict[str, Any] = {} if live else {"phase": None, "since": None}
    assert shown.record == (session.record and replace(session.record, **gone))
    assert (back.steps and back.steps.count) == (sent.steps and sent.steps.count)
    for name in ("exposed_wait_seconds", "local_work_seconds", "samples", "tokens", "waits", "flops"):
        assert (getattr(back, name) or None) == (getattr(sent, name) or None), name
    shortest = 11  # buckets of the hook below the first bound
    bounds = [*range(shortest, shortest + len(training.STEP_BUCKETS)), wire.LOG2_BUCKETS]
    durations = training.step_durations(shown)
    if sent.steps:
        assert durations
        assert durations.counts == tuple(sum(sent.steps.log2[:bound]) for bound in bounds)
        assert durations.total == sent.steps.seconds
    figures = DEVICE_FIGURES if live else DEVICE_COUNTS
    for device in sent.devices[1:]:
        found = {d.uuid: d for d in back.devices}.get(device.uuid)
        names = [name for name in figures if getattr(device, name) is not None]
        assert {n: getattr(found, n) for n in names} == {n: getattr(device, n) for n in names}
        if live:
            assert found
            assert (found.index, found.name, found.capability) == (device.index, device.name, device.capability)
    assert training.parameter_bytes(shown) == (training.parameter_bytes(session) if live else {})
    for field in fields(wire.Loader):
        if field.name != "starts" and (live or field.name not in GAUGES):
            assert getattr(back.loader, field.name, None) == getattr(sent.loader, field.name), field.name


@seeds(range(40))
def test_a_collective_is_in_flight_since_the_first_answer_that_shows_it(seed: int) -> None:
    chance = random.Random(seed)
    names, since, now = [str(i) for i in range(chance.randint(1, 3))], dict[str, float](), START
    done = dict.fromkeys(names, 7)
    sent = tuple(wire.Group(name, "data", 2, 8, 7) for name in names)
    inquiry: Inquiry | None = Inquiry(START)
    for _ in range(5):
        now += chance.randint(1, 20)
        waits = chance.random() < 0.8
        if chance.random() < 0.5:
            done[chance.choice(names)] += 1
        ahead = {name: chance.random() < 0.7 for name in names}
        groups = tuple(wire.Group(name, "data", 2, done[name] + ahead[name], done[name]) for name in names)
        same = {
            name for name in since if inquiry and inquiry.answer and wire_group(groups, name) in inquiry.answer.groups
        }
        since = {name: since[name] if name in same else now for name in names if ahead[name]}
        assert inquiry
        unknown = chance.choice([(), (wire.Group("other", "x", 2, 1, 0),)])
        answer = wire.Answer("a" * 32, 1, "all_reduce" if waits else None, (), (*groups, *unknown))
        inquiry = inquiry.ask(now, stopped=False).take(answer, now)
        session = SESSION._replace(snap=replace(SNAP, groups=sent), inquiry=inquiry)
        found = dict(alone(session).get("torch_collective_in_flight_seconds", {}))
        shown = {(name, "data", "2"): now - at for name, at in since.items()} if waits else {}
        assert found == shown
        where = {("waiting", "all_reduce"): 1} if waits else {("elsewhere", ""): 1}
        assert alone(session)["training_rank_position"] == where
        ended = session._replace(ended_at=now, end_reason="error")
        assert not {"training_rank_position", "torch_collective_in_flight_seconds"} & alone(ended).keys()
    assert not alone(session._replace(inquiry=None)).keys() & {"training_rank_position"}


def wire_group(groups: tuple[wire.Group, ...], name: str) -> wire.Group:
    return next(group for group in groups if group.name == name)
