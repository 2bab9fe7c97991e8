"""Installs the torch of the tests into this interpreter's environment: `python qa/install_torch.py VERSION PYTHON`.

With a third argument, `alone`, what torch depends on is left for another call, so that this one can run beside others.

The package index's own build for Linux is the CUDA build: 4.7 GB, which no test needs. So torch comes, in this order,
from: this environment; a wheel that pip is configured to find without an index (PIP_FIND_LINKS); the interpreter PYTHON
from which this environment was made; PyTorch's index of CPU builds, or TORCH_INDEX, if it answers within some seconds.
Otherwise, or with VERSION `none`, there is no torch, and the tests that need it are left out. With CI set that is an
error.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import urllib.request
from pathlib import Path

CPU_INDEX = os.environ.get("TORCH_INDEX") or "https://download.pytorch.org/whl/cpu"
PROBE_SECONDS = 5
PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def main() -> int:
    """Install; return the exit status."""
    version, base, *_ = sys.argv[1:]
    if version == "none":
        return _without("TORCH=none")
    if _is_complete() or _from_wheel(version) or _from_base(base) or _from_cpu_index(version):
        return 0
    return _without(f"torch {version} is not installed, and {CPU_INDEX} does not answer")


def _is_complete() -> bool:
    return all(importlib.util.find_spec(name) for name in ("torch", "sympy"))


def _from_wheel(version: str) -> bool:
    return _install(version, "--no-index")


def _install(version: str, *index: str) -> bool:
    """Install torch itself from where the options say, and what it depends on from the package index."""
    alone = [*PIP, *index, "--no-deps", f"torch=={version}"]
    if subprocess.run(alone, capture_output=True, check=False).returncode:
        return False
    return "alone" in sys.argv or subprocess.run([*PIP, f"torch=={version}"], check=False).returncode == 0


def _from_base(base: str) -> bool:
    """Use the torch of the interpreter from which this environment was made."""
    code = "import pathlib, torch; print(pathlib.Path(torch.__file__).parent.parent)"
    found = subprocess.run([base, "-c", code], capture_output=True, text=True, check=False)
    if found.returncode:
        return False
    Path(sysconfig.get_path("purelib"), "torch-of-the-base.pth").write_text(found.stdout)
    return True


def _from_cpu_index(version: str) -> bool:
    try:
        urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=PROBE_SECONDS).close()
    except OSError:
        return False
    return _install(version, "--index-url", CPU_INDEX)


def _without(reason: str) -> int:
    if os.environ.get("CI"):
        print(f"error: {reason}: in CI no test may be left out", file=sys.stderr)
        return 1
    print(f"WARNING: {reason}. The tests that need torch are left out.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
