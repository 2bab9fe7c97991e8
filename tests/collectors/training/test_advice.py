"""The row of what to do about a cause: whose words, and how often they change."""

from __future__ import annotations

from dataclasses import replace

from gpugauge.collectors.training.advice import Advices
from gpugauge.faults.repair import ANY_SITE
from gpugauge.node.node import Diagnosis, Gain, Judged, Memory, Node, Verdict
from gpugauge.sessions.session import Session
from gpugauge.status.history import History
from gpugauge.status.processes import processes_of
from gpugauge.verdict import loaders
from gpugauge.wire import messages as wire


def node(workers: int = 8, main: str | None = "data_loading", seconds: float = 0.0) -> Node:
    facts = {"loader_workers": "2", "world_size": "2"}
    session = Session(wire.Hello("s", 0, facts=facts), 1, 0, wire.Snap("s", 1))
    verdict = Verdict("training", "inside", {"data_loading": 0.6, "underfilled": 0.2}, main)
    gains = {"underfilled": Gain(2.0, 1.8, 2.2, "gpu")}
    judged = Judged(verdict, gains=gains, loader=Diagnosis(loaders.TOO_FEW_WORKERS, workers, 2.0, 1.8))
    memory = {"p": Memory(batch_ratio=3.0)}
    return Node(seconds, seconds, sessions={"p": session}, judged={"p": judged}, memory=memory)


def test_the_words_are_those_of_the_views() -> None:
    found = Advices(lambda: ANY_SITE).of(one := node(), {})
    (process,) = processes_of(one, History(), 0.0)

    assert list(found["p"].items()) == [(row.cause, row.change) for row in process.changes if row.cause]


def test_new_figures_wait_as_long_as_the_cause_is_known_and_new_words_do_not() -> None:
    advices = Advices(lambda: ANY_SITE)
    texts = [advices.of(node(8 + at, seconds=at), {})["p"]["data_loading"] for at in range(7200)]

    begins = [at for at in range(1, 7200) if texts[at] != texts[at - 1]]
    assert begins == [15, 30, 60, 120, 240, 480, 960, 1920, 3840]
    slow = Judged(node().judged["p"].verdict, loader=Diagnosis(loaders.MEMORY))
    changed = advices.of(replace(node(seconds=7201), judged={"p": slow}), {})["p"]
    assert changed["data_loading"] == loaders.CHANGES[loaders.MEMORY]


def test_an_error_about_one_process_costs_the_others_nothing() -> None:
    one, failed = node(), dict[str, str]()
    broken = one.judged["p"]._replace(gains={"underfilled": 2.0})  # type: ignore[dict-item]  # what breaks it
    both = replace(one, judged={"bad": broken, "p": one.judged["p"]})

    assert Advices(lambda: ANY_SITE).of(both, failed)["p"]
    assert failed.keys() == {"bad"}
