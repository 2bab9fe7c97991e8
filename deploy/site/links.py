"""Links of the pages to files outside of docs/: in the site they lead to the repository."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/gpugauge/gpugauge/tree/main"
_log = logging.getLogger("mkdocs.plugins.links")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page with links to the repository; a link to a missing file is a warning, which `--strict` refuses."""
    above = re.escape("../" * (page.file.src_uri.count("/") + 1))
    outside = re.compile(rf"\]\({above}([^)#\s]+)")
    for path in outside.findall(markdown):
        if not (ROOT / path).exists():
            _log.warning("%s links to %s, which does not exist", page.file.src_path, path)
    return outside.sub(rf"]({REPOSITORY}/\1", markdown)
