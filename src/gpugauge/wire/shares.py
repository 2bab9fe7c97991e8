"""The shares of a training by part, which hook and daemon state alike. Standard library only, Python 3.9."""

from __future__ import annotations

from collections.abc import Mapping

NAMED_PHASES = frozenset({"evaluating", "checkpointing", "compiling", "generating"})

# Words by part, the parts that take equal shares in this order.
_WORDS = {
    "data": "waiting for data",
    "peers": "waiting for other ranks",
    "evaluating": "evaluating",
    "checkpointing": "writing checkpoints",
    "compiling": "compiling",
    "generating": "generating",
}
# Words for what the training thread does in the rest: on a CPU, in the queue for one, asleep.
_REST = {"running": "own code and computation", "runnable": "waiting for a CPU", "asleep": "asleep"}
OPEN_SECONDS = 10.0
_MIN_SHARE = 0.005  # a smaller one is 0 %
_FEW = 0.1  # share of waits for other ranks up to which the state of the thread is that of its own work
_DIGITS = 4  # every view rounds the same number to per cent


def with_waits(seconds: Mapping[str, float], waits: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds in each phase, each with its waits for batches; `loading` is the rest, in waits that have not
    been reported yet. `waits` are the seconds waited in each phase.
    """
    found = dict(seconds)
    for phase in sorted(waits, key=lambda phase: phase not in NAMED_PHASES):
        part = min(found.get("loading", 0.0), waits[phase])
        owner = phase if phase in NAMED_PHASES else "training"
        found[owner] = found.get(owner, 0.0) + part
        found["loading"] = found.get("loading", 0.0) - part
    return found


def with_open(seconds: float | None, wait: float) -> float | None:
    """Return the seconds of waits with those that are not reported, if they are long: a short one counts at its end."""
    return seconds if wait < OPEN_SECONDS else (seconds or 0.0) + wait


def shares(
    phases: Mapping[str, float], data: float | None, peers: float | None, whole: float | None = None
) -> dict[str, float]:
    """Return the shares by part; a part that is not known is absent, and its time is in `rest`. {} if no part is known.

    `phases` are seconds as of with_waits(), `data` and `peers` those of the waits for training batches and for other
    ranks, `whole` the seconds of all phases. The start-up before the first step or batch is no part of it.
    """
    data = with_open(data, phases.get("loading", 0.0))
    seconds = {"data": data, "peers": peers, **{phase: phases.get(phase) for phase in sorted(NAMED_PHASES)}}
    known = {part: spent for part, spent in seconds.items() if spent is not None}
    length = (sum(phases.values()) if whole is None else whole) - phases.get("starting", 0.0)
    # A wait or a step that began before a window counts when it ends.
    length = max(length, sum(known.values()))
    if not known or length <= 0.0:
        return {}
    found = {**{part: spent / length for part, spent in known.items()}, "rest": 1.0 - sum(known.values()) / length}
    return {part: round(share, _DIGITS) for part, share in found.items()}


def divided(
    found: Mapping[str, float], thread: Mapping[str, float], whole: float, loading: float = 0.0
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the shares of `whole` seconds, and their rest by what the training thread does in it: `thread` are its
    seconds by state outside of its waits for batches. The seconds for which a thread that loads its batches itself was
    queued for a CPU, `loading`, are waits for a CPU, not for data. The rest is {} if most of it was not seen, and where
    it waits for other ranks for long: in which state it does is not known.
    """
    left, seen = found.get("rest", 0.0), sum(thread.values())
    if not left or not seen or seen < left * whole / 2 or found.get("peers", 0.0) >= _FEW:
        return dict(found), {}
    rest, moved = {state: left * spent / seen for state, spent in thread.items()}, 0.0
    if loading > 0.0:
        moved = min(found.get("data", 0.0), loading / whole)
        rest["runnable"] = rest.get("runnable", 0.0) + moved
    changed = {"data": found["data"] - moved, "rest": left + moved} if moved else {}
    both = {**found, **changed}, rest
    shares, of_rest = ({part: round(share, _DIGITS) for part, share in each.items()} for each in both)
    return shares, of_rest


def queued(seconds: float | None, batches: float, measured: float | None) -> float:
    """Return the seconds for which the loading of all batches waited for a CPU, from those of the measured ones."""
    return (seconds or 0.0) * batches / measured if measured else 0.0


def parts(found: Mapping[str, float], of_rest: Mapping[str, float] | None = None) -> list[tuple[str, str, float]]:
    """Return the parts that take a share, as (name, words, share), the largest first, the rest last, divided if what
    is in it is known.
    """
    named = sorted(((name, words, found.get(name, 0.0)) for name, words in _WORDS.items()), key=lambda part: -part[2])
    listed = [part for part in named if part[2] >= _MIN_SHARE]
    divided = [(name, text, (of_rest or {}).get(name, 0.0)) for name, text in _REST.items()]
    divided = [part for part in divided if part[2] >= _MIN_SHARE]
    if divided:
        return [*listed, *sorted(divided, key=lambda part: -part[2])]
    return [*listed, ("rest", "the rest", found["rest"])] if "rest" in found else listed


def sentence(found: Mapping[str, float], of_rest: Mapping[str, float] | None = None) -> str:
    """Return the parts with their shares, as "70 % waiting for data, 30 % the rest"; "" if no share is known."""
    return ", ".join(f"{100 * share:.0f} % {words}" for _, words, share in parts(found, of_rest))
