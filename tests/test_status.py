import json

from gpugauge.history import History
from gpugauge.server import Request
from gpugauge.status import PATH, status, status_route
from tests.statusfacts import snapshot

REQUEST = Request("GET", PATH, "", {}, b"", "127.0.0.1")


def test_cards_by_index_with_what_is_on_them() -> None:
    told = status(snapshot(), History())

    first, second = told["gpus"]
    assert (first["index"], first["uuid"], first["load"], first["temperature_celsius"]) == (0, "GPU-a", 0.93, 64)
    assert (first["load_5m"], first["processes_hidden"]) == (None, 3)
    (process,) = first["processes"]
    assert (process["pid"], process["command"], process["torch_build"]) == (4001, "train.py", "cuda")
    assert process["workload"]["pod"] == "trainer-0"
    assert (process["memory_used_bytes"], process["started"]) == (40 << 30, 1.7e9 - 7300)
    assert (second["processes"], second["allocation"]) == ([], "allocated")
    assert second["allocated_to"] == [{"kind": "pod", "namespace": "web", "pod": "idle-7"}]
    assert second["temperature_celsius"] is None


def test_process_with_torch_on_no_card() -> None:
    (process,) = status(snapshot(), History())["without_gpu"]

    assert (process["pid"], process["torch_build"], process["workload"]["user"]) == (77, "cpu", "ann")


def test_exporter_and_driver() -> None:
    told = status(snapshot(), History())

    assert (told["version"], told["simulated"], told["failing_collectors"]) == ("9.9", True, ["host"])
    assert told["driver"] == {"up": True, "reason": "ok"}


def test_load_over_five_minutes_comes_from_the_history() -> None:
    class Remembers(History):
        def load(self, uuid: str, seconds: float) -> float | None:
            return 0.5 if seconds == 300 else None

    assert status(snapshot(), Remembers())["gpus"][0]["load_5m"] == 0.5


def test_load_over_ten_minutes_is_rounded() -> None:
    class Remembers(History):
        def loads(self, uuid: str) -> list[tuple[float, float | None]]:
            return [(5.0049, None), (0.0, 1 / 3)] if uuid == "GPU-a" else []

    first, second = status(snapshot(), Remembers())["gpus"]
    assert (first["load_10m"], second["load_10m"]) == ([[5.0, None], [0.0, 0.333]], [])


def test_route_answers_in_json() -> None:
    reply = status_route(snapshot, History()).handler(REQUEST)

    assert reply.status == 200
    assert len(json.loads(reply.body)["gpus"]) == 2


def test_route_without_a_fresh_snapshot() -> None:
    assert status_route(lambda: None, History()).handler(REQUEST).status == 503
