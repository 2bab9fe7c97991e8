"""Repairs of GPUs: the printed commands work on the daemon that printed them, and stand in the order that works."""

from __future__ import annotations

import json
import random
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.drawn import cases, seeds
from tests.e2e.programs import GPUGAUGE, PATIENCE, Daemon, Series, daemon, http, wait_for

from gpugauge.driver.advice import down_advice, unread_advice
from gpugauge.driver.api import DOWN_REASONS
from gpugauge.driver.vendors.nvidia import NVIDIA
from gpugauge.faults import repair
from gpugauge.faults.repair import Site, User, site
from gpugauge.faults.table import GpuHealth, ailments
from gpugauge.settings.kinds import ListenAddress
from gpugauge.settings.model import Kubernetes, Settings, Slurm, Web
from gpugauge.web.page.links import parts

# The steps of a repair, each by the begin of its commands. Others may stand anywhere.
STEPS = (
    ("kubectl drain", "scontrol update nodename", "squeue"),
    ("kill ",),
    ("systemctl stop", "gpugauge release", "podman stop"),
    ("nvidia-smi --gpu-reset",),
    ("systemctl reboot",),
    ("systemctl start", "gpugauge attach", "podman start", "kubectl uncordon", "scontrol update state=resume"),
)
EVERY = [
    *(advice for _, advice in NVIDIA.recovery.values()),
    *NVIDIA.error_advice.values(),
    *(a.advice for a in ailments(GpuHealth("gpu_reset", True, True, 64, True, 1, {"recovery": 1}), 3)),
    *(unread_advice(reason, NVIDIA) for reason in ("too_slow", "unknown")),
    *(down_advice(reason, NVIDIA) or "" for reason in (*DOWN_REASONS, "remembered")),
]
RESETS = re.compile(r"nvidia-smi --gpu-reset( -i \d)?")
# Says that this machine is none of the containers in which the tests may run.
ON_HOST = (
    "import runpy, sys; import gpugauge.workload.users as users; users._IN_CONTAINER = (); "
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


def commands(advice: str) -> list[str]:
    return [part for part, is_command in parts(advice) if is_command]


def steps(found: list[str]) -> list[int]:
    return [number for command in found for number, begins in enumerate(STEPS) if command.startswith(begins)]


def drawn(dice: random.Random) -> tuple[Site, list[User] | None]:
    url = dice.choice(["", "127.0.0.1:9100", "https://[::1]:10478"])
    place = Site(url, node=dice.choice(["node-7", "n7.hpc.example", "it's"]))
    place = replace(place, managers=frozenset(dice.sample(["pod", "slurm", "user"], dice.randint(0, 1))))
    if dice.random() < 0.5:
        place = replace(place, lifecycle=True, stop=place.command("release --for 10m"), start=place.command("attach"))
    kinds = dice.choices(["pod", "slurm", "user", "systemd", "container", ""], k=dice.randint(0, 10))
    users = [(kind, dice.choice([None, 10 + n])) for n, kind in enumerate(kinds)]
    return place, None if dice.random() < 0.2 else users


@seeds(range(200))
def test_each_owner_is_drained_before_anything_is_killed_stopped_or_reset(seed: int) -> None:
    dice = random.Random(seed)
    place, users = drawn(dice)
    kinds = {*place.managers, *(kind for kind, _ in users or ())}
    killable = {str(pid) for kind, pid in users or () if kind not in {"pod", "slurm"}}
    for text in EVERY:
        advice = place.fill(NVIDIA.fill(text, 3), "GPU-x", users)
        found = commands(advice)
        order = steps(found)

        assert not re.search(r"[{}]", advice)
        assert order == sorted(order), advice
        # A step is a command alone: people copy what stands between two semicolons.
        alone = [one for one in found if steps([one]) and steps([one])[0] in (2, 3, 5)]
        assert set(alone) <= set(re.split("[;:] ", advice)), advice
        assert {pid for one in found if one.startswith("kill ") for pid in one.split()[1:]} <= killable
        assert all(
            command.startswith("gpugauge ") or "gpugauge" not in command or "systemctl" in command for command in found
        )
        if "{drain}" in NVIDIA.fill(text, 3):
            assert "drain the node" in advice  # as in the runbook
            assert ("kubectl drain" in advice) == ("pod" in kinds)
            assert ("scontrol update nodename=" in advice) == ("slurm" in kinds)
            ends = "systemctl" in advice or "nvidia-smi" in advice
            returned = ("kubectl uncordon" in advice, "scontrol update state=resume" in advice)
            assert returned == (ends and "pod" in kinds, ends and "slurm" in kinds)
            assert ("ask the owner" in advice) == any(kind not in {"pod", "slurm"} for kind, _ in users or ())
        if "{stop}" in text:
            assert bool(RESETS.search(advice)) == (2 in order) == ("pod" not in kinds)
            assert ("gpugauge release" in advice) == (place.lifecycle and "pod" not in kinds)
        assert all(one.endswith(f" --url {place.url}") for one in found if one.startswith("gpugauge ") and place.url)


KUBERNETES = Settings(kubernetes=Kubernetes(node_name="n1"))
LIFECYCLE = Settings(web=Web(enable_lifecycle=True, listen_address=(ListenAddress("", 9100),)))
SYSTEMD = {"NOTIFY_SOCKET": "/run/systemd/notify"}


@cases(
    ("settings", "on_host", "environ", "cgroup", "stop"),
    [
        (
            Settings(),
            True,
            SYSTEMD,
            "0::/system.slice/gpu-exporter.service\n",
            "systemctl stop gpu-exporter.socket gpu-exporter",
        ),
        (Settings(), True, SYSTEMD, "0::/user.slice/u.slice/app.slice/g.service\n", "systemctl --user stop g.socket g"),
        (Settings(), True, SYSTEMD, "0::/\n", "systemctl stop gpugauge.socket gpugauge"),
        (Settings(), True, {}, "0::/system.slice/cron.service\n", "kill {pid}, which is gpugauge"),
        (Settings(), False, SYSTEMD, "0::/\n", "stop the container of gpugauge, such as podman stop gpugauge"),
        (LIFECYCLE, True, SYSTEMD, "0::/\n", "gpugauge release --for 10m --url 127.0.0.1:9100"),
        (
            LIFECYCLE,
            False,
            {},
            "0::/\n",
            "in the container of gpugauge: gpugauge release --for 10m --url 127.0.0.1:9100",
        ),
    ],
)
def test_the_daemon_is_stopped_where_it_runs(
    settings: Settings,
    on_host: bool,
    environ: dict[str, str],
    cgroup: str,
    stop: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "cgroup").write_text(cgroup)
    monkeypatch.setattr(repair, "shares_host_users", lambda: on_host)
    monkeypatch.setattr("os.getpid", lambda: 4711)

    assert site(settings, "http", environ, tmp_path / "cgroup").stop == stop.format(pid=4711)


def test_the_daemons_of_other_nodes_are_asked_at_their_own_address() -> None:
    def asked(host: str, scheme: str = "http") -> str:
        listen = ListenAddress(host, 9100)
        return site(Settings(web=Web(listen_address=(listen,))), scheme, {}, Path("/dev/null")).on_nodes("status")

    assert asked("") == "for each NODE of the job: gpugauge status --url NODE:9100"
    assert asked("10.0.0.7", "https") == "for each NODE of the job: gpugauge status --url https://NODE:9100"
    assert asked("127.0.0.1") == asked("::1") == "on each node of the job: gpugauge status"


def test_who_manages_the_node_is_known_from_the_settings_and_the_pod(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    found = [
        site(settings, "http", environ, tmp_path / "cgroup")
        for settings, environ in (
            (KUBERNETES, {}),
            (Settings(), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}),
            (Settings(slurm=Slurm(job_mapping_dir=tmp_path)), {}),
        )
    ]

    assert [set(one.managers) for one in found] == [{"pod"}, {"pod"}, {"slurm"}]
    assert [one.node for one in found[:2]] == ["n1", "NODE"]


def advice_of(url: str) -> str:
    problems: list[dict[str, Any]] = json.loads(http(f"{url}/api/v1/status")[1])["problems"]
    return next((p["advice"] for p in problems if p["runbook"] == "GpuNeedsReset" and "reset" in p["text"]), "")


def shows(running: Daemon, released: Series) -> bool:
    return running.series("gpugauge_driver_released") == released


@pytest.mark.e2e
@pytest.mark.parametrize("lifecycle", [True, False])
def test_the_printed_commands_work_on_the_daemon_that_printed_them(lifecycle: bool, tmp_path: Path) -> None:
    flags = ("--web.enable-lifecycle",) if lifecycle else ()
    with daemon(tmp_path, "--simulate=failing-card", *flags, prefix=(sys.executable, "-c", ON_HOST)) as running:
        advice = wait_for(lambda: advice_of(running.url), 60, "the fault is shown")
        found = [one for one in commands(advice) if one.startswith(("gpugauge ", "kill "))]
        exported = {advice for (advice,) in running.series("gpu_problem_info", "advice")}
        assert all(any(command in text for text in exported) for command in found)

        for command in found:
            program, *arguments = shlex.split(command)
            path = str(Path(GPUGAUGE).parent / program) if program == "gpugauge" else program
            assert subprocess.run([path, *arguments], check=False, timeout=PATIENCE).returncode == 0, command
            if lifecycle:
                released: Series = {(): float(arguments[0] == "release")}
                wait_for(partial(shows, running, released), 10, command)

        assert [command.split()[:2] for command in found] == (
            [["gpugauge", "release"], ["gpugauge", "attach"]] if lifecycle else [["kill", str(running.process.pid)]]
        )
        assert lifecycle or running.process.wait(PATIENCE) == 0
