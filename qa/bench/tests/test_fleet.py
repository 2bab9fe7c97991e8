"""The simulated fleet: our own bodies with other identities, and a past that leads to the present."""

from __future__ import annotations

import itertools
import re
import time

import pytest

from qa.bench import fleet_server
from qa.bench.fleet_bodies import Template, _as_on_a_cluster
from qa.bench.fleet_bodies import template as template_of
from qa.bench.fleet_nodes import Job, identified, jobs
from qa.bench.fleet_prometheus import windows
from qa.bench.fleet_queries import DASHBOARDS, queries

_BODY = """\
# HELP gpu_up 1 while the device answers, 100 % of the time.
# TYPE gpu_up gauge
gpu_up{{uuid="GPU-a"}} 1.0
gpu_up{{uuid="GPU-b"}} 1.0
# TYPE gpu_process_info gauge
gpu_process_info{{kind="compute",process="aa11",workload_job_id="7",workload_namespace=""}} 1.0
# TYPE gpu_process_memory_used_bytes gauge
gpu_process_memory_used_bytes{{process="aa11",uuid="GPU-a"}} 5.0
# TYPE torch_steps_total counter
torch_steps_total{{process="aa11"}} {steps}
# TYPE training_start_timestamp_seconds gauge
training_start_timestamp_seconds{{process="aa11"}} 100.0
# TYPE gpugauge_snapshot_timestamp_seconds gauge
gpugauge_snapshot_timestamp_seconds {now}
"""
_JOB = Job("4001", "healthy", range(3, 5), 500.0, 9000.0)


@pytest.fixture
def template() -> Template:
    bodies = [(at, _as_on_a_cluster(_BODY.format(steps=at / 2, now=at - 1).encode())) for at in (1000.0, 1010.0)]
    return template_of(bodies)


def test_counters_and_timestamps_advance_with_the_time(template: Template) -> None:
    body = template.text % tuple(template.values(2500.0, 500.0))
    assert b"100 % of the time" in body
    assert b'torch_steps_total{process="aa11"} 1000.0' in body
    assert b"gpugauge_snapshot_timestamp_seconds 2499.0" in body
    assert b'training_start_timestamp_seconds{process="aa11"} 500.0' in body


def test_a_device_is_allocated_to_the_job_that_uses_it(template: Template) -> None:
    text = template.text.decode()
    assert 'gpu_allocation_info{uuid="0",workload_job_id="7",workload_namespace=""}' in text
    states = dict(zip(template.lines, template.scrapes[0], strict=True))
    assert states[b'gpu_allocation_state{state="allocated",uuid="0"} %b\n'] == b"1.0"
    assert states[b'gpu_allocation_state{state="unallocated",uuid="1"} %b\n'] == b"1.0"


def test_devices_belong_to_the_node_and_processes_to_the_job(template: Template) -> None:
    def values(label: str, node: int, job: Job) -> set[bytes]:
        return set(re.findall(rf'\b{label}="([^"]+)"'.encode(), identified(template.text, node, job)))

    next_job = Job("4002", "healthy", range(3, 5), 9000.0, 9999.0)
    assert len(values("uuid", 3, _JOB)) == 2
    assert values("uuid", 3, _JOB) == values("uuid", 3, next_job)
    assert values("uuid", 3, _JOB).isdisjoint(values("uuid", 4, _JOB))
    assert values("process", 3, _JOB).isdisjoint(values("process", 4, _JOB) | values("process", 3, next_job))
    assert values("workload_job_id", 3, _JOB) == values("workload_job_id", 4, _JOB) == {b"4001-7"}


def test_jobs_fill_every_node_without_a_gap() -> None:
    plan = jobs(100, 0.0, 36000.0)
    assert len(plan) == 100
    for node, runs in enumerate(plan):
        assert runs[0].start <= 0.0
        assert runs[-1].end >= 36000.0
        assert all(node in job.nodes for job in runs)
        assert all(job.end == following.start for job, following in itertools.pairwise(runs))


def test_the_first_scrapes_return_the_past_in_order_and_the_next_the_present(template: Template) -> None:
    kinds = {"healthy", "data_loading", "host_bound", "waiting", "slow_rank", "held"}
    kinds |= {"outside", "bottlenecks", "node", "idle"}
    rule_windows = {"torch_steps_total": 900.0, "training_start_timestamp_seconds": 3600.0}
    fleet = fleet_server.Fleet(dict.fromkeys(kinds, template), 2, 30.0, rule_windows)
    past = [fleet.body(0) for _ in fleet_server.PAST]
    stamps = [int(at) for body in past for at in re.findall(rb"^training_start_.* (\d+)$", body, re.MULTILINE)]
    assert stamps == sorted(set(stamps))
    assert stamps[0] < 1000 * (time.time() - 3500)
    assert b"torch_steps_total" not in past[0]
    assert b"torch_steps_total" in past[1]
    assert fleet.alive == 0
    assert re.search(rb"^gpu_up\{.*\} 1.0$", fleet.body(0), re.MULTILINE)
    fleet.body(0)
    assert fleet.alive == 1


def test_windows_are_those_of_the_rules() -> None:
    found = windows({"torch_process_info", "gpu_busy_seconds_total", "gpu_power_watts", "training_state"})
    assert found["torch_process_info"] == 3600
    assert found["gpu_busy_seconds_total"] == 1800
    assert found["training_state"] == 900
    assert "gpu_power_watts" not in found


@pytest.mark.parametrize("dashboard", DASHBOARDS)
def test_queries_have_no_variables_left(dashboard: str) -> None:
    found = queries(
        dashboard, {"gone": "()", "__rate_interval": "60s", "__range": "1h", "workload": "x", "instance": "y"}
    )
    assert found
    for query in found:
        assert not re.search(r"\$[a-z_]", query.expr), query.panel
