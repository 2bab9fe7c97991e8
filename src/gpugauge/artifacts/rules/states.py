"""PromQL for states in words: the first of several conditions that applies, with its words as a label."""

from __future__ import annotations

from typing import NamedTuple

STATE = "state"
"""The label with the words of a state."""
ADVICE = "advice"
"""The label with what to do, of states that have it."""
LEVELS = GOOD, USED, UNKNOWN, WARNING, UNSEEN, CRITICAL = 0, 0.5, 1, 2, 2.5, 3


class Line(NamedTuple):
    """A state: its words, its level, and the series that are in it. $1 in the words is the value of `label`. What to do
    is the value of the label `advice`, by default the words.
    """

    words: str
    level: float
    when: object
    label: str = ""
    advice: str = ""


def states(by: str, *lines: Line) -> str:
    """Return the first state that applies, for each value of the labels `by`: its words as the label STATE, its level
    as the value.
    """
    advice = ADVICE if any(line.advice for line in lines) else ""
    found = f"\nor on ({by}) ".join(_state(by, line, advice) for line in lines)
    # Without the labels of the conditions.
    return f"max by ({', '.join(filter(None, (by, STATE, advice)))}) ({found})"


def _state(by: str, line: Line, advice: str) -> str:
    one = f"group by ({', '.join(filter(None, (by, line.label, line.advice)))}) ({line.when})"
    one = f"topk by ({by}) (1, {one})" if line.label or line.advice else one
    found = f'label_replace({one} * {line.level:g}, "{STATE}", "{line.words}", "{line.label}", "(.*)")'
    return f'label_replace({found}, "{advice}", "$1", "{line.advice or STATE}", "(.*)")' if advice else found
