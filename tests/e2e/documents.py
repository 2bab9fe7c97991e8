"""The commands of a document, so that a test can execute what a reader would."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def blocks(document: str, heading: str, language: str = "bash") -> list[str]:
    """Return the code blocks of one language under a heading of docs/`document`, those of its subheadings included."""
    text = (ROOT / "docs" / document).read_text()
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,2}} |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"{document} has no heading {heading!r}"
    result = re.findall(rf"^```{language}\n(.*?)^```$", found[2], re.DOTALL | re.MULTILINE)
    assert result, f"{document}, {heading}: no block of {language}"
    return result
