from gpugauge.status.words import cause_phrase, duration, state_words
from gpugauge.verdict.causes import CAUSES, STATES


def test_every_cause_and_state_has_words() -> None:
    assert [name for name in CAUSES if cause_phrase(name).startswith("is limited by")] == []
    assert all(0 < len(state_words(state, None, hook=True)) <= 12 for state in STATES if state != "unknown")
    assert cause_phrase("new_cause") == "is limited by new cause"


def test_a_process_without_a_state_is_named_by_what_it_is() -> None:
    words = [state_words("unknown", role, hook=False) for role in ("training", "display", None)]

    assert words == ["no hook", "display", "no hook"]
    assert state_words("held_idle", "display", hook=False) == "display"
    assert state_words("held_idle", None, hook=False) == "idle"
    assert state_words(None, "training", hook=True) == ""
    assert state_words("new_state", "training", hook=True) == "new_state"


def test_durations() -> None:
    assert [duration(s) for s in (0.0, 0.0123, 1, 59.94, 60, 599, 86400)] == [
        *("0 ms", "12.3 ms", "1.0 s", "60 s", "1.0 min", "10 min", "1.0 d"),
    ]
