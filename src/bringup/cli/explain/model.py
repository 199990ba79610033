"""What passes are explained on: a model with example inputs, an exported program, an ONNX file."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import fx

from bringup import compiler, ir
from bringup._differences import Leaf, leaves
from bringup.cli.trial.trial_model import Subject, SubjectError, load_subject
from bringup.compiler.native_program import run_eagerly
from bringup.passes import PassReport


@dataclass
class Rewritten:
    """One run of passes over a model; `error` says why `outputs` is None, or a pass failed."""

    reports: list[PassReport] = field(default_factory=list)
    outputs: list[Leaf] | None = None
    error: Exception | None = None

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Keep the report of passes that run in this block, also where it raises."""
        before = compiler.last_report()
        try:
            yield
        finally:
            report = compiler.last_report()
            if report is not None and report is not before:
                self.reports.append(report)


class Model(Protocol):
    """A model to run passes on repeatedly; `subject` is one for torch.compile, with inputs."""

    name: str
    subject: Subject | None = None

    def check(self) -> None:
        self.expected()

    def expected(self) -> list[Leaf]:
        """Return the tensors that it returns without any pass."""

    def rewritten(self, names: Sequence[str] | None, options: Mapping[str, object]) -> Rewritten:
        """Return a fresh run of these passes over it, and of the result."""

    def graphs(self) -> Sequence[fx.GraphModule | ir.Graph]:
        """Return the graphs that passes are given for it, as they are before any pass."""


def load_model(target: str) -> Model:
    """Return the model of `bringup try`, a `.pt2` or an `.onnx` file. Raises `SubjectError`."""
    if target.endswith(".pt2"):
        path = Path(target).expanduser()
        if not path.is_file():
            raise SubjectError(f"there is no file {path}")
        return _Exported(target, torch.export.load(path))
    if target.endswith(".onnx"):
        return _OnnxFile(target)
    return _Compiled(load_subject(target))


class _Compiled(Model):
    """A module that torch.compile takes apart."""

    def __init__(self, subject: Subject) -> None:
        self.name = subject.name
        self.subject = self._subject = subject

    def expected(self) -> list[Leaf]:
        with torch.no_grad():
            return leaves(self._subject.model(*self._subject.args, **self._subject.kwargs))

    def rewritten(self, names: Sequence[str] | None, options: Mapping[str, object]) -> Rewritten:
        found = Rewritten()
        given = {"freeze": True, "passes": names, **options}

        def backend(module: Any, inputs: Sequence[Any]) -> Any:
            with found.reporting():
                return compiler.dynamo_backend(module, inputs, options=given)

        torch.compiler.reset()
        compiled = torch.compile(self._subject.model, backend=backend)
        try:
            with torch.no_grad():
                found.outputs = leaves(compiled(*self._subject.args, **self._subject.kwargs))
        except Exception as error:
            found.error = _cause(error)
        return found

    def graphs(self) -> list[fx.GraphModule]:
        from torch._dynamo.backends.common import aot_autograd

        found: list[fx.GraphModule] = []

        def keep(aten: Any, inputs: Sequence[Any]) -> Any:
            found.append(aten)
            return run_eagerly(aten, inputs)

        torch.compiler.reset()
        backend = aot_autograd(fw_compiler=keep, inference_compiler=keep)
        compiled = torch.compile(self._subject.model, backend=backend)
        with torch.no_grad():
            compiled(*self._subject.args, **self._subject.kwargs)
        return found


class _Exported(Model):
    """An exported program with the inputs that it was exported with."""

    def __init__(self, name: str, program: Any) -> None:
        if program.example_inputs is None:
            raise SubjectError(f"{name} was saved without its example inputs: export it again")
        self.name = name
        self._program = program

    def expected(self) -> list[Leaf]:
        return self._outputs(self._program)

    def rewritten(self, names: Sequence[str] | None, options: Mapping[str, object]) -> Rewritten:
        found = Rewritten()
        program = copy.deepcopy(self._program)
        try:
            with found.reporting():
                compiler.apply_passes(program, names, options=options)
            found.outputs = self._outputs(program)
        except Exception as error:
            found.error = _cause(error)
        return found

    def graphs(self) -> list[fx.GraphModule]:
        return [self._program.graph_module]

    def _outputs(self, program: Any) -> list[Leaf]:
        args, kwargs = self._program.example_inputs
        with torch.no_grad():
            return leaves(program.module()(*args, **kwargs))


def _cause(error: Exception) -> Exception:
    """Return what a pass raised, where Dynamo wrapped it."""
    inner = getattr(error, "inner_exception", None) or error.__cause__
    if type(error).__module__.startswith("torch.") and isinstance(inner, Exception):
        return inner
    return error


class _OnnxFile(Model):
    """The model in a file, with random inputs, run by onnx's reference implementation."""

    def __init__(self, target: str) -> None:
        path = Path(target).expanduser()
        if not path.is_file():
            raise SubjectError(f"there is no file {path}")
        try:
            self._onnx: Any = compiler.onnx
        except ImportError as error:
            raise SubjectError(str(error)) from error
        self.name = target
        self._folder = path.parent
        self._proto = self._onnx.load(path).to_proto()
        self._is_run = False

    def check(self) -> None:
        """Nothing: reading the file has looked at all of it."""

    def expected(self) -> list[Leaf]:
        """Return the results without passes; from now on those of `rewritten` are computed too."""
        self._is_run = True
        return self._outputs(self._proto)

    def rewritten(self, names: Sequence[str] | None, options: Mapping[str, object]) -> Rewritten:
        found = Rewritten()
        model = self._onnx.from_proto(self._proto, self._folder)
        try:
            with found.reporting():
                compiler.apply_passes(model, names, options=options)
            proto = model.to_proto()
            if self._is_run:
                found.outputs = self._outputs(proto)
        except Exception as error:
            found.error = error
        return found

    def graphs(self) -> list[ir.Graph]:
        found: list[ir.Graph] = list(self._onnx.from_proto(self._proto, self._folder).graphs)
        for graph in found:
            found.extend(graph.get_all_subgraphs())
        return found

    def _outputs(self, proto: Any) -> list[Leaf]:
        results = self._onnx.run(proto, folder=self._folder)
        return leaves([torch.from_numpy(item) for item in results])
