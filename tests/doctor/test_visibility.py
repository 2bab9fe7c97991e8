import pytest

from gpugauge.doctor.machine import visible

NAMES = [["GPU-aa11"], ["GPU-aa22"], ["GPU-bb33", "MIG-cc44"]]


@pytest.mark.parametrize(
    ("value", "shown", "problem"),
    [
        (None, (0, 1, 2), ""),
        ("2,0", (2, 0), ""),
        (" 1 , 2 ", (1, 2), ""),
        ("GPU-aa2", (1,), ""),
        ("MIG-cc44", (2,), ""),
        ("", (), "the value is empty, which hides every GPU"),
        ("-1", (), "'-1' identifies no GPU, which hides every GPU"),
        ("NoDevFiles", (), "'NoDevFiles' identifies no GPU, which hides every GPU"),
        ("0,-1,1", (0,), "'-1' identifies no GPU, which hides this and all later entries"),
        ("0,3", (0,), "'3' identifies no GPU (there are 3), which hides this and all later entries"),
        ("0,,1", (0,), "an entry is empty, which hides this and all later entries"),
        ("GPU-aa", (), "'GPU-aa' identifies no GPU, which hides every GPU"),  # the prefix of two
        ("0,0", (), "a GPU is listed twice, which hides every GPU"),
    ],
)
def test_visible_devices(value: str | None, shown: tuple[int, ...], problem: str) -> None:
    assert visible(value, NAMES) == (shown, problem)
