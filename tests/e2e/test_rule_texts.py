"""The texts of the alerts in Prometheus' rule tester, and trainings without the hook."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugauge.artifacts.rules.options import Parameters
from gpugauge.settings.kinds import RUNBOOK_URL
from gpugauge.verdict.causes import CAUSES
from gpugauge.verdict.step import LIMITS
from tests.artifacts.rules.rule_stories import DEFAULT, INFO, JOB, STORIES, Row, ranks
from tests.e2e.ruletester import BEGIN, HERE, SECONDS, Case, annotated, check, firing, of_rows, story_identity

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(SECONDS)]

LOW = next(story for story in STORIES if story.alert == "TrainingLoadLow")
# Five minutes after the first one at which half of the window was spent in training steps.
PHASES = [("bad", 61)]
LOW_BEGIN = "1970-01-01 00:12:00 UTC"
WHERE = (
    "On the node, `gpugauge stack 'llm'` shows where each rank is that makes no progress, and `gpugauge status` what "
    "limits it. "
)
FURTHER = (
    "\n`gpugauge report 'llm' --prometheus.url ` shows what it used and lost in all, and `gpugauge status` on a node "
    "what limits it now. "
)
LOST = "It waits for its data loader (70% of its GPU time is lost), and loses GPU time, the cause is not known (5%)"


def case(name: str, rows: Iterable[Row], expected: dict[str, Any], parameters: Parameters = DEFAULT) -> Case:
    return Case(name, of_rows(rows, PHASES), [expected], parameters)


def named(rows: Iterable[Row], metric: str, **labels: str) -> list[Row]:
    """Return the rows with further labels in those of a metric."""
    return [replace(row, labels={**row.labels, **labels}) if row.name == metric else row for row in rows]


def places(nodes: int, devices: int) -> list[Row]:
    """Return the rows of a job's process on each node, and of the GPUs on which it holds memory."""
    rows = []
    for node in range(nodes):
        at = {"instance": f"node-{node + 1}"}
        process = {"process": f"p{node + 10}", **at}
        pod = {"workload_pod": f"trainer-{node}", "workload_command": "fit.py", "workload_user": "1000"}
        rows.append(Row("gpu_process_host_info", {**process, **pod, **JOB}, 1, 1))
        for index in range(devices):
            uuid = {"uuid": f"GPU-{node}-{index}", **at}
            rows.append(Row("gpu_info", {**uuid, "index": str(index)}, 1, 1))
            rows.append(Row("gpu_process_memory_used_bytes", {**process, **uuid}, 1e9, 1e9))
    return rows


SIX_LEFT = [row for row in LOW.rows if row.name != "gpu_process_host_info"]
OWNER = [row for row in LOW.rows if row.name == "gpu_process_host_info"][:1]


def places_and_loss() -> Case:
    rows = [*SIX_LEFT, *named(OWNER, "gpu_process_host_info", workload_command="fit.py"), *places(1, 2)]
    texts = {
        "summary": "Training jobset ml/llm (fit.py) uses 25% of its GPU time, less than 50%: it waits for its data "
        "loader, on node-1 GPU 0, 1",
        "description": f"{LOST}. \nWhat to do: more loader workers; also pinned "
        f"memory, prefetching, faster storage or decoding. \nExpected: up to 3.3 times as fast. "
        f"0.8 GPU hours lost so far. {FURTHER}Mean over 15m. On node-1 GPU 0, 1; pods trainer-0; "
        f"programs fit.py. Since {LOW_BEGIN}.",
        "runbook_url": f"{RUNBOOK_URL}#trainingloadlow",
        "dashboard_url": "https://grafana.example/d/gpugauge-job?var-kind=jobset&var-namespace=ml&var-workload=llm",
    }

    name = "texts have the load, the causes, the places and the loss"
    linked = Parameters(dashboard_url="https://grafana.example")
    return Case(name, of_rows(rows, PHASES), [annotated(LOW, texts)], linked, clustered=False)


def gain(cause: str, expected: float, lower: float, upper: float, after: str) -> list[Row]:
    """Return the rows of the gain of process p0 without a cause."""
    at = {"process": "p0", "cause": cause}
    factors = {"": expected, "_lower": lower, "_upper": upper}
    rows = [Row(f"training_expected_speedup{part}_ratio", at, value, None) for part, value in factors.items()]
    limited = Row("training_limited_by", at, 1, None)
    return [*rows, limited, Row("training_expected_speedup_info", {**at, "next": after}, 1, None)]


def gain_after_the_advice() -> Case:
    rows = [*LOW.rows, *gain("data_loading", 2.64, 2.1, 3.04, "host_bound"), *gain("unknown", 9.0, 8.0, 10.0, "gpu")]
    advice = ("data_loading", "num_workers=18 in the DataLoader (now 4)"), ("unknown", "another")
    rows += [
        Row("training_advice_info", {"process": "p0", "cause": c, "advice": words}, 1, None) for c, words in advice
    ]
    texts = {
        "summary": f"Training jobset ml/llm in cluster {HERE} "
        "uses 25% of its GPU time, less than 50%: it waits for its data loader, on node-1",
        "description": f"{LOST}. \nWhat to do: num_workers=18 in the DataLoader (now 4). \nExpected: at least "
        f"2.1 times as fast, then it {CAUSES['host_bound'].phrase}. 0.8 GPU hours lost so far. "
        f"{FURTHER}Mean over 15m. On node-1. Since {LOW_BEGIN}.",
        "runbook_url": f"{RUNBOOK_URL}#trainingloadlow",
    }

    return case("texts have the gain after the advice", rows, annotated(LOW, texts))


def narrow_gain() -> Case:
    """As the views say it, and no larger than the lost time allows."""
    rows = [*LOW.rows, *gain("data_loading", 4.4, 4.3, 4.5, "gpu")]
    known = gain_after_the_advice().expected[0]
    texts = known["exp_alerts"][0]["exp_annotations"]
    text = f"{CAUSES['data_loading'].advice}. \nExpected: about 3.3 times as fast, then limited by {LIMITS['gpu']}. "
    texts["description"] = f"{LOST}. \nWhat to do: {text}0.8{texts['description'].rpartition(' 0.8')[2]}"
    return case("a gain with narrow bounds is one number, within the lost time", rows, known)


def many_places() -> Case:
    texts = {
        "summary": f"Training jobset ml/llm (fit.py) in cluster {HERE} "
        "uses 25% of its GPU time, less than 50%: it waits for its data loader, on "
        + (where := ", ".join(f"node-{n} GPU 0, 1, 2, 3, 4, … (8 in all)" for n in range(1, 6)) + ", … (7 in all)"),
        "description": f"{LOST}. \nWhat to do: more loader workers; also pinned "
        f"memory, prefetching, faster storage or decoding. \nExpected: up to 3.3 times as fast. 0.8 GPU hours lost "
        f"so far. {FURTHER}Mean over 15m. On {where}; pods trainer-0, trainer-1, trainer-2, trainer-3, trainer-4, "
        f"… (7 in all); programs fit.py. Since {LOW_BEGIN}.",
        "runbook_url": f"{RUNBOOK_URL}#trainingloadlow",
    }

    name = "texts name five places and their number"
    return case(name, [*SIX_LEFT, *OWNER, *places(7, 8)], annotated(LOW, texts))


def slow_rank() -> Case:
    story = next(story for story in STORIES if story.alert == "TrainingRankBehind")
    texts = {
        "summary": f"A rank of training jobset ml/llm (fit.py) in cluster {HERE} holds the others up, on node-1, "
        "node-2 GPU 6",
        "description": "Behind: rank 3 on node-2 GPU 6 works 2.0 times as long as the median rank: it waits for its "
        f"data loader. {WHERE}On node-1, node-2 GPU 6; programs fit.py. Since 1970-01-01 00:12:00 UTC.",
        "runbook_url": f"{RUNBOOK_URL}#trainingrankbehind",
    }
    gpu, rank = {"instance": "node-2", "uuid": "GPU-6"}, {"instance": "node-2", "process": "p3"}
    rows = [
        *named(ranks(2.0), "gpu_process_host_info", workload_command="fit.py"),
        Row("gpu_info", {**gpu, "index": "6"}, 1, 1),
        Row("gpu_process_memory_used_bytes", {**gpu, **rank}, 1, 1),
        Row("training_limited_by", {**rank, "cause": "data_loading"}, 1, 0),
    ]
    return case("texts of a slow rank have its GPU and its cause", rows, annotated(story, texts))


def on_cpu() -> Case:
    """Scrapes that are not on time: extrapolated, the seconds of a short window are more than it has."""
    story = next(story for story in STORIES if story.alert == "TrainingOnCpu")
    rows = [replace(row, bad=1.11) if row.counter and row.bad else row for row in story.rows]
    texts = {
        "summary": f"Training jobset ml/llm in cluster {HERE} runs on the CPU of a machine with a GPU: node-1",
        "description": "It was on the CPU for 100% of the last 15m. `gpugauge doctor PID` on the machine says why. On "
        f"node-1. Since {BEGIN}.",
        "runbook_url": f"{RUNBOOK_URL}#trainingoncpu",
    }

    begins = "1970-01-01 00:10:00 UTC", "1970-01-01 00:11:00 UTC"
    return replace(case("no share of time is above 100 %", rows, annotated(story, texts)), begins=begins)


def behind(size: int) -> Case:
    """Return a job whose first rank is in its own code; the others wait."""
    story = next(story for story in STORIES if story.alert == "TrainingRankBehind")
    added = {"torch_process_info", "training_rank_position"}
    rows = [row for row in story.rows if row.name not in added or row.labels.get("process") in (None, "p0")]
    for number in range(1, size):
        who = {"process": f"p{number}"}
        rows += [
            Row("gpu_process_host_info", {**who, **JOB, "workload_user": "1000"}, 1, 1),
            Row("torch_process_info", {**who, "rank": str(number), "world_size": "2"}, 1, 1),
            Row("training_state", {**who, "state": "stalled"}, 1, 0),
            Row("training_rank_position", {**who, "position": "waiting", "function": "all_reduce"}, 1, None),
        ]
    rows += [INFO, Row("torch_phase", {"process": "p0", "phase": "checkpointing"}, 1, 0)]
    waits = f"{size - 1} rank{'s wait' if size > 2 else ' waits'} in all_reduce"
    texts = {
        "summary": f"A rank of training jobset ml/llm in cluster {HERE} holds the others up, on node-1 GPU 3",
        "description": f"Behind: rank 0 on node-1 GPU 3 waits for no other rank while checkpointing; {waits}. {WHERE}"
        "On node-1 GPU 3. Since 1970-01-01 00:09:00 UTC.",
        "runbook_url": f"{RUNBOOK_URL}#trainingrankbehind",
    }
    return case(f"texts of {size} ranks", rows, annotated(story, texts), story.parameters)


def exporter_down() -> Case:
    """Down for an hour, and back: the text is true until the alert resolves, 20 minutes later."""
    story = next(story for story in STORIES if story.alert == "ExporterDown")
    rows = [*story.rows, Row("gpugauge_snapshot_timestamp_seconds", {}, None, 0, clock=True)]
    texts = {
        "summary": f"gpugauge on node-1 in cluster {HERE} cannot be scraped",
        "description": "Seen last at 1970-01-01 00:59:00 UTC. Until it is scraped again there is no data about "
        f"its GPUs: alerts about them keep firing for a while and then resolve. Since {BEGIN}.",
        "runbook_url": f"{RUNBOOK_URL}#exporterdown",
    }
    expected = [annotated(story, texts, 119), firing(story.alert, 145, 5, None, {})]
    phases = ("good", 60), ("bad", 60), ("good", 60)
    begins = "1970-01-01 01:08:00 UTC", "1970-01-01 01:07:00 UTC"
    return Case("texts of an exporter that is down", of_rows(rows, phases), expected, begins=begins)


def without_hook(load: float, *, torch: str = "cuda", command: str = "fit.py", idle: float = 0.0) -> list[Row]:
    """Return the rows of a process without the hook; `idle` is its time in the state held_idle."""
    owner = {"process": "p0", "torch_build": torch, "workload_command": command, "workload_user": "1000", **JOB}
    return [
        Row("gpu_process_host_info", owner, 1, None),
        Row("gpu_process_start_timestamp_seconds", {"process": "p0"}, -7200, None),
        Row("training_state", {"process": "p0", "state": "unknown"}, 1, None),
        *(Row("training_state", {"process": "p0", "state": state}, 0, None) for state in ("training", "held_idle")),
        Row("training_seconds_total", {"process": "p0", "state": "unknown"}, 1 - idle, None, counter=True),
        Row("training_seconds_total", {"process": "p0", "state": "held_idle"}, idle, None, counter=True),
        Row("training_gpu_held_seconds_total", {"process": "p0"}, 1, None, counter=True),
        Row("training_lost_seconds_total", {"process": "p0", "cause": "unknown"}, 1 - load, None, counter=True),
    ]


def test_without_the_hook(tmp_path: Path) -> None:
    loads: list[tuple[dict[str, Any], bool]] = [
        ({"load": 0.3}, True),
        ({"load": 0.6}, False),
        ({"load": 0.3, "torch": ""}, False),
        ({"load": 0.3, "torch": "cpu"}, False),
        ({"load": 0.3, "torch": "rocm"}, True),
        ({"load": 0.1, "idle": 0.85}, True),
        ({"load": 0.3, "command": "vllm.entrypoints.openai.api_server"}, False),
        ({"load": 0.3, "command": "VLLM::EngineCore"}, False),
        ({"load": 0.3, "command": "tritonserver"}, False),
        ({"load": 0.3, "command": "ipykernel_launcher"}, False),
        ({"load": 0.3, "command": "Xorg", "torch": ""}, False),
    ]
    chosen = [
        (Parameters(training_matchers='workload_namespace="ml"'), True),
        (Parameters(training_matchers='workload_namespace="web"'), False),
        (Parameters(training_matchers=""), False),
        (Parameters(serving="fit.*"), False),
        (Parameters(threshold=0.2), False),
    ]
    # A job with a busy training and an idle vLLM.
    server = [replace(row, labels={**row.labels, "process": "p5"}) for row in without_hook(0.0, command="vllm")]
    identity = story_identity(LOW)

    def low(fires: bool) -> dict[str, Any]:
        return firing("", 60, 1, 1 if fires else None, {"alertname": LOW.alert, **identity})

    cases = [
        *(
            case(f"without the hook: {number}", without_hook(**given), low(fires))
            for number, (given, fires) in enumerate(loads)
        ),
        case(
            "an idle process has one alert",
            without_hook(0, idle=1),
            firing("", 60, 29, 29, {"alertname": "GpuHeldIdle", **identity}),
        ),
        unnamed_pod(),
        case("servers of a job do not lower its load", [*without_hook(0.9), *server], firing("", 60, 60, None, {})),
        *(
            case(f"trainings are chosen: {number}", without_hook(0.3), low(fires), parameters)
            for number, (parameters, fires) in enumerate(chosen)
        ),
    ]

    check(tmp_path, cases)


def command_of_the_hook(command: str, line: str, load: float, shown: int) -> Case:
    texts = {
        "summary": f"Training jobset ml/llm ({command}) in cluster {HERE} "
        f"uses {shown}% of its GPU time, less than 40%: it loses GPU time, the cause is not known, on node-1",
        "description": f"It loses GPU time, the cause is not known ({100 * (1 - load):.0f}% of its GPU time is lost). "
        "\nProcesses without the hook: 1; of these only the "
        f"load is known. Start it under the hook to see why: `gpugauge run -- {line} …`. "
        f"{1 - load:.1f} GPU hours lost so far. {FURTHER}Mean over 15m. On node-1; programs {command}. "
        f"Since {LOW_BEGIN}.",
        "runbook_url": f"{RUNBOOK_URL}#trainingloadlow",
    }
    rows = without_hook(load, command=command)

    name = f"texts without the hook have its command for {command}"
    return case(name, rows, annotated(LOW, texts), Parameters(threshold=0.4))


def small_losses() -> Case:
    texts = {
        "summary": f"Training jobset ml/llm (fit.py) in cluster {HERE} uses 97% of its GPU time, less than 98%, "
        "on node-1",
        "description": "No cause takes 5% of its GPU time now. \nProcesses without the hook: 1; of these only the load "
        f"is known. Start it under the hook to see why: `gpugauge run -- python fit.py …`. "
        f"{FURTHER}Mean over 15m. On node-1; programs fit.py. Since {LOW_BEGIN}.",
        "runbook_url": f"{RUNBOOK_URL}#trainingloadlow",
    }
    name = "no advice about a cause where none is large"
    return case(name, without_hook(0.97), annotated(LOW, texts), Parameters(threshold=0.98))


def allocated() -> Case:
    story = next(story for story in STORIES if story.alert == "AllocatedGpuUnused")
    texts = {
        "summary": f"Slurm job 7201 of user ann in cluster {HERE} does not use all GPUs that it was allocated",
        "description": "1 of its GPUs were idle for 30m. Request fewer, or use them. On node-1 GPU 3. "
        "Since 1970-01-01 00:27:00 UTC.",
        "runbook_url": f"{RUNBOOK_URL}#allocatedgpuunused",
    }
    return case("an allocation has its user without any process", [*story.rows, INFO], annotated(story, texts))


def launch() -> Case:
    """Its user is a label, its name that of its program, and the launcher is what is started under the hook."""
    named_by_top = {"workload_job_kind": "launch", "workload_job": "node-1/1000/torchrun-1f2e3d4c"}
    known = command_of_the_hook("fit.py", "torchrun", 0.3, 30)
    alert = known.expected[0]["exp_alerts"][0]
    text = alert["exp_annotations"]["description"]
    alert["exp_annotations"]["description"] = text.replace("report 'llm'", f"report '{named_by_top['workload_job']}'")
    del alert["exp_labels"]["workload_namespace"]
    alert["exp_labels"] |= {**named_by_top, "workload_user": "1000"}
    summary = alert["exp_annotations"]["summary"]
    alert["exp_annotations"]["summary"] = summary.replace("jobset ml/llm (fit.py)", "fit.py of user 1000")
    owner = {**named_by_top, "workload_namespace": ""}
    rows = [
        replace(row, labels={**row.labels, **owner}) if "workload_job" in row.labels else row
        for row in without_hook(0.3, command="fit.py")
    ]
    agent = [replace(row, labels={**row.labels, "process": "p9", "workload_command": "torchrun"}) for row in rows[:1]]
    name = "a launch by torchrun has the name of its program"
    return case(name, [*rows, *agent], known.expected[0], Parameters(threshold=0.4))


def unnamed_pod() -> Case:
    """In a container the user is a number, and may change."""
    pod = {"workload_job_kind": "pod", "workload_job": "5b1c0d1e-8a2b-4b5e-9c47-1f2e3d4c5b6a"}
    rows = named(without_hook(0.3), "gpu_process_host_info", **pod, workload_namespace="")
    expected = firing("", 60, 1, 1, {"alertname": LOW.alert, "severity": LOW.severity, **pod})
    return case("a pod whose namespace is not known has no user", rows, expected)


BLIND = next(story for story in STORIES if story.alert == "ExporterBlind")


def blind() -> Case:
    texts = {
        "summary": f"gpugauge on node-1 in cluster {HERE} cannot read the GPUs",
        "description": "The driver does not answer, or the exporter publishes no new values. Reason: timeout. "
        "Since 1970-01-01 00:05:00 UTC.",
        "runbook_url": f"{RUNBOOK_URL}#exporterblind",
    }
    return case(
        "why an exporter is blind", named(BLIND.rows, "gpugauge_driver_up", reason="timeout"), annotated(BLIND, texts)
    )


def test_texts(tmp_path: Path) -> None:
    commands = [("fit.py", "python fit.py", 0.3, 30), ("my.trainer", "python -m my.trainer", 0.3, 30)]
    commands.append(("trainer", "trainer", 0.3962, 39))  # 40 % if it were rounded
    cases = [
        *(places_and_loss(), gain_after_the_advice(), narrow_gain(), many_places(), slow_rank(), on_cpu(), blind()),
        *(small_losses(), allocated(), launch()),
        *(command_of_the_hook(*each) for each in commands),
        *map(behind, (2, 5)),
        exporter_down(),
    ]

    check(tmp_path, cases, each_version=True)
