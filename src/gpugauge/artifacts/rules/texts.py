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
from gpugauge.base.duration import format_duration
from gpugauge.base.serving import LAUNCHERS
from gpugauge.faults.table import FAULTS, SLOWDOWNS
from gpugauge.verdict.causes import BATCHED, BUSY_CAUSES, CAUSES, UNBOUNDED, UNEXPLAINED
from gpugauge.verdict.gain import NARROW
from gpugauge.verdict.step import LIMITS
from gpugauge.workload.job import UNIQUE, WORDS

_LISTED = 5
# By subject of an alert: its labels that queries match.
_LABELS = {
    "job": JOB_LABELS,
    "gpu": ("instance", "uuid"),
    "xid": ("instance", "uuid", "xid"),
    "node": ("instance",),
    "exporter": ("instance", "source", "collector"),
}
# The names that Grafana gives to the query of an imported rule, and to the first query of a rule.
_QUERIES_OF_GRAFANA = ("query", "A")
_TIME = '{{ .Value | humanizeTimestamp | reReplaceAll "([.][0-9]+)? [+]0000" "" }}'
# What follows `gpugauge run --`, by the command of a process, which has no arguments.
_COMMAND = (
    '{{ $name := .Labels.workload_command }}{{ if match ".[.]py$" $name }}python {{ $name }}'
    '{{ else if match "^[A-Za-z_0-9]+([.][A-Za-z_0-9]+)+$" $name }}python -m {{ $name }}'
    "{{ else }}{{ $name }}{{ end }} …"
)


# Each change of an advice in a line of its own.
_STEPS = '{{ if match "; (also|then) " .Labels.advice }}\n- {{ end }}'
_STEPS += '{{ reReplaceAll "; (also|then) " ";\\n- $1 " .Labels.advice }}'
_FACTOR = '{{ printf "%.1f" .Value }}'
_VALUE = '{{ printf "%.0f" .Value }}'
# Metric, matchers and words of what was measured, by alert.
_HEAT = (
    ("gpu_temperature_celsius", 'sensor="gpu"', f" It is at {_VALUE} °C."),
    ("gpu_temperature_limit_celsius", 'limit="slowdown"', f" Its limit is {_VALUE} °C."),
)
_FIGURES = {
    "GpuHot": _HEAT,
    "GpuThrottled": (
        ("gpu_clock_hertz", 'domain="graphics"', " Its clock is at {{ .Value | humanize }}Hz."),
        ("gpu_clock_max_hertz", 'domain="graphics"', " Its highest is {{ .Value | humanize }}Hz."),
        _HEAT[0],
        (
            "gpu_temperature_limit_celsius",
            'limit="gpu_max"',
            f" Its chip is slowed from {_VALUE} °C on: while it is cooler, another part is hot, such as its memory.",
        ),
    ),
    "GpuPcieDegraded": (
        ("gpu_pcie_width", 'when="current"', f" It has {_VALUE} lanes now."),
        ("gpu_pcie_width", 'when="max"', f" It can have {_VALUE}."),
    ),
    "GpuUncorrectedEcc": (
        (
            "gpu_ecc_errors_total",
            'type="uncorrected",scope="volatile"',
            f" Counted since the driver was loaded: {_VALUE}.",
        ),
    ),
}


@dataclass(frozen=True)
class Texts:
    """The parts of the texts, for the program that evaluates the alerts."""

    selectors: Selectors

    @property
    def _queries(self) -> bool:
        return self.selectors.engine == "prometheus"

    def _label(self, label: str, before: str = "", after: str = "", shown: str = "{{ . }}") -> str:
        return f"{{{{ with $labels.{label} }}}}{before}{shown}{after}{{{{ end }}}}"

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
        """Return what people call the alert's job, with its user; its pod if the job is not known."""
        namespace = self._label("workload_namespace", "", "/")
        pod = f"pod {namespace}{self._label('workload_pod')}"
        job = _job("$labels", namespace)
        # A launch is named by its topmost process, such as torchrun; the views name the programs.
        programs = self._of_job("workload_command", 'workload_job_kind="launch",')
        launched = self._listed("launched", programs, "workload_command")
        named = self._listed("named", self._of_job("workload_command"), "workload_command", before=" (", after=")")
        if launched:
            job = f"{launched}{{{{ if not $launched }}}}{job}{named}{{{{ end }}}}"
        job = f"{{{{ with $labels.workload_job }}}}{job}{{{{ else }}}}{pod}{{{{ end }}}}"
        return f"{job}{self._label('workload_user', ' of user ')}{self._cluster()}"

    def _of_job(self, label: str, of: str = "") -> str:
        """Return a pipeline with a series for each value of a label of the job's programs, without launchers."""
        of += f'{label}!="",workload_command!~"{LAUNCHERS}"'
        return self._query(f"count by ({label}) ({rec.PROGRAMS}{{@job,{of}}})")

    def _query(self, query: str, *more: str) -> str:
        """Return a pipeline with the result of a query: @job and the like are matchers of the alert, %q more values."""
        values: list[str] = []

        def matchers(mark: re.Match[str]) -> str:
            labels = [label for label in (self.selectors.cluster_label, *_LABELS[mark[1]]) if label]
            values.extend(f"$labels.{label}" for label in labels)
            return ",".join(f"{label}=%q" for label in labels)

        text = re.sub(f"@({'|'.join(_LABELS)})", matchers, query)
        return f"printf `{text}` {' '.join([*values, *more])} | query"

    def _each(self, pipeline: str, text: str) -> str:
        """Return a text for each series in the result; none for Grafana."""
        return f"{{{{ range {pipeline} }}}}{text}{{{{ end }}}}" if self._queries else ""

    def _listed(self, name: str, pipeline: str, label: str, item: str = "", before: str = "", after: str = "") -> str:
        """Return the values of a label in the result, at most five, and their number. In `item`, $one is the series.
        None for Grafana.
        """
        if not self._queries:
            return ""
        shown = item or f"{{{{ $one.Labels.{label} }}}}"
        return (
            f'{{{{ ${name} := {pipeline} | sortByLabel "{label}" }}}}{{{{ if ${name} }}}}{before}{{{{ end }}}}'
            f"{{{{ range $place, $one := ${name} }}}}{{{{ if lt $place {_LISTED} }}}}"
            f"{{{{ if $place }}}}, {{{{ end }}}}{shown}{{{{ end }}}}{{{{ end }}}}"
            f"{{{{ if gt (len ${name}) {_LISTED} }}}}, … ({{{{ len ${name} }}}} in all){{{{ end }}}}"
            + (f"{{{{ if ${name} }}}}{after}{{{{ end }}}}" if after else "")
        )

    def nodes(self, before: str = "", *, allocated: bool = False) -> str:
        """Return the nodes of the job with the indexes of its GPUs, as `node-1 GPU 0, 1`, or of those `allocated`."""
        if not self._queries:
            others = self._label("nodes", '{{ if ne . "1" }} (one of ', " nodes){{ end }}")
            return self._label("instance", before, others, _host("."))
        programs, used = rec.PROGRAMS, f"{rec.DEVICES}{{@job,instance=%q}}"
        if allocated:
            programs, gpu = "gpu_allocation_info", self.selectors.gpu
            used = f"{programs}{{@job,instance=%q{self._targets}}}"
            used += f" * on ({gpu}) group_left (index) max by ({gpu}, index) (gpu_info)"
        devices = self._query(f"max by (index) ({used})", "$one.Labels.instance")
        item = _host("$one.Labels.instance") + self._listed("indexes", devices, "index", before=" GPU ")
        nodes = self._query(f"count by (instance) ({programs}{{@job{self._targets if allocated else ''}}})")
        return self._listed("nodes", nodes, "instance", item, before)

    def places(self, *, allocated: bool = False) -> str:
        """Return sentences with the nodes, GPUs, pods and programs of the job, or with the GPUs `allocated` to it."""
        if not self._queries:
            return self.nodes(" On ") + "."
        return (
            self.nodes(" On ", allocated=allocated)
            + self._listed("pods", self._of_job("workload_pod"), "workload_pod", before="; pods ")
            + self._listed("programs", self._of_job("workload_command"), "workload_command", before="; programs ")
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
            "\nProcesses without the hook: {{ .Value }}; of these only the load is known. Start it under the "
            "hook to see why: `gpugauge run -- "
        )
        none = "No cause takes 5% of its GPU time now. "
        if not self._queries:
            none = f"What to do: {UNEXPLAINED}. Without the hook only the load is known: `gpugauge run -- …`. "
        if not self.selectors.training_matchers:
            return self._largest(lambda cause: f"\nWhat to do: {self.change(cause)}. ", none)
        found = self._query(f"{rec.OUTSIDE}{{@job}}")

        def known(cause: str) -> str:
            text = f"\nWhat to do: {self.change(cause)}. "
            if not self._queries:
                return text
            # What is not known without the hook, no command shows.
            shown = f'not (and $hookless (eq {cause} "unknown"))'
            return f"{{{{ $hookless := {found} }}}}{{{{ if {shown} }}}}{text}{{{{ end }}}}"

        advice = self._largest(known, none)
        by_command = "sum by (workload_command) "
        launcher = f'{by_command}({rec.PROGRAMS}{{@job,workload_command=~"{LAUNCHERS}"}})'
        command = self._query(f"topk(1, {launcher} or on () {by_command}({rec.PROGRAMS}{{@job}}))")
        return advice + self._each(found, f"{outside}{self._each(command, _COMMAND)}`. ")

    def change(self, cause: str) -> str:
        """Return what removes a cause, whose name is the value of an expression: the advice of most processes."""
        known = {name: each.advice for name, each in CAUSES.items() if name != "unknown"}
        general = known.get(cause.strip('"')) or cases(cause, known, UNEXPLAINED)
        if not self._queries:
            return general
        of_job = f"{PROCESS_JOB}{{@job}} * on ({self.selectors.keys('process')}) group_right ()"
        texts = f"count by (advice) ({of_job} training_advice_info{{cause=%q{self._targets}}})"
        found = self._query(f"topk(1, {texts})", "$cause")
        return (
            f"{{{{ $cause := {cause} }}}}{{{{ $advice := {found} }}}}"
            f"{{{{ range $advice }}}}{_STEPS}{{{{ else }}}}{general}{{{{ end }}}}"
        )

    def gain(self, cause: str = "") -> str:
        """Return by what factor the steps are faster without a cause, by default the largest, and the next limit."""
        if not self._queries:
            least, limit = (f"$labels.{label}" for label in rec.GAIN_LABELS)
            return f"{{{{ with {least} }}}}{_gain('{{ . }}', _next(limit))}{{{{ end }}}}"
        if cause:
            return self._gain_without(cause)
        return self._largest(lambda cause: f"{{{{ $cause := {cause} }}}}{self._gain_without('$cause')}")

    def _gain_without(self, cause: str) -> str:
        """Return the gain as the views say it: a number where the bounds are narrow, the lower bound, or the most that
        the share of the cause allows.
        """
        of = f" and on (cause) {rec.SPEEDUP}{{cause=%q}}"
        bounds = (f'{rec.SPEEDUP_BOUND}{{@job,bound="{bound}"}}' for bound in ("upper", "lower"))
        narrow = f"on (cause) ({' / on (cause) '.join(bounds)} <= {NARROW:g})"
        known = self._query(f"{rec.SPEEDUP}{{@job}} and {narrow}{of}", cause)
        least = self._query(f"{rec.LEAST_SPEEDUP.format('@job,')}{of}", cause)
        limit = self._each(self._query(f"{rec.NEXT_LIMIT}{{@job,cause=%q}}", cause), _next(".Labels.next"))
        at_most = self._each(
            self._query(f"1 / (1 - {rec.LOST}{{@job,cause=%q}}) >= 1.05", cause),
            f"\nExpected: up to {_FACTOR} {_times(cause)}. ",
        )
        unbounded = " ".join(f'(eq {cause} "{name}")' for name in sorted(UNBOUNDED))
        at_most = f"{{{{ if not (or {unbounded}) }}}}{at_most}{{{{ end }}}}"
        unit = _times(cause)
        at_least = f"{{{{ range {least} }}}}{_gain(_FACTOR, limit, times=unit)}{{{{ else }}}}{at_most}{{{{ end }}}}"
        about = _gain(_FACTOR, limit, "about", unit)
        return f"{{{{ range {known} }}}}{about}{{{{ else }}}}{at_least}{{{{ end }}}}"

    def while_busy(self, text: str) -> str:
        """Return a text if the largest cause is one of a GPU that is busy in the meantime."""
        return self._largest(lambda cause: cases(cause, dict.fromkeys(BUSY_CAUSES, text), ""))

    def lost_so_far(self) -> str:
        """Return the GPU hours that the job has lost, if that is not 0.0."""
        hours = self._query(f"{rec.gpu_hours(f'{rec.HOURS_LOST}{{@job}}', '7d')} >= 0.05")
        return self._each(hours, '{{ printf "%.1f" .Value }} GPU hours lost so far. ')

    def since(self, alert: str, about: str) -> str:
        """Return since when the fault of a GPU is there, or else since when the alert fires."""
        # The first notification is made before the series exists.
        first = f'min(ALERTS_FOR_STATE{{alertname="{alert}",@{about}}}) or floor(vector(time()))'
        if alert.startswith("GpuXid"):
            first = f"min(gpu_xid_unrepaired_timestamp_seconds{{@xid{self._targets}}}) or {first}"
        elif about == "gpu":
            known = f'bottomk(1, gpu_problem_since_timestamp_seconds{{@gpu,problem="{alert}"{self._targets}}})'
            first = f"{known} or on () ({first})"
        return self._each(
            self._query(first), f" {{{{ if .Labels.earlier }}}}At least since{{{{ else }}}}Since{{{{ end }}}} {_TIME}."
        )

    def other_faults(self, alert: str) -> str:
        """Return the other faults of the alert's GPU whose alerts this one inhibits."""
        explained = "|".join(FAULTS[alert].explains)
        found = f'gpu_problem_info{{@gpu,problem=~"{explained}"{self._targets}}}'
        # What can wait by itself does not, beside this one.
        found = f'label_replace({found}, "summary", "$1", "summary", "{FAULTS["GpuResetPending"].summary}: (.*)")'
        others = self._query(f"group by (summary) ({found})")
        return explained and self._listed("others", others, "summary", before=" Also: ", after=".")

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
        item = f"rank {{{{ $one.Labels.rank }}}} on {_host(node)}"
        item += self._listed("indexes", self._query(devices, node, node, process), "index", before=" GPU ") + " "
        item += cases("$one.Labels.position", does, here)
        ranks = self._query(f"{RANK_BEHIND}{{@job}}")
        waiting = self._query(f'topk(1, count by (function) ({RANK_POSITION}{{@job,position="waiting"}}))')
        others = "{{ .Value }} {{ if eq .Value 1.0 }}rank waits{{ else }}ranks wait{{ end }}"
        others += "{{ with .Labels.function }} in {{ . }}{{ end }}. {{ else }}. "
        listed = self._listed("ranks", ranks, "rank", item, "Behind: ")
        return f"{listed}{{{{ if $ranks }}}}{self._each(waiting, f'; {others}')}{{{{ end }}}}"

    def further(self) -> str:
        """Return the commands that show more of the job."""
        where = " --prometheus.url {{ $externalURL }}" if self._queries else ""
        report = f"\n`gpugauge report '{{{{ $labels.workload_job }}}}'{where}`"
        return f"{report} shows what it used and lost in all, and `gpugauge status` on a node what limits it now. "

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

    def reason_slowed(self) -> str:
        """Return why the alert's GPU lowers its clocks, as the views say it."""
        found = self._query(f'topk(1, gpu_problem_info{{@gpu,problem="GpuThrottled",reason!=""{self._targets}}})')
        words = {reason: text for reason, (text, _) in SLOWDOWNS.items()}
        window = format_duration(self.selectors.patience)
        seconds = f'gpu_clocks_event_seconds_total{{@gpu,reason=~"{"|".join(words)}"{self._targets}}}'
        share = self._query(f"max(rate({seconds}[{window}])) >= 0.01")
        for_share = f' For {{{{ printf "%.2f" .Value | humanizePercentage }}}} of the last {window}.'
        reason = self._each(found, f" Reason: {cases('.Labels.reason', words, '{{ .Labels.reason }}')}.")
        return reason + self._each(share, for_share)

    def reason_blind(self) -> str:
        """Return the reason for which the alert's exporter cannot read the driver."""
        down = f'gpugauge_driver_up{{@node,reason!~"released|off"{self._targets}}} == 0'
        return self._each(self._query(down), " Reason: {{ .Labels.reason }}.")

    def seen_last(self) -> str:
        """Return when values of the alert's exporter were scraped last."""
        newest = f"gpugauge_snapshot_timestamp_seconds{{@node{self._targets}}}"
        return self._each(self._query(f"max(last_over_time({newest}[1d]))"), f"Seen last at {_TIME}. ")

    def users(self, *, lost: bool = False) -> str:
        """Return the programs that hold memory of the alert's GPU, and other pods to which it is allocated, or a job of
        Slurm if none does; of a GPU that is `lost`, those of the last hour. They are no labels, because they change
        while the alert fires.
        """
        held = self._held(lost=lost)
        pod = "workload_namespace, workload_pod"
        program = f"pid, workload_command, workload_job_kind, workload_job, workload_user, {pod}"
        allocated = f"gpu_allocation_info{{@gpu{self._targets}}} unless on ({pod}) ({held})"
        others = f"count by (workload_job_kind, workload_job, workload_user, {pod}) ({allocated})"
        others = f'{self._query(others)} | sortByLabel "workload_pod"'
        where = "{{ if .Labels.workload_pod }}pod {{ .Labels.workload_namespace }}/{{ .Labels.workload_pod }}{{ else }}"
        where += f'Slurm job {{{{ reReplaceAll "{UNIQUE}" "" .Labels.workload_job }}}}'
        where += "{{ with .Labels.workload_user }}, user {{ . }}{{ end }}{{ end }}"
        programs = self._query(f"count by ({program}) ({held})")
        return self._listed("users", programs, "pid", _program("$one.Labels"), " Used by ", ".") + self._each(
            others, f" Allocated to {where}."
        )

    def owners(self, *, lost: bool = False) -> str:
        """Return those to whom they belong or the GPU is allocated, at most five, for mails; none for Grafana."""
        held = self._held(lost=lost, of=',workload_user!=""')
        held += f' or gpu_allocation_info{{@gpu,workload_user!=""{self._targets}}}'
        found = self._query(f"topk({_LISTED}, count by (workload_user) ({held}))")
        listed = "{{ if $place }}, {{ end }}{{ $one.Labels.workload_user }}"
        found = f'{{{{ range $place, $one := {found} | sortByLabel "workload_user" }}}}{listed}{{{{ end }}}}'
        return found if self._queries else ""

    def _held(self, *, lost: bool, of: str = "") -> str:
        """Return the query of the programs that hold memory of the alert's GPU, or have held it in the last hour."""
        program = f"gpu_process_info{{@node{of}{self._targets}}}"
        memory = f"gpu_process_memory_used_bytes{{@gpu{self._targets}}}"
        program, memory = (f"last_over_time({each}[1h])" if lost else each for each in (program, memory))
        return f"{program} {self.selectors.on_process('and', memory)}"

    def figures(self, alert: str) -> str:
        """Return the measured values of a fault of the alert's GPU."""
        found = (
            self._each(self._query(f"max({name}{{@gpu,{of}{self._targets}}})"), words)
            for name, of, words in _FIGURES.get(alert, ())
        )
        if alert != "GpuNvlinkErrors":
            return "".join(found)
        kinds = f"gpu_nvlink_errors_total{{@gpu{self._targets}}}"
        item = '{{ printf "%.0f" $one.Value }} {{ reReplaceAll "_" " " $one.Labels.kind }}'
        since = " Counted since the driver was loaded: "
        reset = ". A reset clears these counts: note them before it."
        return self._listed("kinds", self._query(f"sum by (kind) ({kinds}) > 0"), "kind", item, since, reset)

    def released_until(self) -> str:
        """Return the time at which the exporter attaches again by itself."""
        until = self._query(f"gpugauge_driver_released_until_timestamp_seconds{{@node{self._targets}}}")
        return self._each(until, f" It attaches again at {_TIME}.")

    def exporter(self) -> str:
        """Return the instance of the alert's exporter."""
        return f"gpugauge on {self._node()}"

    def gpu(self) -> str:
        """Return the alert's GPU and its node."""
        return f"GPU {{{{ or $labels.index $labels.uuid }}}} on {self._node()}"

    def _node(self) -> str:
        return _host("$labels.instance") + self._cluster()


def _host(instance: str) -> str:
    """Return the node of an instance, which has a port where the scrape configuration does not set it."""
    return f'{{{{ reReplaceAll "^([^:]+|.+[]]):[0-9]+$" "$1" {instance} }}}}'


def _gain(factor: str, limit: str, bound: str = "at least", times: str = "times as fast") -> str:
    return f"\nExpected: {bound} {factor} {times}{limit}. "


def _times(cause: str) -> str:
    """Return what a gain is of: the steps of a larger batch are not shorter."""
    return cases(cause, dict.fromkeys(sorted(BATCHED), "times as many samples/s"), "times as fast")


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


def _program(labels: str) -> str:
    """Return the command of a process with its pid and its owner, as the views say it."""
    job = f'{{{{ if not (match "^(pod|launch|)$" {labels}.workload_job_kind) }}}}, {_job(labels)}{{{{ end }}}}'
    return (
        f"{{{{ with {labels}.workload_command }}}}{{{{ . }}}}{{{{ else }}}}a process{{{{ end }}}} "
        f"(pid {{{{ {labels}.pid }}}}{{{{ with {labels}.workload_pod }}}}, pod "
        f"{{{{ {labels}.workload_namespace }}}}/{{{{ . }}}}{{{{ end }}}}{job}"
        f"{{{{ with {labels}.workload_user }}}}, user {{{{ . }}}}{{{{ end }}}})"
    )


def cases(name: str, texts: Mapping[str, str], otherwise: str) -> str:
    """Return the text for the value of an expression."""
    found = [f'if eq {name} "{value}" }}}}{text}' for value, text in texts.items()]
    return "{{ " + "{{ else ".join(found) + f"{{{{ else }}}}{otherwise}{{{{ end }}}}" if found else otherwise
