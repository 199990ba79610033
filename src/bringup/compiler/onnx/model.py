"""ONNX models: loading, saving, and the graphs in them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx
import onnx.parser
from google.protobuf import json_format, message, text_format
from onnx import external_data_helper

from bringup import ir
from bringup._garbage_collection import collector_paused
from bringup.compiler.onnx import operators
from bringup.compiler.onnx.constants import ConstantTensor
from bringup.compiler.onnx.dialect import IMPORTS, OnnxDialect
from bringup.compiler.onnx.reading import read_function, read_graph
from bringup.compiler.onnx.unknown import add_unknown_fields
from bringup.compiler.onnx.writing import write_function, write_graph
from bringup.compiler.output_file import replacing
from bringup.errors import ModelError, PassError

_UNREADABLE = (
    message.Error, json_format.Error, text_format.ParseError, onnx.parser.ParseError, ValueError,
    RuntimeError,
)  # fmt: skip
"""What readers of the formats raise for a file that is none of theirs."""


class OnnxModel:
    """A model as graphs that passes rewrite.

    Args:
        proto: an `onnx.ModelProto`, which must not change while this lives.
        folder: where the files of external data lie; None when there are none.

    Attributes:
        graph: the model's graph; the graphs that nodes call are its subgraphs.
        functions: the graphs of the model's own functions, by operator type.

    Raises `ModelError` when the model is broken: it names the graph and the node.

    Raises `TypeError` for what is no `onnx.ModelProto`.
    """

    def __init__(self, proto: Any, folder: Path | None = None) -> None:
        if not isinstance(proto, onnx.ModelProto):
            raise TypeError(f"expected an onnx.ModelProto, got {type(proto).__name__}")
        _check_header(proto)
        self._proto = proto
        self.folder = folder
        protos = {
            operators.type_of(item.domain, item.name, item.overload): item
            for item in proto.functions
        }
        dialect = OnnxDialect(
            _versions(proto.opset_import), functions=protos, ir_version=proto.ir_version
        )
        with collector_paused():
            self.graph: ir.Graph = read_graph(proto.graph, dialect, folder)
            self._functions: dict[str, ir.Graph] = {}
            for kind, item in protos.items():
                versions = {**dialect.opsets, **_versions(item.opset_import)}
                own = OnnxDialect(versions, functions=protos, ir_version=dialect.ir_version)
                self._functions[kind] = read_function(item, own)

    @property
    def functions(self) -> Mapping[str, ir.Graph]:
        """Return the graphs of the model's own functions, by operator type."""
        return MappingProxyType(self._functions)

    @property
    def graphs(self) -> tuple[ir.Graph, ...]:
        """Return the model's graph, then those of its functions."""
        return (self.graph, *self._functions.values())

    def to_proto(self) -> Any:
        """Return a new `onnx.ModelProto` of the model as it is now. External data stay references.

        Raises `ModelError` for what the model's opsets do not have, or when an imported version
        contradicts another.
        """
        proto = onnx.ModelProto()
        proto.CopyFrom(_frame_of(self._proto))
        with collector_paused():
            proto.graph.CopyFrom(write_graph(self.graph))
            for graph in self._functions.values():
                function = write_function(graph)
                _extend_imports(function, graph, function.node, self.graph)
                proto.functions.append(function)
            _extend_imports(proto, self.graph, proto.graph.node)
        return proto

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model into the file `path`, whole or not at all; returns its path.

        Data in files beside the original model stay there if the new file lies in the same
        folder; else they are written into one file beside it, named after it.
        """
        target = Path(path)
        proto = self.to_proto()
        if self.folder is None or target.parent.resolve() == self.folder.resolve():
            _write(proto, target)
            return target
        tensors = list(external_data_helper._get_all_tensors(proto))
        external = [item for item in tensors if external_data_helper.uses_external_data(item)]
        for tensor in external:
            tensor.CopyFrom(ConstantTensor(tensor, self.folder).tensor())
        if external:
            location = f"{target.name}.data"
            (target.parent / location).unlink(missing_ok=True)
            external_data_helper.convert_model_to_external_data(proto, location=location)
            proto = external_data_helper.write_external_data_tensors(proto, str(target.parent))
        _write(proto, target)
        return target

    def __str__(self) -> str:
        return "\n".join(str(graph) for graph in self.graphs)


def load(path: str | os.PathLike[str]) -> OnnxModel:
    """Return the model of the ONNX file `path`, data in others read on demand. Raises
    `FileNotFoundError`, or `ModelError` when the file is no model or a broken one.
    """
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"there is no file {source}")
    try:
        proto = onnx.load(str(source), load_external_data=False)
    except _UNREADABLE as error:
        raise ModelError(f"{source} is no ONNX model: {error}") from error
    try:
        return OnnxModel(proto, source.parent)
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from error


def from_proto(proto: Any, folder: str | os.PathLike[str] | None = None) -> OnnxModel:
    """Return the model of an `onnx.ModelProto`.

    Args:
        proto: the model; it must not change while what is returned lives.
        folder: where its external data lie; None when there are none.

    Raises what `OnnxModel` raises.
    """
    return OnnxModel(proto, None if folder is None else Path(folder))


def _check_header(proto: Any) -> None:
    if not proto.HasField("graph") or proto.ir_version <= 0:
        raise ModelError("this is no ONNX model: it has no graph, or no IR version")
    if not proto.opset_import and proto.ir_version >= 3:
        raise ModelError("this is no valid ONNX model: it imports no version of any domain")


def _versions(imports: Any) -> dict[str, int]:
    """Return the imported versions by domain; `ModelError` for a domain that has two."""
    found: dict[str, int] = {}
    for item in imports:
        domain = "" if item.domain == "ai.onnx" else item.domain
        if found.setdefault(domain, item.version) != item.version:
            raise ModelError(
                f"the domain {domain!r} is imported twice: in version {found[domain]} and in "
                f"version {item.version}"
            )
    return found or {"": 1}


def _frame_of(proto: Any) -> Any:
    """Return the model without its graph and functions."""
    frame = onnx.ModelProto()
    for field, value in proto.ListFields():
        if field.name in ("graph", "functions"):
            continue
        if field.is_repeated:
            getattr(frame, field.name).extend(value)
        else:
            setattr(frame, field.name, value)
    add_unknown_fields(frame, proto)
    return frame


def _extend_imports(
    proto: Any, graph: ir.Graph, nodes: Any, around: ir.Graph | None = None
) -> None:
    """Import the opsets that passes and new nodes need; a function takes its model's versions."""
    imported = _versions(proto.opset_import) if proto.opset_import else {}
    wanted = dict(graph.attributes[IMPORTS])  # type: ignore[call-overload]
    model = {} if around is None else dict(around.attributes[IMPORTS])  # type: ignore[call-overload]
    needed = {domain: wanted[domain] for domain in wanted if domain not in model}
    for domain in sorted(_domains_in(nodes)):
        newest = operators.newest(domain)
        needed[domain] = wanted.get(domain, model.get(domain, newest or 1))
    for domain, version in needed.items():
        if domain not in imported:
            proto.opset_import.add(domain=domain, version=version)


def _domains_in(nodes: Any) -> set[str]:
    found = set()
    for node in nodes:
        found.add("" if node.domain == "ai.onnx" else node.domain)
        for attribute in node.attribute:
            for graph in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
                found |= _domains_in(graph.node)
    return found


def _write(proto: Any, target: Path) -> None:
    registry = onnx.serialization.registry  # by the suffix, as onnx chooses the format
    kind = registry.get_format_from_file_extension(target.suffix) or "protobuf"
    with replacing(target) as made:
        onnx.save_model(proto, made, format=kind)


@contextmanager
def opened(target: Any) -> Iterator[OnnxModel]:
    """In this block: the model behind `target`.

    A proto is written back at the end, also after a `PassError`: the edits of the passes that
    succeeded stay. Any other exception leaves it as it was.
    """
    if isinstance(target, OnnxModel):
        yield target
        return
    copy = type(target)()
    copy.CopyFrom(target)
    model = from_proto(copy)
    try:
        yield model
    except PassError:
        target.CopyFrom(model.to_proto())
        raise
    target.CopyFrom(model.to_proto())
