from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from qa.worlds.reading import Reader
from qa.worlds.scraped import snapshot_of

from gpugauge.driver.advice import down_advice, known_advice
from gpugauge.driver.api import CODES, Device, DeviceReading
from gpugauge.driver.vendors.nvidia import NVIDIA
from gpugauge.faults.repair import ANY_SITE, Site, User, daemon_address, needs
from gpugauge.faults.table import GpuHealth, ailments
from gpugauge.status import words
from gpugauge.status.history import History
from gpugauge.status.model import Status, decoded
from gpugauge.verdict.causes import CAUSES
from gpugauge.web.page.links import NO_LINKS, Links, parts
from gpugauge.web.page.render import content, head
from tests.simulation import status
from tests.status.statusfacts import snapshot

LINKS = Links("https://docs.example/runbook.md", "https://grafana.example/")
HOSTILE = "</td><img src=x onerror=alert(1)>"


def node_facts(**changes: Any) -> dict[str, Any]:
    return status(snapshot(), History()) | changes


def driver_down(words: str, reason: str, *, needed: bool = True) -> dict[str, Any]:
    return {"up": False, "reason": reason, "needed": needed, "state_words": words, "advice": words}


def read(facts: dict[str, Any], scenario: str | None = None) -> Reader:
    return Reader("0".join(drawn(facts, scenario)))


def drawn(facts: dict[str, Any], scenario: str | None = None, links: Links = LINKS) -> tuple[str, str]:
    return content(decoded(Status, facts), scenario, links)


def with_process(**changes: Any) -> dict[str, Any]:
    facts = node_facts()
    facts["gpus"][0]["processes"][0].update(changes)
    return facts


def test_each_device_with_its_values_and_users() -> None:
    text = read(node_facts()).text

    assert "GPU 0 H100 80GB HBM3 GPU-a" in text
    assert "41.0 / 80.0 GiB" in text
    assert "612 / 700 W" in text
    assert "64 °C" in text
    assert "train.py pid 4001 pod ml/trainer-0, user 1000 no hook - 40.0 GiB 2.0 h" in text
    assert "and 3 more processes" in text
    assert "allocated, but no process uses it: pod web/idle-7" in text
    assert "No GPU 1 process with torch" in text
    assert text.index("No GPU") < text.index("GPU 0 H100")
    assert "the state of 2 processes is not known" in text
    assert "gpugauge run -- python train.py" in text


def test_the_exporter_itself() -> None:
    text = read(node_facts(driver=driver_down("not available: it does not answer", "timeout"))).text

    assert (
        "Driver not available: it does not answer Collectors failing: host Snapshot 22:13:20 UTC, 0 s old Version 9.9"
        in text
    )
    assert "Collector host: fails: no" in text


def test_the_answer_stands_first_and_the_problems_follow() -> None:
    facts = node_facts()
    facts["problems"][1] |= {"detail": "pid 7", "advice": "end it"}
    text = read(facts).text

    answer = "1 collector of gpugauge failing; 1 of 2 GPUs allocated and not used Faults Collector host: fails: no"
    assert text.startswith(
        f"{answer} Wasted GPU time GPU 1: allocated to pod web/idle-7, but no process uses it; pid 7 Advice: end it"
    )


def test_the_host_is_in_the_title_and_escaped() -> None:
    assert "<title>&lt;b&gt;node7 · gpugauge</title>" in head("1", "/metrics", "<b>node7", NO_LINKS)


def test_many_problems_stay_bounded() -> None:
    facts = node_facts()
    facts["problems"] *= 100
    page = read(facts)

    # Faults are never folded.
    assert (len(page.items), "98 more problems" in page.text) == (200, True)
    facts["problems"] *= 2
    assert "and 200 others" in read(facts).text


def test_health_mig_devices_and_last_processes() -> None:
    facts = node_facts()
    xid = {"xid": 48, "text": "Xid 48: " + HOSTILE, "class": "workflow", "last": 1.7e9, "advice": "x"}
    xid["runbook"] = "GpuXidWorkflow"
    device = {"uuid": "MIG-1", "profile": "3g.40gb", "load": 0.25, "allocated_to": [{"user": "ann"}]}
    device |= {
        "allocation": "allocated",
        "state_words": "allocated",
        "memory_used_bytes": 1 << 30,
        "memory_total_bytes": 40 << 30,
    }
    ailment = {"grave": True, "text": "the driver requires a reset", "advice": "reset it", "runbook": "GpuNeedsReset"}
    ailment["since"] = 1.7e9 - 86_400
    facts["gpus"][0] |= {"xids": [xid], "mig": [device], "health": [ailment], "slowed_by": ["power brake"]}
    last = [facts["gpus"][0]["processes"][0] | {"pid": 7, "command": HOSTILE, "alive": False}]
    facts["gpus"][1] |= {"up": False, "last_processes": last, "last_seen": 1.7e9 - 600, "down_reason": "gpu_is_lost"}
    facts["gpus"][1]["advice"] = "drain it"
    page = read(facts)

    assert "img" not in page.elements
    words = "the driver requires a reset, since 2023-11-13 22:13 UTC clocks lowered: power brake Xid 48: "
    assert f"{words}{HOSTILE}, 2023-11-14 22:13 UTC" in page.text
    assert "MIG 3g.40gb user ann MIG-1 allocated 25 % 1.0 / 40.0 GiB" in page.text
    down = "down: lost, see the kernel log since 2023-11-14 22:03 UTC, 10 min ago. Advice: drain it"
    assert f"{down} runbook: GpuLost" in page.text
    assert f"It was used by: {HOSTILE} pid 7 pod ml/trainer-0, user 1000 ended - 40.0 GiB -" in page.text
    assert {link.partition("#")[2] for link in page.links} >= {
        "gpuneedsreset",
        "gputhrottled",
        "gpuxidworkflow",
        "gpulost",
    }


def test_what_the_hook_reports() -> None:
    loader = {"workers": "8", "batch_size": "32", "pin_memory": "yes", "prefetch": "2"}
    text = read(with_process(step_seconds=0.12, phase="loading", rank=3, world_size=8, loader=loader)).text

    assert "step 120 ms · phase loading · rank 3 of 8 · loader: 8 workers, batch 32, pinned, prefetch 2" in text


def test_the_mean_load_leaves_out_gpus_without_a_load() -> None:
    facts = node_facts()
    facts["totals"] |= {"load": 0.93, "load_gpus": 1, "mig_load": 0.4, "mig_devices": 3}

    text = read(facts).text
    assert "GPUs 2 3 MIG devices Busy, mean 93 % of 1 GPU MIG devices busy, mean 40 %" in text


def test_without_a_problem_there_is_no_list() -> None:
    page = read(node_facts(failing_collectors={}, problems=[]))

    assert "Driver up Collectors ok" in page.text
    assert "li" not in page.elements


def test_released_driver_is_not_a_failure() -> None:
    driver = driver_down("released on request", "released") | {"released_until": 1.7e9}

    text = read(node_facts(driver=driver, gpus=[])).text

    assert "released until 2023-11-14 22:13:20 UTC: the GPUs are not watched" in text
    assert "No GPU." not in text


def test_cause_share_and_advice() -> None:
    for cause, facts in CAUSES.items():
        more = {"evidence": facts.evidence, "advice": facts.advice, "state_words": "idle", "level": "bad"}
        text = read(
            with_process(limited_by_words="waits", lost_ratio=0.62, state="held_idle", limited_by=cause, **more)
        ).text

        assert f"waits: 62 % of its GPU time is lost ({facts.evidence}). Advice: {facts.advice}" in text


def test_a_cause_without_a_share() -> None:
    page = read(with_process(limited_by_words="waits", advice="pin it", runbook="TrainingLimitedByTransfer"))

    assert "waits. Advice: pin it runbook: TrainingLimitedByTransfer" in page.text
    assert "https://docs.example/runbook.md#traininglimitedbytransfer" in page.links


@pytest.mark.parametrize(
    ("host", "port", "secure", "more"),
    [
        ("127.0.0.1", 10478, False, ""),
        ("localhost", 10478, False, ""),
        ("0.0.0.0", 10478, False, ""),
        ("", 9100, False, " --url 127.0.0.1:9100"),
        ("::", 9100, False, " --url 127.0.0.1:9100"),
        ("::1", 10478, False, " --url [::1]:10478"),
        ("10.0.0.7", 10478, False, " --url 10.0.0.7:10478"),
        ("", 10478, True, " --url https://127.0.0.1:10478"),
    ],
)
def test_the_command_for_a_process_reaches_this_daemon(host: str, port: int, secure: bool, more: str) -> None:
    links = replace(LINKS, daemon=daemon_address("https" if secure else "http", host, port))
    facts = with_process(limited_by_words="waits")

    commands = [command for simulated in (False, True) for command in copied(facts | {"simulated": simulated}, links)]
    assert [command for command in commands if "doctor" in command] == [f"gpugauge doctor 4001{more}"]


def test_commands_in_an_advice_are_copied_alone() -> None:
    advice = "end the programs, and reset it (nvidia-smi --gpu-reset -i 3), or reboot the node"
    facts = with_process(advice=advice, runbook="GpuNeedsReset", gain_words="steps 3 times as fast")
    page = read(facts)

    assert "nvidia-smi --gpu-reset -i 3" in copied(facts, LINKS)
    shown = page.text.replace("( ", "(").replace(" )", ")")
    assert f"Advice: {advice}. Expected: steps 3 times as fast. runbook: GpuNeedsReset" in shown
    assert [link for link in page.links if "runbook" in link] == [f"{LINKS.runbook}#gpuneedsreset"]


def copied(facts: dict[str, Any], links: Links) -> list[str]:
    """Return the commands that the page copies."""
    return [unescape(found) for found in re.findall('data-copy="(.*?)"', "".join(drawn(facts, links=links)))]


@pytest.mark.parametrize(
    ("reason", "needed", "level"), [("off", True, "none"), ("x", False, "none"), ("x", True, "bad")]
)
def test_a_driver_that_nobody_misses_is_not_red(reason: str, needed: bool, level: str) -> None:
    html = "".join(drawn(node_facts(driver=driver_down("as it is", reason, needed=needed))))

    assert f'<span class="mark {level}">as it is</span>' in html


def test_links_to_the_dashboards_only_with_grafana() -> None:
    job = {"job_kind": "slurm", "job": "88 & 1", "namespace": "ml"}
    facts = with_process(workload=job)

    address = "https://grafana.example/d/gpugauge-job?var-kind=slurm&var-namespace=ml&var-workload=88+%26+1"
    assert address in read(facts).links
    assert "Slurm job 88 & 1" in read(facts).text
    assert Reader("0".join(drawn(facts, links=NO_LINKS))).links == ["#no-hook", "#no-hook"]
    assert "https://grafana.example/d/gpugauge-fleet" in head("1", "/metrics", "node7", LINKS)


@pytest.mark.parametrize("name", ["fleet", "job"])
def test_the_dashboards_that_the_page_links_to_exist(name: str) -> None:
    dashboard = json.loads((Path(__file__).parents[3] / "grafana" / f"{name}.json").read_text())
    links = read(with_process(workload={"job_kind": "slurm", "job": "8", "namespace": "ml"})).links
    links += Reader(
        head("1", "/metrics", "n", LINKS).partition("<h1>")[2].partition("</h1>")[2].partition("<p ")[0]
    ).links
    (address,) = [link for link in links if f"/d/gpugauge-{name}" in link]

    assert urlsplit(address).path == f"/d/{dashboard['uid']}"
    variables = {f"var-{variable['name']}" for variable in dashboard["templating"]["list"]}
    assert parse_qs(urlsplit(address).query).keys() <= variables


def test_the_answer_links_to_no_hook_only_where_it_is() -> None:
    facts = with_process(advice=None, state_words="training")
    facts["without_gpu"] = []

    assert "no-hook" not in "".join(drawn(facts))


def test_parts_of_the_steps_of_a_training_on_the_cpu() -> None:
    shares = {"data": 0.7, "rest": 0.3}

    on_cpu = read(with_process(state="training_on_cpu", step_shares=shares)).text
    assert "70 % waiting for data, 30 % the rest" in on_cpu
    assert "30 % the rest" not in read(with_process(state="training", step_shares=shares)).text


def test_a_training_on_the_cpu_that_waits_slows_no_gpu() -> None:
    def group(**facts: Any) -> str:
        found = with_process(**facts)
        found["without_gpu"] = found["gpus"][0]["processes"]
        marks: list[str] = re.findall(
            r"with torch.*?<span class=.mark[^>]*>(.*?)</span>", "".join(drawn(found)), re.DOTALL
        )
        return marks[0]

    assert group(state="training_on_cpu", level="poor", data_wait_ratio=0.71) == "waits for data"
    assert group(state="training_on_cpu", level="good") == group(state="training_on_cpu", level="bad") == "on the CPU"
    assert group(state="training", level="poor") == "slowed"


def test_what_makes_a_cause_decidable() -> None:
    text = read(with_process(state="training", undecidable=["data_loading", "host_bound"])).text

    assert "the waits for batches are not known: declare the loader with gpugauge.hook.batches()" in text
    measured = read(with_process(state="training", undecidable=["data_loading"], data_wait_ratio=0.92)).text
    assert "declare the loader" not in measured  # the load of the GPU is missing


def test_the_banner_of_a_simulation() -> None:
    assert "Simulated: these GPUs do not exist. Scenario: <b>.yaml" in read(node_facts(), "<b>.yaml").text
    assert "Simulated" not in read(node_facts()).text


@pytest.mark.parametrize("key", ["name", "uuid", "allocation"])
def test_hostile_facts_of_a_device_are_escaped(key: str) -> None:
    facts = node_facts()
    facts["gpus"][0][key] = HOSTILE

    assert "img" not in read(facts).elements


def test_hostile_names_are_escaped() -> None:
    workload = dict.fromkeys(("namespace", "pod", "container", "job_id", "user"), HOSTILE)
    words = dict.fromkeys(("command", "state_words", "limited_by_words", "evidence", "advice", "phase"), HOSTILE)
    facts = with_process(workload=workload, **words)
    facts |= {"failing_collectors": {HOSTILE: HOSTILE}, "version": HOSTILE}
    facts |= {"driver": driver_down(HOSTILE, HOSTILE)}
    facts["gpus"][1]["allocated_to"] = [{"kind": HOSTILE, "pod": HOSTILE}]
    facts["answer"] = HOSTILE
    facts["problems"][0] |= dict.fromkeys(("subject", "text", "detail", "advice"), HOSTILE)
    page = read(facts, HOSTILE)

    assert "img" not in page.elements
    assert HOSTILE in page.text


def test_a_device_that_does_not_answer_shows_no_values() -> None:
    facts = status(snapshot(up=0), History())
    before, after = drawn(facts)

    page = Reader(before + after)
    assert "GPU 0 H100 80GB HBM3 GPU-a down: every call returns an unknown error down" in page.text
    assert "612" not in page.text
    assert "2, 1 down" in before


def test_unknown_values_are_dashes() -> None:
    facts = node_facts()
    process: dict[str, Any] = dict.fromkeys(facts["without_gpu"][0]) | {"workload": {}, "process": ""}
    bare: dict[str, Any] = dict.fromkeys(facts["gpus"][0]) | {"uuid": "GPU-x", "up": True, "processes_hidden": 0}
    bare |= {"load_10m": [], "allocated_to": [], "processes": [process], "level": "none"}
    bare |= {key: [] for key in ("faults", "health", "slowed_by", "xids", "mig")} | {"state_words": "in use"}
    process["level"] = "none"
    facts = node_facts(gpus=[bare], without_gpu=[])
    facts["totals"] = dict.fromkeys(facts["totals"]) | {"gpus": 1, "up": 1, "load_gpus": 0, "mig_devices": 0}
    page = read(facts)
    text, (group,) = page.text, page.groups

    assert "Busy, mean - Memory - Power -" in text
    assert "GPU ? GPU GPU-x" in text
    assert group.of("gpu")[0].cells[1:] == ["in use", "-", "-", "", "-", "-", "-", ""]
    assert group.of("process")[0].cells == ["-", "-", "", "-", "", "-", "", "", "-"]


def test_without_gpus_and_processes_there_is_no_table() -> None:
    facts = status(snapshot_of(1.7e9, 1.0, ()), History())

    assert "table" not in read(facts).elements
    assert "GPUs 0" not in read(facts).text


def with_ranks(*ranks: dict[str, Any], world_size: int = 8) -> dict[str, Any]:
    """Return the status of a node with these ranks of one job on its first GPU."""
    facts = node_facts()
    process = facts["gpus"][0]["processes"][0] | {"phase": "training", "world_size": world_size}
    found = [process | {"process": f"p{number}", "rank": number, **rank} for number, rank in enumerate(ranks)]
    facts["gpus"] = [facts["gpus"][0] | {"processes": found}]
    return facts


def table_of_ranks(facts: dict[str, Any]) -> list[list[str]]:
    """Return the cells of the table of ranks."""
    found = re.search('<table class="ranks">(.*?)</table>', "".join(drawn(facts)), re.DOTALL)
    assert found
    rows = found[1].split("<tr>")[2:]
    return [
        [unescape(re.sub("<.*?>", "", cell)) for cell in re.findall("<t[hd].*?>(.*?)</t[hd]>", row)] for row in rows
    ]


def test_the_rank_for_which_the_others_wait_stands_first() -> None:
    frame = {"file": "train.py", "line": 88, "function": "main"}
    waits = {"position": "waiting", "function": "all_reduce", "since": 1.7e9 - 120, "stack": [frame]}
    late = {"position": "elsewhere", "since": 1.7e9 - 180, "behind": True, "stack": [frame | {"line": 31}]}
    facts = with_ranks(*({"steps": 9, "standstill": waits} for _ in range(2)), {"steps": 7, "standstill": late})

    assert table_of_ranks(facts) == [
        ["2", "7", "-", "training", "-", "train.py:31", "3.0 min", "the others wait for it, 2 steps"],
        ["0", "9", "-", "training", "all_reduce", "train.py:88", "2.0 min", "-"],
        ["1", "9", "-", "training", "all_reduce", "train.py:88", "2.0 min", "-"],
    ]
    assert "3 of 8 ranks here" in read(facts).text
    assert "<details open>" in "".join(drawn(facts))


def test_a_rank_that_works_longer_stands_first() -> None:
    ranks: list[dict[str, Any]] = [{"step_shares": {"peers": 0.5}, "steps": 5}] * 3
    ranks.append({"step_shares": {"peers": 0.1}, "steps": 5, "slowness": 1.8})

    assert [row[:4:2] + row[-1:] for row in table_of_ranks(with_ranks(*ranks))] == [
        ["3", "90 %", "works 1.8 times as long as the median"],
        *(["012"[rank], "50 %", "-"] for rank in range(3)),
    ]


def test_ranks_that_advance_are_folded_and_bounded() -> None:
    drawn_page = "".join(drawn(with_ranks(*({"steps": 5 + rank} for rank in range(40)), world_size=4096)))

    assert "<details><summary>" in drawn_page
    assert "40 of 4096 ranks here, 24 not shown" in drawn_page
    assert drawn_page.count('<tr><th scope="row">') == 16


def test_a_process_of_its_own_has_no_table_of_ranks() -> None:
    assert "ranks" not in read(with_ranks({}, world_size=1)).text


def test_many_devices_with_many_processes_stay_bounded() -> None:
    facts = node_facts()
    gpu = facts["gpus"][0]
    gpu["processes"] *= 128
    parts = drawn(facts | {"gpus": [gpu] * 64})
    page = Reader("0".join(parts))

    assert len(page.groups) == 64 + 1
    assert "and 67 more processes" in page.text
    assert all(" folded" in part for part in "".join(parts).split("<tbody")[2:])
    assert sum(map(len, parts)) < 4_000_000


USERS = [User("slurm", 6), User("", 7), User("systemd", 8)]
EVERY = [
    *filter(None, (known_advice(reason, NVIDIA) for reason in CODES)),
    *(cause.advice for cause in CAUSES.values()),
    *(ANY_SITE.fill(down_advice(reason, NVIDIA) or "") for reason in ("gpu_is_lost", "not_enumerated", "removed", "?")),
    *(ANY_SITE.fill(a.advice) for a in ailments(GpuHealth("gpu_reset", True, True, 64, True, 1))),
    *Site(stop="systemctl stop g.socket g", check="gpugauge status --fail-on health").plan(
        needs(Device("GPU-3", True, "ok", DeviceReading(index=3), {}), ["{reset}"]), {"GPU-3": USERS}
    ),
    *(words.RUN_ADVICE, words.HOOK_ADVICE, words.STALLED_ADVICE.format(7), words.IDLE_ADVICE, words.STALLED_ELSEWHERE),
]


def test_commands_end_where_the_sentence_goes_on() -> None:
    found = {part for advice in EVERY for part, command in parts(advice) if command}

    assert found == {
        "nvidia-smi --gpu-reset -i 3",
        "dmesg | grep Xid",
        "dmesg | grep -i nvrm",
        "modprobe nvidia",
        *("py-spy dump --pid 7", "fuser -v /dev/nvidia*"),
        "gpugauge forget UUID",
        "gpugauge run -- python train.py",
        "scontrol update nodename=NODE state=drain reason=gpu",
        *("scancel -w NODE", "squeue -w NODE", "systemctl stop g.socket g", "systemctl reboot"),
        "gpugauge status --fail-on health && scontrol update state=resume nodename=NODE",  # safe to copy
        "kill 7 8",
    }


def test_nothing_of_an_advice_is_lost() -> None:
    assert [advice for advice in EVERY if "".join(part for part, _ in parts(advice)) != advice] == []
    assert list(parts("`gpugauge doctor 7` tells")) == [("", False), ("gpugauge doctor 7", True), (" tells", False)]


def test_the_table_begins_with_the_gpus_that_have_faults() -> None:
    facts = node_facts()
    faulty = json.loads(json.dumps(facts["gpus"][0])) | {"uuid": "GPU-faulty", "index": 8, "level": "bad"}
    facts["gpus"].append(faulty)
    facts["problems"] = [facts["problems"][0] | {"kind": "gpu_health", "gpus": ["GPU-faulty"], "steps": []}]
    html = "".join(drawn(facts))

    order = re.findall(r'data-key="(GPU-[^"]+)"', html)
    assert order[0] == "GPU-faulty"
    # The script sorts by the place in the table, too.
    assert re.search(r'data-key="GPU-faulty">.*?data-sort="0"', html, re.DOTALL)
