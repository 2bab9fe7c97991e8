from gpugauge.status.steps import loader_advice


def test_advice_for_an_unseen_loader() -> None:
    assert "gpugauge.hook.batches()" in loader_advice(["data_loading", "host_bound"])
    assert loader_advice(["transfer"]) == ""
