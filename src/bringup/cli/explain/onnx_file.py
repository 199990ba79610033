"""An ONNX file that passes are explained on: read, never written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bringup import compiler, ir
from bringup._differences import Leaf, leaves
from bringup.cli.explain.pass_results import Rewritten
from bringup.cli.trial.trial_model import Subject, SubjectError


class OnnxFile:
    """The model in a file, with random inputs; onnx's reference runs it when results are asked for.

    Raises `SubjectError` without the file or the package onnx, `ModelError` for no model.
    """

    def __init__(self, target: str) -> None:
        path = Path(target).expanduser()
        if not path.is_file():
            raise SubjectError(f"there is no file {path}")
        try:
            self._onnx: Any = compiler.onnx
        except ImportError as error:
            raise SubjectError(str(error)) from error
        self.name = target
        self.subject: Subject | None = None
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
        """Return a fresh run of these passes over the model."""
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
        """Return the model's graph, its functions, and the graphs that their nodes call."""
        found: list[ir.Graph] = list(self._onnx.from_proto(self._proto, self._folder).graphs)
        for graph in found:
            found.extend(graph.get_all_subgraphs())
        return found

    def _outputs(self, proto: Any) -> list[Leaf]:
        results = self._onnx.run(proto, folder=self._folder)
        return leaves([torch.from_numpy(item) for item in results])
