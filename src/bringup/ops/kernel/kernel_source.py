"""Where a kernel operator's kernel comes from: a path, a `jit.Source` or a `jit.Template`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Literal

from bringup import jit
from bringup.errors import SchemaError
from bringup.ops.kernel.c_function import CFunction, GridSize
from bringup.ops.kernel.variants import output_names
from bringup.ops.schema.schema import Schema


class _OperatorTemplate(jit.Template):
    """What `kernel_op` makes of a source; its author wrote `args=`, and no template."""

    _given_as = "args"

    @property
    def _label(self) -> str:
        return str(self.name or self.path)


def template_for(
    schema: Schema,
    source: str | os.PathLike[str] | jit.Source | jit.Template,
    kind: Literal["host", "device"] | None,
    caller: FrameType,
    dtypes: Mapping[str, str],
    macros: Mapping[str, jit.Macro],
    flags: Sequence[str],
    function: CFunction,
    size: GridSize,
) -> jit.Template:
    """Return the given template or one of the source. Raises `SchemaError`, `FileNotFoundError`."""
    name = schema.qualified_name
    if isinstance(source, jit.Template):
        given = {"dtypes": dtypes, "macros": macros, "flags": flags, **vars(function)}
        given |= size.options
        if both := [option for option, value in given.items() if value]:
            raise SchemaError(
                f"{name}: {both[0]}= belongs to the template {source.name!r}; declare it there"
            )
        return source if kind is None else replace(source, kind=kind)
    plain = _source(schema, source, caller)
    _check_dtype_arguments(schema, dtypes)
    try:
        if kind is not None and kind != plain.kind:
            plain = replace(plain, kind=kind)
        plain = size.of(function.of(plain))
        given = size.options if plain.abi == "values" else {}
        return _OperatorTemplate(
            plain.path,
            text=plain.text,
            name=plain.name,
            entry=plain.entry,
            abi=plain.abi,
            kind=plain.kind,
            dtypes=dtypes,
            macros=macros,
            flags=flags,
            params=function.args or "",
            returns=function.returns,
            **given,
        )
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{name}: {error}") from error


def _check_dtype_arguments(schema: Schema, dtypes: Mapping[str, str]) -> None:
    for macro, argument in dtypes.items():
        index = schema.index.get(argument)
        if (
            index is None
            or schema.arguments[index].type != "Tensor"
            or schema.arguments[index].optional
        ) and argument not in output_names(schema):
            raise SchemaError(
                f"{schema.qualified_name}: dtypes={{{macro!r}: {argument!r}}}: expected the name "
                "of an argument of type Tensor, or of an output"
            )


def _source(
    schema: Schema, source: str | os.PathLike[str] | jit.Source, caller: FrameType
) -> jit.Source:
    name = schema.qualified_name
    if not isinstance(source, (str, os.PathLike, jit.Source)):
        raise SchemaError(
            f"{name}: source={source!r}: expected the path of a kernel file or a jit.Source, got "
            f"{type(source).__name__}"
        )
    if not isinstance(source, jit.Source):
        source = jit.Source(locate(name, Path(source), caller))
    if source.abi in {"params", "ascendc"}:
        raise SchemaError(
            f"{name}: source has abi={source.abi!r}; a kernel operator calls abi='args', run(args, "
            "n, ctx), or a function with args=; for other forms say what the kernel gets, in a "
            "jit.Template with params="
        )
    return source


def locate(name: str, path: Path, caller: FrameType) -> Path:
    """Return the file `path`, looked up beside the calling file, then in the current folder."""
    if path.is_absolute():
        candidates = [path]
    else:
        candidates = [Path(caller.f_code.co_filename).parent / path, Path.cwd() / path]
    candidates = list(dict.fromkeys(candidates))  # the caller may be in the current folder
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(
        f"{name}: there is no source file {str(path)!r}; looked for "
        f"{' and '.join(map(str, candidates))}"
    )
