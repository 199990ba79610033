"""`bringup new kernel|pass|driver NAME`: a package whose tests pass as it is written."""

from __future__ import annotations

import ast
import importlib.util
import keyword
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from bringup.cli._requirements import JsonFile, Output

Kind = Literal["kernel", "pass", "driver"]

_TEMPLATES = Path(__file__).parent / "templates"
_SUFFIX = ".tmpl"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TAKEN = frozenset({
    "aten", "bringup", "numpy", "packaging", "pip", "prim", "prims", "pytest", "setuptools",
    "test", "torch", "triton", "wheel",
})  # fmt: skip

Name = Annotated[str, typer.Argument(help="Of the package and of what is in it: lower_case.")]
Into = Annotated[Path, typer.Option("--into", help="The folder in which NAME/ is made.")]


def kernel(
    name: Name,
    into: Into = Path(),
    json_file: JsonFile = None,
    hub: Annotated[
        bool, typer.Option("--hub", help="With a program that exports it for HF kernels.")
    ] = False,
) -> None:
    """Write a package with one operator: kernel, schema, fake, backward, tests, a benchmark.

    Exit code 0: it is written, 1: NAME/ is there already or cannot be written, 2: a bad name.
    """
    _report(write_package("kernel", name, into, hub=hub), name, Output(json_file))


def pass_(name: Name, into: Into = Path(), json_file: JsonFile = None) -> None:
    """Write a package with one graph pass: pattern, replacement, tests on a model, a benchmark.

    Exit code 0: it is written, 1: NAME/ is there already or cannot be written, 2: a bad name.
    """
    _report(write_package("pass", name, into), name, Output(json_file))


def driver(name: Name, into: Into = Path(), json_file: JsonFile = None) -> None:
    """Write a package with the driver of a device: C, its build, tests, a day's plan.

    Exit code 0: it is written, 1: NAME/ is there already or cannot be written, 2: a bad name.
    """
    build = "cmake -S . -B build && cmake --build build && "
    _report(write_package("driver", name, into), name, Output(json_file), build)


def write_package(kind: Kind, name: str, into: Path, *, hub: bool = False) -> list[Path]:
    """Write the package `into/name`, whole or not at all, and return its files. With `hub` a kernel
    is exported for Hugging Face. Raises `typer.BadParameter`, `FileExistsError` and `OSError`.
    """
    problem = _name_problem(name) or _clash(kind, name)
    if kind == "driver":
        problem = problem or _device_problem(name)
    if problem:
        raise typer.BadParameter(f"{name!r}: {problem}", param_hint="NAME")
    if not into.is_dir():
        raise typer.BadParameter(f"{into} is no folder: make it first", param_hint="--into")
    target = into / name
    if target.exists() or target.is_symlink():
        raise FileExistsError(f"{target} is there already, and nothing is overwritten")
    draft = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=into))
    try:
        draft.chmod(0o755)
        folders = [_TEMPLATES / kind, *([_TEMPLATES / "kernel_hub"] if hub else [])]
        for folder, template in ((f, t) for f in folders for t in f.rglob(f"*{_SUFFIX}")):
            place = template.relative_to(folder).as_posix().removesuffix(_SUFFIX)
            file = draft / filled(place, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(filled(template.read_text(), name))
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return sorted(path for path in target.rglob("*") if path.is_file())


def _name_problem(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        return "expected lower case letters, digits and underscores, beginning with a letter"
    if keyword.iskeyword(name):
        return "is a word of Python; choose another name"
    if name in _TAKEN or name in sys.stdlib_module_names:
        return "is the name of another package; choose another"
    return ""


def _clash(kind: Kind, name: str) -> str:
    """Return why the package's own files cannot say this name, or ""."""
    used: set[str] = set()
    for template in (_TEMPLATES / kind).rglob(f"*.py{_SUFFIX}"):
        for node in ast.walk(ast.parse(filled(template.read_text(), "name_of_the_package"))):
            if isinstance(node, ast.Name):
                used.add(node.id)
            elif isinstance(node, (ast.arg, ast.alias)):
                used.add(node.arg if isinstance(node, ast.arg) else node.asname or node.name)
    if used.isdisjoint((name, _words(name))):
        return ""
    return "is a name that the package's own files use for something else; choose another"


def _device_problem(name: str) -> str:
    """Return why torch cannot have a device of this name, or "" (always without torch)."""
    if importlib.util.find_spec("torch") is None:
        return ""
    from bringup import devices

    return devices.device_name_problem(name)


def _words(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def filled(text: str, name: str) -> str:
    return (
        text.replace("@name@", name)
        .replace("@Name@", _words(name))
        .replace("@dist@", name.strip("_").replace("_", "-"))
    )


def _report(files: list[Path], name: str, out: Output, build: str = "") -> None:
    folder = next(parent for parent in files[0].parents if parent.name == name)
    for file in files:
        out.say(str(file))
    out.say(f"\nNext: cd {folder} && {build}python -m pytest")
    names = [file.relative_to(folder).as_posix() for file in files]
    out.results({"package": str(folder.resolve()), "files": names})
