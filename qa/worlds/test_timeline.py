"""States and seconds of drawn trainings, compared with the timeline of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, cycle, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import EVERYTHING

from gpugauge.collectors.training.continued import continued
from gpugauge.collectors.training.verdict import VerdictCollector
from gpugauge.snapshot import Section
from gpugauge.wire.shares import NAMED_PHASES
from qa.worlds.timeline import ROWS, Span, Timeline, tick

STALLED = 40.0
VERDICT_SECONDS = 10.0  # two verdicts are at most this far apart
STATE_SECONDS = 10.5  # before a verdict, in which the program was in the state


@dataclass(frozen=True)
class Shown:
    """The series of process p at a time, and the time of the verdict; `daemon` is the number of restarts before."""

    time: float
    verdict: float
    daemon: int
    state: str | None
    seconds: Mapping[str, float]
    shares: Mapping[str, float]


def values(section: Section, name: str) -> dict[str, float]:
    """Return the values of a family of process p by its last label."""
    family = next((family for family in section.families if family.metric.name == name), None)
    return {labels[-1]: value for labels, value in family.samples if isinstance(value, (int, float))} if family else {}


def shown(
    made: Timeline, steps: Sequence[float] = (1.0,), restarts: Sequence[float] = (), until: float | None = None
) -> Iterator[Shown]:
    """Yield the series at each tick until the process has ended. At each of `restarts` a new daemon begins."""
    last = made.end + 2 * VERDICT_SECONDS if until is None else until
    daemon, collector, verdict, before = 0, VerdictCollector(STALLED), 0.0, Section("", ())
    for now in takewhile(lambda now: now <= last, accumulate(cycle(steps), initial=0.0)):
        if daemon < len(restarts) and now >= restarts[daemon]:
            daemon, collector = daemon + 1, VerdictCollector(STALLED)
        section = collector.collect(tick(now, made.section(now)))
        verdict, before = (verdict if section is before else now), section
        state = next((state for state, value in values(section, "training_state").items() if value == 1), None)
        seconds, shares = values(section, "training_seconds_total"), values(section, "training_step_share_ratio")
        yield Shown(now, verdict, daemon, state, seconds, shares)


def last(made: Timeline, steps: Sequence[float] = (1.0,), until: float | None = None) -> Shown:
    *_, found = shown(made, steps, until=until)
    return found


def alternating(count: int, *spans: Span) -> tuple[Span, ...]:
    return (Span("starting", 4.0), *spans * count)


TRAINING, WAITING = Span("training", 0.7, 0.35), Span("loading", 0.3)
BY_TURNS = alternating(40, TRAINING, WAITING, Span("evaluating", 0.25), Span("loading", 0.15, serves="evaluating"))


@pytest.mark.parametrize("steps", [(1.0,), (2.0,), (5.0,), (5.001, 4.4, 1.0, 0.999, 3.1)])
def test_seconds_of_phases_shorter_than_a_verdict_are_exact(steps: tuple[float, ...]) -> None:
    found = last(Timeline(BY_TURNS), steps)

    assert found.seconds == pytest.approx({"starting": 4.0, "training": 40.0, "evaluating": 16.0}, abs=0.1)


def test_seconds_are_exact_while_the_process_runs() -> None:
    made = Timeline(BY_TURNS)

    for found in shown(made, until=60.0):
        if found.time % 5.0 == 0.0:  # the time of a verdict
            assert sum(found.seconds.values()) == pytest.approx(found.time, abs=0.31)  # less a wait that has not ended


def test_starting_ends_with_the_first_batch() -> None:
    made = Timeline((Span("starting", 8.0), Span("loading", 1.0), Span("training", 20.0, 0.5)))
    states = {found.time: found.state for found in shown(made, until=14.0)}

    assert [states[second] for second in (5.0, 9.0, 10.0, 14.0)] == ["starting", "starting", "training", "training"]


def test_a_run_of_short_phases_does_not_stay_in_the_first_state() -> None:
    # Each phase is shorter than two verdicts, so that none is seen twice in a row.
    made = Timeline(alternating(8, Span("training", 3.0, 0.1), Span("checkpointing", 2.0)))

    assert {found.state for found in shown(made, until=40.0) if found.time >= 5.0} == {"training"}


def test_compilation_is_not_shown_for_longer_than_it_lasts() -> None:
    made = Timeline((Span("starting", 1.0), TRAINING, Span("compiling", 2.7), *(TRAINING,) * 60))
    states = Counter(found.state for found in shown(made, until=40.0))

    assert states["compiling"] <= 5
    assert last(made).seconds["compiling"] == pytest.approx(2.7, abs=0.1)


def test_time_of_a_stall() -> None:
    made = Timeline(
        (Span("starting", 2.0), Span("training", 20.0, 1.0), Span("training", 100.0), Span("training", 20.0, 1.0))
    )

    found = last(made)

    assert found.seconds["stalled"] == pytest.approx(100.0 - STALLED, abs=VERDICT_SECONDS)
    assert sum(found.seconds.values()) == pytest.approx(142.0, abs=0.1)


def test_a_stall_is_known_at_the_first_verdict_of_a_new_daemon() -> None:
    made = Timeline((Span("training", 20.0, 1.0), Span("training", 100.0)))
    (first,) = (found for found in shown(made, restarts=(80.0,), until=81.0) if found.time == 80.0)

    assert (first.daemon, first.state) == (1, "stalled")


def test_a_program_between_two_verdicts_is_counted() -> None:
    made = Timeline((Span("starting", 0.5), Span("training", 1.5, 0.1)), begin=6.0, device="cpu")

    assert last(made).seconds == pytest.approx({"starting": 0.5, "training_on_cpu": 1.5})


@pytest.mark.parametrize("allocator", ["native", "cudaMallocAsync"])
def test_a_short_program_on_a_gpu_is_counted_as_such(allocator: str) -> None:
    """The second allocator has no counters."""
    made = Timeline((Span("starting", 0.5), Span("training", 1.5, 0.1)), begin=6.0, allocator=allocator)

    assert last(made).seconds == pytest.approx({"starting": 0.5, "training": 1.5})


def test_seconds_before_the_daemon_are_not_counted() -> None:
    made = Timeline((Span("starting", 2.0), Span("training", 60.0, 1.0)), begin=-30.0)

    assert last(made).seconds == pytest.approx({"training": 32.0})


def test_an_exec_begins_a_session_from_zero() -> None:
    before = Timeline((Span("starting", 2.0), Span("training", 18.0, 1.0)))
    after = Timeline((Span("starting", 5.0), Span("training", 15.0, 1.0)), begin=20.0)
    collector = VerdictCollector(STALLED)
    for second in range(0, 60, 5):
        made = before if second < 20 else after
        section = collector.collect(tick(second, made.section(second)))

    # The end of the first program, between its last verdict and the exec, is not known.
    assert values(section, "training_seconds_total") == pytest.approx({"starting": 7.0, "training": 28.0})


def test_the_start_of_a_program_in_the_place_of_another_one_is_starting() -> None:
    before = Timeline((Span("starting", 2.0), Span("training", 18.0, 1.0)))
    after = Timeline((Span("starting", 12.0), Span("training", 28.0, 1.0)), begin=21.0)
    collector = VerdictCollector(STALLED)
    first = tick(19.9, before.section(19.9)).node.sessions["p"]
    for second in (*range(0, 20, 5), *range(23, 60, 5)):
        now = tick(second, (before if second < 20 else after).section(second))
        for session in now.node.sessions.values() if second > 20 else ():
            another = session._replace(hello=replace(session.hello, session="another"))
            now.node.sessions = {"p": continued(first, another)}
        section = collector.collect(now)

    found = values(section, "training_seconds_total")
    assert found["starting"] == pytest.approx(14.0)
    assert found["training"] == pytest.approx(17.9 + 25.0)


def test_shares_of_a_step_on_the_cpu() -> None:
    spans = alternating(100, Span("loading", 0.7), Span("training", 0.2, 0.2), Span("checkpointing", 0.1))
    found = last(Timeline(spans, device="cpu"), until=90.0)

    assert found.state == "training_on_cpu"
    assert found.shares == pytest.approx(
        {
            "data": 0.7,
            "checkpointing": 0.1,
            "rest": 0.2,
            **dict.fromkeys(("compiling", "evaluating", "generating"), 0.0),
        },
        abs=0.02,
    )


def test_unknown_parts_of_a_step_are_absent() -> None:
    own_loader = Timeline(alternating(100, Span("training", 0.5, 0.5)), device="cpu", counted=frozenset({"steps"}))
    found = last(own_loader, until=40.0)

    assert not found.shares.keys() & {"data", "peers"}
    assert found.shares["rest"] == pytest.approx(1.0)


def test_an_own_optimizer_trains() -> None:
    spans = alternating(30, Span("loading", 0.5), Span("training", 0.5))
    by_batches = Timeline(spans, device="", counted=frozenset({"batches", "waits"}))
    by_phases = replace(by_batches, counted=frozenset())

    assert [last(made, until=30.0).state for made in (by_batches, by_phases)] == ["training_on_cpu"] * 2


WORK = st.builds(Span, st.just("training"), st.floats(0.05, 12.0), st.sampled_from([0.04, 0.2, 1.0]))
WAIT = st.builds(Span, st.just("loading"), st.floats(0.01, 6.0))
EVALUATION_WAIT = st.builds(Span, st.just("loading"), st.floats(0.01, 6.0), serves=st.just("evaluating"))
OTHER = st.builds(Span, st.sampled_from(sorted(NAMED_PHASES)), st.floats(0.05, 12.0))
REST = st.builds(Span, st.just("training"), st.floats(1.0, 20.0))
STALL = st.builds(Span, st.just("training"), st.floats(STALLED + 15.0, 3 * STALLED))


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Draw a training: rounds of phases that repeat, with rests and stalls between them."""
    spans = [Span("starting", draw(st.floats(0.1, 30.0)))]
    for _ in range(draw(st.integers(1, 4))):
        round_ = [*draw(st.lists(WAIT | WORK | OTHER, min_size=1, max_size=4)), draw(WORK)]
        if draw(st.booleans()):
            round_ += [draw(EVALUATION_WAIT), Span("evaluating", draw(st.floats(0.05, 3.0)))]
        spans += round_ * draw(st.integers(1, 12))
        spans += draw(st.lists(REST | STALL, max_size=1))
    begin, device = draw(st.floats(0.0, 8.0)), draw(st.sampled_from(["cuda:0", "cpu"]))
    return Timeline(tuple(spans), begin, device, lag=draw(st.floats(0.0, 1.0)))


TICKS = st.lists(st.floats(0.8, 5.0), min_size=1, max_size=7).map(tuple)


@settings(max_examples=80 if EVERYTHING else 25, deadline=None)
@given(made=timelines(), steps=TICKS, restart=st.none() | st.floats(0.1, 0.9))
def test_drawn_trainings(made: Timeline, steps: tuple[float, ...], restart: float | None) -> None:
    restarts = () if restart is None else (restart * made.end,)
    found = list(shown(made, steps, restarts))

    for moment in found:
        check_state(made, moment)
    check_seconds(made, found)


def check_state(made: Timeline, moment: Shown) -> None:
    """The state must be one that the program was in during the last 10 s, or stalled by definition."""
    if moment.state is None or moment.time >= made.end:
        return
    now, since = moment.verdict, moment.verdict - STATE_SECONDS
    *_, (start, _, current) = made.parts(now)
    progress = made.last_progress(now)
    allowed = set(made.truth(since, now)) | (set() if progress else {"starting"})
    if current.phase == "loading":
        # The phase of a wait is known after its end.
        allowed |= made.truth(start - STATE_SECONDS, now).keys()
    if progress and now - progress >= STALLED:
        allowed.add("stalled")
    assert moment.state in allowed - ({"starting"} if progress else set()), (moment, current)


def check_seconds(made: Timeline, found: Sequence[Shown]) -> None:
    """The seconds of the last daemon must be those of the timeline since its begin."""
    final = found[-1]
    first = next(moment.time for moment in found if moment.daemon == final.daemon)
    if first >= made.end:
        assert final.seconds == {}
        return
    truth = made.truth(max(first, made.begin) if final.daemon else made.begin, made.end)
    stalled = final.seconds.get("stalled", 0.0)
    assert sum(final.seconds.values()) == pytest.approx(sum(truth.values()), abs=0.1)
    # A wait that the last daemon has seen in part is divided as a whole.
    waits = [span.seconds for span in made.spans if span.phase == "loading"] if final.daemon else []
    exact = 0.1 + max(waits, default=0.0)
    if not stalled:
        for state in truth.keys() | final.seconds.keys():
            assert final.seconds.get(state, 0.0) == pytest.approx(truth.get(state, 0.0), abs=exact), state


def test_rows_of_the_timeline_are_exported() -> None:
    assert {"torch_phase_seconds_total", "torch_data_wait_seconds_total"} <= ROWS.keys()


def test_a_process_that_cannot_be_judged_is_named_with_the_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    collector, made = VerdictCollector(STALLED), Timeline(BY_TURNS)
    collector.collect(tick(1.0, made.section(1.0)))
    assert not caplog.records
    monkeypatch.setattr("gpugauge.collectors.training.verdict.evidence", lambda *_: int("none"))

    collector.collect(tick(20.0, made.section(20.0)))
    assert [record.message for record in caplog.records] == ["a process cannot be judged"]
    assert "ValueError: invalid literal" in str(vars(caplog.records[0]))
