"""The processes that use GPUs or have torch loaded, as plain data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gpugauge.base.text import whole
from gpugauge.metric import Family
from gpugauge.status.advice import Exported, Subject, advice_of, first_gain_words, words
from gpugauge.status.ended import Endings
from gpugauge.status.history import IDENTITIES, History, by_labels, is_wasted
from gpugauge.status.problem import section_of_training
from gpugauge.status.steps import WAITING_RATIO
from gpugauge.status.words import cause_phrase, state_words
from gpugauge.verdict.causes import CAUSES
from gpugauge.verdict.states import MIN_EVIDENCE_SECONDS

_WINDOW_SECONDS = 300.0
_JUDGED_SECONDS = MIN_EVIDENCE_SECONDS + 10.0
"""After this time with the hook there is a verdict: two intervals of verdicts later than the evidence is enough."""
_ENDING_SECONDS = 60.0
"""For which a process that has ended may still be among the others. Later it runs, and only its connection ended."""
_SILENT_SECONDS = 120.0
"""After this time without a report, a program with the hook is no longer only starting."""
_WORKLOAD_PREFIX = "workload_"
_WORKING = frozenset({"training", "evaluating", "generating", "checkpointing"})
_FAILING = frozenset({"stalled", "training_on_cpu", "held_idle"})

Families = Mapping[str, Family]
Entry = dict[str, Any]


def rows(family: Family | None) -> list[dict[str, str]]:
    """Return the labels of each sample of an info family, without empty ones."""
    if family is None:
        return []
    return [{k: v for k, v in zip(family.metric.labels, values, strict=True) if v} for values, _ in family.samples]


def current(family: Family | None, subject: str) -> dict[str, str]:
    """Return the state whose sample is 1, by subject. The states are the values of the family's other label."""
    if family is None:
        return {}
    other = next(label for label in family.metric.labels if label != subject)
    return {labels[0]: labels[1] for labels, value in by_labels(family, subject, other).items() if value == 1}


def workload(facts: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of the workload without their prefix."""
    return {
        key.removeprefix(_WORKLOAD_PREFIX): value for key, value in facts.items() if key.startswith(_WORKLOAD_PREFIX)
    }


def _identity(facts: Mapping[str, str]) -> Entry:
    """Return the fields that identify a process."""
    return {
        "process": facts["process"],
        "pid": _number(facts.get("pid")),
        "command": facts.get("workload_command") or facts.get("command"),
        "workload": workload(facts),
    }


def processes_of(found: Families, history: History, now: float) -> list[Entry]:
    """Return the processes that the driver, the host or the hook reports, and the trainings that have ended. `now` is
    the Unix time of the snapshot.
    """
    known: dict[str, dict[str, str]] = {}
    for name in IDENTITIES:
        for facts in rows(found.get(name)):
            known[facts["process"]] = known.get(facts["process"], {}) | facts
    memory = by_labels(found.get("gpu_process_memory_used_bytes"), "process", "uuid")
    busy = by_labels(found.get("gpu_process_busy_seconds_total"), "process", "uuid")
    endings = Endings(found)
    ended = endings.times
    host = {f["process"] for f in rows(found.get("gpu_process_host_info"))}
    reported = {f["process"] for f in rows(found.get("torch_process_info"))}
    inside = {p for p in reported if p not in ended or now - ended[p] < _ENDING_SECONDS}
    alive = {process for process, _ in memory} | host | {process for process in reported if process not in ended}
    gone = set(endings.newest((ended.keys() & reported) - alive))
    devices: dict[str, dict[str, Entry]] = {}
    for process, uuid in dict.fromkeys((*memory, *busy)):
        if process in alive:
            load = history.process_load(process, uuid, _WINDOW_SECONDS)
            use = {"memory_used_bytes": memory.get((process, uuid)), "load_5m": load}
            devices.setdefault(process, {})[uuid] = use
    steps, verdicts = _Steps(found, history), _Verdicts(found, history)
    result = []
    for process, labels in known.items():
        if process in alive or process in gone:
            hooked = process in inside or process in gone
            role = _role(labels, hooked=hooked)
            shown: Entry = {**_identity(labels), "kind": labels.get("kind"), "torch_build": labels.get("torch_build")}
            shown |= {"role": role, "hook": hooked} | steps.of(process, labels)
            shown["starting"] = not hooked and role != "display" and _starts(labels, process in host, shown, now)
            silent = history.silent_seconds(process) if shown["starting"] else None
            shown["silent"] = silent is not None and silent >= _SILENT_SECONDS
            shown |= {"judging_since": None, "ended": None, "end_reason": None, "end_words": None}
            shown |= verdicts.of(process, role, shown, devices.get(process, {}))
            if process in ended and hooked:
                shown |= endings.of(process)
            elif shown["starting"]:
                shown["judging_since"] = shown["started"] or now
            elif process in inside and not shown["limited_by"] and shown["state"] not in _DECIDED:
                _mark_judging(shown, history.reporting_seconds(process), now)
            result.append(shown | {"devices": devices.get(process, {})})
    return result


_SCANNED_SECONDS = 30.0
"""After this time a process has been scanned, if the daemon sees it: then it is known whether it has the hook."""
_RATES = {"samples_per_second": "torch_samples_total", "tokens_per_second": "torch_tokens_total"}
_DECIDED = frozenset({"stalled", "held_idle", "not_training"})


def _starts(labels: Mapping[str, str], scanned: bool, process: Entry, now: float) -> bool:
    """Return whether a process that has not reported yet may still do so: it has the hook, or is too young to know."""
    young = process["started"] is not None and now - process["started"] < _SCANNED_SECONDS
    return labels.get("hook") == "yes" or (young and not scanned)


def _mark_judging(process: Entry, seconds: float | None, now: float) -> None:
    """Note that there is no verdict yet on a process that has reported for some seconds, if that is so."""
    early = seconds is not None and seconds < _JUDGED_SECONDS
    if early or process["level"] == "none":
        process |= {"judging_since": now - (seconds or 0.0), "level": "none"}


class _Steps:
    """What the hook reports of the steps."""

    def __init__(self, found: Families, history: History) -> None:
        self._history = history
        self._started = by_labels(found.get("training_start_timestamp_seconds"), "process")
        # The start of the process is known only of those on GPUs.
        self._started |= by_labels(found.get("gpu_process_start_timestamp_seconds"), "process")
        self._steps = by_labels(found.get("torch_steps_total"), "process")
        self._last = by_labels(found.get("training_last_step_timestamp_seconds"), "process")
        self._mfu = by_labels(found.get("training_mfu_ratio"), "process")
        self._phases = current(found.get("torch_phase"), "process")
        self._loaders = {facts.pop("process"): facts for facts in rows(found.get("torch_loader_info"))}

    def of(self, process: str, facts: Mapping[str, str]) -> Entry:
        """Return the fields of a process; None where the hook does not report."""
        return {
            "started": self._started.get((process,)),
            "steps": self._steps.get((process,)),
            "step_seconds": self._history.step_seconds(process, _WINDOW_SECONDS),
            **{field: self._history.per_second(process, name, _WINDOW_SECONDS) for field, name in _RATES.items()},
            "mfu": self._mfu.get((process,)),
            "last_step": self._last.get((process,)),
            "phase": self._phases.get(process),
            "rank": _number(facts.get("rank")),
            "world_size": _number(facts.get("world_size")),
            "loader": self._loaders.get(process, {}),
        }


class _Verdicts:
    """State, cause, and what follows from them."""

    def __init__(self, found: Families, history: History) -> None:
        self._exported, self._history = Exported(found), history
        self._states, self._causes = (
            current(found.get(n), "process") for n in ("training_state", "training_limited_by")
        )
        self._shares = by_labels(found.get("training_limited_by_ratio"), "process", "cause")
        self._parts: dict[str, dict[str, float]] = {}
        for (process, part), share in by_labels(found.get("training_step_share_ratio"), "process", "part").items():
            self._parts.setdefault(process, {})[part] = share
        self._undecidable = {f["process"]: f.get("undecidable", "") for f in rows(found.get("training_verdict_info"))}

    def of(self, process: str, role: str | None, facts: Entry, devices: Collection[str]) -> Entry:
        """Return the fields of a process on these devices: `level` is good, poor, bad, or none."""
        state, name = self._states.get(process), self._causes.get(process)
        ratio = self._shares.get((process, name or ""))
        cause = CAUSES.get(name or "")
        parts = self._parts.get(process, {})
        wasted = is_wasted(ratio or 0.0, before=self._history.wasted(process))
        own = level(state, name, role, parts.get("data"), wasted=wasted)
        waits = state == "training_on_cpu" and own == "poor"
        shown = {
            "state": state,
            "state_words": state_words(state, role, facts["hook"], starting=facts["starting"], silent=facts["silent"]),
            "limited_by": name,
            "limited_by_words": cause_phrase(name) if name else None,
            "limited_by_ratio": ratio,
            "evidence": cause.evidence if cause else None,
            "runbook": section_of_training(*((None, "data_loading") if waits else (state, name))) if state else None,
            "level": own,
            "undecidable": list(filter(None, self._undecidable.get(process, "").split(","))),
            "step_shares": parts,
            "data_wait_ratio": parts.get("data"),
        }
        found = advice_of(Subject(process, self._exported, {**facts, **shown, "devices": devices}))
        gain, changes = first_gain_words(found), [advice.plain() for advice in found]
        return {**shown, "advice": words(found), "gain_words": gain, "changes": changes}


def level(state: str | None, cause: str | None, role: str | None, waits: float | None, *, wasted: bool) -> str:
    """Return how well a process uses what it holds; `waits` is the share of its steps in which it waits for data.
    Training on the CPU is bad only with a cause: on a machine without a GPU there is none.
    """
    if role == "display" or state is None:
        return "none"
    if state == "training_on_cpu" and not cause:
        return "poor" if (waits or 0.0) >= WAITING_RATIO else "good"
    if state in _FAILING or (cause and wasted):
        return "bad"
    return "poor" if cause else "good" if state in _WORKING else "none"


def _role(facts: Mapping[str, str], *, hooked: bool) -> str | None:
    """Return what a process is: a training (torch is loaded), a display server or desktop program. None if that is not
    known: not every process can be read.
    """
    if hooked or facts.get("torch_build"):
        return "training"
    return "display" if facts.get("kind") == "graphics" else None


def _number(text: str | None) -> int | None:
    return whole(text or "")
