import random
import re
from dataclasses import replace

import pytest

from gpugauge.status.details import details, last_use
from gpugauge.status.gpu_problems import gpu_problems
from gpugauge.status.model import GpuStatus, ProcessStatus, XidStatus
from gpugauge.status.words import cause_phrase, digits, duration, factor, limit_words, quantity, state_words
from gpugauge.verdict.causes import CAUSES, STATES
from tests.drawn import seeds


def test_every_cause_and_state_has_words() -> None:
    assert [name for name in CAUSES if cause_phrase(name).startswith("is limited by")] == []
    assert all(0 < len(state_words(state, None, hook=True)) <= 12 for state in STATES if state != "unknown")
    assert cause_phrase("new_cause") == "is limited by new cause"


def test_where_no_cause_is_sure_the_two_largest_are_named() -> None:
    loader = cause_phrase("data_loading")

    assert limit_words("data_loading", {"data_loading": 0.5}) == loader
    found = limit_words("unknown", {"host_bound": 0.2, "data_loading": 0.5, "transfer": 0.1, "unknown": 0.3})
    assert found == f"{loader}, and waits for its own Python code"
    for causes in ({}, {"unknown": 0.5}, {"unknown": 0.5, "data_loading": 0.2}):
        assert limit_words("unknown", causes) == cause_phrase("unknown")


def test_a_process_without_a_state_is_named_by_what_it_is() -> None:
    roles = ("training", "display", "server", "notebook", None)

    assert [state_words("unknown", role, hook=False) for role in roles] == ["no hook", *roles[1:4], "no hook"]
    assert [state_words("held_idle", role, hook=False) for role in roles] == ["idle", "display", *["idle"] * 3]
    assert state_words(None, "training", hook=True) == ""
    assert state_words("new_state", "training", hook=True) == "new_state"


def test_durations() -> None:
    assert [duration(s) for s in (0.0, 0.0123, 1, 59.94, 60, 599, 86400)] == [
        *("0 ms", "12.3 ms", "1.0 s", "60 s", "1.0 min", "10 min", "1.0 d"),
    ]


def test_quantities() -> None:
    values = (0.0, 0.004, 4.26, 9.96, 123.4, 99_999, 999_999, 1e6, 56.7e6, 999.9e6, 2.5e9)
    words = "0|0.004|4.3|10|123|99,999|999,999|1 M|56.7 M|1,000 M|2.5 G"
    assert [quantity(value) for value in values] == words.split("|")


def test_factors() -> None:
    values = (1.0, 1.04, 1.4, 3.94, 9.96, 12.4, 99.6, 200.0, 227.3, 1e7)

    assert [factor(value) for value in values] == ["1", "1", "1.4", "3.9", "10", "12", "100", "200", "227", "10000000"]


@seeds(range(200))
def test_no_number_has_an_exponent(seed: int) -> None:
    d = random.Random(seed)
    value, count = 10 ** d.uniform(-9, 12), d.choice([2, 3])
    text = digits(value, count)

    assert re.fullmatch(r"\d+(\.\d*[1-9])?", text)
    assert float(text) == pytest.approx(value, rel=0.5001 * 10 ** (1 - count))
    assert len(text.replace(".", "").lstrip("0")) <= max(count, len(str(round(value))))
    assert not re.search("e[+-]", f"{duration(value)} {quantity(value)} {factor(value)}")


def test_an_idle_program_says_since_when_and_errors_are_in_the_order_of_time() -> None:
    idle = ProcessStatus(process="aa", state="held_idle", trouble_since=1.7e9)
    assert details(idle, 0.0) == ["idle since 2023-11-14 22:13 UTC, a problem after 30 min"]
    xids = [XidStatus(text=f"Xid {xid}", last=at, advice="x") for xid, at in ((48, 120.0), (94, 60.0), (63, 0.0))]
    (found,) = gpu_problems([GpuStatus(uuid="GPU-a", xids=tuple(xids))], None)
    assert re.findall(r"Xid (\d+)", f"{found.text} {found.detail}") == ["63", "94", "48"]


def test_who_used_a_gpu_last() -> None:
    known = ProcessStatus(process="aa", pid=7, command="train.py", alive=False)
    named = ProcessStatus(process="bb", command="x.py", alive=True)
    gone = GpuStatus(uuid="GPU-a", last_processes=(known, named))

    assert last_use(gone) == "last used by train.py (pid 7, not seen now), x.py"
    assert last_use(replace(gone, last_processes=(replace(named, command=None),))).endswith("by a process")
