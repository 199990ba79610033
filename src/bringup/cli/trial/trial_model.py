"""What is tried: a Hugging Face folder, or what a factory function returns."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from bringup.cli._transformers import offline_transformers
from bringup.compiler.bisection import arguments_of
from bringup.errors import BringupError

_TOKENS = 16
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


class SubjectError(BringupError, ValueError):
    """What was to be tried cannot be found or is not a model with example inputs."""


@dataclass
class Subject:
    """A model, inputs to call it on, and notes for a reader; `name` is its target."""

    name: str
    model: torch.nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def load_subject(target: str) -> Subject:
    """As `load_model`, for inference: in evaluation mode and without gradients."""
    subject = load_model(target)
    subject.model.eval().requires_grad_(False)
    return subject


def load_model(target: str) -> Subject:
    """Return the subject behind `target`: a folder with a config.json, or `module:factory`. The
    model is as its factory made it; one of a folder is in evaluation mode.

    A factory takes no arguments and returns `(model, example_inputs)`; the inputs are a tensor, a
    tuple of positional arguments or a dict of keyword arguments. Raises `SubjectError` that says
    what was expected and what came.
    """
    path = Path(target).expanduser()
    if path.is_dir():
        return _from_folder(path)
    module_name, colon, factory_name = target.partition(":")
    if not colon or not module_name or not factory_name:
        raise SubjectError(f"{target!r} is neither a folder nor module:factory; {_meant(target)}")
    return _from_factory(target, find_callable(module_name, factory_name))


def _meant(target: str) -> str:
    """Return what to do with a target that has no factory's name in it."""
    name = target.rstrip(":").removesuffix(".py")
    file = Path(f"{name}.py")
    if file.is_file() and (factories := _factories(file)):
        return f"did you mean {name}:{factories[0]}?"
    if _HUB_ID.fullmatch(target):
        folder = target.partition("/")[2]
        return (
            f"download it first: hf download {target} --local-dir {folder}, "
            f"then: bringup try {folder}"
        )
    return (
        "give a Hugging Face folder with a config.json, or a function that returns "
        "(model, example_inputs)"
    )


def _factories(file: Path) -> list[str]:
    """Return the functions of a file that could be one, `make` first; it is not run."""
    try:
        body = ast.parse(file.read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError):
        return []
    functions = (node for node in body if isinstance(node, ast.FunctionDef))
    names = [
        node.name
        for node in functions
        if len(node.args.args) == len(node.args.defaults) and node.name[0] != "_"
    ]
    return sorted(names, key=lambda name: name != "make")


def find_callable(module_name: str, name: str) -> Callable[..., Any]:
    """Return the callable of this name in a module or a file. Raises `SubjectError`."""
    module = import_target(module_name)
    found: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(found):
        what = "nothing of this name" if found is None else f"a {type(found).__name__}"
        others = [other for other, value in vars(module).items() if callable(value)]
        near = difflib.get_close_matches(name, others, 1) if found is None else []
        hint = f"; did you mean {module_name}:{near[0]}?" if near else ""
        raise SubjectError(f"{module_name}:{name}: expected a function, got {what}{hint}")
    return found


def import_target(name: str) -> ModuleType:
    """Import a module, or a file with its folder first on the path. Raises `SubjectError`."""
    file = Path(name).expanduser()
    is_file = file.suffix == ".py"
    if is_file and not file.is_file():
        raise SubjectError(f"there is no file {name!r} in {Path.cwd()}")
    folder, name = (str(file.resolve().parent), file.stem) if is_file else (str(Path.cwd()), name)
    if is_file or folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not name.startswith(error.name):
            raise
        raise SubjectError(
            f"there is no module {name!r} in {Path.cwd()} or among the installed packages"
        ) from error
    if is_file and not (module.__file__ and file.samefile(module.__file__)):
        raise SubjectError(
            f"{file} has the name of another module, {module.__file__ or 'a built-in one'}: "
            "rename it"
        )
    return module


def _refuse_parameters(name: str, factory: Callable[..., Any]) -> None:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # a builtin may not tell its parameters: calling it will
        return
    collecting = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        repr(parameter.name)
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in collecting
    ]
    if needed:
        raise SubjectError(
            f"{name}: a factory takes no arguments, but this one needs {', '.join(needed)}; "
            "give a function without parameters that returns (model, example_inputs)"
        )


def _from_factory(name: str, factory: Callable[[], Any]) -> Subject:
    _refuse_parameters(name, factory)
    made = factory()
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], torch.nn.Module):
        raise SubjectError(
            f"{name}: expected the factory to return (torch.nn.Module, example_inputs), "
            f"got {type(made).__name__}"
        )
    model, inputs = made
    return Subject(name, model, *arguments_of(inputs))


def _from_folder(folder: Path) -> Subject:
    if not (folder / "config.json").is_file():
        raise SubjectError(f"{folder} has no config.json: expected a Hugging Face model folder")
    try:
        transformers = offline_transformers()
    except ImportError as error:
        raise SubjectError(
            f"{folder} needs transformers: pip install transformers safetensors ({error})"
        ) from error
    notes = []
    if any(path for pattern in _WEIGHTS for path in folder.glob(pattern)):
        model = transformers.AutoModel.from_pretrained(folder, local_files_only=True)
    else:
        notes.append("The folder has no weights: random ones were made from its configuration.")
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        model = transformers.AutoModel.from_config(config)
    if model.main_input_name != "input_ids":
        raise SubjectError(
            f"{folder}: {type(model).__name__} takes {model.main_input_name!r}; only models that "
            "take token ids can be tried by their folder, write a module:factory for this one"
        )
    ids = torch.randint(0, model.config.get_text_config().vocab_size, (1, _TOKENS))
    notes.append(f"Called on {_TOKENS} random token ids.")
    kwargs: dict[str, Any] = {"input_ids": ids}
    if getattr(model.config, "use_cache", False):
        kwargs["use_cache"] = False
    return Subject(str(folder), model.eval(), kwargs=kwargs, notes=notes)
