"""promtool's check of a body with unusual labels and values."""

from __future__ import annotations

import subprocess

import pytest

from tests.exposition.test_render import body, published, sections
from tests.needs import need

pytestmark = pytest.mark.e2e


def test_promtool_has_no_complaint() -> None:
    text = body(published(*sections()))

    done = subprocess.run([need("promtool"), "check", "metrics"], input=text, capture_output=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
