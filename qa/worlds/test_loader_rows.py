"""The rows of the loading of batches, and the loading of a process that replaces its program."""

from __future__ import annotations

import random
from dataclasses import asdict, fields, replace

from tests.drawn import seeds

from gpugauge.collectors.training import loader_rows
from gpugauge.collectors.training.continued import continued
from gpugauge.collectors.training.verdict_rows import LIVE
from gpugauge.metric import families
from gpugauge.node.node import Diagnosis, Judged, Verdict
from gpugauge.sessions.session import Session
from gpugauge.verdict.loaders import TOO_FEW_WORKERS
from gpugauge.wire import messages as wire

GAUGES = ("slowest", "worker_bytes")


def drawn(seed: int) -> wire.Loader:
    d = random.Random(seed)
    whole = {"batches", "measured", "epochs", "starts", "worker_bytes"}
    values = {f.name: d.randrange(1 << 40) if f.name in whole else d.uniform(0, 1) for f in fields(wire.Loader)}
    return wire.Loader(**values)  # type: ignore[arg-type]  # by the names above


def session(loader: wire.Loader | None, **facts: str) -> Session:
    return Session(wire.Hello("s", 0), 1, 0, wire.Snap("s", 1, loader=loader, facts=facts))


def values(session: Session) -> dict[tuple[str, ...], float]:
    found = families(loader_rows.LIVE + loader_rows.LASTING, [(("p",), session)])
    return {(family.metric.name, *labels[1:]): value for family in found for labels, value in family.samples}  # type: ignore[misc]  # no histogram


@seeds(range(10))
def test_each_figure_has_its_series(seed: int) -> None:
    loader = drawn(seed)
    found = values(session(loader, cpus="12", ranks_on_cpus="4"))

    assert sorted(found.values()) == sorted([*asdict(loader).values(), 3.0])
    assert found["torch_cpus",] == 3.0
    assert found["torch_loader_seconds_total", "storage"] == loader.storage_seconds
    assert found["torch_loader_slowest_worker_ratio",] == loader.slowest


def test_what_is_not_known_is_absent() -> None:
    unknown: list[dict[str, str]] = [{}, {"cpus": "4"}, {"cpus": "x", "ranks_on_cpus": "1"}]
    for facts in (*unknown, {"cpus": "4", "ranks_on_cpus": "0"}):
        assert values(session(None, **facts)) == {}
        assert values(session(wire.Loader(3), **facts)) == {("torch_loader_batches_total",): 3}


@seeds(range(10))
def test_a_program_in_the_place_of_another_one_continues_its_counts(seed: int) -> None:
    before, loader = drawn(seed), drawn(seed + 100)
    snap = continued(session(before), session(loader)).snap
    assert snap is not None
    assert snap.loader is not None
    for name, value in asdict(snap.loader).items():
        expected = getattr(loader, name) + (0 if name in GAUGES else getattr(before, name))
        assert value == expected, name


def test_without_batches_so_far_the_counts_stay() -> None:
    before = session(drawn(1))
    first = continued(before, session(None)).snap
    assert first is not None
    assert first.loader == replace(drawn(1), slowest=None, worker_bytes=None)
    second = continued(session(None), before).snap
    assert second is not None
    assert second.loader == drawn(1)


def test_a_diagnosis_has_its_series() -> None:
    judged = Judged(Verdict("training", "inside"), loader=Diagnosis(TOO_FEW_WORKERS, 5, 2.0, 1.5))
    undecided = judged._replace(loader=None)
    rows = [row for row in LIVE if row.name.startswith("training_loader_")]
    found = families(rows, [(("p",), judged), (("q",), undecided)])

    assert {family.metric.name: dict(family.samples) for family in found} == {
        "training_loader_limited_by": {("p", TOO_FEW_WORKERS): 1},
        "training_loader_workers_recommended": {("p",): 5},
        "training_loader_expected_speedup_ratio": {("p",): 2.0},
        "training_loader_expected_speedup_lower_ratio": {("p",): 1.5},
    }
