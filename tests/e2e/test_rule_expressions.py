"""Regular expressions that `gpugauge rules` accepts, drawn: Prometheus accepts each, too."""

from __future__ import annotations

import random
import subprocess
import warnings
from pathlib import Path

import pytest
from pydantic import ValidationError
from qa.bench.alerts.replay import dump

from gpugauge.artifacts.rules.options import Parameters
from tests.e2e.ruletester import tools

pytestmark = pytest.mark.e2e

tool = tools()

PARTS = (
    *("a", "b", "-", "|", ".", "^", "$", "*", "+", "?", "(", "(?:", "(?i)", "(?i:", "(?-i:", "(?P<n>", ")", ")"),
    *("(?=", "(?!", "(?<=", "(?<!", "(?>", "(?#", "(?P=n)", "(?x)", "(?a:", "[", "[^", "]", "[[:alpha:]]", "[[:no:]]"),
)


def accepted(expression: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Parameters(serving=expression)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("seed", range(3))
def test_prometheus_accepts_every_accepted_expression(tool: str, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    drawn = {"".join(draw.choice(PARTS) for _ in range(draw.randint(1, 7))) for _ in range(5000)}
    kept = sorted(filter(accepted, drawn))
    rules = [{"record": f"r{place}", "expr": f'up{{a=~"{one}"}}'} for place, one in enumerate(kept)]
    (tmp_path / "rules.yaml").write_text(dump({"groups": [{"name": "drawn", "rules": rules}]}))

    done = subprocess.run(
        [tool, "check", "rules", str(tmp_path / "rules.yaml")], check=False, capture_output=True, text=True
    )

    assert len(kept) > 50
    assert done.returncode == 0, done.stdout + done.stderr
