"""PromQL of the rules: selectors of the catalogue's metrics, and the labels to aggregate and to join by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpugauge import catalog
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.base.duration import format_duration

# The labels that identify a job. Alerts never carry the label `process`: it changes with every restart.
JOB_LABELS = ("workload_job_kind", "workload_namespace", "workload_job")
# Of a process whose job is not known yet, or that has none, these labels are empty.
HAS_JOB = "!"
PROCESS_JOB = "gpugauge:process_job:info"
# By instance: the exporter's own clock, the share of `patience` in which it was scraped, 0 while scrapes fail at times.
CLOCK = "gpugauge:exporter_clock:seconds"
SEEN = "gpugauge:exporter_seen:ratio"
FAILING = "gpugauge:exporter_failing:bool"


class UnknownMetricError(ValueError):
    """A query names a metric or label that is not in the catalogue."""


class Selectors(Parameters):
    """Parameters that write selectors; every name and label in them must be in the catalogue."""

    @classmethod
    def of(cls, p: Parameters) -> Selectors:
        """Return the writer with the same parameters."""
        return cls.model_construct(**dict(p))

    def __call__(self, name: str, window: int | None = None, *more: str, **labels: str) -> str:
        """Return `name{label="value",…}[window]`. A value may begin with ~, ! or !~. Raises UnknownMetricError."""
        row = next((row for row in catalog.metrics() if row.name == name), None)
        unknown = labels.keys() - set(row.labels) if row else {name}
        if unknown:
            raise UnknownMetricError(f"{name}: {', '.join(sorted(unknown))} is not in the catalogue")
        signs = {"": "=", "~": "=~", "!": "!=", "!~": "!~"}
        values = {key: value.lstrip("~!") for key, value in labels.items()}
        matchers = [f'{key}{signs[labels[key].removesuffix(value)]}"{value}"' for key, value in values.items()]
        return self.matched(name, *matchers, *more) + (f"[{format_duration(window)}]" if window else "")

    def matched(self, name: str, *matchers: str) -> str:
        """Return `name{matchers}` with those of the parameters."""
        text = ",".join(filter(None, [*matchers, self.target_matchers]))
        return name + (f"{{{text}}}" if text else "")

    def rate(self, name: str, window: int, **labels: str) -> str:
        """Return the increase per second over the whole window; that of VictoriaMetrics is over the samples."""
        return f"increase({self(name, window, **labels)}) / {window}"

    def risen(self, name: str, window: int, **labels: str) -> str:
        """Return the increase of the series that have increased, for those of which most stay as they are."""
        return f"(increase({self(name, window, **labels)}) > 0)"

    def last(self, name: str, *more: str, **labels: str) -> str:
        """Return the last value of a gauge, so that a failed scrape does not hide it."""
        return f"last_over_time({self(name, self.lookback, *more, **labels)})"

    def present(self, name: str, window: int = 0, **labels: str) -> str:
        """Return the series that are there; of an exporter whose scrapes fail, those that were there in the window."""
        window = window or 4 * self.scrape_interval
        last = f"last_over_time({self(name, window, **labels)})"
        return f"({self(name, None, **labels)} or {last} and on ({self.keys('instance')}) {FAILING})"

    def seen(self, expr: str) -> str:
        """Return an increase, which is 0 while the exporter is down, relative to the time in which it was up."""
        return f"{expr} / on ({self.keys('instance')}) group_left () {SEEN}"

    def clock(self, offset: int) -> str:
        """Return the right side of a comparison with the exporter's own clock: clocks of machines differ."""
        sign = "-" if offset < 0 else "+"
        return f"on ({self.keys('instance')}) group_left () ({CLOCK} {sign} {abs(offset)})"

    def up(self, window: int | None = None) -> str:
        """Return the selector of `up`, which Prometheus records for each exporter."""
        return self.matched("up", self.up_matchers) + (f"[{format_duration(window)}]" if window else "")

    @property
    def job(self) -> str:
        """The labels of a job."""
        return self.keys(*JOB_LABELS)

    @property
    def gpu(self) -> str:
        """The labels of a GPU. Simulated GPUs of two machines have the same uuid."""
        return self.keys("instance", "uuid")

    def keys(self, *labels: str) -> str:
        """Return the labels for `by` and `on`, after that of the cluster: two clusters may have equal names."""
        return ", ".join(filter(None, (self.cluster_label, *labels)))

    def by_process(self, expr: str) -> str:
        """Aggregate an expression to one series for each process, without the labels of the scrape."""
        return f"max by ({self.keys('process')}) ({expr})"

    def on_process(self, operator: str, expr: str) -> str:
        """Return `and` or `unless` with the processes in the result of an expression."""
        return f"{operator} on ({self.keys('process')}) {expr}"

    def first(self, exprs: Iterable[str]) -> str:
        """Return the series of each process in the first expression that has it."""
        return "(" + f"\n  or on ({self.keys('process')}) ".join(exprs) + ")"

    def before(self, name: str, window: int, **labels: str) -> str:
        """Return `and` with the processes that had the series around the begin of the window."""
        return self.on_process("and", self.at_begin(name, window, **labels))

    def at_begin(self, name: str, window: int, **labels: str) -> str:
        """Return the series that existed around the begin of the window."""
        seen = self(name, self.keep_firing + window // 10, **labels)
        return f"count_over_time({seen} offset {format_duration(window - window // 10)})"

    def settled(self, recorded: str) -> str:
        """Return `and` with the jobs that had a recorded series `settle` ago: a restart of Prometheus forgets `for`."""
        window = format_duration(self.settle + 4 * self.evaluation_interval)
        return self.and_job(f"count_over_time({recorded}[{window}] offset {format_duration(self.settle)})")

    def by_job(self, operator: str, expr: str, *more: str, of: Sequence[str] = (PROCESS_JOB, *JOB_LABELS)) -> str:
        """Aggregate over processes, each once, to jobs and `more` labels; `of`: a series of owners, its labels."""
        info, *labels = of
        if operator in {"sum", "count"}:
            expr = f"max by ({self.keys('process', *more)}) ({expr})"
        return (
            f"{operator} by ({self.keys(*labels, *more)}) (\n  {expr}\n"
            f"  * on ({self.keys('process')}) group_left ({', '.join(labels)}) {info}\n)"
        )

    def jobs_with(self, expr: str) -> str:
        """Return 1 for each job with a process in the result of the expression; `and` costs less than a join."""
        return f"max by ({self.job}) (\n  {PROCESS_JOB} {self.on_process('and', expr)}\n)"

    def and_job(self, expr: str) -> str:
        """Return `and` with the jobs in the result of an expression, on a line of its own."""
        return f"\nand on ({self.job}) {expr}"

    def unless_job(self, expr: str) -> str:
        """Return `unless` with the jobs in the result of an expression, on a line of its own."""
        return f"\nunless on ({self.job}) {expr}"
