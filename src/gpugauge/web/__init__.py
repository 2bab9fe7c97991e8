"""The HTTP server and its routes."""

from __future__ import annotations

import logging
import sys
from types import ModuleType


def _replace_tornado_log() -> None:
    """Give tornado its three loggers without its formatter for terminals, for which tornado.log loads curses, html and
    logging.handlers: 1.4 MB of the daemon's memory (docs/proof/performance.md).
    """
    module = ModuleType("tornado.log")
    for attribute, name in (("access_log", "access"), ("app_log", "application"), ("gen_log", "general")):
        setattr(module, attribute, logging.getLogger(f"tornado.{name}"))
    sys.modules.setdefault(module.__name__, module)


_replace_tornado_log()
