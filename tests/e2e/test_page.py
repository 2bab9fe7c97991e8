"""The page in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from qa.worlds.nodes import Node, Program, crowd_of, draw
from qa.worlds.scraped import snapshot_of

from gpugauge.simulator.scenario.load import load_scenario
from gpugauge.status.history import History
from tests.e2e.browsing import axe_violations, launched, opened
from tests.e2e.daily import EVERYTHING, seed, share
from tests.e2e.pages import LINKS, Page, served, simulated
from tests.e2e.programs import daemon, wait_for
from tests.status.statusfacts import family, snapshot

pytestmark = pytest.mark.e2e

HOSTILE = "</th><script>document.title='taken'</script><img src=x onerror=document.title='taken'>"
# Scenario, seconds of virtual time, and what a newcomer must read without scrolling: what is wrong, and what to do.
SCENARIOS = {
    "failing-card": (
        90,
        "1 of 2 GPUs with faults, GPU 1: the driver requires a reset of the GPU after an error",
        ("pid 6302, user 1000); also: ", "Xid 48 (Double bit ECC error) at 20", "systemctl reboot"),
    ),
    "lost-card": (
        90,
        "1 of 4 GPUs down, GPU 2",
        ("GPU 2: down: lost", "last used by train.py (pid 7003, user 1000", "ask the owners to end their programs"),
    ),
    "a100-mig": (
        40,
        "No problem found, but not all is known: 2 of 2 GPUs in use, 92 % busy on average (known of 1 GPU)",
        ("gpugauge run -- python train.py", "Busy, mean 92 % of 1 GPU", "free"),
    ),
    "mi300x-cpx": (
        40,
        "No problem found, but not all is known: 3 of 3 GPUs in use, ",
        ("5 of 8 MIG devices free", "cpx GI 7"),
    ),
    "bottlenecks": (
        150,
        # The cause of finetune.py follows from the counters of its cgroup, which are read beside.
        "1 of 8 GPUs with faults, GPU 6: clocks lowered; 7 of 8 GPUs wasted: finetune.py ",
        ("pid 8001, Slurm job 501, user 1000, GPU 0", "num_workers=18", "Expected: steps about 4 times as"),
    ),
    "bench-64": (
        40,
        "No problem found, but not all is known: 8 of 8 GPUs in use, ",
        ("the state of 64 processes is not known",),
    ),
}
WINDOWS = ((1366, 768, "light"), (390, 844, "dark"), (1920, 1080, "dark"))[: 3 if EVERYTHING else 2]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as chromium:
        yield chromium


@contextmanager
def node(scenario: str | None = None, command: str = "train.py") -> Iterator[Page]:
    """Serve a node of two GPUs with a process of this name."""
    with served(snapshot(command), History(), scenario) as page:
        yield page


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_answer_and_what_to_do_are_seen_at_once_in_every_window(name: str, browser: Any, tmp_path: Path) -> None:
    seconds, answer, words = SCENARIOS[name]
    with simulated(load_scenario(name), tmp_path / "node", seconds) as page:
        for width, height, colours in WINDOWS:
            with opened(browser, page.url, width, height, colours) as tab:
                assert tab.locator(".answer").inner_text().startswith(answer)
                shown = tab.locator("main").inner_text()
                assert [word for word in words if word not in re.sub(r"\s+", " ", shown)] == []
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
                if width == 1366:
                    lines = "(e) => e.getBoundingClientRect().height / parseFloat(getComputedStyle(e).lineHeight)"
                    assert tab.locator(".answer").evaluate(lines) < 2.5
                    assert all(
                        text.startswith("runbook") for text in tab.locator(".problems a:visible").all_inner_texts()
                    )
                if width > 390:
                    lowest = tab.evaluate(
                        "Math.max(...[...document.querySelectorAll('.answer, .problems > li')].map("
                        "(e) => e.getBoundingClientRect().bottom))"
                    )
                    assert 0 < lowest < height
                if width == 390 or (EVERYTHING and width == 1366):
                    assert axe_violations(tab) == []


_OVER = """
[...document.querySelectorAll("tr.gpu > td")].filter((cell) => {
  const content = document.createRange();
  content.selectNodeContents(cell);
  return content.getBoundingClientRect().right > cell.getBoundingClientRect().right + 0.5;
}).map((cell) => cell.textContent)
"""


@pytest.mark.parametrize("width", [1280, 1366, 1920])
def test_no_value_of_a_large_gpu_is_over_the_next_one(width: int, browser: Any, tmp_path: Path) -> None:
    with (
        simulated(load_scenario("mi300x"), tmp_path / "node", 30) as page,
        opened(browser, page.url, width, 900) as tab,
    ):
        assert "120.3 / 192.0 GiB" in tab.locator("main").inner_text()
        assert tab.evaluate(_OVER) == []


def test_512_processes_on_64_gpus_are_readable_on_a_laptop(browser: Any) -> None:
    crowd = crowd_of(64, 8)
    with served(crowd.snapshot(), crowd.history()) as page, opened(browser, page.url) as tab:
        assert tab.locator("tr.gpu").count() == 64
        assert tab.locator("tr.process").count() == 512
        assert tab.locator("tr.process:visible").count() == 0
        assert tab.evaluate("document.documentElement.scrollHeight") < 4 * 768
        assert max(tab.locator("tr.gpu").nth(n).bounding_box()["height"] for n in range(0, 64, 9)) < 40
        tab.evaluate("refresh()")
        assert axe_violations(tab) == []

        tab.get_by_label("Filter").fill("1017")
        assert tab.locator("tr.process:visible").count() == 1
        assert "1 of 64 GPUs" in tab.locator("#found").inner_text()
        assert "pid 1017" in tab.locator("tr.process:visible").inner_text()
        tab.get_by_label("Filter").fill("train3.py gpu-5")
        assert set(tab.locator("tbody:visible").evaluate_all("all => all.map((e) => e.dataset.key)")) <= {
            "GPU-5",
            *(f"GPU-5{n}" for n in range(10)),
        }
        tab.get_by_label("Filter").fill("")
        tab.get_by_label("with problems only").check()
        shown = tab.locator("tbody:visible")
        assert 0 < shown.count() == shown.filter(has=tab.locator(".mark.bad, .mark.poor")).count() < 64


def order(tab: Any) -> list[str]:
    keys: list[str] = tab.locator("tbody").evaluate_all("all => all.map((e) => e.dataset.key)")
    return keys


def test_everything_works_with_the_keyboard_alone(browser: Any) -> None:
    crowd = crowd_of(6, 2)
    with served(crowd.snapshot(), crowd.history()) as page, opened(browser, page.url) as tab:

        def focus(selector: str) -> None:
            for _ in range(200):
                tab.keyboard.press("Tab")
                if tab.evaluate("document.activeElement.matches(arguments)".replace("arguments", repr(selector))):
                    outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                    assert outline != "none"
                    return
            raise AssertionError(f"Tab does not reach {selector}")

        interactive = tab.locator("a[href], button, input, summary").count()
        reached = set()
        for _ in range(interactive):
            tab.keyboard.press("Tab")
            reached.add(
                tab.evaluate(
                    "[...document.querySelectorAll('a[href], button, input, summary')].indexOf(document.activeElement)"
                )
            )
        assert len(reached - {-1}) == interactive
        tab.keyboard.press("Tab")

        focus("th.now button")
        tab.keyboard.press("Enter")
        assert order(tab) == [f"GPU-{n}" for n in reversed(range(6))]
        assert tab.locator("th.now").get_attribute("aria-sort") == "descending"
        tab.keyboard.press("Enter")
        assert order(tab) == [f"GPU-{n}" for n in range(6)]
        tab.keyboard.press("Enter")
        assert tab.locator("th[aria-sort]").evaluate_all("all => all.map((e) => e.className)") == []
        focus(".fold")
        tab.keyboard.press("Space")
        assert tab.evaluate("document.activeElement.getAttribute('aria-expanded')") == "false"
        assert tab.locator("tbody").first.locator("tr:visible").count() == 1
        tab.evaluate("refresh()")
        assert tab.evaluate("document.activeElement.getAttribute('aria-expanded')") == "false"
        tab.reload()
        assert tab.locator("tbody").first.locator("tr:visible").count() == 1
        focus("#fold")
        tab.keyboard.press("Enter")
        assert tab.locator("tr.process:visible").count() == 0
        tab.keyboard.press("Enter")
        assert tab.locator("tr.process:visible").count() == 12


OBSERVE = """() => {
  window.row = document.querySelector("tr.process");
  window.changed = new Set();
  const place = (node) => (node.closest ? node : node.parentElement).closest("section, tr")?.getAttribute("class");
  const note = (changes) => changes.forEach(({ target }) => changed.add(place(target) ?? "section"));
  const seen = { subtree: true, childList: true, characterData: true, attributes: true };
  new MutationObserver(note).observe(document.querySelector("main"), seen);
}"""


def test_an_update_changes_only_what_differs(browser: Any) -> None:
    with node() as page, opened(browser, page.url, height=300) as tab:
        tab.evaluate(OBSERVE)
        tab.locator("tr.process th").last.click(click_count=2)
        tab.locator(".copy").last.focus()
        tab.evaluate("window.scrollTo(0, 60)")
        kept = "[document.getSelection().toString(), document.activeElement.dataset.copy, scrollY, row.isConnected]"
        before = tab.evaluate(kept)
        assert all(before)
        (section,) = page.snapshot.sections
        warmer = [
            family._replace(samples=tuple((labels, 41.0) for labels, _ in family.samples))
            if family.metric.name == "gpu_temperature_celsius"
            else family
            for family in section.families
        ]
        shown = (replace(section, families=tuple(warmer)),)
        page.snapshot = snapshot_of(page.snapshot.timestamp, page.snapshot.monotonic, shown, page.snapshot.health)
        tab.evaluate("refresh()")

        assert "41 °C" in tab.locator("tr.gpu").nth(1).inner_text()
        assert tab.evaluate(kept) == before
        assert tab.evaluate("[...changed]") == ["gpu"]


def test_an_updated_page_is_the_fresh_page_whatever_changed(browser: Any) -> None:
    """Nodes follow each other whose GPUs, processes, problems and names have nothing to do with each other."""
    content = """(column) => {
      view.sort = column;
      arrange(document);
      const copy = document.querySelector("main").cloneNode(true);
      for (const element of copy.querySelectorAll("*")) {
        const attributes = [...element.attributes].sort((one, other) => (one.name < other.name ? -1 : 1));
        for (const { name } of attributes) element.removeAttribute(name);
        for (const { name, value } of attributes) element.setAttribute(name, value);
      }
      return copy.innerHTML.replace(/\\d+ s old/, "");
    }"""
    nodes = [draw(seed() + number) for number in range(share(50))]
    with served(nodes[0].snapshot(), History()) as page, opened(browser, page.url) as tab:
        tab.evaluate("view.sort = 'state'")
        for drawn in nodes[1:]:
            page.snapshot = drawn.snapshot()
            tab.evaluate("refresh()")
            with opened(browser, page.url) as fresh:
                for column in ("state", ""):
                    assert tab.evaluate(content, column) == fresh.evaluate(content, column)
            tab.evaluate("view.sort = 'state'")


def test_pause_holds_the_page_and_goes_on(browser: Any) -> None:
    with node(command="first.py") as page, opened(browser, page.url) as tab:
        tab.get_by_role("button", name="Pause").click()
        page.snapshot = snapshot("second.py")
        tab.evaluate("refresh()")
        tab.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

        assert tab.locator("#pause").get_attribute("aria-pressed") == "true"
        assert tab.locator("b", has_text="first.py").count() == 1
        tab.get_by_role("button", name="Pause").click()
        tab.locator("b", has_text="second.py").wait_for()
        assert tab.locator("#pause").get_attribute("aria-pressed") == "false"


def test_it_updates_itself(browser: Any) -> None:
    with node(command="first.py") as page, opened(browser, page.url) as tab:
        page.snapshot = snapshot("second.py")
        tab.locator("b", has_text="second.py").wait_for()

        assert tab.locator("#lost").is_hidden()


@pytest.mark.parametrize("secure", [True, False])
def test_a_button_copies_the_command(secure: bool, browser: Any) -> None:
    without = "" if secure else "Object.defineProperty(navigator, 'clipboard', {value: undefined})"
    with node() as page, opened(browser, page.url, script=without) as tab:
        tab.locator("[data-copy='gpugauge run -- python train.py']").click()
        tab.locator(".copy", has_text="copied").wait_for()
        assert "Copied: gpugauge run" in tab.locator("#said").inner_text()
        tab.get_by_label("Filter").focus()
        tab.keyboard.press("Control+V")

        assert tab.get_by_label("Filter").input_value() == "gpugauge run -- python train.py"
        tab.locator(".copy", has_text="gpugauge run").wait_for()


def test_without_script_all_is_shown_and_the_browser_reloads_the_page(browser: Any) -> None:
    crowd = crowd_of(8, 8)
    with served(crowd.snapshot(), crowd.history()) as page, opened(browser, page.url, scripts=False) as tab:
        assert tab.locator("tr.process:visible").count() == 64
        assert tab.locator(".tools, .fold").locator("visible=true").count() == 0
        assert tab.locator("noscript").inner_html().startswith('<meta http-equiv="refresh" content="5"')


def test_hostile_names_are_shown_as_text(browser: Any) -> None:
    with node(HOSTILE, HOSTILE) as page, opened(browser, page.url, 320, 900) as tab:
        tab.evaluate("refresh()")

        assert tab.title().endswith("· gpugauge")
        assert HOSTILE in tab.locator("tr.process").last.inner_text()
        assert tab.evaluate("[...document.images, ...document.scripts].length") == 2
        assert tab.evaluate("document.documentElement.scrollWidth") <= 320


def test_a_training_on_the_cpu_is_seen_before_the_gpus(browser: Any) -> None:
    program = Program("p", 7, "fit.py", "on_cpu", [], "model_on_cpu")
    cpu = Node(crowd_of(2, 0).gpus, [program])
    with served(cpu.snapshot(), cpu.history()) as page, opened(browser, page.url) as tab:
        assert tab.locator(".answer").inner_text().startswith("fit.py trains on the CPU although there is a GPU")
        assert order(tab)[0] == "no GPU"
        assert tab.locator("tr.process").is_visible()
        assert "model.to('cuda')" in tab.locator(".problems").inner_text()
        assert axe_violations(tab) == []


def test_page_shows_since_when_the_daemon_does_not_answer(browser: Any, tmp_path: Path) -> None:
    with ExitStack() as exits:
        running = exits.enter_context(daemon(tmp_path, "--simulate=healthy"))
        tab = exits.enter_context(opened(browser, running.url, refusals=True))
        assert tab.locator("tr.gpu").count() == 2
        assert tab.locator("#lost").is_hidden()

        running.stop()
        tab.locator("#lost").wait_for()

        assert re.fullmatch(
            r"No answer since \d\d:\d\d:\d\d UTC: these values are old\.", tab.locator("#lost").inner_text()
        )
        assert tab.evaluate("getComputedStyle(document.querySelector('main')).opacity") == "0.5"
        assert tab.locator("tr.gpu").count() == 2
        again = tmp_path / "again"
        again.mkdir()
        address = running.url.removeprefix("http://")
        exits.enter_context(daemon(again, "--simulate=idle", f"--web.listen-address={address}"))
        wait_for(lambda: tab.locator("#lost").is_hidden(), 30, "the page goes on")
        assert tab.evaluate("getComputedStyle(document.querySelector('main')).opacity") == "1"


def test_the_daemon_without_a_driver_says_why_and_links_where_it_is_told(browser: Any, tmp_path: Path) -> None:
    flags = (
        "--simulate=no-driver",
        "--web.grafana-url=https://grafana.example",
        "--web.runbook-url=https://docs.example/r",
    )
    with daemon(tmp_path, *flags) as running, opened(browser, running.url) as tab:
        assert tab.locator(".answer").inner_text() == "The driver is not available: its kernel module is not loaded"
        assert "Driver: not available: its kernel module is not loaded" in tab.locator(".problems").inner_text()
        assert tab.locator(".problems .copy").inner_text().startswith("modprobe nvidia")
        advice = tab.locator(".problems a")
        assert advice.get_attribute("href") == "https://docs.example/r#exporterblind"
        assert (
            tab.get_by_role("link", name="Grafana").get_attribute("href") == "https://grafana.example/d/gpugauge-fleet"
        )
        assert axe_violations(tab) == []


def test_processes_stay_below_their_mig_device(browser: Any, tmp_path: Path) -> None:
    with simulated(load_scenario("a100-mig"), tmp_path / "node", 30) as page:
        for width, height, colours in WINDOWS:
            with opened(browser, page.url, width, height, colours) as tab:
                rows = "[...document.querySelectorAll('tr.mig, tr.process')].filter((r) => r.offsetParent !== null)"
                # Each visible process with the MIG device above it.
                above = (
                    f"{rows}.map((row, i, all) => row.matches('.process') && [row.innerText.match(/pid (\\d+)/)[1], "
                    "(all.slice(0, i).reverse().find((r) => r.matches('.mig') && r.parentNode === row.parentNode)"
                    "?.innerText.match(/\\dg\\.\\d+gb/) || [''])[0]]).filter(Boolean)"
                )
                expected = [["6001", "1g.10gb"], ["6002", "3g.40gb"], ["6003", ""]]
                assert tab.evaluate(above) == expected
                if width > 390:  # headings are hidden in a narrow window
                    for _ in range(2):
                        tab.locator("th.memory button").click()
                        assert sorted(tab.evaluate(above)) == expected
                tab.locator("#filter").fill("6002")
                assert tab.evaluate(above) == [["6002", "3g.40gb"]]


def test_a_long_command_stays_within_a_narrow_window(browser: Any) -> None:
    current = snapshot()
    limited = (
        family("training_state", ({"process": "aa", "state": "training"}, 1)),
        family("torch_process_info", ({"process": "aa", "pid": "4001"}, 1)),
        family("training_limited_by", ({"process": "aa", "cause": "data_loading"}, 1)),
        family("training_limited_by_ratio", ({"process": "aa", "cause": "data_loading"}, 0.9)),
        family("gpugauge_build_info", ({"version": "9.9", "simulated": "false"}, 1)),
    )
    names = {f.metric.name for f in limited}
    kept = tuple(f for f in current.sections[0].families if f.metric.name not in names)
    section = replace(current.sections[0], families=kept + limited)
    current = snapshot_of(current.timestamp, current.monotonic, (section,), current.health)
    links = replace(LINKS, daemon="gpu-node-0123.cluster.example.com:10478/exporters/gpugauge/metrics")
    with served(current, History(), links=links) as page, opened(browser, page.url, 390, 844) as tab:
        assert tab.locator(".problems .copy").filter(has_text="gpugauge doctor 4001").count() == 1
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
