"""The HTTP server and its routes."""

from __future__ import annotations

import logging
import sys
from types import ModuleType


def _replace_tornado_log() -> None:
    """Give tornado its loggers without its module for terminals, which costs 1.4 MB (docs/proof/performance.md)."""
    module = ModuleType("tornado.log")
    for attribute, name in (("access_log", "access"), ("app_log", "application"), ("gen_log", "general")):
        setattr(module, attribute, logging.getLogger(f"tornado.{name}"))
    sys.modules.setdefault(module.__name__, module)


_replace_tornado_log()
