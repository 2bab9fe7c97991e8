"""`make pin`, with a skopeo that answers from the name of the image."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PIN = ROOT / "deploy" / "release" / "pin.py"
COMPOSE = ROOT / "deploy" / "compose.yaml"
SKOPEO = """#!/bin/sh
test "$1 $2 $3" = "inspect --no-tags --format={{.Digest}}" || exit 3
printf 'sha256:'; printf %s "$4" | sha256sum | cut -d' ' -f1
"""


def pin(file: Path, folder: Path, skopeo: str | None = SKOPEO) -> subprocess.CompletedProcess[str]:
    if skopeo is not None:
        (folder / "skopeo").write_text(skopeo)
        (folder / "skopeo").chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}" if skopeo is not None else str(folder)
    command = [sys.executable, str(PIN), str(file)]
    return subprocess.run(command, env={"PATH": path}, check=False, capture_output=True, text=True)


def images(file: Path) -> dict[str, str]:
    services: dict[str, Any] = yaml.safe_load(file.read_text())["services"]
    return {name: service["image"] for name, service in services.items()}


def by_digest(image: str) -> str:
    """Return the image as it must be written: one that is built here has no tag, and stays."""
    name = image.partition("@")[0]
    return f"{name}@sha256:{hashlib.sha256(f'docker://{name}'.encode()).hexdigest()}" if ":" in name else name


def test_every_image_with_a_tag_gets_its_digest_and_nothing_else_changes(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text(COMPOSE.read_text())
    before = images(file)

    assert (pin(file, tmp_path).returncode, images(file)) == (0, {name: by_digest(i) for name, i in before.items()})
    assert sum("@" in image for image in images(file).values()) == 3
    assert re.sub(r"@sha256:\w+", "", file.read_text()) == re.sub(r"@sha256:\w+", "", COMPOSE.read_text())

    pinned = file.read_text()
    assert (pin(file, tmp_path).returncode, file.read_text()) == (0, pinned)
    file.write_text(pinned.replace("grafana/grafana:", "registry.example:5000/grafana:next-"))
    assert pin(file, tmp_path).returncode == 0
    assert images(file)["grafana"] == by_digest(images(file)["grafana"])
    assert images(file)["grafana"].startswith("registry.example:5000/grafana:next-")


@pytest.mark.parametrize(
    ("skopeo", "problem"),
    [
        (None, "pin: skopeo is not installed: apt-get install skopeo"),
        ("#!/bin/sh\necho no route >&2; exit 1\n", "prom/prometheus:v3.5.0: skopeo finds no digest: no route"),
        ("#!/bin/sh\necho sha256:1\n", "prom/prometheus:v3.5.0: skopeo finds no digest: sha256:1"),
    ],
)
def test_without_a_digest_the_file_stays(tmp_path: Path, skopeo: str | None, problem: str) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text("services:\n  prometheus:\n    image: prom/prometheus:v3.5.0\n")
    before = file.read_text()
    done = pin(file, tmp_path, skopeo)

    assert (done.returncode, file.read_text()) == (1, before)
    assert problem in done.stderr
