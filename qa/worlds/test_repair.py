"""Repairs of GPUs: the printed commands work on the daemon that printed them, and stand in the order that works."""

from __future__ import annotations

import json
import random
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tests.doctor.cases import case, driver
from tests.doctor.cases import lost as lost_gpu
from tests.drawn import cases, seeds
from tests.e2e.programs import GPUGAUGE, PATIENCE, Daemon, Series, daemon, http, wait_for

from gpugauge.doctor.report import lines
from gpugauge.doctor.table import examine
from gpugauge.driver.advice import down_advice, unread_advice
from gpugauge.driver.api import DOWN_REASONS, Device, DeviceReading, ProcessReading
from gpugauge.driver.vendors.nvidia import NVIDIA, XID_CLASSES
from gpugauge.faults import repair
from gpugauge.faults.repair import Site, User, needs, site
from gpugauge.faults.table import FAULTS, GpuHealth, ailments, lost, xid_fault
from gpugauge.settings.kinds import ListenAddress
from gpugauge.settings.model import Kubernetes, Settings, Slurm, Web
from gpugauge.simulator.scenario.load import load_scenario
from gpugauge.status.gpu_problems import gpu_problems
from gpugauge.status.history import History
from gpugauge.status.model import GpuStatus, XidStatus
from gpugauge.status.node import build
from gpugauge.terminal.screen import problem_lines
from gpugauge.terminal.table import table
from gpugauge.web.page.links import NO_LINKS, parts
from gpugauge.web.page.render import content
from qa.worlds.looks import looks
from qa.worlds.nodes import Gpu, Node

# The steps of a repair, each by the begin of its commands. Others may stand anywhere.
STEPS = (
    ("kubectl drain", "scontrol update nodename", "scancel", "squeue"),
    ("kill ",),
    ("systemctl stop", "gpugauge release", "podman stop"),
    ("nvidia-smi --gpu-reset",),
    ("systemctl reboot",),
    ("systemctl start", "gpugauge attach", "podman start"),
    ("gpugauge status --fail-on health", "gpugauge doctor"),
    ("kubectl uncordon", "scontrol update state=resume"),
)
JUDGED = [
    *ailments(GpuHealth("gpu_reset", True, True, 64, True, 1, {"recovery": 1}, temperature=90, slowdown_temperature=90))
]
EVERY = [
    *(advice for _, advice in NVIDIA.recovery.values()),
    *NVIDIA.error_advice.values(),
    *(each.advice for each in JUDGED),
    *(unread_advice(reason, NVIDIA) for reason in ("too_slow", "unknown")),
    *(down_advice(reason, NVIDIA) or "" for reason in (*DOWN_REASONS, "remembered")),
]
# Says that this machine is none of the containers in which the tests may run.
ON_HOST = (
    "import runpy, sys; import gpugauge.workload.users as users; users._IN_CONTAINER = (); "
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
LATER = "later, if you did not reboot it: when all programs of the node have ended, "


def device(index: int, uuid: str = "") -> Device:
    return Device(uuid or f"GPU-{index}", True, "ok", DeviceReading(index=index), {})


def commands(steps: Iterable[str]) -> list[str]:
    return [one for step in steps for part, is_command in parts(step) if is_command for one in part.split(" && ")]


def numbers(found: Iterable[str]) -> list[int]:
    return [number for command in found for number, begins in enumerate(STEPS) if command.startswith(begins)]


def drawn(dice: random.Random) -> tuple[Site, dict[str, list[User]]]:
    url = dice.choice(["", "127.0.0.1:9100", "https://[::1]:10478"])
    place = Site(url, node=dice.choice(["node-7", "n7.hpc.example", "it's"]))
    place = place._replace(managers=frozenset(dice.sample(["pod", "slurm", "user"], dice.randint(0, 1))))
    if dice.random() < 0.8:
        stop, start = place.command("release --for 10m"), place.command("attach")
        place = place._replace(lifecycle=dice.random() < 0.5, check=place.command("status --fail-on health"))
        place = place._replace(stop=stop if place.lifecycle else "systemctl stop g.socket g")
        place = place._replace(start=start if place.lifecycle else "systemctl start g")
        place = place._replace(inside=dice.choice(["", "", "in the pod of gpugauge: "]))
        place = place._replace(check=place.inside + place.check)
    kinds = ["pod", "slurm", "user", "systemd", "container", ""]
    return place, {
        f"GPU-{gpu}": [User(dice.choice(kinds), dice.choice([None, 10 * gpu + n])) for n in range(dice.randint(0, 4))]
        for gpu in range(4)
    }


@seeds(range(400))
def test_one_plan_repairs_all_gpus_of_a_node_in_the_order_that_works(seed: int) -> None:
    dice = random.Random(seed)
    place, users = drawn(dice)
    faults = {gpu: dice.sample(EVERY, dice.randint(0, 2)) for gpu in dice.sample(range(4), 3)}
    words = {gpu: dice.choice([None, *FAULTS.values()]) for gpu in faults}
    found = [need for gpu, each in faults.items() for need in needs(device(gpu), map(NVIDIA.fill, each), words[gpu])]
    marks, everybody = {need.mark for need in found}, [user for each in users.values() for user in each]
    steps = list(place.plan(found, users))
    done, order = commands(steps), numbers(commands(steps))

    assert bool(steps) == bool(found)
    if not found:
        return
    waiting = [need for need in found if need.mark == "reboot" and need.later]
    rest = [need for need in found if need not in waiting]
    urgent = {need.mark for need in rest if not need.later}
    kinds = {*place.managers, *(user.kind for user in everybody)}
    others = [user for uuid, each in users.items() for user in each if uuid not in {n.device.uuid for n in rest}]
    apart = waiting and "reset" in urgent and marks <= {"reset", "hand", "reboot"} and not kinds & {"pod", "slurm"}
    if apart and others:
        # A reboot that can wait ends no program of another GPU now, unless these can end: then it does all at once.
        now = list(place.plan(rest, users))
        (once,) = (step for step in steps if step.startswith("if the other programs of the node can end now, too"))
        assert [step for step in steps[: len(now) + 1] if step != once] == now
        assert steps.index(once) < min(n for n, step in enumerate(steps) if "reset" in step.split(":")[0])
        later = steps[len(now) + 1]
        assert later.startswith(f"{LATER}systemctl reboot")
        assert all(re.search(rf"GPU {need.name}\b", each) for need in waiting for each in (once, later))
        return
    holders = " and ".join(dict.fromkeys(need.device.vendor.fill("{holders}") for need in found))
    alternative = (
        f"if a reset fails, stop services that hold the GPU ({holders}), reset again, or ask the owners of all "
        "programs of the node, then systemctl reboot"
    )
    waits = all(need.later for need in found)
    assert len({*steps}) == len(steps)
    assert order == sorted(order), steps  # the alternative to a reset stands before the start, too
    managed = bool(kinds & {"pod", "slurm"})
    # What a reset clears is noted before anything is done.
    noted = [step for step in steps if "note what the repair clears" in step]
    assert noted == steps[: len(noted)]
    assert bool(noted) == any(n.fault and n.fault.before for n in found)
    assert steps[len(noted)].startswith("drain the node: " if managed else "start nothing new on the node")
    assert not re.search("drain the node$|no reset is needed", "\n".join(steps), re.MULTILINE)
    # Jobs of Slurm are ended where the repair cannot wait, and programs without a manager are asked for.
    assert ("scancel" in " ".join(done)) == ("slurm" in kinds and not waits)
    # What is seen under load only is said at the end.
    tests = {f"GPU {n.name} ({n.fault.word}), when it has load again" for n in found if n.fault and n.fault.after}
    late = [step for step in steps if step.startswith(tuple(tests))]
    assert steps[len(steps) - len({*late}) :] == [*dict.fromkeys(late)]
    assert bool(late) == any(n.fault and n.fault.after for n in found)
    # All that a manager started ends by it, and it starts programs again after the check alone, which stands before.
    assert [("kubectl drain" in " ".join(done)), "scontrol update nodename" in " ".join(done)] == [
        kind in kinds for kind in ("pod", "slurm")
    ]
    # A drain evicts: where the repair can wait, the pods end by themselves first.
    first = ["cordon", "get"] if waits else []
    drains = [one.split()[1] for one in done if one.startswith("kubectl") and "uncordon" not in one]
    assert drains == ([*first, "drain"] if "pod" in kinds else [])
    back = [step for step in steps if numbers(commands([step]))[-1:] == [7]]
    assert len(back) == (len(kinds & {"pod", "slurm"}) if place.inside else bool(kinds & {"pod", "slurm"}))
    assert all(" && " in step or step.startswith("only if so: ") for step in back)
    assert 6 in order
    killed = {pid for one in done if one.startswith("kill ") for pid in one.split()[1:]}
    assert killed <= {str(pid) for kind, pid, _ in everybody if kind not in {"pod", "slurm"}}
    # The gravest action stands for the others, and is done once.
    reboots = "reboot" in marks or ("pod" in kinds and bool(marks & {"reset", "reset_all"}))
    resets = [one for one in done if one.startswith("nvidia-smi --gpu-reset")]
    if "power" in marks or reboots:
        assert resets == []
        last = (
            "switch the machine off and on" if "power" in marks else next(s for s in steps if "systemctl reboot" in s)
        )
        assert last in steps
        if "power" not in marks:
            repaired = {str(need.name) for need in found if need.mark != "hand"}
            assert last.startswith("systemctl reboot, which ends every program of the node and re")
            assert {one for each in re.findall(r"GPUs? ([\d, ]+)", last) for one in re.findall(r"\d", each)} == repaired
            rebooted = {need.name for need in found if need.mark == "reboot"}
            assert ("resets GPU" in last) == any(n.mark in RESETS and n.name not in rebooted for n in found)
            assert ("services of the cluster" in last) == ("reboot" not in marks)
        assert ("power" in marks) != (order.count(4) == 1)
    elif "reset_all" in marks:
        assert resets == ["nvidia-smi --gpu-reset"]
    else:
        assert {*resets} == {f"nvidia-smi --gpu-reset -i {need.name}" for need in found if need.mark == "reset"}
    assert (alternative in steps) == bool(resets)
    assert order.count(2) == order.count(5) == (bool(resets) and bool(place.stop))
    for need in found:
        if need.mark == "hand":
            assert f"GPU {need.name}: {need.text}" in steps
    assert all(one.endswith(f" --url {place.url}") for one in done if one.startswith("gpugauge s") and place.url)


@seeds(range(40))
def test_an_alert_has_the_plan_with_its_heading_and_says_nothing_twice(seed: int) -> None:
    dice = random.Random(seed)
    place, _ = drawn(dice)
    for text in EVERY:
        advice = NVIDIA.fill(text)
        found = [need for gpu in (3, 2) for need in needs(device(gpu), [advice, NVIDIA.fill(dice.choice(EVERY))])]
        plan, own = place.in_lines(found), place.fill(advice, "GPU-3")

        assert bool(plan) == bool(found)
        when = "when the jobs have ended" if all(need.later for need in found) else "now"
        assert not plan or re.match(rf"Repair of GPUs? [23, ]+, {when}, in this order:\n1\. .", plan)
        order = numbers(commands(plan.splitlines()))
        assert order == sorted(order)
        assert 7 not in order or 6 in order
        # A command of the repair, its urgency and its words stand in the steps alone.
        assert not set(numbers(commands([own])))
        assert not re.search(r"[{}]|reset it|^reboot the|can wait|(^|; |then )see the repair$", own)


@seeds(range(40))
def test_the_alerts_about_a_gpu_have_its_plan_once_and_what_it_means_for_results(seed: int) -> None:
    dice, gpu = random.Random(seed), device(3)
    known = [
        *JUDGED,
        lost("gpu_is_lost", NVIDIA),
        *filter(None, (xid_fault(xid, NVIDIA) for xid in (31, 48, 79, 94, 119))),
    ]
    faults = dice.sample(known, 4)
    needing = {each for each in faults if needs(gpu, [each.advice])}
    other = needs(device(2), [NVIDIA.fill(dice.choice(EVERY))])
    every = [*(need for each in faults for need in needs(gpu, [each.advice], FAULTS[each.runbook])), *other]
    plan = Site().in_lines(every)
    parts_of = dict(zip(faults, Site().alerted(gpu, faults, every), strict=True))
    said = {each: found.text for each, found in parts_of.items()}
    shown = {each for each in needing if plan in said[each]}
    explained = {name for each in faults for name in FAULTS[each.runbook].explains}
    critical = {e for e in needing if FAULTS[e.runbook].severity == "critical" and e.runbook not in explained}

    assert bool(shown) == bool(needing)
    assert len(shown - critical) <= (not critical)
    assert critical <= shown
    assert shown - {each for each in faults if each.runbook in explained} or all(
        e.runbook in explained for e in needing
    )
    others = {each for each in {*faults} - needing if not needing or each.runbook not in explained}
    assert all(plan not in said[each] and "repair is in" not in said[each] for each in others)
    for each in {*faults} - others - shown:
        assert any(f"The repair is that of {one.runbook}, also in gpugauge status" in said[each] for one in shown)
    places = {each: (each.runbook in explained, [*FAULTS].index(each.runbook)) for each in needing}
    assert critical or not needing or {places[each] for each in shown} == {min(places.values())}
    wrong = any("wrong data" in each.advice for each in faults)
    assert all(("wrong data" in said[each]) == wrong for each in shown)
    # Views in short have its parts.
    for found in parts_of.values():
        assert bool(found.command) == bool(found.when) == bool(plan and plan in found.text and repairs(plan))
        assert found.command in plan
        assert not found.command or ("wrong data" in found.note) == wrong


def repairs(plan: str) -> list[str]:
    return [one for one in commands(plan.splitlines()) if one.startswith((*STEPS[3], *STEPS[4]))]


def test_the_command_of_a_gpu_is_its_own() -> None:
    """Two are reset, and one waits for a reboot when the programs of the node have ended."""
    reset = [fault for fault in JUDGED if {need.mark for need in needs(device(0), [fault.advice])} == {"reset"}][:1]
    narrow = list(ailments(GpuHealth(lanes=(8, 16), load=1.0, link_load=1.0)))
    found = [need for gpu in (0, 1) for need in needs(device(gpu), [reset[0].advice])]
    found += needs(device(2), [narrow[0].advice], FAULTS["GpuPcieDegraded"])
    said = [next(Site().alerted(device(gpu), fault, found)) for gpu, fault in enumerate((reset, reset, narrow))]

    assert [(each.when, each.command) for each in said] == [
        ("now", "nvidia-smi --gpu-reset -i 0"),
        ("now", "nvidia-smi --gpu-reset -i 1"),
        ("when the jobs have ended", "systemctl reboot"),
    ]


def test_a_fault_is_critical_if_its_repair_cannot_wait_for_the_jobs() -> None:
    actions = (ailments(GpuHealth(action, lanes=(8, 16), load=1.0, link_load=1.0)) for action in NVIDIA.recovery)
    xids = filter(None, (xid_fault(xid, NVIDIA) for codes in XID_CLASSES.values() for xid in codes))
    every = [*JUDGED, *chain.from_iterable(actions), *xids, *(lost(reason, NVIDIA) for reason in DOWN_REASONS)]
    waits = {(each.grave, need.later) for each in every for need in needs(device(0), [each.advice])}

    assert waits == {(True, False), (False, True)}


def test_a_gpu_without_an_index_is_reset_by_its_uuid() -> None:
    assert "nvidia-smi --gpu-reset -i GPU-a" in list(Site().plan(needs(device(-1, "GPU-a"), ["{reset}"])))


def test_a_reboot_ends_the_programs_of_all_gpus_a_reset_those_of_its_own() -> None:
    users = {"GPU-0": [User("", 7, "user ann")], "GPU-1": [User("", 8), User("", None)], "": [User("", 9, "user ann")]}
    every = "user ann: pid 7 9; owner unknown: pid 8"
    for mark, named in (("reset", "user ann: pid 7"), ("reset_all", every), ("reboot", every), ("power", every)):
        wanted = needs(device(0), [f"{{{mark}}}"])
        begin = f"start nothing new on the node, ask the owners to end their programs ({named})"
        pids = re.findall(r"\d", named)
        assert next(Site().plan(wanted, users)) == f"{begin}, otherwise kill {' '.join(sorted(pids))}"
        assert next(Site().plan(wanted, users, simulated=True)) == f"{begin}, otherwise end them"
    later = f"start nothing new on the node, go on when its programs have ended ({every})"
    assert next(Site().plan(needs(device(0), ["{later}; {reboot}"]), users)) == later
    assert next(Site().plan(needs(device(0), ["{reset}"]))).endswith("to end their programs (see gpugauge status)")
    many = {"GPU-0": [User("", n, "user ann") for n in range(1, 12)]}
    assert next(Site().plan(needs(device(0), ["{reset}"]), many)).endswith("ann: pid 1 2 3 4 5 6 7 8; and 3 more)")


RESETS = {"reset", "reset_all"}
KUBERNETES = Settings(kubernetes=Kubernetes(node_name="n1"))
LIFECYCLE = Settings(web=Web(enable_lifecycle=True, listen_address=(ListenAddress("", 9100),)))
SYSTEMD = {"NOTIFY_SOCKET": "/run/systemd/notify"}
ID = "0123456789ab" + "c" * 52
MOUNTED = f"9 8 0:1 /var/lib/docker/containers/{ID}/hosts /etc/hosts rw - ext4 /dev/sda1 rw\n"
PODMAN = f"9 8 0:1 /containers/storage/overlay-containers/{ID}/userdata/hosts /etc/hosts rw - tmpfs tmpfs rw\n"
RELEASE = "gpugauge release --for 10m --url 127.0.0.1:9100"


def placed(folder: Path, settings: Settings, environ: dict[str, str], cgroup: str = "0::/\n", mounts: str = "") -> Site:
    (folder / "proc/self").mkdir(parents=True, exist_ok=True)
    (folder / "proc/self/cgroup").write_text(cgroup)
    (folder / "proc/self/mountinfo").write_text(mounts)
    return site(settings, "http", folder / "cgroups", environ, folder)


@cases(
    ("settings", "environ", "cgroup", "stop"),
    [
        (
            Settings(),
            SYSTEMD,
            "0::/system.slice/gpu-exporter.service\n",
            "systemctl stop gpu-exporter.socket gpu-exporter",
        ),
        (Settings(), SYSTEMD, "0::/user.slice/u.slice/app.slice/g.service\n", "systemctl --user stop g.socket g"),
        (Settings(), SYSTEMD, "0::/\n", "systemctl stop gpugauge.socket gpugauge"),
        (Settings(), {}, "0::/system.slice/cron.service\n", "kill 4711, which is gpugauge"),
        (LIFECYCLE, SYSTEMD, "0::/\n", RELEASE),
    ],
)
def test_the_daemon_is_stopped_where_it_runs(
    settings: Settings,
    environ: dict[str, str],
    cgroup: str,
    stop: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repair, "shares_host_users", lambda: True)
    monkeypatch.setattr("os.getpid", lambda: 4711)

    assert placed(tmp_path, settings, environ, cgroup).stop == stop


@cases(
    ("engine", "settings", "cgroup", "mounts", "stop", "inside"),
    [
        ("run/.containerenv", Settings(), "0::/\n", PODMAN, "podman stop 0123456789ab", "podman exec 0123456789ab "),
        (".dockerenv", Settings(), "0::/\n", MOUNTED, "docker stop 0123456789ab", "docker exec 0123456789ab "),
        (
            ".dockerenv",
            Settings(),
            f"1:cpu:/docker/{ID}\n",
            "",
            "docker stop 0123456789ab",
            "docker exec 0123456789ab ",
        ),
        (
            ".dockerenv",
            LIFECYCLE,
            "0::/\n",
            MOUNTED,
            f"docker exec 0123456789ab {RELEASE}",
            "docker exec 0123456789ab ",
        ),
        (
            "",
            Settings(),
            f"1:cpu:/docker/{ID}\n",
            "",
            "stop the container of gpugauge",
            "in the container of gpugauge: ",
        ),
        ("run/.containerenv", LIFECYCLE, "0::/\n", "", f"in the container of gpugauge: {RELEASE}", None),
        (".dockerenv", KUBERNETES, "0::/\n", MOUNTED, "", "in the pod of gpugauge: "),
    ],
)
def test_a_container_is_named_only_where_its_engine_and_its_id_are_known(
    engine: str,
    settings: Settings,
    cgroup: str,
    mounts: str,
    stop: str,
    inside: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "run").mkdir()
    if engine:
        (tmp_path / engine).touch()
    monkeypatch.setattr(repair, "shares_host_users", lambda: False)
    found = placed(tmp_path, settings, {}, cgroup, mounts)

    assert stop in found.stop
    assert found.inside == (inside or "in the container of gpugauge: ")


def test_the_daemons_of_nodes_are_asked_at_an_address_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(host: str, scheme: str = "http") -> str:
        listen = ListenAddress(host, 9100)
        return site(Settings(web=Web(listen_address=(listen,))), scheme, tmp_path, {}).on_nodes("status")

    assert asked("") == "for each NODE of the job: gpugauge status --url NODE:9100"
    assert asked("10.0.0.7", "https") == "for each NODE of the job: gpugauge status --url https://NODE:9100"
    assert placed(tmp_path, LIFECYCLE, {}).check.endswith(f" --url {socket.gethostname()}:9100")
    monkeypatch.setattr("socket.gethostname", lambda: ID[:12])  # as in a container
    assert placed(tmp_path, LIFECYCLE, {}).check == "gpugauge status --fail-on health --url NODE:9100"
    assert placed(tmp_path, KUBERNETES, {}).check.endswith("gpugauge status --fail-on health")
    assert asked("127.0.0.1") == "on each node of the job: gpugauge status --url 127.0.0.1:9100"
    assert asked("::1") == "on each node of the job: gpugauge status --url [::1]:9100"


@cases(
    ("settings", "environ", "cgroup", "managers"),
    [
        (Settings(), {}, "system.slice/cron.service", set()),
        (KUBERNETES, {}, "", {"pod"}),
        (Settings(), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "", {"pod"}),
        (Settings(slurm=Slurm(job_mapping_dir=Path("/jobs"))), {}, "", {"slurm"}),
        (Settings(), {}, "system.slice/slurmd.service", {"slurm"}),
        (Settings(), {}, "systemd/system.slice/slurmd.service", {"slurm"}),
        (Settings(), {}, "system.slice/n7_slurmstepd.scope/job_7", {"slurm"}),
        (Settings(), {}, "system.slice/slurmctld.service", set()),
        (KUBERNETES, {}, "system.slice/slurmd.service", {"pod", "slurm"}),
        (Settings(), {}, "kubepods.slice", {"pod"}),
    ],
)
def test_who_manages_the_node_is_known_from_settings_pod_and_cgroups(
    settings: Settings, environ: dict[str, str], cgroup: str, managers: set[str], tmp_path: Path
) -> None:
    (tmp_path / "cgroups" / cgroup).mkdir(parents=True)
    found = placed(tmp_path, settings, environ)

    assert found.managers == managers
    assert (found.node in {"n1", "NODE"}) == ("pod" in managers and cgroup != "kubepods.slice")


def test_the_doctor_stops_nothing_where_no_daemon_runs(tmp_path: Path) -> None:
    used = DeviceReading(index=0, recovery_action="gpu_reset", processes=(ProcessReading(7, "compute"),))
    found = case(tmp_path, driver(replace(device(0), reading=used), lost_gpu(1), lost_gpu(2, "removed"), device(3)))
    text = " ".join(" ".join(lines(found, examine(found), False)).split())

    assert "reset it" not in text
    assert text.partition("Repair of GPUs ")[2].startswith(
        "0, 1, now: in this order 1. GPU 0 (needs recovery), note what the repair clears: nvidia-smi -q -i 0 -d "
        "ECC,ROW_REMAPPER 2. start nothing new on the node, ask the owners to end their programs (owner unknown: pid "
        "7), otherwise kill 7 3. systemctl reboot, which ends every program of the node and resets GPU 0 and repairs "
        "GPU 1 4. check that all is well before you give the node back to its users: gpugauge doctor "
    )
    assert "systemctl stop" not in text


def test_the_steps_stand_once_in_each_view_and_the_page_never_folds_them() -> None:
    gpus = [Gpu(f"GPU-{n}", n, "NVIDIA H100", reset=True) for n in range(9)]
    facts = build(Node(gpus, []).snapshot(), History())
    place = next(n for n, problem in enumerate(facts.problems) if problem.kind == "repair")
    steps = facts.problems[place].steps
    listed = "".join(content(facts, None, NO_LINKS)).partition("<details")[0]

    assert place == len(facts.problems) - 1 > 8
    assert [f"{n}. " in listed for n in range(1, len(steps) + 1)] == [True] * len(steps)
    shown = [line for line, _ in problem_lines(facts.problems[place], 200)]
    assert shown[1:] == [f"  {n}. {step}" for n, step in enumerate(steps, 1)]
    text = table(facts, False, 0.0, 200)
    assert [text.count(line) for line in shown] == [1] * len(shown)
    assert "Repair of GPUs" not in facts.answer
    assert {gpu.summary for gpu in facts.gpus} == {"the driver requires a reset of the GPU after an error"}


def test_the_faults_stand_before_the_repair_and_say_only_what_it_does_not_have(tmp_path: Path) -> None:
    for scenario, heading in (("bad-links", "s 1, 2, when the jobs have ended"), ("failing-card", " 1, now")):
        *_, facts = looks(load_scenario(scenario), tmp_path / scenario, 400, 401, 1)
        *faults, last = (problem for problem in facts.problems if problem.gpus)
        assert last.subject == f"Repair of GPU{heading}"
        apart = f"^{LATER}systemctl reboot, which "
        apart = apart if "card" in scenario else " and "
        assert any(re.search(rf"{apart}retrains the PCIe link of GPU [12]", s) for s in last.steps)
        assert re.search(
            r"^GPU [12] \(narrow link\), when it has load again, expect all lanes: nvidia-smi -q -i [12] \| grep ",
            last.steps[-1],
        )
        said = [fault.advice or "" for fault in faults]
        assert sum("see the repair" in advice for advice in said) == (1 if scenario == "failing-card" else 2)
        assert not [advice for advice in said if re.search("reset|reboot|wait", advice)]
        assert any("wrong data" in advice for advice in said) == (scenario == "failing-card")
        assert any(advice.endswith("have the seating of GPU and riser, and the slot checked") for advice in said)


def test_the_job_of_a_faulty_gpu_is_known_by_the_allocation_where_no_process_runs() -> None:
    job = {"kind": "slurm", "job_id": "7", "user": "ann"}
    xid = XidStatus(text="Xid 79: off the bus", last=60.0, advice="x")
    for up in (True, False):
        gpu = GpuStatus(uuid="GPU-a", up=up, xids=(xid,), down_reason="gpu_is_lost", allocated_to=(job,))
        first, *_ = gpu_problems([gpu], None)
        assert (first.detail or "").split("; ")[0] == "allocated to Slurm job 7, user ann"


def steps_of(url: str) -> list[str]:
    problems: list[dict[str, Any]] = json.loads(http(f"{url}/api/v1/status")[1])["problems"]
    steps: list[str] = next((p["steps"] for p in problems if p["kind"] == "repair"), [])
    return steps if any("gpu-reset" in step for step in steps) else []


def shows(running: Daemon, released: Series) -> bool:
    return running.series("gpugauge_driver_released") == released


@pytest.mark.e2e
@pytest.mark.parametrize("lifecycle", [True, False])
def test_the_printed_commands_work_on_the_daemon_that_printed_them(lifecycle: bool, tmp_path: Path) -> None:
    flags = ("--web.enable-lifecycle",) if lifecycle else ()
    with daemon(tmp_path, "--simulate=failing-card", *flags, prefix=(sys.executable, "-c", ON_HOST)) as running:
        steps = wait_for(lambda: steps_of(running.url), 60, "the fault is shown")
        found = [one for one in commands(steps) if one.startswith(("gpugauge ", "kill "))]
        exported = {advice for (advice,) in running.series("gpu_problem_info", "advice")}
        assert all(any(command in text for text in exported) for command in found)

        # The simulated fault stays, so that the node must not be given back; the daemon that was ended has no answer.
        failing = {"status": 1 if lifecycle else 2}
        for command in found:
            program, *arguments = shlex.split(command)
            path = str(Path(GPUGAUGE).parent / program) if program == "gpugauge" else program
            status = subprocess.run([path, *arguments], check=False, timeout=PATIENCE, capture_output=True).returncode
            assert status == failing.get(arguments[0], 0), command
            if lifecycle:
                released: Series = {(): float(arguments[0] == "release")}
                wait_for(partial(shows, running, released), 10, command)

        done = [command.split()[1] for command in found]
        assert done == (["release", "attach", "status"] if lifecycle else [str(running.process.pid), "status"])
        assert lifecycle or running.process.wait(PATIENCE) == 0


def test_without_a_manager_the_node_is_given_back_by_hand() -> None:
    steps = list(Site().plan(needs(device(0), ["{reset}"])))

    assert steps[-1] == "check that all is well before you give the node back to its users: gpugauge doctor"
