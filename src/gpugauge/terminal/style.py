"""Colours of a terminal, by meaning."""

from __future__ import annotations

RESET = "\x1b[0m"
BOLD, DIM, RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN = (f"\x1b[{code}m" for code in (1, 2, 31, 32, 33, 34, 35, 36))
ORANGE = "\x1b[38;5;208m"
LEVELS = {"bad": RED, "poor": ORANGE, "good": GREEN}
"""By tone: red is what must be repaired, orange what is wasted or can wait."""
_SIMPLE = {"█": "#", "▓": "%", "▒": "o", "░": ".", "→": ">", "·": "-"}


def simpler(error: UnicodeError) -> tuple[str, int]:
    """Return simpler signs for what the terminal lacks: a handler of errors of encoding (codecs.register_error)."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_SIMPLE.get(sign, "?") for sign in error.object[error.start : error.end]), error.end
