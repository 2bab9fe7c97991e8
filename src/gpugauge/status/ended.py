"""Trainings that have ended: the reason in words, what to do about it, and the shares of their whole time."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import replace

from gpugauge.node import training
from gpugauge.sessions.ends import exit_code, signal_number
from gpugauge.sessions.session import Session
from gpugauge.status.model import ProcessStatus
from gpugauge.verdict.shares import life_shares
from gpugauge.wire import messages as wire

NEXT_TIME = "next time: "
"""Before the last advice on a training that has ended."""
MAX_LISTED = 32  # the newest; a sweep of short trainings may leave thousands
FAILURES = frozenset({"error", "out_of_memory", "killed", "oom_killed"})
"""Reasons for which a training did not do what its user wanted."""

# By reason: the state in at most 13 characters, and what to do.
_STATES = {reason: reason.replace("_", " ") for reason in (*wire.END_REASONS, "killed")} | {
    "oom_killed": "out of memory"
}
_WORDS = {
    "oom_killed": "killed by the kernel, host memory was used up",
    "rejected": "its connection was closed for invalid messages",
    "other": "the reason is not known",
}
_ADVICE = {
    "out_of_memory": "smaller batches, gradient accumulation or activation checkpointing need less memory",
    "oom_killed": "a higher limit of host memory, fewer loader workers or less cached data prevent it",
    "killed": "if nobody killed it, look for the kernel's out-of-memory killer: dmesg --human | grep -i killed",
}


def end_words(reason: str, exit_code: str, signal_number: str) -> str:
    """Return why a training ended, such as "killed by signal 9 (SIGKILL)"; "" while the reason is not settled."""
    words = _WORDS.get(reason) or _STATES.get(reason, "")
    if reason == "killed" and signal_number.isdecimal():
        name = ""
        with suppress(ValueError):
            name = f" ({signal.Signals(int(signal_number)).name})"
        return f"killed by signal {signal_number}{name}"
    if reason == "killed":
        return "killed, or it crashed"
    return f"{words}, exit code {exit_code}" if exit_code not in {"", "0"} and words else words


def with_end(process: ProcessStatus, session: Session) -> ProcessStatus:
    """Return a process that has ended, which has no verdict; what was to change in it is to change next time, unless
    the reason of its end has another advice.
    """
    shares, rest = life_shares(session)
    steps, seconds = training.measured_steps(session) or (0, 0.0)
    reason, number = session.end_reason, signal_number(session.end_status)
    advice = _ADVICE.get(reason)
    if reason == "killed" and number not in {"", str(int(signal.SIGKILL))}:
        advice = None
    return replace(
        process,
        samples_per_second=None,
        tokens_per_second=None,
        step_seconds=seconds / steps if steps else None,
        ended=session.ended_at,
        end_reason=reason or None,
        end_words=end_words(reason, exit_code(session.end_status), number) or None,
        state="ended",
        state_words=_STATES.get(reason, "ended"),
        advice=advice or (process.advice and f"{NEXT_TIME}{process.advice}"),
        advice_steps=() if advice else tuple(f"{NEXT_TIME * (n == 0)}{s}" for n, s in enumerate(process.advice_steps)),
        gain_words=None if advice else process.gain_words,
        step_shares=shares,
        rest_shares=rest,
    )
