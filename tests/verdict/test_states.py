"""The states of a process: the table of transitions, and the facts from the evidence."""

from __future__ import annotations

from itertools import product
from typing import Any

from gpugauge.verdict.causes import STATES
from gpugauge.verdict.evidence import DeviceEvidence, Evidence
from gpugauge.verdict.states import RESTING, TRANSITIONS, WORKING, StateFacts, as_markdown, facts_of, transition
from gpugauge.wire.shares import with_waits

QUIET = StateFacts(quiet=True, now="training", mostly="training")
OUTSIDE = StateFacts(inside=False, holds_gpus=True)
# By row of the table: facts to which it applies. The rows `now` and `most of 10 s` are added below.
EXAMPLES: list[tuple[str, str, StateFacts]] = [
    ("outside, idle", "held_idle", OUTSIDE._replace(idle=True)),
    ("outside", "unknown", OUTSIDE._replace(idle=False)),
    ("outside, waiting", "stalled", OUTSIDE._replace(idle=False, spins=True)),
    ("outside", "unknown", OUTSIDE),
    ("quiet, expected to step", "stalled", QUIET._replace(trains=True)),
    ("quiet, expected to step", "stalled", QUIET._replace(trains=True, holds_gpus=True, idle=True)),
    ("quiet, GPU idle", "held_idle", QUIET._replace(holds_gpus=True, idle=True)),
    ("quiet, GPU unknown", "unknown", QUIET._replace(holds_gpus=True)),
    ("quiet", "not_training", QUIET),
    ("quiet", "not_training", QUIET._replace(holds_gpus=True, idle=False)),
    ("not known", "unknown", StateFacts()),
]
STATES_OF_PHASES = ("starting", *sorted(WORKING))


def test_an_arrow_from_every_state() -> None:
    for before, (when, to, facts) in product(STATES, EXAMPLES):
        row = transition(before, facts)
        assert (row.when, row.to) == (when, to), (before, facts)


def test_arrows_of_the_phases() -> None:
    for now, mostly in product(STATES_OF_PHASES, repeat=2):
        facts = StateFacts(now=now, mostly=mostly)

        # A new phase is shown at once, except that between two working states the larger part of 10 s decides.
        assert {transition(before, facts).to for before in RESTING} == {now}
        assert {transition(before, facts).to for before in WORKING} == {mostly}


def test_every_row_of_the_table_can_apply() -> None:
    applied = {transition(before, facts) for before in STATES for _, _, facts in EXAMPLES}
    applied |= {transition(before, StateFacts(now=s, mostly=s)) for before in STATES for s in STATES_OF_PHASES}

    assert applied == set(TRANSITIONS)
    assert {row.to for row in TRANSITIONS} == set(STATES)


def test_every_row_is_in_the_table() -> None:
    text = as_markdown()

    assert all(f"`{row.to}`" in text for row in TRANSITIONS)


BUSY = DeviceEvidence(busy=0.97, own_busy=0.97)
IDLE = DeviceEvidence(busy=0.0, own_busy=0.0)
TRAINING = Evidence(
    window=60.0,
    age=3600.0,
    inside=True,
    phase="training",
    recent={"training": 10.0},
    steps=600,
    steps_ever=36000,
    batches=600,
    batches_ever=36000,
    since_progress=0.1,
    slow_step=0.12,
    parameters={"cuda": 1e9},
    devices=(BUSY,),
)
NO_PROGRESS: dict[str, Any] = {"steps": 0, "batches": 0}
NEW: dict[str, Any] = {**NO_PROGRESS, "steps_ever": 0, "batches_ever": 0, "phase": "starting", "since_progress": None}
NO_RECORD: dict[str, Any] = {"phase": None, "recent": {}}
# Nothing but phases is known: an optimizer that is not torch's, and an own generator of batches.
OWN: dict[str, Any] = {
    **dict.fromkeys(("steps", "steps_ever", "batches", "batches_ever", "since_progress", "slow_step")),
    "parameters": {},
    "worked": True,
}


def in_phase(name: str, seconds: float = 10.0, **others: float) -> dict[str, Any]:
    return {"phase": name, "phase_age": seconds, "recent": {name: seconds, **others}}


def test_state_of_the_evidence() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "training"),
        ({"parameters": {"cpu": 1e9}, "devices": (DeviceEvidence(busy=0.9, own_busy=0.9),)}, "training"),  # offloaded
        ({"parameters": {"cpu": 1e9}, "devices": (DeviceEvidence(busy=0.9, own_busy=0.01),)}, "training_on_cpu"),
        ({"parameters": {"cpu": 1e9, "cuda": 1e9}}, "training"),
        ({**NO_PROGRESS, **in_phase("compiling")}, "compiling"),
        ({**NO_PROGRESS, **in_phase("checkpointing", 90.0), "since_progress": 90.0}, "checkpointing"),
        ({**NO_PROGRESS, **in_phase("checkpointing", 1799.0), "since_progress": 1799.0}, "checkpointing"),
        ({**NO_PROGRESS, **in_phase("checkpointing", 1801.0), "since_progress": 1801.0}, "stalled"),
        ({**NO_PROGRESS, "since_progress": 301.0, "excused": True}, "training"),
        ({"steps": 0, **in_phase("evaluating")}, "evaluating"),
        ({"steps": 0}, "training"),  # gradient accumulation: the phase decides, not the counts
        ({**NO_PROGRESS, "since_progress": 200.0}, "training"),
        ({**NO_PROGRESS, "since_progress": 301.0}, "stalled"),
        ({**NO_PROGRESS, "since_progress": 301.0, "slow_step": 60.0}, "training"),
        ({**NO_PROGRESS, "since_progress": 601.0, "slow_step": 60.0}, "stalled"),
        # A notebook is idle between two cells.
        ({**NO_PROGRESS, "since_progress": 301.0, "interactive": True, "devices": (IDLE,)}, "held_idle"),
        ({**NO_PROGRESS, "since_progress": 301.0, "interactive": True, "devices": ()}, "not_training"),
        ({**NO_PROGRESS, "since_progress": 301.0, "interactive": True}, "not_training"),  # it computes something else
        ({**NO_PROGRESS, "since_progress": 301.0, "interactive": True, "devices": (DeviceEvidence(),)}, "unknown"),
        # Before the first step.
        ({**NEW, "age": 30.0}, "starting"),
        ({**NEW, "age": 400.0, "since_progress": 400.0}, "starting"),
        ({**NEW, "age": 700.0, "devices": (IDLE,)}, "held_idle"),
        ({**NEW, "age": 700.0, "devices": ()}, "not_training"),
        ({**NEW, "age": 700.0}, "not_training"),  # a server that computes on its GPU
        ({**NEW, "age": 30.0, **in_phase("compiling")}, "compiling"),
        ({**NEW, "age": 30.0, **in_phase("loading")}, "starting"),  # the first batch takes long
        ({**NEW, "age": 30.0, "batches_ever": 1, **in_phase("training", 0.1, starting=9.9)}, "training"),
        # An optimizer that is not torch's.
        ({"steps": None, "steps_ever": None}, "training"),
        ({**OWN, **in_phase("training")}, "training"),
        ({**OWN, **in_phase("loading")}, "training"),
        ({**OWN, **in_phase("starting")}, "training"),  # outside of the waits that the program declares
        ({**OWN, **in_phase("starting"), "worked": False, "age": 30.0}, "starting"),
        ({**OWN, **in_phase("training"), "devices": ()}, "training_on_cpu"),
        ({**OWN, **in_phase("training"), "devices": (), "torch_devices": True}, "training"),
        ({**OWN, **NO_RECORD, "worked": False, "age": 30.0}, "starting"),
        ({"steps": None, "steps_ever": None, "batches": 0, "since_progress": 599.0}, "training"),
        ({"steps": None, "steps_ever": None, "batches": 0, "since_progress": 601.0}, "stalled"),
        # A program that only evaluates is not expected to step.
        (
            {
                **dict.fromkeys(("steps", "steps_ever")),
                "batches": 0,
                "since_progress": 700.0,
                "devices": (IDLE,),
                **in_phase("evaluating", 700.0),
            },
            "held_idle",
        ),
        # The first step hangs.
        ({**NEW, "batches_ever": 1, "since_progress": 599.0, "phase": "training", "recent": {}}, "training"),
        ({**NEW, "batches_ever": 1, "since_progress": 601.0, "phase": "training", "recent": {}}, "stalled"),
        # A hook without a shared record.
        ({**NO_RECORD}, "training"),
        ({**NO_RECORD, **NO_PROGRESS}, "training"),
        ({**NO_RECORD, "steps": 0}, "evaluating"),
        ({**NO_RECORD, "steps": None, "steps_ever": None}, "unknown"),
        # From outside.
        ({"inside": False}, "unknown"),
        ({"inside": False, "devices": (IDLE,)}, "held_idle"),
        ({"inside": False, "devices": (IDLE,), "window": 10.0}, "unknown"),
    ]
    for changes, state in cases:
        assert transition("unknown", facts_of(TRAINING._replace(**changes), "unknown")).to == state, changes


def test_the_largest_part_of_ten_seconds_decides_between_working_states() -> None:
    for before, recent, state in (
        ("training", {"training": 4.0, "checkpointing": 6.0}, "checkpointing"),
        ("training", {"training": 6.0, "checkpointing": 4.0}, "training"),
        ("checkpointing", {"training": 5.0, "checkpointing": 5.0}, "checkpointing"),
        ("training", {"training": 5.0, "checkpointing": 5.0}, "training"),
        ("training", {"training": 2.0, "loading": 4.0, "checkpointing": 4.0}, "training"),
        # Waits that have not ended.
        ("training", {"training": 1.0, "loading": 5.0, "evaluating": 4.0}, "evaluating"),
        ("training", {"loading": 10.0}, "training"),
        ("evaluating", {"loading": 10.0}, "evaluating"),
        # The time before the first step does not count after it.
        ("training", {"starting": 9.0, "compiling": 0.8, "training": 0.2}, "compiling"),
    ):
        e = TRAINING._replace(phase="training", recent=recent)
        assert transition(before, facts_of(e, before)).to == state, recent


def test_waits_belong_to_their_phases() -> None:
    seconds = {"training": 10.0, "evaluating": 2.0, "loading": 5.0}

    both = with_waits(seconds, {"training": 2.0, "evaluating": 3.0})
    assert both == {"training": 12.0, "evaluating": 5.0, "loading": 0.0}
    assert with_waits(seconds, {"evaluating": 9.0}) == {"training": 10.0, "evaluating": 7.0, "loading": 0.0}
    assert with_waits(seconds, {"training": 1.0}) == {"training": 11.0, "evaluating": 2.0, "loading": 4.0}
    assert with_waits(seconds, {}) == seconds
