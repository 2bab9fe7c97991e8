"""Static checks of the Dockerfile; test_image.py builds and runs it."""

from __future__ import annotations

import re
import subprocess

import pytest

from gpugauge import __version__
from tests.e2e.documents import ROOT
from tests.e2e.tools import tool

pytestmark = pytest.mark.e2e

FILE = ROOT / "Dockerfile"


def test_hadolint() -> None:
    done = subprocess.run([tool("hadolint"), FILE], check=False, capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (0, "")


def test_label_and_manifests_name_this_version() -> None:
    named = re.findall(r"^ARG VERSION=(\S+)$", FILE.read_text(), re.MULTILINE)
    manifests = (ROOT / "deploy" / "kubernetes").rglob("*.yaml")
    images = {tag for path in manifests for tag in re.findall(r"(?:image: gpugauge:|newTag: )(\S+)", path.read_text())}

    assert named == [__version__]
    assert images == {__version__}
