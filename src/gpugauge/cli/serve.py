"""`gpugauge serve`: the daemon, with a flag for each setting."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

from gpugauge.settings.load import load
from gpugauge.settings.model import Settings
from gpugauge.settings.options import Setting, walk


def _option(setting: Setting) -> click.Option:
    flags = f"{setting.flag}/{setting.negative_flag}" if setting.negative_flag else setting.flag
    return click.Option(
        [flags, _parameter(setting)],
        default=None,
        multiple=setting.repeatable,
        metavar=None if setting.negative_flag else setting.kind.upper().replace(" ", "_").replace(",", ""),
        help=f"{setting.description}  [{setting.environment}; default: {setting.default_text}]",
    )


def _parameter(setting: Setting) -> str:
    return setting.environment.lower()  # a Python identifier, and unique


@click.command("serve", params=[_option(setting) for setting in walk()])
@click.option(
    "--config.file",
    "config_file",
    envvar="GPUGAUGE_CONFIG_FILE",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="YAML file with settings. Flags and environment variables take precedence over it.  [GPUGAUGE_CONFIG_FILE]",
)
@click.option(
    "--config.check",
    "config_check",
    is_flag=True,
    help="Only check the settings and the files that they name: exit with 0 if the daemon can start with them, else "
    "with 2 and a sentence for each error.",
)
@click.pass_obj
def command(
    use: Callable[[Callable[[], Settings]], int] | None,
    /,
    config_file: Path | None,
    config_check: bool,
    **values: object,
) -> NoReturn:
    """Export the metrics of this machine over HTTP.

    Runs until it is interrupted. Each setting can also be given in a YAML file or by the environment variable named
    in brackets.
    """
    given = ((setting.key, values[_parameter(setting)]) for setting in walk())
    flags = {key: value for key, value in given if value not in (None, ())}
    if config_check:
        from gpugauge.daemon.serve import check

        use = check
    elif use is None:  # otherwise this is the child process that reads the settings (settings_child.py)
        from gpugauge.daemon import serve as daemon

        use = daemon.serve
    sys.exit(use(functools.partial(load, config_file, os.environ, flags)))
