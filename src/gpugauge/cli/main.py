"""The command line: the group of all commands."""

from __future__ import annotations

import codecs
import errno
import importlib
import io
import os
import sys
from typing import Any

import click

from gpugauge.terminal.style import simpler

# By module: its commands. Others have a module of their own.
_SHARED = {
    "lifecycle": ("attach", "forget", "release"),
    "shipped": ("dashboards", "export-hook", "metrics", "scenarios"),
}
_MODULES = {name: module for module, names in _SHARED.items() for name in names}
_COMMANDS = sorted(
    (*_MODULES, "device-plugin", "doctor", "report", "rules", "run", "serve", "stack", "status", "top", "track")
)


class _Commands(click.Group):
    """A group that imports the module of a command only when it is needed: `gpugauge run` must be fast."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command, and end it in one sentence if standard output does not take what it writes."""
        codecs.register_error("simpler", simpler)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="simpler")
        try:
            try:
                return super().main(*args, **extra)
            finally:
                click.echo(nl=False)  # flushes
        except OSError as error:
            if error.filename or error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered would fail again at the exit
            click.echo(f"gpugauge: standard output: {error.strerror}", err=True)
            sys.exit(1)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's)
        return _COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            from difflib import get_close_matches

            if not ctx.resilient_parsing and (near := get_close_matches(cmd_name, _COMMANDS, 1)):
                ctx.fail(f"no such command {cmd_name!r}; did you mean {near[0]}?")
            return None
        name, shared = cmd_name.replace("-", "_"), _MODULES.get(cmd_name)
        module = importlib.import_module(f"gpugauge.cli.{shared or name}")
        command: click.Command = getattr(module, name if shared else "command")
        return command


def _print_version(ctx: click.Context, _: click.Parameter, requested: bool) -> None:
    if requested:
        from gpugauge.base import buildinfo

        click.echo(f"gpugauge {buildinfo.build()}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version, its commit and when it was built.",
)
def main() -> None:
    """Report whether PyTorch uses the GPU, how well, and if not, why.

    `gpugauge serve` exports Prometheus metrics. `gpugauge doctor` checks this machine once.
    """


if __name__ == "__main__":
    main()
