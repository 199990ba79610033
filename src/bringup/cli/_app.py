"""The application: options that every command shares, and how a failure is shown."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from bringup import __version__, settings
from bringup.cli import (
    _cache_command,
    _check_command,
    _compare_command,
    _compile_command,
    _config,
    _conformance_command,
    _coverage_command,
    _demo_command,
    _doctor,
    _driver_check_command,
    _driver_command,
    _new_command,
    _passes_command,
    _prebuild_command,
    _stubs_command,
    _try_command,
)
from bringup.cli._exit_codes import ExitCode

app = typer.Typer(
    name="bringup",
    help="Bring an accelerator and its kernels up in PyTorch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("doctor")(_doctor.doctor)
app.command("demo")(_demo_command.demo)
app.command("try")(_try_command.try_model)
app.command("check")(_check_command.check)
app.command("compare")(_compare_command.compare)
app.command("compile")(_compile_command.compile_)
app.command("coverage")(_coverage_command.coverage)
app.command("conformance")(_conformance_command.conformance)
app.command("stubs")(_stubs_command.stubs)
app.command("config")(_config.config)

new = typer.Typer(name="new", help="A package to start from.", no_args_is_help=True)
new.command("kernel")(_new_command.kernel)
new.command("pass")(_new_command.pass_)
new.command("driver")(_new_command.driver)
app.add_typer(new)

driver = typer.Typer(name="driver", help="What a driver does.", no_args_is_help=True)
driver.command("check")(_driver_check_command.check)
driver.command("trace")(_driver_command.trace)
driver.command("replay")(_driver_command.replay)
app.add_typer(driver)

graph_passes = typer.Typer(name="passes", help="Graph passes.", no_args_is_help=True)
graph_passes.command("list")(_passes_command.list_)
graph_passes.command("explain")(_passes_command.explain)
graph_passes.command("bisect")(_passes_command.bisect)
graph_passes.command("mine")(_passes_command.mine)
app.add_typer(graph_passes)

cache = typer.Typer(name="cache", help="The kernel cache.", no_args_is_help=True)
cache.command("ls")(_cache_command.ls)
cache.command("show")(_cache_command.show)
cache.command("why")(_cache_command.why)
cache.command("prebuild")(_prebuild_command.prebuild)
cache.command("prune")(_cache_command.prune)
cache.command("export")(_cache_command.export)
cache.command("import")(_cache_command.import_)
cache.command("clear")(_cache_command.clear)
app.add_typer(cache)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bringup {__version__}")
        raise typer.Exit


@app.callback()
def _shared(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Return the options before the command; `run` reads `debug` from the command line itself."""
    if context.invoked_subcommand != "doctor":  # which lists them all
        settings.check()


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code. Errors are printed, not raised."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(given, standalone_mode=False)
    except typer.Abort:
        return ExitCode.INTERRUPTED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        return _show_failure(error, debug="--debug" in given)
    return code if isinstance(code, int) else ExitCode.DONE


def _show_failure(error: Exception, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
        return ExitCode.FAILED
    show = getattr(error, "show", None)  # click's own errors know how to print their usage line
    if show is not None and isinstance(code := getattr(error, "exit_code", None), int):
        show()
        return code
    console = Console(stderr=True)
    # Not wrapped: a path broken over two lines cannot be copied.
    console.print(Text(f"{type(error).__name__}: {error}", style="red"), soft_wrap=True)
    console.print(
        Text(
            "`bringup --debug ...` shows where; `bringup doctor` checks the installation.",
            style="dim",
        )
    )
    return ExitCode.FAILED
