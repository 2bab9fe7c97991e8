"""What could not be known of a job, in sentences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from gpugauge.base.text import whole
from gpugauge.report.jobs import Found
from gpugauge.report.model import ProcessUse
from gpugauge.status.words import duration, plural, runs

_MOST_RANGES = 8


def gaps(found: Found, uses: Sequence[ProcessUse], without_energy: int) -> Iterator[str]:
    """Yield the sentences. `without_energy` is the number of GPUs whose energy is left out."""
    without = [use for use in uses if use.gpu_hours is None]
    if len(without) == len(uses):
        yield "The GPU time is not known: no process has counters of it, as on MIG devices or on the CPU."
    elif without:
        yield f"The GPU time of {plural(len(without), 'process', 'es')} of {len(uses)} is not known."
    if cut := [use for use in uses if found.facts[use.process].continues]:
        yield f"{plural(len(cut), 'process', 'es')} began before this time, and only what came later counts (--since)."
    yield from _times(found, uses)
    yield from _inside(found, uses)
    if left_out := plural(without_energy, "GPU") if without_energy else "":
        yield f"The energy of {left_out} is left out: not reported, or other programs used them at the same time."


def _times(found: Found, uses: Sequence[ProcessUse]) -> Iterator[str]:
    uncounted: defaultdict[str, float] = defaultdict(float)
    silent: defaultdict[str, float] = defaultdict(float)
    for use in uses:
        uncounted[use.node] += use.uncounted_seconds
        silent[use.node] = max(silent[use.node], sum(b - a for a, b in found.facts[use.process].gaps))
    for node in uncounted:
        if uncounted[node]:
            yield (
                f"On {node}, {duration(uncounted[node])} of its processes are in no counter: the exporter did not run, "
                "or began again."
            )
        if silent[node]:
            yield (
                f"On {node}, no samples in {duration(silent[node])}: what the counters rose by is counted, and not "
                "known by the minute."
            )


def _inside(found: Found, uses: Sequence[ProcessUse]) -> Iterator[str]:
    known = [facts.info("torch_process_info").get("world_size", "") for facts in found.facts.values()]
    world, seen = max(whole(size) or 0 for size in known), {use.rank for use in uses} - {None}
    if seen and (missing := set(range(world)) - seen):
        shown = ", ".join(runs(missing)[:_MOST_RANGES])
        yield f"Ranks {shown} of {world} were never seen: no exporter on their nodes, or no hook in them."
    if outside := [use for use in uses if not use.hook]:
        yield (
            f"{plural(len(outside), 'process', 'es')} of {len(uses)} did not use the hook: their steps, waits and most "
            "causes are not known (gpugauge run)."
        )
    verdicts = [facts.info("training_verdict_info").get("undecidable", "") for facts in found.facts.values()]
    if undecided := {cause for causes in verdicts for cause in causes.split(",") if cause}:
        yield f"Neither shown nor excluded, for want of evidence: {', '.join(sorted(undecided))}."
