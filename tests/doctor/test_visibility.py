import pytest

from gpugauge.doctor.visibility import visible

NAMES = [["GPU-aa11"], ["GPU-aa22"], ["GPU-bb33", "MIG-cc44"]]


@pytest.mark.parametrize(
    ("value", "shown", "problem"),
    [
        (None, (0, 1, 2), ""),
        ("2,0", (2, 0), ""),
        (" 1 , 2 ", (1, 2), ""),
        ("GPU-aa2", (1,), ""),
        ("MIG-cc44", (2,), ""),
        ("", (), "it is set to nothing, which hides every GPU"),
        ("-1", (), "'-1' names no GPU, which hides every GPU"),
        ("NoDevFiles", (), "'NoDevFiles' names no GPU, which hides every GPU"),
        ("0,-1,1", (0,), "'-1' names no GPU, which hides it and what follows"),
        ("0,3", (0,), "'3' names no GPU (there are 3), which hides it and what follows"),
        ("0,,1", (0,), "it has an empty entry, which hides it and what follows"),
        ("GPU-aa", (), "'GPU-aa' names no GPU, which hides every GPU"),  # two begin like this
        ("0,0", (), "it names a GPU twice, which hides every GPU"),
    ],
)
def test_what_cuda_shows(value: str | None, shown: tuple[int, ...], problem: str) -> None:
    assert visible(value, NAMES) == (shown, problem)
