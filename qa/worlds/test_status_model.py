import json

import pytest
from tests.simulation import status

from gpugauge.status.model import ProcessStatus, Status, as_json, decoded
from qa.worlds.nodes import draw

PROCESS = {"process": "aa", "pid": 7, "devices": {}}


def test_json_of_the_model_is_that_of_the_daemon() -> None:
    for seed in range(10):
        node = draw(seed)
        facts = json.loads(json.dumps(status(node.snapshot(), node.history())))
        for process in facts["without_gpu"]:
            process |= {"memory_used_bytes": None, "load_5m": None}

        assert json.dumps(as_json(decoded(Status, facts))) == json.dumps(facts)


def test_status_of_another_version() -> None:
    older = {"process": "aa", "workload": None, "changes": [{"cause": None, "topic": "idle", "change": "end it"}]}

    process = decoded(ProcessStatus, older | {"not_yet_known": {"a": [1]}})

    assert (process.process, process.pid, process.level, process.workload) == ("aa", None, "none", {})
    assert process.changes[0].gain is None


@pytest.mark.parametrize("wrong", [{"pid": "7"}, {"workload": []}, {"changes": 5}, {"process": None}, {"hook": 1}])
def test_what_is_no_status(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"expected|required|missing"):
        decoded(ProcessStatus, PROCESS | wrong)


def test_absent_fields() -> None:
    assert as_json(decoded(ProcessStatus, PROCESS)).keys() & {"devices", "mig", "alive"} == {"devices"}
