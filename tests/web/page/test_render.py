from html.parser import HTMLParser
from typing import Any

import pytest

from gpugauge.status.history import History
from gpugauge.status.node import Facts, status
from gpugauge.verdict.causes import CAUSES
from gpugauge.web.page.render import content
from tests.status.statusfacts import snapshot

VOID = {"meta", "link", "img", "col"}
HOSTILE = "</td><img src=x onerror=alert(1)>"


class Reader(HTMLParser):
    """Parses the page into words and elements. An element that is not closed is an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        assert not {name for name, _ in attrs if name == "style" or name.startswith("on")}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def node_facts(**changes: Any) -> Facts:
    return status(snapshot(), History()) | changes


def read(facts: Facts, scenario: str | None = None) -> Reader:
    return Reader("0".join(content(facts, scenario)))


def with_process(**changes: Any) -> Facts:
    facts = node_facts()
    facts["gpus"][0]["processes"][0].update(changes)
    return facts


def test_each_device_with_its_values_and_users() -> None:
    text = read(node_facts()).text

    assert "GPU 0 H100 80GB HBM3 GPU-a" in text
    assert "41.0 / 80.0 GiB" in text
    assert "612 / 700 W" in text
    assert "64 °C" in text
    assert "train.py ml/trainer-0/main · user 1000 pid 4001 40.0 GiB" in text
    assert "for 2 h" in text
    assert "and 3 more processes" in text
    assert "allocated, but no process uses it: web/idle-7" in text
    assert "Processes with torch that use no GPU" in text


def test_the_exporter_itself() -> None:
    text = read(
        node_facts(driver={"up": False, "reason": "timeout", "advice": "check the kernel log for Xid errors"})
    ).text

    assert "Driver not available: timeout Collectors failing: host Snapshot 22:13:20 UTC , 0 s old Version 9.9" in text
    assert "Version 9.9 Driver: check the kernel log for Xid errors Collector host: no GPUs 2" in text


def test_without_a_problem_there_is_no_banner() -> None:
    page = read(node_facts(failing_collectors={}))

    assert "Driver up Collectors ok" in page.text
    assert page.elements.count("p") == read(node_facts()).elements.count("p") - 1


def test_released_driver_is_not_a_failure() -> None:
    driver = {"up": False, "reason": "released", "released_until": 1.7e9}

    text = read(node_facts(driver=driver, gpus=[])).text

    assert "released until 2023-11-14 22:13:20 UTC: the GPUs are not watched" in text
    assert "No GPU." not in text


@pytest.mark.parametrize("cause", CAUSES)
def test_state_cause_and_advice(cause: str) -> None:
    text = read(with_process(state="held_idle", limited_by=cause, limited_by_ratio=0.62)).text

    assert "held idle Limited by " + cause.replace("_", " ") + " , which costs 62 % of its GPU time: " in text
    assert CAUSES[cause].advice in text


def test_a_cause_without_a_share() -> None:
    assert "Limited by transfer : copies" in read(with_process(state="training", limited_by="transfer")).text


def test_parts_of_the_steps_of_a_training_on_the_cpu() -> None:
    shares = {"data": 0.7, "rest": 0.3}

    on_cpu = read(with_process(state="training_on_cpu", step_shares=shares)).text
    assert "Last minute: 70 % waiting for data, 30 % the rest." in on_cpu
    assert "Last minute" not in read(with_process(state="training", step_shares=shares)).text


def test_what_makes_a_cause_decidable() -> None:
    text = read(with_process(state="training", undecidable=["data_loading", "host_bound"])).text

    assert "Not decided: the waits for batches are not known: declare the loader with gpugauge.hook.batches()" in text


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
    facts = with_process(command=HOSTILE, workload=workload, state=HOSTILE, limited_by=HOSTILE)
    facts |= {"failing_collectors": {HOSTILE: HOSTILE}, "version": HOSTILE}
    facts |= {"driver": {"up": False, "reason": HOSTILE, "advice": HOSTILE}}
    facts["gpus"][1]["allocated_to"] = [{"kind": HOSTILE, "pod": HOSTILE}]
    page = read(facts, HOSTILE)

    assert "img" not in page.elements
    assert HOSTILE in page.text


def test_a_device_that_does_not_answer_shows_no_values() -> None:
    facts = status(snapshot(up=0), History())
    before, after = content(facts, None)

    assert "GPU 0 H100 80GB HBM3 GPU-a does not answer" in Reader(before + after).text
    assert "612" not in after
    assert "2, 1 down" in after


def test_unknown_values_are_dashes() -> None:
    facts = node_facts()
    process: Facts = dict.fromkeys(facts["without_gpu"][0]) | {"workload": {}}
    bare: Facts = dict.fromkeys(facts["gpus"][0]) | {"uuid": "GPU-x", "up": True, "processes_hidden": 0}
    bare |= {"load_10m": [], "allocated_to": [], "processes": [process]}
    text = read(node_facts(gpus=[bare], without_gpu=[])).text

    assert "Mean load - Memory - Power -" in text
    assert "GPU ? GPU GPU-x" in text
    assert "Now - 5 min - Memory - Power - Temp -" in text
    assert "State - pid - - - load for - -" in text


def test_no_gpu() -> None:
    assert "No GPU." in read(node_facts(gpus=[], without_gpu=[])).text


def test_without_a_driver_the_number_of_gpus_is_unknown() -> None:
    assert "No GPU." not in read(node_facts(gpus=[], driver={"up": False, "reason": "timeout"})).text


def test_many_devices_with_many_processes_stay_bounded() -> None:
    facts = node_facts()
    gpu = facts["gpus"][0]
    gpu["processes"] *= 128
    page = read(facts | {"gpus": [gpu] * 64})

    assert page.elements.count("section") == 64 + 3
    assert "and 99 more processes" in page.text
    assert sum(map(len, content(facts | {"gpus": [gpu] * 64}, None))) < 2_000_000
