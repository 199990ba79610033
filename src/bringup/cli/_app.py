"""The application: options that every command shares, and how a failure is shown."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from bringup import __version__, settings
from bringup.cli import (
    _bench_command,
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
    _requirements,
    _stubs_command,
    _try_command,
)
from bringup.cli._exit_codes import ExitCode
from bringup.cli._help import Command, Group, Panel

app = typer.Typer(
    name="bringup",
    cls=Group,
    help="Bring an accelerator and its kernels up in PyTorch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _add(
    to: typer.Typer,
    name: str,
    command: Callable[..., None],
    short_help: str,
    panel: Panel | None = None,
) -> None:
    """Add a command. What its group says of it has at most 50 characters."""
    to.command(name, cls=Command, short_help=short_help, rich_help_panel=panel)(command)


def _group(name: str, words: str, panel: Panel) -> typer.Typer:
    group = typer.Typer(name=name, cls=Group, help=words, no_args_is_help=True)
    app.add_typer(group, rich_help_panel=panel)
    return group


_add(app, "doctor", _doctor.doctor, "What is missing, and how to get it.", Panel.SET_UP)
_add(app, "config", _config.config, "Flags and folders for a build of your own.", Panel.SET_UP)
_add(app, "demo", _demo_command.demo, "MiniLM: eager, Inductor, fused, captured.", Panel.MODELS)
_add(app, "try", _try_command.try_model, "Time your model in every mode.", Panel.MODELS)
_add(app, "compile", _compile_command.compile_, "Run passes over a model's file.", Panel.MODELS)
_add(app, "check", _check_command.check, "Test an operator in all that torch does.", Panel.KERNELS)
_add(app, "bench", _bench_command.bench, "GB/s, FLOP/s of an operator, and peers.", Panel.KERNELS)
_add(app, "stubs", _stubs_command.stubs, "Type stubs of operators, for editors.", Panel.KERNELS)
_add(app, "compare", _compare_command.compare, "Find a device's wrong operator.", Panel.CHIP)
_add(app, "coverage", _coverage_command.coverage, "What a model needs of a device.", Panel.CHIP)
_add(app, "conformance", _conformance_command.conformance, "Test a device beside cpu.", Panel.CHIP)

new = _group("new", "Write a package: kernel, pass or driver.", Panel.SET_UP)
_add(new, "kernel", _new_command.kernel, "A package with one operator.")
_add(new, "pass", _new_command.pass_, "A package with one graph pass.")
_add(new, "driver", _new_command.driver, "A package with the driver of a device.")

driver = _group("driver", "Check, trace and replay a driver.", Panel.CHIP)
_add(driver, "check", _driver_check_command.check, "Test a driver by the rules of driver.h.")
_add(driver, "trace", _driver_command.trace, "Write every call of a program's driver.")
_add(driver, "replay", _driver_command.replay, "Make the calls of a trace again; compare.")

graph_passes = _group("passes", "Explain, bisect and mine graph passes.", Panel.MODELS)
_add(graph_passes, "list", _passes_command.list_, "The registered passes, on or off.")
_add(graph_passes, "explain", _passes_command.explain, "What passes do to a model, and why not.")
_add(graph_passes, "bisect", _passes_command.bisect, "Find what makes a result differ.")
_add(graph_passes, "mine", _passes_command.mine, "What repeats in a model, as patterns.")

cache = _group("cache", "Look at, bound and move the kernel cache.", Panel.KERNELS)
_add(cache, "ls", _cache_command.ls, "List the kernels.")
_add(cache, "show", _cache_command.show, "What a kernel was built from, and how.")
_add(cache, "why", _cache_command.why, "What differs between two kernels.")
_add(cache, "prebuild", _cache_command.prebuild, "Build the kernels that a run recorded.")
_add(cache, "prune", _cache_command.prune, "Remove what was used longest ago.")
_add(cache, "export", _cache_command.export, "Write kernels into a bundle.")
_add(cache, "import", _cache_command.import_, "Take the kernels of a bundle.")
_add(cache, "clear", _cache_command.clear, "Remove all kernels.")


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
    _requirements.command_line.set(given)
    try:
        code = app(given, prog_name="bringup", standalone_mode=False)
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
