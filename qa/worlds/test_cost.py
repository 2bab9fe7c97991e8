"""The rules about GPU hours, energy and cost: on a real Prometheus, a bill has the sums of the plans."""

from __future__ import annotations

import json
import subprocess
import time
from collections import defaultdict
from itertools import chain, pairwise
from pathlib import Path

import pytest
from tests.drawn import draws
from tests.e2e.backfill import STEP, Api, evaluate_rules, labelled, written
from tests.e2e.programs import prometheus
from tests.needs import need

from gpugauge.artifacts.rules import cost, pack
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.promql import PROCESS_JOB, Selectors
from gpugauge.artifacts.rules.recording import HOURS_HELD, HOURS_LOST, TRAINING, gpu_hours
from qa.worlds.reports import World, drawn, labels_of

pytestmark = [pytest.mark.e2e, pytest.mark.everything]
PRICE, PUE = 2.5, 1.5
SECONDS, WINDOW = 4 * 3600, 300
_OF_MAIN = {PROCESS_JOB, TRAINING, HOURS_HELD, HOURS_LOST}


def at_gaps(world: World) -> float:
    """Return the GPU seconds that increase() misses of gaps between samples, which are not in each of its windows."""
    missed: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for series in world.series:
        if series.name == "training_gpu_held_seconds_total":
            longer = [b - a for (a, _), (b, _) in pairwise(series.points) if b - a > world.interval]
            missed[series.labels["process"]][series.labels["replica"]] += sum(gap * gap / WINDOW for gap in longer)
    return sum(min(servers.values()) for servers in missed.values())


@pytest.mark.timeout(900)
def test_a_bill_has_the_sums_of_the_plans(tmp_path: Path) -> None:
    now = int(time.time()) // 60 * 60
    worlds = [world for seed in draws(3, 24) if (world := drawn(seed, now, 1800))]
    samples = (
        (labelled(series.name, labels_of(series)), value, int(second))
        for world in worlds
        for series in world.series
        for second, value in series.points
    )
    about = {"process": "server", "instance": "node-0:10478"}
    serves = about | {"workload_job": "9001", "torch_build": "cuda", "workload_command": "vllm"}
    serving = (
        (labelled(name, labels), value, now - SECONDS + second)
        for second in range(0, SECONDS, 60)
        for name, labels, value in (
            ("training_gpu_held_seconds_total", about, second),
            ("gpu_process_host_info", serves, 1),
        )
    )
    written(tmp_path, chain(samples, serving))
    parameters = Parameters(scrape_interval=60)
    known = {"prices": {"NVIDIA H200": PRICE}, "currency": "EUR", "pue": PUE, "grams": None}
    rules = pack.cost_groups(parameters, **known)
    main = [rule for group in pack.groups(parameters)["groups"] for rule in group["rules"]]
    rules["groups"].append({"rules": [rule for rule in main if rule.get("record") in _OF_MAIN]})
    evaluate_rules(tmp_path, now, SECONDS, parameters, rules)

    with prometheus(tmp_path) as server:
        api = Api(server.url, now, SECONDS)

        def bill(name: str, **labels: str) -> float:
            found = api.now(f"sum(sum_over_time({labelled(name, labels)}[{SECONDS}s]))")
            return float(found[0]["value"][1]) if found else 0.0

        def shown(name: str) -> float:
            """Return the hours of the dashboards of jobs."""
            return float(api.now(f"sum({gpu_hours(name, f'{SECONDS}s')})")[0]["value"][1])

        # What serves is no training.
        assert bill(cost.HELD, workload_job="9001") == 0
        # Each server sees the edges of windows at other moments.
        assert shown(HOURS_HELD) == pytest.approx(bill(cost.HELD), rel=0.03)
        assert shown(HOURS_LOST) == pytest.approx(bill(cost.LOST), rel=0.03)
        for world in worlds:
            of = {"workload_job": world.job}
            processes = len({series.labels["process"] for series in world.series if "process" in series.labels})
            # What came before the first scrape of a process and of an exporter, evaluations a minute apart.
            starts = processes + world.restarts * world.ranks
            edge = ((world.interval + STEP / 5) * starts + world.unseen + at_gaps(world)) / 3600
            held, used, energy = bill(cost.HELD, **of), bill(cost.USED, **of), bill(cost.ENERGY, **of)
            true, kwh = world.held / 3600, world.joules / 3.6e6
            print(
                f"job {world.job}: {held / true:.3f} of the hours, {energy / kwh:.3f} of the energy, {edge / true:.3f}"
            )
            assert true - edge <= held <= true * 1.01
            assert energy == pytest.approx(kwh, rel=0.02 + at_gaps(world) / world.held)
            assert held == pytest.approx(used + bill(cost.LOST, **of))
            for cause, seconds in world.lost.items():
                assert bill(cost.LOST, cause=cause, **of) == pytest.approx(seconds / 3600, abs=edge)
            assert bill(cost.HELD_COST, currency="EUR", **of) == pytest.approx(PRICE * held)
            assert bill(cost.LOST_COST, **of) == pytest.approx(PRICE * (held - used))
        for name in (cost.HELD, cost.USED, cost.LOST, cost.ENERGY, cost.HELD_COST, cost.LOST_COST):
            assert bill(cost.by_user(name)) == pytest.approx(bill(name)) != 0


@pytest.mark.parametrize(("after", "most"), [(60.68e6, 310), (9000, 331), (60.73e6 + 300 * 1200, 301)])
def test_a_counter_of_energy_that_falls_adds_no_more_than_a_gpu_uses(tmp_path: Path, after: float, most: float) -> None:
    """60.68e6: an exporter of a simulated GPU that starts again; 9000: a driver that is loaded again; then neither."""
    gpu = 'instance="n",uuid="G"'
    joules = [60.73e6 + 300 * t if t < 1200 else after + 300 * (t - 1200) for t in range(0, 2400, 60)]
    series = {
        f"gpu_energy_joules_total{{{gpu}}}": " ".join(map(repr, joules)),
        f"gpu_power_limit_watts{{{gpu}}}": "700x39",
        f"gpu_power_watts{{{gpu}}}": "300x39",
        f'gpu_process_memory_used_bytes{{{gpu},process="a"}}': "1x39",
        f'{TRAINING}{{process="a"}}': "1x39",
    }
    rule = {"record": "watts", "expr": cost._energy(Selectors.of(Parameters(scrape_interval=60)))}
    mean = f"(avg_over_time(watts[30m]) > bool 290) * (avg_over_time(watts[30m]) < bool {most})"
    expected = [{"expr": mean, "eval_time": "39m", "exp_samples": [{"labels": '{process="a"}', "value": 1}]}]
    tests = {
        "rule_files": ["rules.json"],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": expected,
            }
        ],
    }
    (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": "a", "rules": [rule]}]}))
    (tmp_path / "tests.json").write_text(json.dumps(tests))
    command = [need("promtool"), "test", "rules", str(tmp_path / "tests.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr
