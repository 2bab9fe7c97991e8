"""The output of `gpugauge doctor` in docs/doctor.md."""

from __future__ import annotations

import tempfile
from pathlib import Path

from click.testing import CliRunner

from gpugauge.cli.main import main
from tests.doctor.cases import PYTHON, with_torch

COMMAND = ("doctor", "--simulate", "failing-card")
_SHOWN = "Repair of "


def sample() -> str:
    """Return the command and what it prints with a CPU build of torch, without the parts that differ by machine."""
    environ: dict[str, str | None] = {"CUDA_VISIBLE_DEVICES": None, "NVIDIA_VISIBLE_DEVICES": None}
    with tempfile.TemporaryDirectory() as folder:
        environ |= with_torch(Path(folder))
        printed = CliRunner().invoke(main, [*COMMAND, "--python", PYTHON], env=environ).output
    first, *sections, last = printed.rstrip("\n").split("\n\n")
    shown = [_begin(section) if section.startswith(_SHOWN) else _failures(section) for section in sections]
    return "\n\n".join([f"```\n$ gpugauge {' '.join(COMMAND)}\n{first}", *filter(None, shown), f"{last}\n```"])


def _begin(section: str) -> str:
    """Return the heading of a repair and a line for its steps, which are others where a daemon runs."""
    return "\n".join((section.split("\n", maxsplit=1)[0], "…"))


def _failures(section: str) -> str:
    """Return the findings of a section that are no pass, with the lines that continue them."""
    title, *lines = section.split("\n")
    kept, failed = [title], False
    for line in lines:
        failed = line.startswith(("  FAIL", "  WARN")) or (failed and line.startswith("     "))
        kept += [line] if failed else ["…"] * (kept[-1] != "…")
    return "\n".join(kept) if len(kept) > 2 else ""
