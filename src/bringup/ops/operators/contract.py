"""What the CPU takes where torch's Meta kernels have no check, asked on small tensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch

from bringup.errors import SchemaError
from bringup.ops.operators.family import Kind, Overload, functional_form

_MOST_ELEMENTS = 1 << 16  # of the call's operands and results, for stand-ins of their sizes
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
# The dtypes that every operator takes, where it takes such numbers at all; bools are masks or not.
_USUAL = dict.fromkeys((torch.float16, torch.bfloat16, torch.float64), torch.float32)
_USUAL |= {getattr(torch, name): torch.int64 for name in ("uint8", "int8", "int16", "int32")}
_NO_BOOLS = {**_USUAL, torch.bool: torch.int64}
_INDICES = dict.fromkeys((torch.bool, *_USUAL, torch.float32), torch.int64)
# Of the first argument and of the others.
_VARIANTS = ((_USUAL, _USUAL), (_NO_BOOLS, _NO_BOOLS), (_USUAL, _INDICES))

Bounds = tuple[int, int]  # of the sizes of stand-ins
_AS_GIVEN, _FEW, _AT_MOST_ONE = (0, _MOST_ELEMENTS), (1, 2), (0, 1)


def refusal(
    overload: Overload,
    kind: Kind,
    supports: Collection[torch.dtype],
    values: Sequence[Any],
    results: Sequence[torch.Size],
    dtypes: Sequence[torch.dtype],
) -> Exception | None:
    """Return how the CPU refuses what torch's Meta kernel takes, or gives other dtypes, or None.
    `supports`: the author's dtypes, which the CPU may lack. Raw operators may refuse stand-ins.
    """
    seeded = torch.Tag.nondeterministic_seeded in overload.function.tags
    if seeded or not overload.name.startswith("aten::"):
        return None
    inputs = [v for i in overload.operands for v in _tensors(values[i])]
    small = sum(map(math.prod, (*results, *(v.shape for v in inputs)))) <= _MOST_ELEMENTS
    if any(v.numel() == 0 for v in inputs):  # refused for the sizes, or not at all
        answer = _asked(overload, values, 0, _AS_GIVEN if small else _AT_MOST_ONE)
        if isinstance(answer, Exception) and not isinstance(answer, NotImplementedError):
            return answer
    wanted = dtypes if kind == "raw" else [v.dtype for v in inputs]
    declared = all(d in supports or (kind == "raw" and d is torch.int64) for d in wanted)
    functional = functional_form(overload, kind)
    operands = [values[i] for i in overload.operands]
    refused: Exception | None = None
    for number, sizes in ((0, _FEW), (1, _FEW), *(((0, _AS_GIVEN),) if small else ())):
        answer = _asked(overload, values, number, sizes)
        if not isinstance(answer, Exception):
            return None if answer == list(dtypes) else _other_dtypes(overload, answer, dtypes)
        if declared and isinstance(answer, NotImplementedError):
            return None
        for usual in _VARIANTS if kind == "raw" else ():
            if not isinstance(_asked(functional, operands, number, sizes, usual), Exception):
                return answer
        refused = answer
    return None if kind == "raw" else refused


def check_declared(overload: Overload, kind: Kind) -> None:
    """Raise `SchemaError` for what no kernel of this kind can compute, such as views."""
    schema = overload.function._schema
    where = f"{overload.qualified_name}: a kernel of kind {kind!r}"
    shared = [a.alias_info for a in (*schema.arguments, *schema.returns)]
    views = any(alias is not None and not alias.is_write for alias in shared)
    if views or torch.Tag.inplace_view in overload.function.tags:
        raise SchemaError(
            f"{where} writes results of its own, and this operator gives a view of its argument: "
            "the device's views need no kernel"
        )
    others = [str(r.type) for r in schema.returns if str(r.type) != "Tensor"]
    if others:
        raise SchemaError(f"{where} gives tensors, and this operator {', '.join(others)}")
    if not overload.functional or not overload.name.startswith("aten::"):
        return
    if kind == "reduction":
        _check_reduces(overload, where)
    if kind == "pointwise" and overload.results > 1:
        _check_pointwise(overload, where)


def is_number(tensor: torch.Tensor) -> bool:
    """Return whether it stands for a number: 0-dimensional, on the host."""
    return bool(tensor.device.type == "cpu" and tensor.dim() == 0)


def _check_reduces(overload: Overload, where: str) -> None:
    """Ask Meta: torch's reductions take any rank, and leave the other dims as they are."""
    has_dims = any(p.role == "dim" for p in overload.parameters)
    expected = [3, 4] if has_dims else []
    arguments = list(zip(overload.parameters, overload.function._schema.arguments, strict=True))
    found = ""
    for dtype in (torch.float32, torch.int64, torch.bool):
        try:
            made = overload.call([_probe(p, a, dtype) for p, a in arguments])
        except NotImplementedError:
            return  # nothing is known of it
        except Exception as error:
            found = found or f"an error, {error}"
            continue
        shapes = [list(result.shape) for result in _tensors(made)]
        if all(shape == expected for shape in shapes):
            return
        found = f"results of shape {', '.join(map(str, shapes))}"
        break
    reduced = "dim 0" if has_dims else "all dims"
    raise SchemaError(
        f"{where} gets the elements of {reduced} of a tensor of shape [2, 3, 4] for results of "
        f"shape {expected}, and this operator gives {found}; use kind='pointwise' or 'raw'"
    )


def _check_pointwise(overload: Overload, where: str) -> None:
    """Ask Meta: max with its indices has two results, too."""
    arguments = list(zip(overload.parameters, overload.function._schema.arguments, strict=True))
    try:
        made = overload.call([_probe(p, a, torch.float32) for p, a in arguments])
    except Exception:  # nothing is known of it: the first call's shapes are looked at, too
        return
    if any(list(result.shape) != [2, 3, 4] for result in _tensors(made)):
        shapes = ", ".join(str(list(result.shape)) for result in _tensors(made))
        raise SchemaError(
            f"{where} has results as large as its arguments, and of tensors of shape [2, 3, 4] "
            f"this operator gives {shapes}; use kind='reduction' or 'raw'"
        )


def _probe(parameter: Any, argument: Any, dtype: torch.dtype) -> Any:
    if parameter.role == "tensor":
        return torch.empty(2, 3, 4, dtype=dtype, device="meta")
    if parameter.role == "dim":
        return [0] if parameter.type.startswith("List") else 0
    if argument.has_default_value():
        return argument.default_value
    return None if parameter.optional else False if parameter.role == "keepdim" else 1


def _asked(
    overload: Overload,
    values: Sequence[Any],
    number: int,
    sizes: Bounds,
    usual: tuple[dict[torch.dtype, torch.dtype], ...] = ({}, {}),
) -> list[torch.dtype] | Exception:
    """Return the dtypes of the CPU's results for stand-ins full of `number`, or its refusal."""

    def stand_in(value: Any, usual: dict[torch.dtype, torch.dtype]) -> Any:
        if isinstance(value, (list, tuple)):
            return [stand_in(item, usual) for item in value]
        if isinstance(value, torch.dtype):
            return usual.get(value, value)
        if not isinstance(value, torch.Tensor) or is_number(value):
            return value
        shape = [min(max(n, sizes[0]), sizes[1]) for n in value.shape]
        return torch.full(shape, number, dtype=stand_in(value.dtype, usual), device="cpu")

    given = [
        torch.empty(0, dtype=value.dtype, device="cpu")
        if p.role == "out"
        else stand_in(value, usual[min(i, 1)])
        for i, (p, value) in enumerate(zip(overload.parameters, values, strict=True))
    ]
    try:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return [result.dtype for result in _tensors(overload.call(given))]
    except Exception as error:
        return error.with_traceback(None)


def _other_dtypes(
    overload: Overload, answer: Sequence[torch.dtype], dtypes: Sequence[torch.dtype]
) -> Exception:
    told = [", ".join(map(str, some)) for some in (dtypes, answer)]
    return RuntimeError(
        f"{overload.qualified_name}: torch's Meta kernel gives results of {told[0]}, the CPU's of "
        f"{told[1]}: only the CPU computes it"
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (list, tuple)) else (value,)
    return [v for v in values if isinstance(v, torch.Tensor)]
