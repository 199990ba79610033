"""`bringup stubs NAMESPACE`: what type checkers and editors need of operators."""

from __future__ import annotations

import keyword
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import typer

from bringup.cli._requirements import require_torch

_TYPES = {
    "Tensor": "Tensor", "int": "int", "SymInt": "int", "float": "float", "bool": "bool",
    "str": "str", "number": "float | complex", "Scalar": "float | complex",
    "ScalarType": "torch.dtype", "Layout": "torch.layout", "MemoryFormat": "torch.memory_format",
    "Device": "torch.device | str", "Generator": "torch.Generator",
}  # fmt: skip
_BUILTINS = {"int", "float", "bool", "str", "complex", "tuple"}
_HEADER = '''\
"""Operators of torch.ops.{namespace}. Written by `bringup stubs {namespace}`: not to be edited."""
# mypy: disable-error-code="overload-cannot-match, overload-overlap"

from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor
'''
_MODULE = '''\
"""Operators of torch.ops.{namespace}; their types are in the stub beside this file."""

import torch


def __getattr__(name: str) -> object:
    return getattr(torch.ops.{namespace}, name)
'''


def stubs(
    namespace: Annotated[str, typer.Argument(help="That of torch.ops.NAMESPACE.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="FILE.pyi; FILE.py is written where there is none."),
    ] = None,
    load: Annotated[
        list[str] | None,
        typer.Option(
            "--load", metavar="MODULE|FILE.py", help="Imported first: it defines operators."
        ),
    ] = None,
) -> None:
    """Write type stubs of a namespace's operators, which torch has as objects without types.

    Operators of installed packages (entry points `bringup.ops`) are loaded. Exit code 0: they are
    written, 1: there are none, or they cannot be written.
    """
    require_torch()
    from bringup import ops
    from bringup.cli.trial.trial_model import import_target

    for name in load or ():
        import_target(name)
    ops.load_op_plugins()
    text = stub_of(namespace)
    if output is None:
        typer.echo(text, nl=False)
        return
    if output.suffix != ".pyi":
        raise typer.BadParameter(f"{output}: a stub's name ends in .pyi", param_hint="--output")
    output.write_text(text, encoding="utf-8")
    module = output.with_suffix(".py")
    if not module.exists():
        module.write_text(_MODULE.format(namespace=namespace), encoding="utf-8")
    typer.echo(f"{output}: {text.count('def ')} signatures")


def stub_of(namespace: str) -> str:
    """Return the stub of the operators of `torch.ops.<namespace>`. Raises `ValueError`."""
    import torch

    found: dict[str, list[Any]] = defaultdict(list)
    others = set()
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        others.add(space)
        if space == namespace and name.isidentifier() and not keyword.iskeyword(name):
            found[name].append(schema)
    if not found:
        raise ValueError(
            f"torch.ops.{namespace} has no operators; import what defines them with --load MODULE. "
            f"There are {', '.join(sorted(others))}"
        )
    parts = [_HEADER.format(namespace=namespace)]
    if hidden := sorted(_BUILTINS & found.keys()):
        parts.append(f"# Not here, as they would hide types: {', '.join(hidden)}\n")
    for name, schemas in sorted(found.items()):
        if name in _BUILTINS:
            continue
        signatures = list(dict.fromkeys(map(_signature, schemas)))  # an int may be symbolic or not
        mark = "@overload\n" if len(signatures) > 1 else ""
        parts += [f"{mark}def {name}{signature}: ...\n" for signature in signatures]
    return "\n".join(parts)


def _signature(schema: Any) -> str:
    returned = [_type(value.real_type) for value in schema.returns]
    result = returned[0] if len(returned) == 1 else f"tuple[{', '.join(returned)}]"
    result = result if returned else "None"
    if any(keyword.iskeyword(argument.name) for argument in schema.arguments):
        return f"(*args: Any, **kwargs: Any) -> {result}"
    parts: list[str] = []
    for argument in schema.arguments:
        if argument.kwarg_only and "*" not in parts:
            parts.append("*")
        default = " = ..." if argument.has_default_value() else ""
        parts.append(f"{argument.name}: {_type(argument.real_type)}{default}")
    return f"({', '.join(parts)}) -> {result}"


def _type(kind: Any) -> str:
    """Return the annotation of a type of TorchScript."""
    if kind.kind() == "OptionalType":
        return f"{_type(kind.getElementType())} | None"
    if kind.kind() == "ListType":
        return f"Sequence[{_type(kind.getElementType())}]"
    if kind.kind() == "TupleType":
        return f"tuple[{', '.join(map(_type, kind.elements()))}]"
    return _TYPES.get(str(kind), "Any")
