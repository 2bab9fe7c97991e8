"""The problems of a node, the gravest first, each with what to do, and the states of its GPUs that follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpugauge.status.gpu_problems import gpu_problems, processes_words
from gpugauge.status.owner import name
from gpugauge.status.problem import Entry, order, problem
from gpugauge.status.training_problems import training_problems
from gpugauge.status.use import in_use, judging, on_gpus, silent, unhooked, used_well

# By kind of the gravest problem.
_WORDS = {
    "gpu_down": "down",
    "gpu_health": "errors",
    "xid": "errors",
    "wasted": "wasted",
    "slowed": "slowed",
    "unjudged": "low load",
    "gpu_slowed": "clocks lowered",
    "narrow_link": "narrow link",
    "unused": "not used",
}


def problems(facts: Entry) -> list[Entry]:
    """Return the problems of a node, the gravest first; docs/http.md has their fields."""
    found = [
        *_driver(facts),
        *_exporter(facts),
        *gpu_problems(facts["gpus"], simulated=facts["simulated"]),
        *training_problems(facts),
    ]
    return sorted(found, key=order)


def level(problems: Sequence[Entry], facts: Entry) -> str:
    """Return how well a node is: bad, poor, good; none where processes are not judged, or nothing is there to judge."""
    if problems:
        return "bad" if any(problem["grave"] for problem in problems) else "poor"
    everywhere = [*on_gpus(facts["gpus"]), *facts["without_gpu"]]
    idle = not facts["gpus"] and not any(process["level"] == "good" for process in everywhere)
    return "none" if idle or unhooked(on_gpus(facts["gpus"])) or judging(everywhere) or silent(everywhere) else "good"


def gravest(gpu: Entry, problems: Sequence[Entry]) -> Entry | None:
    """Return the gravest of the problems of the node that are those of a GPU, None without one. A GPU that a process
    uses well is not wasted.
    """
    wasted = not used_well(gpu)
    own = (p for p in problems if gpu["uuid"] in p["gpus"] and (wasted or p["kind"] != "wasted"))
    return next(own, None)


def _driver(facts: Entry) -> Iterator[Entry]:
    driver = facts["driver"]
    if not driver["up"] and driver["needed"] and driver["reason"] not in {"off", "released", "starting"}:
        yield problem("driver", "Driver", driver["state_words"], driver.get("advice"))
    if driver["up"] and not facts["gpus"]:
        advice = "check driver.devices, and the device request of the container"
        yield problem("no_gpu", "Driver", "it lists no GPU, or the settings exclude all", advice)


def _exporter(facts: Entry) -> Iterator[Entry]:
    for collector, error in facts["failing_collectors"].items():
        yield problem("collector", f"Collector {collector}", f"fails: {error}" if error else "fails")
    if facts["hook"]:
        yield problem("hook", "Hook", facts["hook"])


def gpu_state(gpu: Entry, problems: Sequence[Entry]) -> dict[str, str | None]:
    """Return the level and the state of a GPU, in at most 14 characters, and a summary: the gravest of the problems of
    the node, sorted as they are shown, or the programs on the GPU; None without either.
    """
    found = gravest(gpu, problems)
    if found is None:
        words, level = "in use" if in_use(gpu) else "free", "good" if used_well(gpu) else "none"
        return {"level": level, "state_words": words, "summary": _programs(gpu["processes"])}
    subject = f"{found['subject']} " if found["processes"] else ""
    # The mean load and the cause are said once, of all GPUs.
    text = processes_words(gpu) if found["kind"] == "unjudged" else found["text"]
    return {
        "level": "bad" if found["grave"] else "poor",
        "state_words": _WORDS[found["kind"]],
        "summary": f"{subject}{text}",
    }


def _programs(processes: Sequence[Entry]) -> str | None:
    if not processes:
        return None
    counts = Counter(map(name, processes)).most_common()
    first, count = counts[0]
    more = len(processes) - count
    return first + (f" ({count})" if count > 1 else "") + (f" and {more} more" if more else "")
