"""Stand-ins for values that cannot be known, so that a panel without data never looks like a healthy one."""

from __future__ import annotations

from gpugauge.artifacts.rules.health import IDENTITY
from grafana.build.queries import Expr, Scope, recorded

# The rules record a series for each GPU that has an info metric. Where there are GPUs and none of these series, no
# rules are loaded.
_RULES = f"count ({recorded(IDENTITY)})"
_GPUS = f"count ({Scope().select('gpu_info')})"
NO_RULES, NO_DATA = "no rules loaded", "no data"
# Stand-ins for numbers, which are never negative.
TEXTS = {"-1": NO_RULES, "-2": NO_DATA}


def number(expr: Expr) -> Expr:
    """Return a recorded value without labels; 0 if the rules record none, else a key of TEXTS."""
    return expr.then(f"{{}}\nor 0 * {_RULES}\nor 0 * {_GPUS} - 1\nor vector(-2)")


def value(expr: Expr) -> Expr:
    """Return a recorded value without labels; nothing if the rules record none, else a key of TEXTS."""
    return expr.then(f"{{}}\nor 0 * {_GPUS} - 1 unless on () {_RULES}\nor vector(-2) unless on () {_GPUS}")


def raw_number(expr: Expr, scope: Scope, known: str = "gpu_up") -> Expr:
    """Return a value without labels that needs no rules; 0 without one where `known` is there, else a key of TEXTS."""
    return expr.then(f"{{}}\nor 0 * count ({scope.select(known)})\nor vector(-2)")


def reason(label: str) -> Expr:
    """Return a series whose label gives the reason for missing recorded series; nothing if they are there."""
    no_rules = f'label_replace(0 * {_GPUS} unless on () {_RULES}, "{label}", "{NO_RULES}", "", "")'
    no_data = f'label_replace(vector(0) unless on () {_GPUS}, "{label}", "{NO_DATA}", "", "")'
    return Expr(f"{no_rules}\nor {no_data}", "")


def or_reason(expr: Expr, label: str) -> Expr:
    """Return recorded series, or the reason for which they are missing."""
    return expr.then(f"{{}}\nor {reason(label)}")
