"""What could not be known of a job, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpugauge.base.text import whole
from gpugauge.exposition.trainings import DECIDED, PROCESS
from gpugauge.report.jobs import Found
from gpugauge.report.model import ProcessUse
from gpugauge.status.words import duration, plural, runs

_MOST_RANGES = 8


def gaps(found: Found, uses: Sequence[ProcessUse], running: Sequence[ProcessUse], without_energy: int) -> Iterator[str]:
    """Yield the sentences. `without_energy` is the number of GPUs whose energy is left out."""
    without = [use for use in uses if use.gpu_hours is None]
    if len(without) == len(uses):
        yield "The GPU time is not known: no process has counters of it, as on MIG devices or on the CPU."
    elif without:
        yield f"The GPU time of {plural(len(without), 'process', 'es')} of {len(uses)} is not known."
    if cut := [use for use in uses if found.facts[use.process].continues]:
        yield f"{plural(len(cut), 'process', 'es')} began before this time, and only what came later counts (--since)."
    if lost := sum(use.hook and use.end_words is None and use not in running for use in uses):
        yield f"How {plural(lost, 'process', 'es')} ended is not known, and nothing after the last sample counts."
    yield from _times(found, uses)
    known = [facts.info(PROCESS).get("world_size", "") for facts in found.facts.values()]
    world, seen = max(whole(size) or 0 for size in known), {use.rank for use in uses} - {None}
    if seen and (missing := set(range(world)) - seen):
        shown = ", ".join(runs(missing)[:_MOST_RANGES])
        yield f"Ranks {shown} of {world} were never seen: no exporter on their nodes, or no hook in them."
    if outside := [use for use in uses if not use.hook]:
        yield (
            f"{plural(len(outside), 'process', 'es')} of {len(uses)} did not use the hook (gpugauge run): steps, waits "
            "and most causes are not known."
        )
    verdicts = [facts.info(DECIDED).get("undecidable", "") for facts in found.facts.values()]
    if undecided := {cause for causes in verdicts for cause in causes.split(",") if cause}:
        yield f"Neither shown nor excluded, for want of evidence: {', '.join(sorted(undecided))}."
    if left_out := plural(without_energy, "GPU") if without_energy else "":
        yield f"The energy of {left_out} is left out: not reported, or other programs used them at the same time."


def _times(found: Found, uses: Sequence[ProcessUse]) -> Iterator[str]:
    for node in sorted({use.node for use in uses}):
        of_node = [use for use in uses if use.node == node]
        uncounted = sum(use.uncounted_seconds for use in of_node)
        silent = max(sum(end - begin for begin, end in found.facts[use.process].gaps) for use in of_node)
        if uncounted:
            yield f"On {node}, {duration(uncounted)} of its processes are in no counter: its exporter was restarted."
        if silent:
            yield f"On {node}, no samples in {duration(silent)}: what came in it is counted, not known by the minute."
