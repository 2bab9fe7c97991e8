from gpugauge.verdict.summary import Summary


def test_line_contains_load_and_lost_time() -> None:
    summary = Summary(held=200.0, peak_memory=5e9)
    summary.seconds |= {"training": 95.0, "checkpointing": 5.0, "stalled": 0.0}
    summary.lost |= {"data_loading": 60.0, "host_bound": 0.4, "transfer": 20.0}
    for percent in range(1, 101):
        summary.add_load([percent / 100, percent / 100], 1.0)

    assert summary.line() == {
        "states": "checkpointing:5,training:95",
        "gpu_seconds_held": 200,
        "gpu_seconds_busy": 101,
        "gpu_seconds_lost": "data_loading:60,transfer:20",
        "load_percent_mean": 50,
        "load_percent_p5": 5,
        "load_percent_p50": 50,
        "load_percent_p95": 95,
        "peak_memory_bytes": 5_000_000_000,
    }


def test_training_without_a_device_has_no_device_fields() -> None:
    summary = Summary()
    summary.seconds["training_on_cpu"] = 10.0
    summary.add_load([], 5.0)

    assert summary.line() == {"states": "training_on_cpu:10"}
