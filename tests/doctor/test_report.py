import json
from pathlib import Path

from gpugauge.doctor.finding import Finding, Level, failure, ok, skipped, warning
from gpugauge.doctor.report import WIDTH_COLUMNS, document, lines
from gpugauge.doctor.table import Entry, exit_code
from gpugauge.verdict.causes import CAUSES
from tests.doctor.cases import CUDA, case
from tests.drawn import cases

LONG = "a sentence that is much longer than the terminal is wide, so that it must be broken somewhere, " * 2
ENTRIES = [
    Entry("Machine", "driver", ok("NVIDIA driver", LONG)),
    Entry("Machine", "pcie", warning("PCIe link", "GPU 1 has 8 lanes", cause="transfer")),
    Entry(
        "PyTorch", "build", failure("Build", "for the CPU only \x1b[2J\nand more", "install " + LONG, "no_cuda_build")
    ),
    Entry("PyTorch", "versions", skipped("CUDA versions", "torch is not a CUDA build")),
]


@cases(
    ("check", "level", "answered", "code"),
    [
        ("driver", "pass", True, 0),
        ("driver", "skipped", True, 0),
        ("driver", "failure", True, 1),
        ("build", "failure", False, 1),
        ("health", "warning", True, 1),
        ("values", "warning", False, 1),
        ("existence", "failure", False, 2),
        ("use", "warning", False, 2),
        ("use", "warning", True, 3),
        ("state", "failure", True, 3),
    ],
)
def test_exit_codes_are_those_of_the_status(check: str, level: Level, answered: bool, code: int) -> None:
    entries = [Entry("a", "devices", ok("a", "b")), Entry("a", check, Finding(level, "a", "b"))]
    assert exit_code(entries, answered=answered) == code
    assert exit_code(entries, answered=answered, wasted=True) == (code or 3)


def test_a_cause_gives_its_advice() -> None:
    assert warning("a", "b", cause="transfer").advice == CAUSES["transfer"].advice
    assert warning("a", "b", "do this", "transfer").advice == "do this"


def test_text_fits_a_terminal(tmp_path: Path) -> None:
    text = list(lines(case(tmp_path), ENTRIES, colour=False))

    assert max(map(len, text)) <= WIDTH_COLUMNS
    assert all(line.isprintable() for line in text)
    assert [line for line in text if not line.startswith(" ")] == [
        "http://127.0.0.1:1/api/v1/status does not answer (Connection refused); these are",
        "the checks without it.",
        "Machine",
        "",
        "PyTorch",
        "",
        "1 failure and 1 warning. Begin with: Build.",
    ]
    assert "  WARN  PCIe link          GPU 1 has 8 lanes [transfer]" in text
    assert "  skip  CUDA versions      torch is not a CUDA build" in text


def test_only_the_colours_differ(tmp_path: Path) -> None:
    plain, coloured = (list(lines(case(tmp_path), ENTRIES, colour=colour)) for colour in (False, True))

    assert coloured != plain
    for code in (1, 2, 31, 32, 33, 0):
        coloured = [line.replace(f"\x1b[{code}m", "") for line in coloured]
    assert coloured == plain


def test_the_first_and_the_last_line(tmp_path: Path) -> None:
    *_, found, first, second = lines(case(tmp_path), ENTRIES[:1], colour=False)
    assert found == "The checks found no problem."
    assert f"{first} {second}".startswith("Next: see what trainings do: gpugauge serve, ")
    simulated = case(tmp_path, simulation={"scenario": {"name": "node"}})
    assert next(lines(simulated, ENTRIES, colour=False)) == "SIMULATED: the GPUs below do not exist (scenario node)."


def test_json(tmp_path: Path) -> None:
    report = json.loads(document(case(tmp_path, torch=CUDA), ENTRIES))

    assert (report["exit_code"], report["simulated"], report["torch"], report["timings"]) == (1, False, CUDA, None)
    assert report["findings"][1] == {
        "group": "Machine",
        "check": "pcie",
        "level": "warning",
        "title": "PCIe link",
        "found": "GPU 1 has 8 lanes",
        "advice": CAUSES["transfer"].advice,
        "cause": "transfer",
    }
