"""The table of the GPUs, each with its MIG devices and processes as rows below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpugauge.driver.advice import down_phrase
from gpugauge.driver.api import SUSPENDED
from gpugauge.driver.vendors import product_name
from gpugauge.status.details import longest_wait
from gpugauge.status.ended import FAILURES
from gpugauge.status.model import FaultStatus, GpuStatus, MigStatus, ProcessStatus, Status, XidStatus
from gpugauge.status.use import MIG_LOAD_UNKNOWN, by_place, faulty_first, mig_loads_unknown, mig_name
from gpugauge.status.words import clock, duration, percent, plural, since_words
from gpugauge.web.page.draw import ABSENT, bar, mark, name, of_sizes, of_watts, sparkline, text
from gpugauge.web.page.links import Links
from gpugauge.web.page.process import COLUMNS, cells, level_order, note, owner, process_rows, running

_MAX_PROCESSES_PER_GPU = 64  # the API has all
_MAX_UNFOLDED_PROCESSES = 48  # on nodes with more, the GPUs are folded
_UNSORTED = frozenset({"chart", "running"})  # columns by which GPUs cannot be sorted

# The state of processes without a GPU, by level, and of trainings on the CPU, which slow no GPU.
_LEVELS = {"bad": "wasted", "poor": "slowed", "good": "on the CPU", "none": ""}


def gpu_table(status: Status, links: Links) -> str:
    """Return the table, "" without GPUs and processes. Above a size the GPUs are folded: a script unfolds them."""
    gpus, ended = status.gpus, status.ended
    shown = {p.process for gpu in gpus for p in gpu.last_processes or () if p.alive}
    alone = [process for process in status.without_gpu if process.process not in shown]
    if not gpus and not alone and not ended:
        return ""
    table = _Table(links, status.timestamp, sum(len(gpu.processes) for gpu in gpus) > _MAX_UNFOLDED_PROCESSES)
    bodies = [table.without_gpu(alone, bool(gpus))] if alone else []
    bodies += map(table.gpu, faulty_first(status), range(len(gpus)))
    bodies += [table.ended(ended)] if ended else []
    return (
        '<table id="gpus"><caption class="hidden">The GPUs and the processes on them</caption>\n'
        f"<thead><tr>{''.join(map(_heading, *zip(*COLUMNS, strict=True)))}</tr></thead>\n{''.join(bodies)}</table>\n"
    )


def _heading(heading: str, column: str) -> str:
    shown = heading if column in _UNSORTED else f'<button type="button" data-sort="{column}">{heading}</button>'
    return f'<th scope="col" class="{column}">{shown}</th>'


class _Table:
    def __init__(self, links: Links, now: float, folded: bool) -> None:
        self._links, self._now, self._folded = links, now, folded

    def without_gpu(self, processes: Sequence[ProcessStatus], any_gpu: bool) -> str:
        """Return the processes with torch that use no GPU: before the GPUs, because a training may be among them."""
        worst = max(processes, key=lambda process: level_order(process.level))
        level = worst.level
        on_cpu = {"bad": "on the CPU", "poor": longest_wait(worst)[0]} if worst.state == "training_on_cpu" else {}
        words = on_cpu.get(level, _LEVELS[level])
        folded = any_gpu and level in {"none", "good"}
        count = plural(len(processes), "process", "es")
        heading = f'{_fold(folded)}<span class="index">No GPU</span> {count} with torch'
        row = _row(heading, [("state", mark(worst.tone, words) if words else "", level_order(level))])
        return _body("no GPU", worst.tone, row + self._processes(processes, "no GPU"), folded)

    def ended(self, processes: Sequence[ProcessStatus]) -> str:
        """Return the trainings that have ended: after the GPUs, because nothing is used any more."""
        failed = sum(process.end_reason in FAILURES for process in processes)
        count = plural(len(processes), "training")
        words = mark("poor", f"{failed} failed") if failed else ""
        heading = f'{_fold(False)}<span class="index">Ended</span> {count}'
        row = _row(heading, [("state", words, level_order("poor" if failed else "none"))])
        return _body("ended", "none", row + self._processes(processes, "ended"), False)

    def gpu(self, gpu: GpuStatus, place: int) -> str:
        shown = gpu.processes if gpu.up else gpu.last_processes or ()
        users = ""
        for device, processes in by_place(gpu, shown[:_MAX_PROCESSES_PER_GPU]):
            users += self._mig(device) if device else ""
            users += self._processes(processes, device.uuid if device else gpu.uuid, nested=device is not None)
        if more := max(0, len(shown) - _MAX_PROCESSES_PER_GPU) + gpu.processes_hidden:
            users += note(f"and {plural(more, 'more process', 'es')}", "more")
        folded = self._folded and bool(users)
        index = "?" if gpu.index is None else gpu.index
        summary = gpu.summary if users and (folded or not gpu.faults) else ""  # the notes have the faults
        heading = (
            f'{_fold(folded) if users else ""}<span class="index"><span class="hidden">GPU </span>{index}</span> '
            f"{name(product_name(gpu.name or 'GPU'))} <small>{text(gpu.uuid)}</small>"
            + (f' <span class="summary">{text(summary)}</span>' if summary else "")
        )
        ages = [age for process in gpu.processes if (age := running(process, self._now)) is not None]
        oldest = [("running", f"<span>{duration(max(ages))}</span>", None)] if ages else []  # shown while it is folded
        row = _row(heading, [*_figures(gpu), *oldest], place)
        return _body(gpu.uuid, gpu.tone, row + "".join(self._notes(gpu)) + users, folded)

    def _notes(self, gpu: GpuStatus) -> Iterator[str]:
        if not gpu.up:
            words = [mark("none" if gpu.down_reason == SUSPENDED else "bad", down_phrase(gpu.down_reason))]
            if gpu.last_seen is not None:
                ago = duration(self._now - gpu.last_seen)
                words.append(f"{since_words(gpu.last_seen)}, {ago} ago.")
            if gpu.advice and (gpu.uuid, gpu.advice) not in self._links.listed:
                words.append(f"<b>Advice:</b> {self._links.advice(gpu.advice, 'GpuLost')}")
            if gpu.last_processes:
                words.append("It was used by:")
            yield note(" ".join(words), "down")
        marks = [self._fault(fault) for fault in gpu.health]
        marks += [self._link("poor", f"clocks lowered: {reason}", "GpuThrottled") for reason in gpu.slowed_by]
        marks += [self._fault(fault) for fault in gpu.faults if fault.kind == "narrow_link"]
        marks += [self._xid(xid) for xid in reversed(gpu.xids)]
        if marks:
            yield note(" ".join(marks), "health")
        if mig_loads_unknown(gpu):
            yield note(f"{text(MIG_LOAD_UNKNOWN)}.", "mig-load")
        if gpu.up and not gpu.processes and not gpu.processes_hidden and gpu.allocated_to:
            owners = ", ".join(filter(None, (owner(holder, self._links) for holder in gpu.allocated_to)))
            yield note(f"{mark('poor', 'allocated, but no process uses it:')} {owners}", "allocated")

    def _fault(self, fault: FaultStatus) -> str:
        words = ", ".join(filter(None, (fault.text, since_words(fault.since, fault.earlier))))
        return self._link("bad" if fault.grave else "poor", words, fault.runbook)

    def _xid(self, xid: XidStatus) -> str:
        level, at = "poor" if xid.advice else "none", clock(xid.last)
        return self._link(level, f"{xid.text}, {at}", xid.runbook)

    def _link(self, level: str, words: str, section: str | None) -> str:
        return f'<span class="mark {level}">{self._links.section(words, section)}</span>'

    def _mig(self, device: MigStatus) -> str:
        holders = ", ".join(filter(None, (owner(holder, self._links) for holder in device.allocated_to)))
        heading = f"MIG <b>{text(mig_name(device))}</b> {holders} <small>{text(device.uuid)}</small>"
        memory, total = device.memory_used_bytes, device.memory_total_bytes
        figures = [
            ("now", percent(device.load), device.load),
            ("memory", of_sizes(memory, total) + bar(memory, total), memory),
        ]
        state = device.state_words
        row = cells([("state", mark("none", state) if state else "", None), *figures])
        key = text(device.uuid)
        return f'<tr class="mig" data-key="{key}"><th scope="row" class="name">{heading}</th>{row}</tr>\n'

    def _processes(self, processes: Sequence[ProcessStatus], where: str, *, nested: bool = False) -> str:
        return "".join(
            process_rows(p, f"{text(p.process)} {text(where)}", self._links, self._now, nested=nested)
            for p in processes
        )


def _figures(gpu: GpuStatus) -> list[tuple[str, str, float | None]]:
    state = ("state", mark(gpu.tone, gpu.state_words), level_order(gpu.level))
    if not gpu.up:
        return [state]
    memory, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    power, limit, degrees = gpu.power_watts, gpu.power_limit_watts, gpu.temperature_celsius
    now, mean = (percent(load) if load is not None or not gpu.mig else "MIG" for load in (gpu.load, gpu.load_5m))
    return [
        state,
        ("now", now, gpu.load),
        ("load", mean, gpu.load_5m),
        ("chart", sparkline(gpu.load_10m), None),
        ("memory", of_sizes(memory, total) + bar(memory, total), memory),
        ("power", of_watts(power, limit) + bar(power, limit), power),
        ("temperature", ABSENT if degrees is None else f"{degrees:.0f} °C", degrees),
    ]


def _row(heading: str, figures: Sequence[tuple[str, str, float | None]], order: float | None = None) -> str:
    sort = "" if order is None else f' data-sort="{order}"'
    return (
        f'<tr class="gpu" data-key="gpu"><th scope="rowgroup" class="name"{sort}>{heading}</th>{cells(figures)}</tr>\n'
    )


def _fold(folded: bool) -> str:
    state, words = "false" if folded else "true", '<span class="hidden">Show processes</span>'
    return f'<button type="button" class="fold" aria-expanded="{state}">{words}</button>'


def _body(key: str, level: str, rows: str, folded: bool) -> str:
    fold = f'class="{level} folded" data-folded' if folded else f'class="{level}"'
    return f'<tbody {fold} data-key="{text(key)}">\n{rows}</tbody>\n'
