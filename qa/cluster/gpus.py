"""A device plugin for `nvidia.com/gpu` on a simulated node. It hands out two uuids, and in place of a driver it mounts
this Python with torch, so that no image has them. Started by node.sh with the name of the node.
"""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec
from pathlib import Path

from tests.e2e.documents import ROOT

from gpugauge.deviceplugin import plugin

FOLDER = Path("/var/lib/kubelet/device-plugins")
PYTHON, PACKAGES, WORKLOADS = "/opt/python", "/opt/packages", "/opt/workloads/tests/e2e/workloads"
UUIDS = [f"GPU-0000000{number}-0000-0000-0000-000000000000" for number in range(2)]


def torch_folder() -> str:
    """Return the folder from which this Python imports torch."""
    found = find_spec("torch")
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parents[1])


def serve() -> None:
    """Serve until the process ends."""
    plugin.RESOURCE, plugin.SOCKET = "nvidia.com/gpu", "gpus.sock"
    places = {PYTHON: sys.base_prefix, PACKAGES: torch_folder(), WORKLOADS: str(ROOT / "tests" / "e2e" / "workloads")}
    container = plugin.container_response({"LD_LIBRARY_PATH": f"{PYTHON}/lib"}, places)
    devices = plugin.DevicePlugin(FOLDER, container, 1)
    devices._devices = plugin.device_list(UUIDS)
    devices.run(threading.Event())


if __name__ == "__main__":
    serve()
