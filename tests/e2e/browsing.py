"""Debian's chromium, driven by playwright, and axe-core in its pages."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.programs import PATIENCE
from tests.needs import need, require

_FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
_FLAGS += " --disable-component-update --disable-sync"
_TIMEOUT_MILLISECONDS = 1000 * PATIENCE


@contextmanager
def launched() -> Iterator[Any]:
    """Start a browser."""
    require(importlib.util.find_spec("playwright") is not None, "playwright is not installed (make e2e does it)")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  (an extra)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=need("chromium"), args=_FLAGS.split())
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Any,
    url: str,
    width: int = 1366,
    height: int = 768,
    colours: str = "light",
    *,
    scripts: bool = True,
    script: str = "",
    refusals: bool = False,
) -> Iterator[Any]:
    """Open an address in a profile of its own; `script` runs before those of the page. Messages on the console, errors
    of scripts and requests to other addresses are failures. With `refusals`, messages about refused connections and
    about a daemon that starts are none.
    """
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=colours,
        java_script_enabled=scripts,
        permissions=["clipboard-read", "clipboard-write"],
    )
    context.set_default_timeout(_TIMEOUT_MILLISECONDS)
    if script:
        context.add_init_script(script)
    tab = context.new_page()
    messages: list[str] = []
    tab.on("console", lambda message: messages.append(message.text))
    tab.on("pageerror", lambda error: messages.append(str(error)))
    tab.on("request", lambda request: messages.extend([] if request.url.startswith(url) else [request.url]))
    try:
        tab.goto(url)
        yield tab
        unexpected = [text for text in messages if not (refusals and re.search("net::ERR_|status of 503", text))]
        assert unexpected == [], unexpected
    finally:
        context.close()


def axe_violations(tab: Any) -> list[str]:
    """Return the rules of axe-core, those of best practice included, that the page violates, with the elements."""
    spec = importlib.util.find_spec("axe_playwright_python")
    require(spec is not None, "axe-playwright-python is not installed (make e2e does it)")
    assert spec is not None
    assert spec.origin is not None
    if not tab.evaluate("'axe' in window"):
        tab.evaluate(Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    found = tab.evaluate("axe.run(document, {resultTypes: ['violations']}).then((result) => result.violations)")
    return [f"{rule['id']}: {rule['help']}: {rule['nodes'][0]['html'][:200]}" for rule in found]
