"""The path of an alert: trainings on simulated GPUs, the exporter, Prometheus with the rules, Alertmanager with the
example configuration, a webhook. The programs are those of `make demo-stack`, which is tested as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpugauge.settings.kinds import RUNBOOK_URL
from tests.e2e.documents import ROOT
from tests.e2e.programs import Prometheus, http, wait_for
from tests.e2e.webhook import Alert, Webhook, webhook
from tests.needs import need

pytestmark = pytest.mark.e2e

STACK = [sys.executable, str(ROOT / "deploy" / "demo" / "stack.py")]
MAKE = ["--no-print-directory", "--old-file=.venv/run", f"BIN={Path(sys.executable).parent}", "demo-stack"]
PATIENCE = 20
# Two H100 of the scenario `twins`: the same training with 2 loader workers and with 10.
STARVED, FED = "7201", "7210"
# 2 workers need 0.8 s for a batch that the GPU computes in 0.1 s.
LOST = 0.75
LOW = "TrainingLoadLow"


@dataclass
class Stack:
    """A running demo-stack: its output, and the addresses in it."""

    process: subprocess.Popen[bytes]
    output: Path
    urls: dict[str, str]

    @property
    def printed(self) -> str:
        return self.output.read_text()

    @property
    def folder(self) -> Path:
        return Path(re.findall(r"data and logs\s+([^\s,]+)", self.printed)[0])

    def interrupt(self) -> None:
        """Send SIGINT to the process group, as Ctrl-C does."""
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(40)


@contextlib.contextmanager
def stack(folder: Path, *command: str) -> Iterator[Stack]:
    for package in ("prometheus", "prometheus-alertmanager"):
        need(package)
    output = folder / "stack.out"
    with output.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
    running = Stack(process, output, {})

    def started() -> bool:
        assert process.poll() is None, running.printed
        return "Ctrl-C ends everything" in running.printed

    try:
        wait_for(started, 60, "the stack is up")
        running.urls = dict(re.findall(r"^ +(\w+) +(http://\S+)$", running.printed, re.MULTILINE))
        yield running
    finally:
        if process.poll() is None:
            running.interrupt()


@dataclass
class Chain:
    """The chain at the moment of the first notification."""

    prometheus: Prometheus
    alertmanager: str
    webhook: Webhook

    def active(self) -> list[Alert]:
        """Return the alerts in Alertmanager, notified or inhibited."""
        status, body = http(f"{self.alertmanager}/api/v2/alerts")
        assert status == 200
        alerts: list[Alert] = json.loads(body)
        return alerts


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    folder = tmp_path_factory.mktemp("chain")
    with webhook() as hook, stack(folder, *STACK, f"--patience={PATIENCE}", f"--webhook={hook.url}") as running:
        wait_for(hook.alerts, 90, "a notification is sent")
        yield Chain(Prometheus(running.urls["Prometheus"]), running.urls["Alertmanager"], hook)


def test_notification_has_the_cause_the_job_and_the_numbers(chain: Chain) -> None:
    path, notification = chain.webhook.notifications[0]
    (alert,) = notification["alerts"]

    assert (path, notification["receiver"], notification["status"]) == ("/owners", "owners", "firing")
    assert alert["labels"] == {
        "alertname": LOW,
        "severity": "warning",
        "workload_job_kind": "slurm",
        "workload_job": STARVED,
        "workload_user": "1000",
    }
    summary, description = alert["annotations"]["summary"], alert["annotations"]["description"]
    share = re.fullmatch(
        rf"Training Slurm job {STARVED} \(starved\.py\) of user \S+ uses ([\d.]+)% of its GPU time, less than 50%: it "
        r"waits for its data loader, on \S+ GPU 0",
        summary,
    )
    assert share
    assert float(share[1]) / 100 == pytest.approx(1 - LOST, abs=0.1)
    assert re.match(r"It waits for its data loader \([\d.]+% of its GPU time is lost\)", description)
    assert re.search(r"What to do: num_workers=\d+ in the DataLoader", description)
    # The hours are counted in steps of five minutes, so a short low load may have none yet.
    assert re.search(
        r"(?:\d+\.\d GPU hours lost so far\. )?\n`gpugauge report .* Mean over 20s\..* Since \d{4}-[^.]* UTC\.$",
        description,
    )
    assert "starved.py" in description
    assert alert["annotations"]["runbook_url"] == f"{RUNBOOK_URL}#{LOW.lower()}"


def test_the_job_has_one_alert(chain: Chain) -> None:
    assert [(alert["labels"]["alertname"], alert["status"]["state"]) for alert in chain.active()] == [(LOW, "active")]
    assert {alert["labels"]["alertname"] for alert in chain.webhook.alerts()} == {LOW}


def test_the_healthy_twin_is_judged_without_an_alert(chain: Chain) -> None:
    job = f'{{workload_job="{FED}"}}'
    armed = chain.prometheus.value(f"gpugauge:job_training_armed:bool{job}")
    load = chain.prometheus.value(f"gpugauge:job_training_load:ratio{job}")
    judged = chain.prometheus.value(f"count_over_time(gpugauge:job_training_load:ratio{job}[{PATIENCE}s])")
    of_starved = chain.prometheus.value(f'count_over_time(ALERTS{{workload_job="{STARVED}"}}[5m])')

    assert armed == 1
    assert load is not None
    assert load > 0.9
    assert judged is not None
    assert judged > PATIENCE / 4  # one evaluation in two seconds
    assert of_starved
    # Neither firing nor pending at any time.
    assert chain.prometheus.query(f"count_over_time(ALERTS{job}[5m])") == []
    assert {alert["labels"]["workload_job"] for alert in (*chain.active(), *chain.webhook.alerts())} == {STARVED}


def test_demo_stack_prints_notifications_and_ends_all_programs_on_an_interrupt(tmp_path: Path) -> None:
    alert = {
        "labels": {"alertname": "GpuLost", "severity": "critical", "uuid": "GPU-1"},
        "annotations": {"summary": "GPU GPU-1 does not answer"},
    }
    with stack(tmp_path, need("make"), *MAKE, "ARGS=--scenario=idle --patience=10") as running:
        before = dict(running.urls)
        request = urllib.request.Request(
            f"{running.urls['Alertmanager']}/api/v2/alerts",
            json.dumps([alert]).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as reply:
            assert reply.status == 200
        wait_for(lambda: "GPU-1 does not answer" in running.printed, 20, "the notification is printed")
        folder = running.folder
        assert folder.is_dir()
        running.interrupt()

    assert "FIRING to on-call, critical: GpuLost" in running.printed
    assert running.printed.startswith("SIMULATED")
    assert before.keys() == {"gpugauge", "Prometheus", "Alertmanager"}
    assert {name: http(url)[0] for name, url in before.items()} == dict.fromkeys(before, 0)
    assert not folder.exists()


def test_demo_stack_prints_the_output_of_a_program_that_ended(tmp_path: Path) -> None:
    need("prometheus-alertmanager")
    command = [*STACK, "--scenario=nowhere"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=60)

    assert done.returncode == 1
    assert re.search(
        r"gpugauge ended with \d+; the end of its log:\n.*there is no scenario 'nowhere'", done.stdout, re.DOTALL
    )
    assert list(tmp_path.iterdir()) == []


def test_demo_stack_names_the_packages_that_are_missing(tmp_path: Path) -> None:
    done = subprocess.run(STACK, env={"PATH": str(tmp_path)}, check=False, capture_output=True, text=True, timeout=30)

    assert done.returncode == 1
    assert "apt-get install prometheus prometheus-alertmanager" in done.stdout
