from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from qa.worlds.trees import UID

from gpugauge.workload.identity import Workload
from gpugauge.workload.kubelet import Kubelet, KubeletError, decode
from tests.workload.kubelet import Service, field, listing, serving

NVIDIA = ("nvidia.com/",)
A, B = Workload("pod", "research", "a", "main"), Workload("pod", "research", "b", "main")


def one(resource: str, *devices: str) -> bytes:
    return listing({("research", "a"): {"main": {resource: devices}}})


def test_names_of_devices() -> None:
    cases = [
        ("nvidia.com/gpu", "GPU-4b6c1e52-9f0a", "GPU-4b6c1e52-9f0a"),
        ("nvidia.com/gpu.shared", "GPU-4b6c1e52-9f0a::3", "GPU-4b6c1e52-9f0a"),
        ("nvidia.com/mig-1g.10gb", "MIG-4b6c1e52-9f0a", "MIG-4b6c1e52-9f0a"),
        ("nvidia.com/mig-1g.10gb", "MIG-GPU-4b6c/7/0", "MIG-GPU-4b6c/7/0"),
        ("nvidia.com/gpu", f"GPU-{UID}", f"GPU-{UID}"),
        ("nvidia.com/gpu.shared", f"GPU-{UID}::12", f"GPU-{UID}"),
        ("nvidia.com/gpu", f"GPU-{UID}-3", f"GPU-{UID}"),  # HAMi
        ("nvidia.com/gpu", "nvidia0", "nvidia0"),
        ("nvidia.com/gpu", "nvidia0/vgpu1", "nvidia0"),
        ("nvidia.com/gpu", "nvidia0/gi2", "nvidia0/gi2"),
        ("nvidia.com/gpu", "nvidia0/gi2/vgpu1", "nvidia0/gi2"),
    ]

    found = [decode(one(resource, device), NVIDIA).devices for resource, device, _ in cases]
    assert found == [{name: (A,)} for *_, name in cases]


def test_shared_devices_have_each_holder_once() -> None:
    reply = listing(
        {
            ("research", "a"): {"main": {"nvidia.com/gpu": ["GPU-1::0", "GPU-1::1"]}},
            ("research", "b"): {"main": {"nvidia.com/gpu": ["GPU-1::2"]}, "idle": {"cpu": ["0"]}},
        }
    )

    assert decode(reply, NVIDIA).devices == {"GPU-1": (A, B)}


def test_holders_of_one_device_are_bounded() -> None:
    """Each would be a series: a kubelet may list 60,000 pods for one GPU."""
    found = decode(listing({("ml", f"p{n}"): {"main": {"nvidia.com/gpu": ["GPU-1"]}} for n in range(1000)}), NVIDIA)

    assert [len(holders) for holders in found.devices.values()] == [256]
    assert found.ignored == 1000 - 256


def test_other_resources_and_strange_names() -> None:
    assert decode(one("example.com/gpu", "GPU-1"), NVIDIA).devices == {}
    assert decode(one("example.com/gpu", "GPU-1"), (*NVIDIA, "example.com/gpu")).devices == {"GPU-1": (A,)}
    strange = decode(one("nvidia.com/gpu", "GPU-1", "../../etc", "", "GPU-" + "x" * 1000), NVIDIA)
    assert (strange.devices, strange.ignored) == ({"GPU-1": (A,)}, 3)


def test_dynamic_resource_allocation() -> None:
    def claim(driver: str, device: str) -> bytes:
        resource = field(1, field(1, "k8s.gpu.nvidia.com/device=x")) + field(2, driver) + field(4, device)
        return field(5, field(2, "claim") + field(4, resource))

    claims = claim("gpu.nvidia.com", "gpu-3") + claim("gpu.nvidia.com", "gpu-1-mig-1g") + claim("other", "gpu-4")
    reply = field(1, field(1, "a") + field(2, "research") + field(3, field(1, "main") + claims))
    given_out = decode(reply, NVIDIA)

    assert (given_out.devices, given_out.ignored) == ({"nvidia3": (A,)}, 1)


@given(st.binary())
def test_garbage_is_an_error_or_nothing(reply: bytes) -> None:
    try:
        decode(reply, NVIDIA)
    except ValueError:
        return


@given(st.data())
def test_truncated_replies(data: st.DataObject) -> None:
    whole = listing({("research", f"p{i}"): {"main": {"nvidia.com/gpu": [f"GPU-{i}"]}} for i in range(3)})
    end = data.draw(st.integers(0, len(whole) - 1))
    try:
        found = decode(whole[:end], NVIDIA).devices
    except ValueError:
        return

    assert found.items() <= decode(whole, NVIDIA).devices.items()


def test_real_server(tmp_path: Path) -> None:
    socket = tmp_path / "a kubelet.sock"
    with serving(socket, Service(one("nvidia.com/gpu", "GPU-1"))) as service:
        assert Kubelet(socket).allocations().devices == {"GPU-1": (A,)}
        service.reply = b"\xff not a message"
        with pytest.raises(KubeletError, match="is invalid"):
            Kubelet(socket).allocations()


def test_ten_thousand_devices(tmp_path: Path) -> None:
    pods = {("n", f"p{i}"): {"c": {"nvidia.com/gpu": [f"GPU-{i}-{j}::{j}" for j in range(100)]}} for i in range(100)}
    pods |= {("n", f"s{i}"): {"c": {"nvidia.com/gpu": [f"GPU-shared::{i}"]}} for i in range(300)}
    with serving(tmp_path / "s", Service(listing(pods))):
        found = Kubelet(tmp_path / "s").allocations()

    assert found.devices["GPU-99-7"] == (Workload("pod", "n", "p99", "c"),)
    assert (len(found.devices), len(found.devices["GPU-shared"]), found.ignored) == (10_001, 256, 44)


def test_slow_server(tmp_path: Path) -> None:
    with serving(tmp_path / "s", Service(b"")) as service:
        service.hangs = True
        with pytest.raises(KubeletError, match="deadline exceeded"):
            Kubelet(tmp_path / "s", timeout=0.2).allocations()


def test_no_server(tmp_path: Path) -> None:
    with pytest.raises(KubeletError, match="unavailable"):
        Kubelet(tmp_path / "s", timeout=5).allocations()


def test_kubelet_that_comes_back(tmp_path: Path) -> None:
    """Answers as soon as it listens, whatever back-off an earlier failure has left in the process."""
    for number in range(20):
        kubelet = Kubelet(tmp_path / f"{number}.sock")
        with pytest.raises(KubeletError):
            kubelet.allocations()
        with serving(kubelet.socket, Service(b"")):
            assert kubelet.allocations().devices == {}


def test_extra_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(KubeletError, match="pod labels need the package grpcio"):
        Kubelet(tmp_path / "s").allocations()
