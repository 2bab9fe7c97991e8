import pytest

from gpugauge.status.steps import loader_advice, step_sentence


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ({}, ""),
        (
            {"data": 0.7, "peers": 0.1, "checkpointing": 0.15, "rest": 0.05},
            ("70 % waiting for data, 15 % writing checkpoints, 10 % waiting for other ranks, 5 % the rest"),
        ),
        ({"data": 0.001, "rest": 0.999}, "100 % the rest"),
        ({"a_later_part": 0.5, "rest": 0.5}, "50 % the rest"),
    ],
)
def test_parts_by_size(shares: dict[str, float], sentence: str) -> None:
    assert step_sentence(shares) == sentence


def test_advice_for_an_unseen_loader() -> None:
    assert "gpugauge.hook.batches()" in loader_advice(["data_loading", "host_bound"])
    assert loader_advice(["transfer"]) == ""
