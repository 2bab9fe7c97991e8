"""The state of a GPU in words, in agreement with the answer line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gpugauge.status.owner import name
from gpugauge.status.problems import in_use, used_well
from gpugauge.status.processes import Facts

# By kind of problem; the gravest, which comes first, is shown.
_WORDS = {
    "gpu_down": "down",
    "gpu_health": "errors",
    "xid": "errors",
    "wasted": "wasted",
    "slowed": "slowed",
    "gpu_slowed": "clocks lowered",
    "unused": "not used",
}


def gpu_state(gpu: Facts, problems: Sequence[Facts]) -> dict[str, str | None]:
    """Return the level and the state of a GPU, in at most 14 characters, and a summary: the gravest of the problems of
    the node, sorted as they are shown, or the programs on the GPU; None without either.
    """
    wasted = not used_well(gpu)
    own = [
        p for p in problems if p["kind"] in _WORDS and gpu["uuid"] in p["gpus"] and (wasted or p["kind"] != "wasted")
    ]
    if not own:
        words = "in use" if in_use(gpu) else "free"
        return {"level": "none" if wasted else "good", "state_words": words, "summary": _programs(gpu["processes"])}
    first, grave = own[0], any(problem["grave"] for problem in own)
    subject = f"{first['subject']} " if first["processes"] else ""
    return {
        "level": "bad" if grave else "poor",
        "state_words": _WORDS[first["kind"]],
        "summary": f"{subject}{first['text']}",
    }


def _programs(processes: Sequence[Facts]) -> str | None:
    if not processes:
        return None
    counts = Counter(map(name, processes)).most_common()
    first, count = counts[0]
    more = len(processes) - count
    return first + (f" ({count})" if count > 1 else "") + (f" and {more} more" if more else "")
