"""The page in a real browser: its filter, its order, its length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.browsing import axe_violations, launched, opened
from tests.e2e.pages import Page, simulated

from gpugauge.simulator.scenario.load import load_scenario

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as chromium:
        yield chromium


def test_eight_slow_trainings(browser: Any, tmp_path: Path) -> None:
    with simulated(load_scenario("bottlenecks"), tmp_path / "node", 150) as page:
        filters_problems(browser, page)
        marks_the_order(browser, page)
        is_short_on_a_phone(browser, page)


def filters_problems(browser: Any, bottlenecks: Page) -> None:
    """The filter hides the problems of what it hides."""
    with opened(browser, bottlenecks.url) as tab:
        every = tab.locator(".problems li").all_text_contents()
        tab.get_by_label("Filter").fill("8003")
        shown = tab.locator(".problems li:visible").all_text_contents()

        assert tab.locator("tr.process:visible").count() == 1
        assert shown == [every[0], *(text for text in every[1:] if "8003" in text)]
        assert len(shown) == 2
        assert tab.locator("#found").inner_text() == f"1 of 8 GPUs, 2 of {len(every)} problems"
        tab.evaluate("refresh()")
        assert tab.locator(".problems li:visible").all_text_contents() == shown
        tab.get_by_label("Filter").fill("")
        assert tab.locator(".problems li[hidden]").count() == 0


def test_a_gpu_that_fails_is_seen_whatever_is_filtered(browser: Any, tmp_path: Path) -> None:
    with simulated(load_scenario("failing-card"), tmp_path / "node", 90) as page, opened(browser, page.url) as tab:
        tab.get_by_label("Filter").fill("6301")

        assert tab.locator("tbody:visible").count() == 1
        assert "requires a reset" in tab.locator(".problems li:visible").first.inner_text()


def marks_the_order(browser: Any, bottlenecks: Page) -> None:
    """Each heading shows whether it sorts; none before one was chosen, as faults are first."""
    marks = "all => all.map((e) => getComputedStyle(e, '::after').content.match(/[↕▲▼]/)?.[0] ?? '')"
    with opened(browser, bottlenecks.url) as tab:
        buttons = tab.locator("thead button")
        assert buttons.evaluate_all(marks) == ["↕"] * buttons.count()
        tab.locator("th.memory button").click()
        assert sorted(buttons.evaluate_all(marks)) == sorted(["▼", *"↕" * (buttons.count() - 1)])
        assert tab.locator("th.memory").get_attribute("aria-sort") == "descending"
        assert axe_violations(tab) == []


def is_short_on_a_phone(browser: Any, bottlenecks: Page) -> None:
    """Each advice stands on the page once, and what is slow leads to it."""
    with opened(browser, bottlenecks.url, 390, 844) as tab:
        advice = tab.locator("b", has_text="Advice:")
        problems = tab.locator(".problems li").count()

        assert advice.count() <= problems
        assert tab.locator("td b", has_text="Advice:").count() == 0
        assert tab.evaluate("document.documentElement.scrollHeight") < 4000
        slow = tab.locator("#gpus tbody").first.locator("td:visible").evaluate_all("all => all.map((e) => e.className)")
        assert {"state", "now", "load", "memory", "power", "temperature", "running"} <= set(slow)
        link = tab.locator("td strong a").first
        link.click()
        assert tab.locator(link.get_attribute("href") or "").is_visible()
