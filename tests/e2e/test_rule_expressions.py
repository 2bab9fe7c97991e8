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
from tests.drawn import draws, seeds
from tests.e2e.ruletester import promtools

pytestmark = pytest.mark.e2e


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


@seeds(draws(1, 10))
def test_prometheus_accepts_every_accepted_expression(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    drawn = {"".join(draw.choice(PARTS) for _ in range(draw.randint(1, 7))) for _ in range(5000)}
    kept = sorted(filter(accepted, drawn))
    rules = [{"record": f"r{place}", "expr": f'up{{a=~"{one}"}}'} for place, one in enumerate(kept)]
    (tmp_path / "rules.yaml").write_text(dump({"groups": [{"name": "drawn", "rules": rules}]}))

    assert len(kept) > 50
    for tool in promtools():
        command = [tool, "check", "rules", str(tmp_path / "rules.yaml")]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
