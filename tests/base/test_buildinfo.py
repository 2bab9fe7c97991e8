import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpugauge import __version__
from gpugauge.base import buildinfo
from tests.drawn import cases

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@example", "-c", "init.defaultBranch=main"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the empty folder of the package in a folder with the layout of a checkout."""
    folder = tmp_path / "checkout" / "src" / "gpugauge"
    folder.mkdir(parents=True)
    monkeypatch.setattr(buildinfo, "_PACKAGE", folder)
    buildinfo.build.cache_clear()
    yield folder
    buildinfo.build.cache_clear()


def git(folder: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = [*GIT, "-C", str(folder), *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path) -> str:
    (folder / "file").write_text("1")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=first")
    return git(folder, "rev-parse", "HEAD")


def test_a_checkout_has_its_commit(package: Path) -> None:
    revision = commit(package.parents[1])

    assert str(buildinfo.build()) == f"{__version__} (revision {revision}; checkout)"


def test_changed_files_make_the_revision_dirty(package: Path) -> None:
    revision = commit(package.parents[1])
    (package.parents[1] / "file").write_text("2")

    assert buildinfo.build().revision == f"{revision}-dirty"


def test_a_tag_does_not_hide_the_commit(package: Path) -> None:
    revision = commit(package.parents[1])
    git(package.parents[1], "tag", "--annotate", "--message=1", "v1")

    assert buildinfo.build().revision == revision


def test_a_repository_around_it_is_not_ours(package: Path) -> None:
    commit(package.parents[2])

    assert str(buildinfo.build()) == f"{__version__} (revision unknown; build unknown)"


def test_the_environment_of_git_names_no_other_repository(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = package.parents[1], package.parents[2] / "other"
    other.mkdir()
    commit(other)
    revision = commit(ours)
    (other / "file").write_text("2")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))

    assert buildinfo.build().revision == revision


def test_without_git(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(package.parents[1])
    monkeypatch.setenv("PATH", "")

    assert str(buildinfo.build()) == f"{__version__} (revision unknown; checkout)"


def test_build_file_comes_first(package: Path) -> None:
    commit(package.parents[1])
    (package / buildinfo.FILE).write_text(json.dumps({"revision": "abc", "built": "2026-11-21T04:00:00Z"}))

    assert str(buildinfo.build()) == f"{__version__} (revision abc; built 2026-11-21T04:00:00Z)"


@cases("text", ["", "[]", "{}", '{"revision": "abc"}', "\x00"])
def test_a_broken_file_is_no_file(package: Path, text: str) -> None:
    (package / buildinfo.FILE).write_text(text)
    buildinfo.build.cache_clear()

    assert buildinfo.build().revision == "unknown"
