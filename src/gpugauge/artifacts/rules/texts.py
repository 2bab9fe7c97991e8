"""Templates for the annotations of alerts. Numbers and names are in annotations, never in labels.

The templates for Prometheus read recorded series with `query`. Grafana evaluates the same template language, but its
`query` returns nothing and its `$value` is text, so the templates for Grafana use the value and labels only: those of
the alert, and those of TEXTS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpugauge.artifacts.rules import recording as rec
from gpugauge.artifacts.rules.promql import JOB_LABELS, PROCESS_JOB, Selectors
from gpugauge.artifacts.rules.ranks import RANK_BEHIND, RANK_POSITION
from gpugauge.verdict import loaders
from gpugauge.verdict.causes import CAUSES, UNEXPLAINED
from gpugauge.verdict.step import LIMITS
from gpugauge.workload.job import UNIQUE, WORDS

_LISTED = 5
# By subject of an alert: its labels that queries match.
_LABELS = {"job": JOB_LABELS, "gpu": ("instance", "uuid"), "node": ("instance",)}
# The names that Grafana gives to the query of an imported rule, and to the first query of a rule.
_QUERIES_OF_GRAFANA = ("query", "A")
# What follows `gpugauge run --`, by the command of a process, which has no arguments.
_COMMAND = (
    '{{ $name := .Labels.workload_command }}{{ if match ".[.]py$" $name }}python {{ $name }}'
    '{{ else if match "^[A-Za-z_0-9]+([.][A-Za-z_0-9]+)+$" $name }}python -m {{ $name }}'
    "{{ else }}{{ $name }}{{ end }} …"
)


@dataclass(frozen=True)
class Texts:
    """The parts of the texts, for the program that evaluates the alerts."""

    selectors: Selectors

    @property
    def _queries(self) -> bool:
        return self.selectors.engine == "prometheus"

    def _label(self, label: str, before: str = "", after: str = "") -> str:
        return f"{{{{ with $labels.{label} }}}}{before}{{{{ . }}}}{after}{{{{ end }}}}"

    def _cluster(self) -> str:
        label = self.selectors.cluster_label
        return self._label(label, " in cluster ") if label else ""

    def value(self, function: str = "humanize", digits: int = 2) -> str:
        """Return the value of the alert, written by a function of templates."""
        if self._queries:
            return f'{{{{ printf "%.{digits}f" $value | {function} }}}}'
        is_query = " ".join(f'(eq $name "{name}")' for name in _QUERIES_OF_GRAFANA)
        return (
            f"{{{{ range $name, $found := $values }}}}{{{{ if or {is_query} }}}}"
            f'{{{{ printf "%.{digits}f" $found.Value | {function} }}}}{{{{ end }}}}{{{{ end }}}}'
        )

    def share(self) -> str:
        """Return the value of the alert as a percentage."""
        return self.value("humanizePercentage")

    # --- jobs ---

    def job(self) -> str:
        """Return what people call the alert's job, for Prometheus with its user; its pod if the job is not known."""
        namespace = self._label("workload_namespace", "", "/")
        pod = f"pod {namespace}{self._label('workload_pod')}"
        job, users = _job("$labels", namespace), f'count by (workload_user) ({rec.PROGRAMS}{{@job,workload_user!=""}})'
        if self._queries:
            job += self._listed("users", self._query(users), "workload_user", before=" of user ")
        return f"{{{{ with $labels.workload_job }}}}{job}{{{{ else }}}}{pod}{{{{ end }}}}{self._cluster()}"

    def _query(self, query: str, *more: str) -> str:
        """Return a pipeline with the result of a query: @job, @gpu, @node are matchers of the alert, %q more values."""
        values: list[str] = []

        def matchers(mark: re.Match[str]) -> str:
            labels = [label for label in (self.selectors.cluster_label, *_LABELS[mark[1]]) if label]
            values.extend(f"$labels.{label}" for label in labels)
            return ",".join(f"{label}=%q" for label in labels)

        text = re.sub("@(job|gpu|node)", matchers, query)
        return f"printf `{text}` {' '.join([*values, *more])} | query"

    def _each(self, pipeline: str, text: str) -> str:
        """Return a text for each series in the result; none for Grafana."""
        return f"{{{{ range {pipeline} }}}}{text}{{{{ end }}}}" if self._queries else ""

    def _listed(self, name: str, pipeline: str, label: str, item: str = "", before: str = "") -> str:
        """Return the values of a label in the result, at most five, and their number. In `item`, $one is the series."""
        shown = item or f"{{{{ $one.Labels.{label} }}}}"
        return (
            f'{{{{ ${name} := {pipeline} | sortByLabel "{label}" }}}}{{{{ if ${name} }}}}{before}{{{{ end }}}}'
            f"{{{{ range $place, $one := ${name} }}}}{{{{ if lt $place {_LISTED} }}}}"
            f"{{{{ if $place }}}}, {{{{ end }}}}{shown}{{{{ end }}}}{{{{ end }}}}"
            f"{{{{ if gt (len ${name}) {_LISTED} }}}}, … ({{{{ len ${name} }}}} in all){{{{ end }}}}"
        )

    def nodes(self, before: str = "") -> str:
        """Return the nodes of the job with the indexes of its GPUs, such as `node-1 GPU 0, 1`."""
        if not self._queries:
            others = self._label("nodes", '{{ if ne . "1" }} (one of ', " nodes){{ end }}")
            return self._label("instance", before, others)
        devices = self._query(f"max by (index) ({rec.DEVICES}{{@job,instance=%q}})", "$one.Labels.instance")
        item = "{{ $one.Labels.instance }}" + self._listed("indexes", devices, "index", before=" GPU ")
        nodes = self._query(f"count by (instance) ({rec.PROGRAMS}{{@job}})")
        return self._listed("nodes", nodes, "instance", item, before)

    def places(self) -> str:
        """Return sentences with the nodes, GPUs, pods and programs of the job."""
        if not self._queries:
            return self.nodes(" On ") + "."
        pods, programs = (
            self._query(f'count by ({label}) ({rec.PROGRAMS}{{@job,{label}!=""}})')
            for label in ("workload_pod", "workload_command")
        )
        return (
            self.nodes(" On ")
            + self._listed("pods", pods, "workload_pod", before="; pods ")
            + self._listed("programs", programs, "workload_command", before="; programs ")
            + "."
        )

    def causes(self) -> str:
        """Return the two largest causes in words with their shares; for Grafana, the largest."""
        if not self._queries:
            return f"{{{{ with $labels.cause }}}}It {_phrase('.')}. {{{{ end }}}}"
        # sort_desc, because the order of the result of a query in Prometheus 3 is random.
        largest = self._query(f"sort_desc(topk(2, {rec.LOST}{{@job}} >= 0.05))")
        return (
            f"{{{{ $losses := {largest} }}}}{{{{ range $place, $one := $losses }}}}"
            "{{ if $place }}, and {{ else }}It {{ end }}"
            f'{_phrase("$one.Labels.cause")} ({{{{ printf "%.2f" $one.Value | humanizePercentage }}}}'
            "{{ if not $place }} of its GPU time is lost{{ end }}){{ end }}{{ if $losses }}. {{ end }}"
        )

    def _largest(self, text: Callable[[str], str], otherwise: str = "") -> str:
        """Return a text about the largest cause, made with the expression of its name."""
        if not self._queries:
            return f"{{{{ with $labels.cause }}}}{text('.')}{{{{ else }}}}{otherwise}{{{{ end }}}}"
        found = text(".Labels.cause") + (f"{{{{ else }}}}{otherwise}" if otherwise else "")
        return self._each(self._query(f"topk(1, {rec.LOST}{{@job}} >= 0.05)"), found)

    def main_cause(self) -> str:
        """Return the largest cause in words, for a summary."""
        return self._largest(lambda cause: f": it {_phrase(cause)}")

    def advice(self) -> str:
        """Return what to do about the largest cause; the command of the hook for processes without it."""
        outside = (
            "Processes without the hook: {{ .Value }}; of these only the load is known. Start it under the "
            "hook to see why: `gpugauge run -- "
        )
        changes = {cause: self.change(cause) for cause in CAUSES if cause != "unknown"}
        unknown, none = UNEXPLAINED, "No cause takes 5% of its GPU time now. "
        if not self._queries:
            unknown += ". Without the hook only the load is known: `gpugauge run -- …`"
            none = f"What to do: {unknown}. "
        advice = self._largest(lambda cause: f"What to do: {cases(cause, changes, unknown)}. ", none)
        if not self.selectors.training_matchers:
            return advice
        command = self._each(self._query(f"topk(1, sum by (workload_command) ({rec.PROGRAMS}{{@job}}))"), _COMMAND)
        return advice + self._each(self._query(f"{rec.OUTSIDE}{{@job}}"), f"{outside}{command}`. ")

    def change(self, cause: str) -> str:
        """Return what removes a cause, with the measured numbers; that of the loader is by most diagnoses."""
        general = CAUSES[cause].advice
        matchers = f"{{{self._targets[1:]}}}" if self._targets else ""
        of_job = f"{matchers} {self.selectors.on_process('and', PROCESS_JOB)}{{@job}}"
        if cause in {"underfilled", "host_bound"}:
            factor = self._query(f"min(training_batch_headroom_ratio{of_job}) >= 1.5")
            times = '{{ printf "%.1f" .Value }} times as large'
            return general + self._each(factor, f"; the device memory has room for a batch up to {times}")
        if cause != "data_loading" or not self._queries:
            return general
        reason = self._query(f"topk(1, count by (reason) (training_loader_limited_by{of_job}))")
        number = self._query(f"max(training_loader_workers_recommended{of_job})")
        present = self._query(f"topk(1, count by (workers) (torch_loader_info{of_job}))")
        instead = self._each(present, "{{ with .Labels.workers }} instead of {{ . }}{{ end }}")
        workers = f'{{{{ printf "%.0f" .Value }}}} loader workers{instead}{cases("$reason", loaders.MORE, "")}'
        otherwise = f"{{{{ else }}}}{general}"
        changes = cases("$reason", loaders.CHANGES, self._each(number, workers + otherwise))
        return self._each(reason, f"{{{{ $reason := .Labels.reason }}}}{changes}{otherwise}")

    def gain(self, cause: str = "") -> str:
        """Return by what factor the steps are faster without a cause, by default the largest, and the next limit."""
        if not self._queries:
            least, limit = (f"$labels.{label}" for label in rec.GAIN_LABELS)
            return f"{{{{ with {least} }}}}{_gain('{{ . }}', _next(limit))}{{{{ end }}}}"
        if cause:
            return self._gain_without(f'"{cause}"')
        return self._largest(lambda cause: f"{{{{ $cause := {cause} }}}}{self._gain_without('$cause')}")

    def _gain_without(self, cause: str) -> str:
        least = self._query(rec.LEAST_SPEEDUP.format("@job,cause=%q,"), cause)
        limit = self._each(self._query(f"{rec.NEXT_LIMIT}{{@job,cause=%q}}", cause), _next(".Labels.next"))
        return self._each(least, _gain('{{ printf "%.1f" .Value }}', limit))

    def since(self, alert: str) -> str:
        """Return since when the alert's condition holds, and the GPU hours that the job has lost."""
        begin = self._query(f'min(ALERTS_FOR_STATE{{alertname="{alert}",@job}})')
        hours = self._query(rec.gpu_hours(f"{rec.HOURS_LOST}{{@job}}", "7d"))
        return self._each(begin, "Low since {{ .Value | humanizeTimestamp }}. ") + self._each(
            hours, '{{ printf "%.1f" .Value }} GPU hours lost so far. '
        )

    def since_when(self, alert: str, xids: str = "") -> str:
        """Return since when an alert about a GPU fires, or since its oldest Xid error of a class."""
        errors = f'min(gpu_xid_unrepaired_timestamp_seconds{{@gpu,class="{xids}"{self._targets}}}) or '
        begin = self._query(f'{errors if xids else ""}min(ALERTS_FOR_STATE{{alertname="{alert}",@gpu}})')
        return self._each(begin, " Since {{ .Value | humanizeTimestamp }}.")

    def behind(self) -> str:
        """Return the ranks that hold the others up, with their GPUs, and what they do; nothing for Grafana."""
        if not self._queries:
            return ""
        waits = "waits{{ with $one.Labels.function }} in {{ . }}{{ end }}"
        slow = 'works {{ printf "%.1f" $one.Value }} times as long as the median rank'
        process, node = "$one.Labels.process", "$one.Labels.instance"
        slow += self._each(
            self._query(f"topk(1, training_limited_by{{process=%q{self._targets}}} == 1)", process),
            f": it {_phrase('.Labels.cause')}",
        )
        phase = self._query(f'topk(1, torch_phase{{phase!="other",process=%q{self._targets}}} == 1)', process)
        here = "waits for no other rank" + self._each(phase, " while {{ .Labels.phase }}")
        does = {"silent": "does not answer", "ended": "has ended", "waiting": waits, "slow": slow}
        held = f"gpu_process_memory_used_bytes{{instance=%q,process=%q{self._targets}}}"
        devices = f"max by (index) (gpu_info{{instance=%q{self._targets}}} and on ({self.selectors.gpu}) {held})"
        item = "rank {{ $one.Labels.rank }} on {{ $one.Labels.instance }}"
        item += self._listed("indexes", self._query(devices, node, node, process), "index", before=" GPU ") + " "
        item += cases("$one.Labels.position", does, here)
        ranks = self._query(f"{RANK_BEHIND}{{@job}}")
        waiting = self._query(f'topk(1, count by (function) ({RANK_POSITION}{{@job,position="waiting"}}))')
        others = "{{ .Value }} {{ if eq .Value 1.0 }}rank waits{{ else }}ranks wait{{ end }}"
        others += "{{ with .Labels.function }} in {{ . }}{{ end }}. {{ else }}. "
        listed = self._listed("ranks", ranks, "rank", item, "Behind: ")
        return f"{listed}{{{{ if $ranks }}}}{self._each(waiting, f'; {others}')}{{{{ end }}}}"

    def stack(self) -> str:
        """Return the command that shows the ranks of the job on a node."""
        return "`gpugauge stack '{{ $labels.workload_job }}'`"

    # --- GPUs and exporters ---

    @property
    def _targets(self) -> str:
        """The matchers of targets after others, as a format for printf."""
        matchers = self.selectors.target_matchers.replace("%", "%%")
        return f",{matchers}" if matchers else ""

    def reason_down(self) -> str:
        """Return the reasons for which the alert's GPU does not answer."""
        return self._each(self._query(f"gpu_down_reason{{@gpu{self._targets}}}"), " Reason: {{ .Labels.reason }}.")

    def reason_blind(self) -> str:
        """Return the reason for which the alert's exporter cannot read the driver."""
        down = f'gpugauge_driver_up{{@node,reason!~"released|off"{self._targets}}} == 0'
        return self._each(self._query(down), " Reason: {{ .Labels.reason }}.")

    def seen_last(self) -> str:
        """Return when values of the alert's exporter were scraped last."""
        newest = f"gpugauge_snapshot_timestamp_seconds{{@node{self._targets}}}"
        return self._each(
            self._query(f"max(last_over_time({newest}[1d]))"), "Seen last at {{ .Value | humanizeTimestamp }}. "
        )

    def pods(self, *, lost: bool = False) -> str:
        """Return the pods and other jobs whose processes hold memory of the alert's GPU, and the pods to which it is
        allocated; of a GPU that is `lost`, those of the last hour. They are no labels, because they change while the
        alert fires.
        """

        def of(series: str) -> str:
            return f"last_over_time({series}[1h])" if lost else series

        memory = self.selectors.on_process("and", of(f"gpu_process_memory_used_bytes{{@gpu{self._targets}}}"))
        named, other = (f"{by}{self._targets}" for by in ('workload_pod!=""', 'workload_pod="",workload_job!=""'))
        pods = f"{of(f'gpu_process_info{{@node,{named}}}')} {memory} or gpu_allocation_info{{@gpu,{named}}}"
        pods = self._query(f"count by (workload_namespace, workload_pod) ({pods})") + ' | sortByLabel "workload_pod"'
        info = of(f"gpu_process_info{{@node,{other}}}")
        jobs = f"count by (workload_job_kind, workload_job, workload_user) ({info} {memory})"
        user = "{{ with .Labels.workload_user }} of user {{ . }}{{ end }}."
        return self._each(
            pods, " Used by pod {{ .Labels.workload_namespace }}/{{ .Labels.workload_pod }}."
        ) + self._each(f'{self._query(jobs)} | sortByLabel "workload_job"', f" Used by {_job('.Labels')}{user}")

    def released_until(self) -> str:
        """Return the time at which the exporter attaches again by itself."""
        until = self._query(f"gpugauge_driver_released_until_timestamp_seconds{{@node{self._targets}}}")
        return self._each(until, " It attaches again at {{ .Value | humanizeTimestamp }}.")

    def exporter(self) -> str:
        """Return the instance of the alert's exporter."""
        return "gpugauge on {{ $labels.instance }}" + self._cluster()


def _gain(factor: str, limit: str) -> str:
    return f"Expected: steps at least {factor} times as fast{limit}. "


def _next(limit: str) -> str:
    """Return the limit that comes next, whose name is the value of an expression."""
    words = {name: f"limited by {text}" for name, text in LIMITS.items()}
    return f", then {cases(limit, words, f'it {_phrase(limit)}')}"


def _phrase(cause: str) -> str:
    """Return what a process with a cause does, as the views say it; its name is the value of an expression."""
    return cases(cause, {name: each.phrase for name, each in CAUSES.items()}, f"is limited by {{{{ {cause} }}}}")


def _job(labels: str, namespace: str = "") -> str:
    """Return what people call a job, as the views say it; its kind and its name are `labels`."""
    kind, special = f"{labels}.workload_job_kind", {each: row for each, row in WORDS.items() if row[1] != UNIQUE}
    words = cases(kind, {each: before for each, (before, _, _) in WORDS.items()}, f"{{{{ {kind} }}}} ")
    names = {
        each: f'{{{{ reReplaceAll "{pattern}" "{shown}" {labels}.workload_job }}}}'
        for each, (_, pattern, shown) in {**special, "": ("", UNIQUE, "")}.items()
    }
    return words + namespace + cases(kind, names, names.pop(""))


def cases(name: str, texts: Mapping[str, str], otherwise: str) -> str:
    """Return the text for the value of an expression."""
    found = [f'if eq {name} "{value}" }}}}{text}' for value, text in texts.items()]
    return "{{ " + "{{ else ".join(found) + f"{{{{ else }}}}{otherwise}{{{{ end }}}}" if found else otherwise
