"""The command line. Each command imports what it needs when it is called: `gpugauge run` starts a training process."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from gpugauge.cli.dashboards import dashboards
from gpugauge.cli.doctor import doctor
from gpugauge.cli.lifecycle import attach, release

if TYPE_CHECKING:
    from gpugauge.settings.model import Settings
    from gpugauge.settings.options import Setting


class _SettingsCommand(click.Command):
    """A command with a flag for each setting, made from the model only when this command is really called."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*_setting_options(), *super().get_params(ctx)]


@functools.cache
def _setting_options() -> tuple[click.Option, ...]:
    from gpugauge.settings.options import walk

    return tuple(map(_setting_option, walk()))


def _setting_option(setting: Setting) -> click.Option:
    flags = f"{setting.flag}/{setting.negative_flag}" if setting.negative_flag else setting.flag
    return click.Option(
        [flags, _parameter(setting)],
        default=None,
        multiple=setting.repeatable,
        metavar=None if setting.negative_flag else setting.kind.upper().replace(" ", "_").replace(",", ""),
        help=f"{setting.description}  [{setting.environment}; default: {setting.default_text}]",
    )


def _parameter(setting: Setting) -> str:
    return setting.environment.lower()  # a Python identifier, and different for each setting


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from gpugauge import buildinfo

        click.echo(f"gpugauge {buildinfo.build()}")
        ctx.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Version and commit."
)
def main() -> None:
    """Tell whether PyTorch is really using the GPU, how well, and if not, why."""


@main.command(cls=_SettingsCommand)
@click.option(
    "--config.file",
    "config_file",
    envvar="GPUGAUGE_CONFIG_FILE",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Settings file, YAML.  [GPUGAUGE_CONFIG_FILE]",
)
@click.pass_obj
def serve(
    use: Callable[[Callable[[], Settings]], int] | None, /, config_file: Path | None, **values: object
) -> NoReturn:
    """Serve the metrics of this machine until told to stop."""
    from gpugauge.settings.load import load
    from gpugauge.settings.options import walk

    given = ((setting.key, values[_parameter(setting)]) for setting in walk())
    flags = {key: value for key, value in given if value not in (None, ())}
    if use is None:  # else this is the child of a daemon, and it only reads
        from gpugauge.daemon import serve as daemon

        use = daemon.serve
    sys.exit(use(functools.partial(load, config_file, os.environ, flags)))


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(command: tuple[str, ...]) -> NoReturn:
    """Run a training program so that it reports to the daemon: gpugauge run -- python train.py."""
    from gpugauge.hook import launch

    if obstacle := launch.obstacle(command):
        click.echo(f"gpugauge: {obstacle}", err=True)
    try:
        launch.run(command)
    except launch.LaunchError as error:
        _fail(error.exit_code, error)


@main.command()
@click.option("--url", default="http://127.0.0.1:10478", show_default=True, help="Address of the running daemon.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--watch", is_flag=True, help="Print it again every two seconds until interrupted.")
def status(url: str, as_json: bool, watch: bool) -> None:
    """Show each GPU, its load, and who uses it, as the running daemon sees it."""
    from gpugauge.cli import status as statusview

    try:
        statusview.status(url, as_json, watch)
    except statusview.StatusError as error:
        _fail(1, error)


@main.command("export-hook")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def export_hook(folder: Path) -> None:
    """Copy the hook to FOLDER, for images in which nothing is installed, and print what PYTHONPATH must be there."""
    from gpugauge.hook import launch

    try:
        click.echo(launch.export(folder))
    except OSError as error:
        _fail(1, f"{folder}: {error.strerror}")


@main.command()
def scenarios() -> None:
    """List the scenarios for serve --simulate."""
    from gpugauge.simulator.scenario.load import list_scenarios

    for name, description in list_scenarios():
        click.echo(f"{name}  {description}")


@main.command()
@click.option("--format", "form", type=click.Choice(["text", "markdown", "json"]), default="text", show_default=True)
def metrics(form: str) -> None:
    """Print every metric that gpugauge can export."""
    from gpugauge.artifacts.reference import FORMATS

    click.echo(FORMATS[form](), nl=False)


class _RulesCommand(click.Command):
    """A command with a flag for each rule parameter, made from the model only when it is really called."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        from gpugauge.cli.rules import options

        return [*options(), *super().get_params(ctx)]


@main.command(cls=_RulesCommand)
@click.option(
    "--config.file",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="File with the same parameters, YAML: info_below, severities, …; flags go before it.",
)
@click.option("--format", "form", type=click.Choice(["prometheus", "kubernetes"]), default="prometheus")
def rules(config_file: Path | None, form: str, severity: tuple[str, ...], **values: object) -> None:
    """Print recording and alerting rules for Prometheus, or as a PrometheusRule for its operator."""
    from gpugauge.artifacts.rules import pack as made
    from gpugauge.artifacts.rules.options import RulesError, load
    from gpugauge.cli.rules import given

    try:
        text = made.FORMATS[form](load(config_file, given(values, severity)))
    except RulesError as error:
        _fail(2, error)
    click.echo(text, nl=False)


main.add_command(doctor)
main.add_command(release)
main.add_command(attach)
main.add_command(dashboards)


def _fail(code: int, reason: object) -> NoReturn:
    click.echo(f"gpugauge: {reason}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
