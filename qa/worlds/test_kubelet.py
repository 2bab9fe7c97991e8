"""Drawn events of a kubelet: restarts of both sides, ends of connections, and requests that are garbage."""

from __future__ import annotations

from importlib import import_module

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.deviceplugin.kubelet import Kubelet, until
from tests.deviceplugin.test_plugin import Clock, a_folder, healthy, made
from tests.drawn import EVERYTHING

from gpugauge.deviceplugin import plugin

STEPS = ("restart", "remove socket", "drop", "refuse", "kubelet is away", "plugin restarts", "garbage")


def happen(step: str, seconds: int, kubelet: Kubelet, ours: plugin.DevicePlugin) -> None:
    """Let one of STEPS happen to the kubelet or to the folder."""
    own = kubelet.folder / "gpugauge.sock"
    if step == "garbage":
        if kubelet.registered and own.exists():
            with pytest.raises(import_module("grpc").RpcError):
                kubelet.call("Allocate", bytes(range(128, 129 + seconds)))
    elif step == "drop":
        kubelet.drop()
    elif step in {"remove socket", "refuse"}:
        own.unlink(missing_ok=True)
        kubelet.refuse = 1 + seconds % 3 if step == "refuse" else 0
    else:
        kubelet.stop()
        if step == "kubelet is away":
            (kubelet.folder / "kubelet.sock").unlink(missing_ok=True)
            ours.turn()
        kubelet.start()


@pytest.mark.everything
# Each event as the last one, whatever is drawn.
@example([("drop", 0)])
@example([("restart", 0)])
@example([("refuse", 0)])
@example([("kubelet is away", 0)])
@settings(max_examples=20 if EVERYTHING else 6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 40)), min_size=1, max_size=6))
def test_whatever_happens_the_kubelet_has_the_devices_again(steps: list[tuple[str, int]]) -> None:
    """After each sequence of events, with any time between them, the devices are back within a minute."""
    with a_folder() as folder:
        kubelet, clock = Kubelet(folder), Clock()
        kubelet.start()
        ours = made(folder, clock)
        ours.turn()
        for step, seconds in steps:
            if step == "plugin restarts":
                ours._end()
                ours = made(folder, clock)
            else:
                happen(step, seconds, kubelet, ours)
            for _ in range(seconds):
                clock.now += 1
                ours.turn()
        # The end of a connection reaches the plugin after a moment; after that a minute is enough.
        until(lambda: ours._watchers <= 1)

        def back() -> bool:
            clock.now += 1
            ours.turn()
            return kubelet.devices == healthy() and len(kubelet.allocate(1)) == 1

        try:
            until(back)
        finally:
            ours._end()
            kubelet.stop()
