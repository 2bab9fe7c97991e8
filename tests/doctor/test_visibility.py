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
        ("", (), "it is set to nothing, which hides every card"),
        ("-1", (), "'-1' names no card, which hides every card"),
        ("NoDevFiles", (), "'NoDevFiles' names no card, which hides every card"),
        ("0,-1,1", (0,), "'-1' names no card, which hides it and what follows"),
        ("0,3", (0,), "'3' names no card (there are 3), which hides it and what follows"),
        ("0,,1", (0,), "it has an empty entry, which hides it and what follows"),
        ("GPU-aa", (), "'GPU-aa' names no card, which hides every card"),  # two begin like this
        ("0,0", (), "it names a card twice, which hides every card"),
    ],
)
def test_what_cuda_shows(value: str | None, shown: tuple[int, ...], problem: str) -> None:
    assert visible(value, NAMES) == (shown, problem)
