"""The jobs, users or namespaces that lost most in a span of time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpugauge.base import serving
from gpugauge.exposition.trainings import HELD, LOST, MEMORY, SECONDS
from gpugauge.report import jobs
from gpugauge.report.build import by_product, energy
from gpugauge.report.model import VERSION, Cost, GpuHours
from gpugauge.report.prices import Prices
from gpugauge.report.render import Block, amount, hours, listed, when
from gpugauge.report.source import Prometheus, Range
from gpugauge.status.words import SIMULATED, cause_phrase, percent, plural
from gpugauge.terminal.columns import cut

# The name and the words of who holds GPU time.
BY: Mapping[str, Callable[[jobs.Owner], tuple[str, str]]] = {
    "job": lambda owner: (owner.job.text, owner.job.words),
    "user": lambda owner: (owner.user, owner.user or "not known"),
    "namespace": lambda owner: (owner.job.namespace, owner.job.namespace or "none"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One of them."""

    name: str
    title: str
    jobs: int
    users: Sequence[str]
    programs: Sequence[str]
    nodes: Sequence[str]
    unmeasured: int  #: ranks of its jobs that were never seen
    begin: float  #: Unix time, of the first process in the time
    gpu_hours: GpuHours
    energy_joules: float | None  #: of the GPUs that nobody else used at the same time
    cost: Cost | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """All of them, the largest loss first."""

    version: int = VERSION
    simulated: bool  #: whether GPUs of a node do not exist
    by: str
    begin: float  #: Unix time, from which on there are data
    end: float  #: Unix time
    rows: Sequence[Row]
    unknown: Sequence[str]  #: what could not be known, in sentences


def read(source: Prometheus, span: Range, by: str, prices: Prices) -> Top:
    """Return what all jobs lost. Raises RequestError, and ReportError if there are none."""
    owners = jobs.owners(source, span)
    found = jobs.read(source, owners, span, (HELD, LOST, SECONDS), (MEMORY,))
    groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for process, each in found.facts.items():
        if each.sum(HELD) and serving.role(owners[process].command) != "server":  # no view judges servers
            groups[BY[by](owners[process])].append(process)
    if not groups:
        raise jobs.ReportError("no training held GPU time in this time")
    rows, missing = [], dict[str, None]()
    for (name, title), processes in groups.items():
        products, (joules, _) = by_product(found, processes), energy(found, processes)
        missing |= dict.fromkeys(prices.missing(products))
        whose, hours_of_all = [owners[process] for process in processes], GpuHours.sum([*products.values()])
        of = ({o.user for o in whose}, {o.command for o in whose}, {o.node for o in whose})
        users, programs, nodes = (sorted(names - {""}) for names in of)
        begin, of_jobs = min(found.facts[process].begin for process in processes), Counter(o.job for o in whose)
        unmeasured = sum(max(0, {o.job: o.ranks for o in whose}[job] - seen) for job, seen in of_jobs.items())
        cost = prices.cost(products, joules)
        rows.append(
            Row(name, title, len(of_jobs), users, programs, nodes, unmeasured, begin, hours_of_all, joules, cost)
        )
    rows.sort(key=lambda row: (-row.gpu_hours.all_lost, row.name))
    unknown = [*missing, *sorted(source.warnings)]
    if unmeasured := max(row.unmeasured for row in rows):
        unknown.append(f"Ranks that were never seen, as in (+{unmeasured} ranks), are in no figure.")
    if partly := [each for each in found.facts.values() if each.uncounted]:
        unknown.append(
            f"{plural(len(partly), 'process', 'es')} of {len(found.facts)} ran for a time that is in no counter, "
            "which does not count as held: the report on the job has more."
        )
    begin = min(facts.begin for facts in found.facts.values())
    return Top(simulated=found.simulated, by=by, begin=begin, end=span.end, rows=rows, unknown=unknown)


def blocks(top: Top, most: int) -> list[Block]:
    """Return them as a table of at most so many."""
    total = GpuHours.sum([row.gpu_hours for row in top.rows])
    priced = any(row.cost is not None and row.cost.held is not None for row in top.rows)
    who = {"job": ("user", "program"), "user": ("program",), "namespace": ("user",)}[top.by]
    currency = next((row.cost.currency for row in top.rows if row.cost), "") or "costs"
    costs = [f"held {currency}", f"lost {currency}"] if priced else []
    unit = hours(total.held, total.held).partition(" ")[2]
    head = [top.by, *who, f"{unit} lost", "share", *costs, "because it mostly"]
    largest_row = max(row.gpu_hours.all_lost for row in top.rows)
    digits = max(1.0, 3 * largest_row) if total.held >= 1 else total.held
    rows, titles = [], Counter(row.title for row in top.rows)
    for row in top.rows[:most]:
        cost, found = row.cost, row.gpu_hours
        prices = [amount(part, "") for part in (cost.held, cost.lost)] if cost and priced else []
        programs = [name for name in row.programs if name not in row.title]
        named = [cut(listed({"user": row.users, "program": programs}[each], 2), 24) for each in who]
        lost, mostly = hours(found.all_lost, digits).split()[0], next(map(cause_phrase, found.lost), "-")
        share = percent(found.lost_share)
        which = f" on {listed(row.nodes, 1)}, {when(row.begin)}" if titles[row.title] > 1 else ""
        which += f" (+{row.unmeasured} ranks)" if row.unmeasured else ""
        rows.append([cut(row.title, 32) + which, *named, lost, share, *prices, mostly])
    shares = {cause: percent(lost / total.all_lost) for cause, lost in total.lost.items()}
    first, known = next(iter(shares), ""), next((cause for cause in shares if cause != "unknown"), "")
    part = f" The largest {'known ' if first == 'unknown' else ''}part of the loss, {shares.get(known)}: a program"
    largest = [f"{part} {cause_phrase(known)}."] if known else []
    if shares.get("unknown", "0 %") != "0 %":
        largest.insert(first != "unknown", f" The cause of {shares['unknown']} of it is not known.")
    held, all_lost = (hours(each, total.held) for each in (total.held, total.all_lost))
    head_line = f"{plural(len(top.rows), top.by)} held {held} from {when(top.begin)} to {when(top.end)}, and lost "
    lines = [*[SIMULATED] * top.simulated, f"{head_line}{all_lost} ({percent(total.lost_share)}).{''.join(largest)}"]
    lines += ["More on one of them: gpugauge report JOB."] * (top.by == "job")
    table = Block("GPU time", lines, [head, *rows], frozenset(range(1 + len(who), len(head) - 1)))
    return [table, *([Block("What could not be known", top.unknown)] if top.unknown else [])]
