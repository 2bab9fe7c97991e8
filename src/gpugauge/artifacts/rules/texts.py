"""Templates for the annotations of alerts. Numbers and names are in annotations, never in labels.

The templates for Prometheus read recorded series with `query`. Grafana evaluates the same template language, but its
`query` returns nothing and its `$value` is text, so the templates for Grafana use the value and labels only: those of
the alert, and those of TEXTS.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpugauge.artifacts.rules.promql import JOB_LABELS, Selectors
from gpugauge.artifacts.rules.recording import (
    DEVICES,
    GAIN_LABELS,
    LOST,
    LOST_GPUS,
    NEXT_LIMIT,
    OUTSIDE,
    PROGRAMS,
    RANK_WORK,
    SPEEDUP,
    SPEEDUP_BOUND,
)
from gpugauge.verdict.causes import CAUSES
from gpugauge.verdict.step import LIMITS

_LISTED = 5
# The names that Grafana gives to the query of an imported rule, and to the first query of a rule.
_QUERIES_OF_GRAFANA = ("query", "A")
_UNKNOWN = "no measured value explains it: `gpugauge doctor` on the node shows what is missing"
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
        """Return a label of the alert, with the text around it only where it has a value."""
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
        """Return the name of the alert's job; of its pod if the job is not known."""
        namespace = self._label("workload_namespace", "", "/")
        job = f"{{{{ $labels.workload_job_kind }}}} {namespace}{{{{ . }}}}"
        pod = f"pod {namespace}{self._label('workload_pod')}"
        return f"{{{{ with $labels.workload_job }}}}{job}{{{{ else }}}}{pod}{{{{ end }}}}{self._cluster()}"

    def _of_job(self, query: str, *more: str) -> str:
        """Return a pipeline with the result of a query, in which @ stands for the matchers of the alert's job, and
        %q for each of the further values.
        """
        labels = [label for label in (self.selectors.cluster_label, *JOB_LABELS) if label]
        matchers = ",".join(f"{label}=%q" for label in labels)
        values = " ".join([*(f"$labels.{label}" for label in labels), *more])
        return f"printf `{query.replace('@', matchers)}` {values} | query"

    def _each(self, pipeline: str, text: str) -> str:
        """Return a text for each series in the result; none for Grafana."""
        return f"{{{{ range {pipeline} }}}}{text}{{{{ end }}}}" if self._queries else ""

    def _listed(self, name: str, pipeline: str, label: str, item: str = "", before: str = "") -> str:
        """Return the values of a label in the result, at most five, then their number; `before` stands before them
        unless there are none. In `item`, $one is the series.
        """
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
        devices = self._of_job(f"max by (index) ({DEVICES}{{@,instance=%q}})", "$one.Labels.instance")
        item = "{{ $one.Labels.instance }}" + self._listed("indexes", devices, "index", before=" GPU ")
        nodes = self._of_job(f"count by (instance) ({PROGRAMS}{{@}})")
        return self._listed("nodes", nodes, "instance", item, before)

    def places(self) -> str:
        """Return sentences with the nodes, GPUs, pods and programs of the job."""
        if not self._queries:
            return self.nodes(" On ") + "."
        pods, programs = (
            self._of_job(f'count by ({label}) ({PROGRAMS}{{@,{label}!=""}})')
            for label in ("workload_pod", "workload_command")
        )
        return (
            self.nodes(" On ")
            + self._listed("pods", pods, "workload_pod", before="; pods ")
            + self._listed("programs", programs, "workload_command", before="; programs ")
            + "."
        )

    def causes(self) -> str:
        """Return the two largest causes with their shares; for Grafana, the name of the largest."""
        if not self._queries:
            return self._label("cause", "Lost mainly to ", ". ")
        # sort_desc, because the order of the result of a query in Prometheus 3 is random.
        largest = self._of_job(f"sort_desc(topk(2, {LOST}{{@}} >= 0.05))")
        return (
            f"{{{{ range $place, $one := {largest} }}}}"
            "{{ if $place }}, then {{ else }}Lost mainly to {{ end }}"
            '{{ $one.Labels.cause }} {{ printf "%.2f" $one.Value | humanizePercentage }}{{ end }}. '
        )

    @property
    def _largest(self) -> str:
        return self._of_job(f"topk(1, {LOST}{{@}} >= 0.05)")

    def main_cause(self) -> str:
        """Return the largest cause, for a summary."""
        if not self._queries:
            return self._label("cause", ", mainly lost to ")
        return self._each(self._largest, ", mainly lost to {{ .Labels.cause }}")

    def advice(self) -> str:
        """Return what to do about the largest cause; the command of the hook for processes without it."""
        outside = (
            "Processes without the hook: {{ .Value }}; of these only the load is known. Start it under the "
            "hook to see why: `gpugauge run -- "
        )
        if not self._queries:
            without = f"{_UNKNOWN}. Without the hook only the load is known: `gpugauge run -- …`"
            advice = f"{{{{ with $labels.cause }}}}{_by_cause('.', without)}{{{{ else }}}}{without}{{{{ end }}}}"
            return f"What to do: {advice}. "
        without = self._of_job(f"{OUTSIDE}{{@}}")
        command = self._each(self._of_job(f"topk(1, sum by (workload_command) ({PROGRAMS}{{@}}))"), _COMMAND)
        return f"What to do: {self._each(self._largest, _by_cause('.Labels.cause', _UNKNOWN))}. " + (
            f"{self._each(without, f'{outside}{command}`. ')}" if self.selectors.training_matchers else ""
        )

    def gain(self, cause: str = "") -> str:
        """Return by what factor the steps are faster without a cause, by default the largest, and the limit that comes
        next; nothing where it is not known.
        """
        if not self._queries:
            expected, lower, upper, limit = (f"$labels.{label}" for label in GAIN_LABELS)
            bounds = f" ({{{{ {lower} }}}} to {{{{ {upper} }}}})"
            text = _gain("{{ $labels.cause }}", "{{ . }}", bounds, _next(limit))
            return f"{{{{ with {expected} }}}}{text}{{{{ end }}}}"
        if cause:
            return self._gain_without(f'"{cause}"', cause)
        return self._each(self._largest, "{{ $cause := .Labels.cause }}" + self._gain_without("$cause", "{{ $cause }}"))

    def _gain_without(self, cause: str, shown: str) -> str:
        """Return the gain without a cause, an expression of templates."""
        expected = self._of_job(f"{SPEEDUP}{{@,cause=%q}}", cause)
        lower, upper = (self._of_job(f'{SPEEDUP_BOUND}{{@,cause=%q,bound="{b}"}}', cause) for b in ("lower", "upper"))
        both = '({{ printf "%.1f" $lower }} to {{ printf "%.1f" .Value }})'
        bounds = self._each(lower, "{{ $lower := .Value }}" + self._each(upper, f" {both}"))
        limit = self._each(self._of_job(f"{NEXT_LIMIT}{{@,cause=%q}}", cause), _next(".Labels.next"))
        return self._each(expected, _gain(shown, '{{ printf "%.1f" .Value }}', bounds, limit))

    def since(self, alert: str) -> str:
        """Return since when the alert's condition holds, and the GPU hours that the job has lost."""
        begin = self._of_job(f'min(ALERTS_FOR_STATE{{alertname="{alert}",@}})')
        # In steps of five minutes, twelve in an hour, independent of the interval of the rules.
        hours = self._of_job(f"sum_over_time({LOST_GPUS}{{@}}[7d:5m]) / 12")
        return self._each(begin, "Low since {{ .Value | humanizeTimestamp }}. ") + self._each(
            hours, '{{ printf "%.1f" .Value }} GPU hours lost so far. '
        )

    def ranks(self) -> str:
        """Return the slowest rank and the median rank."""
        slowest = self._of_job(f"topk(1, {RANK_WORK}{{@}})")
        median = self._of_job(f"quantile(0.5, {RANK_WORK}{{@}})")
        percent = '{{ printf "%.2f" .Value | humanizePercentage }}'
        return self._each(
            slowest, f"Slowest: rank {{{{ .Labels.rank }}}} on {{{{ .Labels.instance }}}} works {percent} of the time"
        ) + self._each(median, f", the median rank {percent}. ")

    # --- GPUs and exporters ---

    def _selector(self, name: str, *labels: str, matcher: str = "") -> str:
        """Return a selector, as a format for printf, with %q for the cluster and each of the labels."""
        s = self.selectors
        escaped = s.model_copy(update={"matchers": s.matchers.replace("%", "%%")})
        keys = filter(None, (s.cluster_label, *labels))
        return escaped.matched(name, *(f"{key}=%q" for key in keys), matcher)

    def _values(self, *labels: str) -> str:
        """Return the alert's labels that a selector with these labels needs."""
        return " ".join(f"$labels.{key}" for key in filter(None, (self.selectors.cluster_label, *labels)))

    def _query(self, name: str, *labels: str) -> str:
        return f"printf `{self._selector(name, *labels)}` {self._values(*labels)} | query"

    def reason_down(self) -> str:
        """Return the reasons for which the alert's GPU does not answer."""
        return self._each(self._query("gpu_down_reason", "instance", "uuid"), " Reason: {{ .Labels.reason }}.")

    def reason_blind(self) -> str:
        """Return the reason for which the alert's exporter cannot read the driver."""
        matcher = 'reason!~"released|off"'
        down = f"{self._selector('gpugauge_driver_up', 'instance', matcher=matcher)} == 0"
        return self._each(f"printf `{down}` {self._values('instance')} | query", " Reason: {{ .Labels.reason }}.")

    def pods(self) -> str:
        """Return the pods whose processes hold memory of the alert's GPU, and those to which it is allocated. They are
        no labels, because they change while the alert fires.
        """
        device = "instance", "uuid"
        named = 'workload_pod!=""'
        query = (
            f"count by (workload_namespace, workload_pod) "
            f"({self._selector('gpu_process_info', 'instance', matcher=named)} "
            f"{self.selectors.on_process('and', self._selector('gpu_process_memory_used_bytes', *device))} "
            f"or {self._selector('gpu_allocation_info', *device, matcher=named)})"
        )
        values = f"{self._values('instance')} {self._values(*device)} {self._values(*device)}"
        pipeline = f'printf `{query}` {values} | query | sortByLabel "workload_pod"'
        return self._each(pipeline, " Used by pod {{ .Labels.workload_namespace }}/{{ .Labels.workload_pod }}.")

    def released_until(self) -> str:
        """Return the time at which the exporter attaches again by itself."""
        until = self._query("gpugauge_driver_released_until_timestamp_seconds", "instance")
        return self._each(until, " It attaches again at {{ .Value | humanizeTimestamp }}.")

    def exporter(self) -> str:
        """Return the instance of the alert's exporter."""
        return "gpugauge on {{ $labels.instance }}" + self._cluster()


def _gain(cause: str, factor: str, bounds: str, limit: str) -> str:
    return f"Without {cause} a step would be about {factor} times as fast{bounds}{limit}. "


def _next(limit: str) -> str:
    """Return the limit that comes next, whose name is the value of an expression."""
    cases = "{{ else ".join(f'if eq {limit} "{name}" }}}}{words}' for name, words in LIMITS.items())
    return f"; the next limit is {{{{ {cases}{{{{ else }}}}{{{{ {limit} }}}}{{{{ end }}}}"


def _by_cause(name: str, otherwise: str) -> str:
    """Return what to do about the cause whose name is the value of an expression."""
    cases = [f'if eq {name} "{cause.name}" }}}}{cause.advice}' for cause in CAUSES.values() if cause.name != "unknown"]
    return "{{ " + "{{ else ".join(cases) + f"{{{{ else }}}}{otherwise}{{{{ end }}}}"
