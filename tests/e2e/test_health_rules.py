"""The alerts about faults of GPUs in Prometheus' rule tester: texts, and two exporters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugauge.faults.table import FAULTS
from gpugauge.settings.kinds import RUNBOOK_URL
from tests.artifacts.rules.rule_stories import GPU, STORIES, UUID, Row, Story
from tests.e2e.ruletester import HERE, SECONDS, Case, Phases, annotated, check, of_rows

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(SECONDS)]

BY_NAME = {story.alert: story for story in STORIES}
SINCE_THE_FIRST_SCRAPE = " Since 1970-01-01 00:00:00 UTC."
TO_DO = "\nWhat to do: mend it.\nThe alert ends about 15m after the repair."
WHERE = f"GPU 3 on node-1 in cluster {HERE}"


def case(name: str, rows: Iterable[Row], *expected: dict[str, Any], phases: Phases = (("bad", 61),)) -> Case:
    told = [row for row in rows if row.labels.get("advice") != "no, mend it so"]
    return Case(name, of_rows(told, phases), expected)


def texts(
    story: Story, summary: str, description: str, minute: int = 60, users: str = "", **labels: str
) -> dict[str, Any]:
    """Return the expectation of the texts, by default after an hour."""
    found = {"summary": summary, "description": description, "runbook_url": f"{RUNBOOK_URL}#{story.alert.lower()}"}
    return annotated(story, {**found, "users": users}, minute, labels)


SLURM_JOB = {"workload_job_kind": "slurm", "workload_job": "1000/7", "workload_user": "ann"}


def also(**summaries: str) -> list[Row]:
    """Return further faults of the GPU."""
    found = [{**UUID, "problem": name, "summary": text} for name, text in summaries.items()]
    return [Row("gpu_problem_info", labels, 1, None) for labels in found]


def reset_with_users() -> Case:
    """A port of the instance is none of the node's name."""
    story = BY_NAME["GpuNeedsReset"]
    pod = {"workload_namespace": "ml", "workload_pod": "train-0"}
    ended = {"workload_job_kind": "launch", "workload_job": "node-1/1000/torchrun-7", "workload_user": "1000"}
    rows = [
        *story.rows,
        *also(
            GpuXidWorkflow="had Xid 48 (Double bit ECC error)",
            GpuUncorrectedEcc="had uncorrected memory errors",
            GpuReadingFailed="has an alert of its own",
        ),
        Row("gpu_xid_unrepaired_timestamp_seconds", {**UUID, "class": "workflow", "xid": "48"}, 600, None),
        Row("gpu_process_info", {"process": "p0", "pid": "4", "workload_command": "fit.py", **pod}, 1, 1),
        Row("gpu_process_info", {"process": "p1", "pid": "5", **pod, "workload_pod": "train-1"}, 1, 1),
        Row("gpu_process_info", {"process": "p2", "pid": "6", **SLURM_JOB}, 1, 1),
        Row("gpu_process_info", {"process": "p3", "pid": "7", "workload_command": "a.py", **ended}, 1, 1),
        *(Row("gpu_process_memory_used_bytes", {"process": f"p{n}", **UUID}, 1, 1) for n in (0, 2, 3)),
        *(Row("gpu_allocation_info", {**UUID, **pod, "workload_pod": f"train-{n}"}, 1, 1) for n in (0, 2)),
    ]
    rows = [replace(row, labels={**row.labels, "instance": "node-1:10478"}) for row in rows]
    description = (
        "Do not wait for its jobs: they may hang or fail, and the repair ends them. "
        "Used by fit.py (pid 4, pod ml/train-0), a process (pid 6, Slurm job 7, user ann), a.py (pid 7, user 1000). "
        "Allocated to pod ml/train-2. Also: had Xid 48 (Double bit ECC error), had uncorrected memory errors."
        f"{TO_DO}{SINCE_THE_FIRST_SCRAPE}"
    )

    expected = texts(
        story, f"{WHERE} {FAULTS['GpuNeedsReset'].summary}", description, users="1000, ann", instance="node-1:10478"
    )
    return case("the text of a reset has the other faults and the users", rows, expected)


def known_xid() -> Case:
    story = BY_NAME["GpuXidNode"]
    description = (
        "The GPU is off the bus, or power or firmware failed. Allocated to Slurm job 7, user ann."
        f"{TO_DO} Since 1970-01-01 00:10:00 UTC."
    )
    named = {**UUID, "class": "node", "xid": "79"}
    rows = [*story.rows, Row("gpu_xid_unrepaired_timestamp_seconds", named, 600, None)]
    rows.append(Row("gpu_allocation_info", {**UUID, **SLURM_JOB}, 1, 1))

    return case(
        "the text of an Xid has its time, and the job to which the GPU is allocated",
        rows,
        texts(story, f"{WHERE} had an Xid error", description, users="ann"),
    )


def contained_error() -> Case:
    """An error of the memory in the class of the errors of programs."""
    story = BY_NAME["GpuXidApplication"]
    labels = {"xid": "94", "xid_name": "Contained memory error"}
    rows = [replace(row, labels={**row.labels, **labels}) if "xid" in row.labels else row for row in story.rows]
    story = replace(story, identity={**GPU, **labels})
    means = "Memory of the GPU is faulty: the program that read it has ended, others go on. It was in the last 15m."
    description = f"{means}\nWhat to do: mend it.{SINCE_THE_FIRST_SCRAPE}"

    expected = texts(story, f"{WHERE} had an Xid error", description)
    return case("the text of a contained error of the memory", rows, expected)


def measured(name: str, begin: int, text: str, *rows: Row, since: str = "Since") -> Case:
    """The figures of a fault, and the time of its begin in the first notification."""
    description = f"{text}{TO_DO} {since} 1970-01-01 00:{begin}:00 UTC."
    expected = texts(BY_NAME[name], f"{WHERE} {FAULTS[name].summary}", description, begin)
    return case(f"figures of {name}", [*BY_NAME[name].rows, *rows], expected, phases=(("good", 20), ("bad", 41)))


HOT = (
    Row("gpu_temperature_celsius", {**UUID, "sensor": "gpu"}, 89, 50),
    Row("gpu_temperature_limit_celsius", {**UUID, "limit": "slowdown"}, 92, 92),
    Row("gpu_temperature_limit_celsius", {**UUID, "limit": "gpu_max"}, 87, 87),
)
CLOCK = (
    Row("gpu_clocks_event_seconds_total", {**UUID, "reason": "sw_thermal_slowdown"}, 0.3, 0.3, counter=True),
    Row("gpu_clock_hertz", {**UUID, "domain": "graphics"}, 1.2e9, 1.98e9),
    Row("gpu_clock_max_hertz", {**UUID, "domain": "graphics"}, 1.98e9, 1.98e9),
)
LINKS = tuple(
    Row("gpu_nvlink_errors_total", {**UUID, "kind": kind}, value, 0, counter=True)
    for kind, value in (("replay", 0.2), ("recovery_failed", 1 / 30), ("crc_flit", 0))
)


def lost_gpu() -> Case:
    story = BY_NAME["GpuLost"]
    rows = [
        *story.rows,
        *also(GpuXidWorkflow="had Xid 48 (Double bit ECC error)"),
        Row("gpu_down_reason", {**UUID, "reason": "gpu_is_lost"}, 1, None),
        Row("gpu_process_info", {"process": "p0", "pid": "6", **SLURM_JOB}, None, 1),
        Row("gpu_process_memory_used_bytes", {"process": "p0", **UUID}, None, 1e9),
    ]
    description = (
        "It is lost, its driver calls hang, or the driver does not list it. Reason: gpu_is_lost. Used by a "
        f"process (pid 6, Slurm job 7, user ann). Also: had Xid 48 (Double bit ECC error).{TO_DO} "
        "Since 1970-01-01 00:22:00 UTC."
    )

    expected = texts(story, f"{WHERE} does not answer", description, users="ann")
    phases: Phases = (("good", 20), ("bad", 41))
    return case("a lost GPU has its Xid, its reason and the job that used it", rows, expected, phases=phases)


def two_exporters() -> Case:
    """As while a pod of the exporter replaces another one; the second one knows the GPU by another index."""
    story = BY_NAME["GpuRowRemapFailed"]
    second = [
        replace(row, labels={**row.labels, "pod": "b"} | ({"index": "4"} if "index" in row.labels else {}))
        for row in story.rows
    ]
    expected = {
        "expr": f'count(ALERTS{{alertstate="firing",cluster="{HERE}"}})',
        "eval_time": "60m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }

    return case("two exporters of a node are one alert", [*story.rows, *second], expected)


def test_faults(tmp_path: Path) -> None:
    heat = "It is at 89 °C. Its limit is 92 °C."
    hot = f"From that temperature on it lowers its clocks. {heat}"
    links = "Transfers between GPUs are slower, or fail. Counted since the driver was loaded: 2 recovery failed, 12 "
    links += "replay. A reset clears these counts: note them before it."
    begin = Row(
        "gpu_problem_since_timestamp_seconds", {**UUID, "problem": "GpuThrottled", "earlier": "true"}, 1500, None
    )
    words = {"summary": FAULTS["GpuThrottled"].summary, "advice": "mend it", "reason": "sw_thermal_slowdown"}
    why = Row("gpu_problem_info", {**UUID, "problem": "GpuThrottled", **words}, 1, None)
    text = "Programs on it are slower. Reason: thermal slowdown (software). For 30% of the last 15m. Its clock is at "
    text += "1.2GHz. Its highest is 1.98GHz. It is at 89 °C. Its chip is slowed from 87 °C on: while it is cooler, "
    text += "another part is hot, such as its memory."
    slowed = measured("GpuThrottled", 25, text, *HOT, *CLOCK, begin, why, since="At least since")
    figures = measured("GpuHot", 25, hot, *HOT), slowed, measured("GpuNvlinkErrors", 20, links, *LINKS)
    cases = [reset_with_users(), known_xid(), contained_error(), *figures, lost_gpu(), two_exporters()]
    check(tmp_path, cases, each_version=True)
