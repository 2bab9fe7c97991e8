from __future__ import annotations

from gpugauge.driver.worker import Service
from gpugauge.simulator.worker import service as simulated_service
from tests.simulator.build import scenario

SHIFT = "gpus: [{model: a100, uuid: GPU-0}, {model: a100, uuid: GPU-1, lost_at: 30}, {model: a100, uuid: GPU-2}]"


def uuids(service: Service, count: int) -> list[str | None]:
    replies = [service.answer({"op": "read", "index": i, "groups": ["static", "fast"]}) for i in range(count)]
    return [reply.failed or reply.values["static"]["uuid"] for reply in replies]


def test_lost_device_fails_alone_and_a_new_worker_renumbers_the_others() -> None:
    simulation = scenario(SHIFT).simulation() | {"start": {"monotonic": 0.0, "unix": 0.0}}
    now = [0.0]
    counts, found = [], []
    for begins, second in ((0.0, 29.0), (29.0, 31.0), (31.0, 32.0)):
        service = simulated_service(lambda: now[0])
        now[0] = begins
        count = service.answer({"op": "open", "simulate": simulation}).values["driver"]["device_count"]
        now[0] = second
        counts.append(count)
        found.append(uuids(service, count))
        service.close()

    assert counts == [3, 3, 2]
    assert found == [["GPU-0", "GPU-1", "GPU-2"], ["GPU-0", "gpu_is_lost", "GPU-2"], ["GPU-0", "GPU-2"]]


def test_added_device_is_found_by_a_new_worker_only() -> None:
    text = "gpus: [{model: a100, uuid: GPU-0, lost_at: 10, back_at: 20}, {model: a100, uuid: GPU-1, plugged_at: 15}]"
    simulation = scenario(text).simulation() | {"start": {"monotonic": 0.0, "unix": 0.0}}
    now = [0.0]

    def found_by_worker(begins: float, second: float) -> list[str | None]:
        service = simulated_service(lambda: now[0])
        now[0] = begins
        count = service.answer({"op": "open", "simulate": simulation}).values["driver"]["device_count"]
        now[0] = second
        found = uuids(service, count)
        service.close()
        return found

    assert found_by_worker(5, 30) == ["gpu_is_lost"]
    assert found_by_worker(16, 30) == ["GPU-1"]
    assert found_by_worker(25, 30) == ["GPU-0", "GPU-1"]
