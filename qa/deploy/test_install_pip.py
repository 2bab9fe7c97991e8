"""The wheel: built, installed and run by the commands of docs/install-pip.md, in a fresh copy of the checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.e2e.documents import ROOT, blocks, fresh_checkout, shell
from tests.e2e.programs import free_port
from tests.e2e.tools import tool

from gpugauge import __version__

pytestmark = [pytest.mark.e2e, pytest.mark.everything]

DOCUMENT = "install-pip.md"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the checkout in which the wheel and the source package were built."""
    copy = fresh_checkout(tmp_path_factory.mktemp("pip"))
    (build,) = blocks(DOCUMENT, "Build")
    shell(build, copy, environment(copy))
    return copy


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment without variables of the tests; this Python comes first in PATH."""
    home = folder.parent / "home"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUGAUGE_", "GIT_", "PYTHON"))}
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    return {**kept, "PATH": path, "PIPX_HOME": str(home), "PIP_DISABLE_PIP_VERSION_CHECK": "1", **more}


def baked(folder: Path) -> object:
    """Return the build information in the wheel in `folder`."""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        return json.loads(opened.read("gpugauge/build.json"))


def test_installed_from_the_wheel_and_scraped(checkout: Path) -> None:
    install, run = blocks(DOCUMENT, "Install")
    port, socket = str(free_port()), checkout.parent / "hook" / "hook.sock"
    version = shell(install, checkout, environment(checkout))
    # The document's port may be in use here.
    places = {"GPUGAUGE_WEB_LISTEN_ADDRESS": f"127.0.0.1:{port}", "GPUGAUGE_HOOK_SOCKET": str(socket)}
    answer = shell(run.replace("10478", port), checkout, environment(checkout, **places))
    head = shell("git rev-parse HEAD", checkout, environment(checkout)).strip()

    (revision,) = re.findall(
        rf"^gpugauge \S+ \(revision ({head}(?:-dirty)?); built \d{{4}}-\S+Z\)$", version, re.MULTILINE
    )
    assert f'revision="{revision}"' in answer
    assert 'simulated="true"' in answer
    for path in (checkout / "grafana").glob("*.json"):
        printed = shell(f"gpugauge-venv/bin/gpugauge dashboards {path.stem}", checkout, environment(checkout))
        assert printed == path.read_text()


def test_run_by_pipx(checkout: Path) -> None:
    tool("pipx")
    (command,) = blocks(DOCUMENT, "Without installing")

    assert re.search(r"^node  ", shell(command, checkout, environment(checkout)), re.MULTILINE)


def test_every_file_of_the_package_is_in_the_wheel(checkout: Path) -> None:
    (wheel,) = (checkout / "dist").glob("*.whl")
    package = checkout / "src" / "gpugauge"
    files = {str(path.relative_to(package.parent)) for path in package.rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as opened:
        inside = {name for name in opened.namelist() if ".dist-info/" not in name}

    dashboards = {f"gpugauge/dashboards/{path.name}" for path in (checkout / "grafana").glob("*.json")}
    assert len(dashboards) == 4
    assert inside == {name for name in files if "__pycache__" not in name} | dashboards | {"gpugauge/build.json"}
    # A checkout reads its revision from git, and the dashboards from grafana/.
    assert not (package / "build.json").exists()
    assert not (package / "dashboards").exists()


def test_a_source_package_keeps_its_commit(checkout: Path, tmp_path: Path) -> None:
    """A source package is not a repository, and must not take the commit of one around it."""
    (package,) = (checkout / "dist").glob("*.tar.gz")
    subprocess.run(["tar", "-C", tmp_path, "-xf", package], check=True)
    (folder,) = tmp_path.iterdir()
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    shell(f"{checkout}/build/venv/bin/python -m build --wheel", folder, environment(folder))

    assert baked(folder / "dist") == baked(checkout / "dist")


def test_the_source_package_has_every_file_of_the_checkout(checkout: Path, tmp_path: Path) -> None:
    """Also the files to which the links of the chart lead, at both places."""
    (package,) = (checkout / "dist").glob("*.tar.gz")
    subprocess.run(["tar", "-C", tmp_path, "-xf", package], check=True)
    (folder,) = tmp_path.iterdir()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=checkout, check=True, capture_output=True, text=True).stdout
    entries = [checkout / name for name in listed.split("\0") if name and (checkout / name).exists()]
    paths = [path for entry in entries for path in (entry.iterdir() if entry.is_dir() else [entry]) if path.is_file()]
    places = {str(path.relative_to(checkout)): path for path in paths}

    assert {"grafana/job.json", "deploy/helm/gpugauge/files/dashboards/job.json"} <= places.keys()
    assert [name for name, path in places.items() if (folder / name).read_bytes() != path.read_bytes()] == []


def test_same_source_same_bytes(checkout: Path, tmp_path: Path) -> None:
    environ = environment(checkout, SOURCE_DATE_EPOCH="1790000000", GPUGAUGE_REVISION="abc")
    for name in ("one", "two"):
        shell(f"build/venv/bin/python -m build --wheel --outdir {tmp_path / name}", checkout, environ)
    (one,), (two,) = (tmp_path / "one").iterdir(), (tmp_path / "two").iterdir()

    assert one.read_bytes() == two.read_bytes()
    assert baked(tmp_path / "one") == {"revision": "abc", "built": "2026-09-21T14:13:20Z"}


def test_the_document_names_this_version() -> None:
    assert set(re.findall(r"gpugauge-(\d[\d.]*\d)", (ROOT / "docs" / DOCUMENT).read_text())) == {__version__}
