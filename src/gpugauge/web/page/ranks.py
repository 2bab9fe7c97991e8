"""The ranks of distributed trainings: a roll call of those that make no progress, and a table of all."""

from __future__ import annotations

from collections.abc import Sequence

from gpugauge.status.model import ProcessStatus, Status
from gpugauge.status.owner import job_key, owner_words
from gpugauge.status.standstill import own_work, place, roll_call, slower
from gpugauge.status.words import duration, percent, plural
from gpugauge.web.page.draw import ABSENT, mark, name, text

_MAX_RANKS = 16  # of a job; the API has all
_HEADINGS = ("Rank", "Step", "Own work", "Phase", "Waits in", "At", "No progress for", "Behind by")


def ranks(status: Status) -> str:
    """Return the ranks by job, "" without a distributed training."""
    jobs: dict[tuple[str, ...], dict[str, ProcessStatus]] = {}
    for p in (*(p for gpu in status.gpus for p in gpu.processes), *status.without_gpu, *status.ended):
        if p.rank is not None and (p.world_size or 1) > 1 and (p.ended is None or p.standstill):
            jobs.setdefault((*job_key(p.workload), str(p.world_size)), {})[p.process] = p
    return "".join(_job([*found.values()], status.timestamp) for found in jobs.values())


def _job(found: Sequence[ProcessStatus], now: float) -> str:
    lines = roll_call(found).items()
    items = "".join(f'<li class="{"bad" if behind else "poor"}">{text(line)}</li>\n' for line, behind in lines)
    longer = {} if lines else slower(found)
    furthest = max((p.steps for p in found if p.steps is not None), default=0)

    def steps_behind(p: ProcessStatus) -> float:
        return furthest - p.steps if p.standstill and p.steps is not None else 0

    def order(p: ProcessStatus) -> tuple[bool, float, float, int]:
        late = p.standstill is not None and p.standstill.behind
        return not late, -longer.get(p.process, 0.0), -steps_behind(p), p.rank or 0

    def row(p: ProcessStatus) -> str:
        still, step, times = p.standstill, steps_behind(p), longer.get(p.process)
        behind = [mark("bad", "the others wait for it")] if still and still.behind else []
        behind += [mark("poor", f"works {times:.1f} times as long as the median")] if times else []
        behind += [plural(round(step), "step")] if step else []
        cells = (
            *(ABSENT if p.steps is None else f"{p.steps:.0f}", percent(own_work(p)), text(p.phase) or ABSENT),
            name(still.function) if still and still.function else ABSENT,
            (name(place(still)) if still else "") or ABSENT,
            *(duration(max(0.0, now - still.since)) if still else ABSENT, ", ".join(behind) or ABSENT),
        )
        return f'<tr><th scope="row">{p.rank}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>\n'

    shown = sorted(found, key=order)
    called = f'<ul class="problems">\n{items}</ul>\n' if items else ""
    heading = "".join(f'<th scope="col">{each}</th>' for each in _HEADINGS)
    whose, more = owner_words(shown[0].workload), len(shown) - _MAX_RANKS
    count = (
        f"{len(shown)} of {plural(shown[0].world_size or 0, 'rank')} here{f', {more} not shown' if more > 0 else ''}"
    )
    return (
        f'<section aria-label="Ranks">\n{called}<details{" open" if lines or longer else ""}>'
        f"<summary>{name(whose) if whose else 'Training'}: {count}</summary>\n"
        f'<table class="ranks"><thead><tr>{heading}</tr></thead>\n'
        f"<tbody>\n{''.join(map(row, shown[:_MAX_RANKS]))}</tbody></table></details>\n</section>\n"
    )
