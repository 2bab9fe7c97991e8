from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpugauge.workload.identity import JOB_LABELS, LABELS, MAX_LABEL_BYTES, Workload, clean, device_names


def test_clean() -> None:
    cases: list[tuple[str | bytes, str]] = [
        ("train.py", "train.py"),
        (' quote " and \\ ', 'quote " and \\'),
        ("two\nlines\r\ttabbed", "two?lines??tabbed"),
        ("\x1b[31mred\x1b[0m", "?[31mred?[0m"),
        ("right\u202eto left\u2028", "right?to left?"),
        ("\ud800", "?"),
        (b"\xff\xfetrain\x00", "\ufffd\ufffdtrain?"),
        ("größe", "größe"),
        ("x" * 10_000, "x" * 128),
        ("ß" * 100, "ß" * 64),
        ("a" + "ß" * 100, "a" + "ß" * 63),
        (b"\xc3\x9f" * 10_000, "ß" * 64),
    ]

    assert [clean(raw) for raw, _ in cases] == [label for _, label in cases]


@given(st.one_of(st.binary(), st.text(st.characters(codec=None))))
def test_any_text_becomes_a_safe_label(raw: str | bytes) -> None:
    label = clean(raw)

    assert label.isprintable()
    assert len(label.encode()) <= MAX_LABEL_BYTES
    assert label == clean(label)


def test_labels_are_in_the_order_of_their_names() -> None:
    workload = Workload(pod="a", run_id="wandb:b")

    assert dict(zip(LABELS, workload, strict=True)) == {
        "workload_kind": "",
        "workload_namespace": "",
        "workload_pod": "a",
        "workload_container": "",
        "workload_job_id": "",
        "workload_user": "",
        "workload_command": "",
        "workload_run_id": "wandb:b",
        "workload_job_kind": "",
        "workload_job": "",
        "workload_job_source": "",
    }


def test_job_labels_are_in_the_order_of_their_names() -> None:
    workload = Workload(namespace="ml", pod="a-0", job_kind="job", job="a", job_source="environment")
    by_name = dict(zip(LABELS, workload, strict=True))

    assert dict(zip(JOB_LABELS, workload.job_labels(), strict=True)) == {name: by_name[name] for name in JOB_LABELS}


def test_names_of_devices() -> None:
    assert device_names("GPU-1", minor=5, bus_id="00000000:07:00.0") == ("GPU-1", "nvidia5", "pci:0000:07:00.0")
    assert device_names("MIG-1", minor=5, gpu_instance=2) == ("MIG-1", "nvidia5/gi2")
    assert device_names("GPU-1") == ("GPU-1",)
