"""What a single argument or tensor must be like: open arguments, constants, dtypes and shapes.

Each check returns None when it holds, else a `Refusal`.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bringup import ir
from bringup._numbers import same_number
from bringup.passes.patterns.elements import AnyValue, ArgumentPattern, Constant
from bringup.passes.patterns.pattern import Variadic

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Refusal",
    "any_value_refusal",
    "constant_refusal",
    "data_refusal",
    "is_constant",
    "is_plain",
    "list_refusal",
    "tensor_refusal",
    "text",
    "with_kinds",
]

Same = Callable[[object, object], bool]


class Refusal(NamedTuple):
    """Why something does not fit: the reason, what was wanted, what is there."""

    reason: str
    expected: str = ""
    got: str = ""


def text(item: object) -> str:
    """An argument, node or type as reports show it."""
    if isinstance(item, str):
        return item
    if isinstance(item, ir.Node):
        return repr(item)
    return ir.argument_text(item)


def is_plain(argument: object) -> bool:
    """Whether an argument holds neither values nor open arguments."""
    if isinstance(argument, (tuple, list)):
        return all(map(is_plain, argument))
    if isinstance(argument, dict):
        return all(map(is_plain, argument.values()))
    if isinstance(argument, slice):
        return all(map(is_plain, (argument.start, argument.stop, argument.step)))
    return not isinstance(argument, (ir.Value, ArgumentPattern))


def any_value_refusal(item: AnyValue, target: object, same: Same) -> Refusal | None:
    """Whether a host argument or value fits an open argument."""
    fits = not item.kinds or _kind(target) in item.kinds
    if fits and item.among is not None:
        host = not isinstance(target, ir.Value)
        fits = host and any(_same_host(one, target, same) for one in item.among)
    if fits and item.bounded:
        number = isinstance(target, (int, float)) and not isinstance(target, bool)
        fits = number and item.at_least <= target <= item.at_most  # type: ignore[operator]
    return None if fits else Refusal("an argument differs", repr(item), ir.argument_text(target))


def _kind(target: object) -> str:
    if target is None:
        return "none"
    if isinstance(target, ir.Value):
        return "tensor"
    if isinstance(target, (tuple, list)):
        return "list"
    return type(target).__name__


def with_kinds(pattern: ir.Node, found: Sequence[object], target: ir.Node) -> tuple[object, ...]:
    """The arguments of a pattern's node, with the numbers of a call where these are of the other
    kind and that makes no difference to the call: a floating point tensor that it reads decides
    the dtype.
    """
    wanted = pattern.arguments
    for index, parameter in enumerate(pattern.operator.parameters[: len(wanted)]):
        one, number = wanted[index], found[index]
        is_scalar = parameter.type in ("number", "Optional[number]")
        among = one.among if isinstance(one, AnyValue) else (one,)
        if not is_scalar or among is None or not any(_other_kind(item, number) for item in among):
            continue
        if _takes_any_kind(target):
            is_open = isinstance(one, AnyValue)
            item = dataclasses.replace(one, among=(*among, number)) if is_open else number  # type: ignore[type-var]
            wanted = (*wanted[:index], item, *wanted[index + 1 :])
    return wanted


def _other_kind(one: object, number: object) -> bool:
    if {type(one), type(number)} != {int, float} or one != number:
        return False
    real = one if isinstance(one, float) else number
    return math.copysign(1, real) > 0 or real != 0  # type: ignore[arg-type]


def _takes_any_kind(target: ir.Node) -> bool:
    lists = [item for item in target.arguments if isinstance(item, (tuple, list))]
    alone = [item for item in target.arguments if isinstance(item, ir.Value)]
    inside = [[item for item in each if isinstance(item, ir.Value)] for each in lists]
    if any(len(values) not in (0, len(each)) for values, each in zip(inside, lists, strict=True)):
        return False
    if not all(_is_floating(value) for values in inside for value in values):
        return False
    return any(inside) or any(map(_is_floating, alone))


def _is_floating(value: ir.Value) -> bool:
    dtype = "" if value.desc is None else value.desc.dtype
    return dtype.startswith(("float", "bfloat16", "complex"))


def _same_host(left: object, right: object, same: Same) -> bool:
    if isinstance(left, (tuple, list)) and isinstance(right, (tuple, list)):
        return len(left) == len(right) and all(
            _same_host(one, other, same) for one, other in zip(left, right, strict=True)
        )
    if isinstance(right, (ir.Value, tuple, list)) or isinstance(left, (tuple, list)):
        return False
    return same(left, right)


def list_refusal(item: Variadic, target: object) -> Refusal | None:
    """Whether an argument is a list of values as long as asked for."""
    is_list = isinstance(target, (tuple, list)) and all(isinstance(one, ir.Value) for one in target)
    if not is_list:
        return Refusal("an argument is not a list of values", repr(item), ir.argument_text(target))
    number = len(target)  # type: ignore[arg-type]
    if number < item.at_least or (item.at_most is not None and number > item.at_most):
        return Refusal("a list has another length", repr(item), f"{number} values")
    return None


# Constants


def constant_refusal(item: Constant, target: object, dialect: ir.Dialect | None) -> Refusal | None:
    """Whether an argument is a number or a constant with the wanted elements."""
    if isinstance(target, (bool, int, float)):
        fits = not item.values or (item.shape is None and _close(item, item.values[0], target))
        return None if fits else Refusal("a constant differs", repr(item), repr(target))
    if not is_constant(target):
        return Refusal("an argument is not a constant", repr(item), ir.argument_text(target))
    assert isinstance(target, ir.Value)
    if not item.values and item.shape is None:
        return None
    data = _data(target.node, dialect)
    found = None if data is None else _elements(data)
    if data is None or found is None:
        return Refusal("the data of a constant is not known", repr(item), ir.argument_text(target))
    if item.shape is not None and item.shape != data.shape:
        return Refusal("a constant has another shape", repr(item), str(ir.Shape(data.shape)))
    index = _first_difference(item, found, data.dtype)
    if index is None:
        return None
    got = f"{found[index].item()!r} at element {index} of {ir.argument_text(target)}"
    return Refusal("a constant differs", repr(item), got)


def is_constant(target: object) -> bool:
    """Whether an argument is a number or a constant of the graph."""
    if isinstance(target, ir.Value):
        return target.node.op_type == ir.CONSTANT
    return isinstance(target, (bool, int, float))


def data_refusal(pattern: ir.Node, target: ir.Node, dialect: ir.Dialect | None) -> Refusal | None:
    """Whether two constants have the same dtype, shape and bytes; unknown data is not compared."""
    wanted = _data(pattern, dialect)
    if wanted is None:
        return None
    found = _data(target, dialect)
    if found is None:
        return Refusal(
            "the data of a constant is not known",
            _data_text(wanted),
            ir.argument_text(target.output),
        )
    if (wanted.dtype, wanted.shape) != (found.dtype, found.shape):
        return Refusal("a constant has another form", _data_text(wanted), _data_text(found))
    if wanted.data != found.data:
        return Refusal(
            "the elements of a constant differ",
            ir.argument_text(pattern.output),
            ir.argument_text(target.output),
        )
    return None


def _data(node: ir.Node, dialect: ir.Dialect | None) -> ir.ConstantData | None:
    return None if dialect is None or node.payload is None else dialect.constant_data(node.payload)


def _data_text(data: ir.ConstantData) -> str:
    return f"{data.dtype}{ir.Shape(data.shape)}"


_FORMATS = {
    "bool": "?",
    "uint8": "u1",
    "uint16": "u2",
    "uint32": "u4",
    "uint64": "u8",
    "int8": "i1",
    "int16": "i2",
    "int32": "i4",
    "int64": "i8",
    "float16": "f2",
    "float32": "f4",
    "float64": "f8",
}


def _elements(data: ir.ConstantData) -> np.ndarray[Any, Any] | None:
    """The elements as numbers; None for a dtype that is not read here (complex, float8, ...)."""
    import numpy as np

    if data.dtype == "bfloat16":
        words = np.frombuffer(data.data, np.uint16).astype(np.uint32) << 16
        return words.view(np.float32)
    known = _FORMATS.get(data.dtype)
    return None if known is None else np.frombuffer(data.data, np.dtype(known))


def _first_difference(item: Constant, found: np.ndarray[Any, Any], dtype: str) -> int | None:
    import numpy as np

    values = item.values if item.shape is not None else item.values * len(found)
    whole = found.dtype.kind in "biu"
    read = [int(one) for one in found] if whole else found.astype(np.float64).tolist()
    for index, (value, one) in enumerate(zip(values, read, strict=False)):
        if not _close(item, value if whole else _rounded(float(value), dtype), one):
            return index
    return None


def _rounded(value: float, dtype: str) -> float:
    """The value as an element of this dtype; halves are rounded from float32."""
    import numpy as np

    with np.errstate(over="ignore"):
        if dtype == "float32":
            return float(np.float32(value))
        if dtype == "float16":
            return float(np.float16(np.float32(value)))
    if dtype == "bfloat16" and value - value == 0:
        with np.errstate(over="ignore"):
            (bits,) = struct.unpack("<I", struct.pack("<f", np.float32(value)))
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        (rounded,) = struct.unpack("<f", struct.pack("<I", bits))
        return float(rounded)
    return value


def _close(item: Constant, wanted: float, found: float) -> bool:
    """Whether a number is as wanted: the same one, or near where a tolerance is given."""
    if isinstance(found, int) and not -(2**63) <= found < 2**63:
        return False
    if not (item.atol or item.rtol):
        zero = math.copysign(1, wanted) == math.copysign(1, found)
        same = wanted == found and (wanted != 0 or zero)  # Python compares the two kinds exactly
        return same or same_number(wanted, found)
    wanted, found = float(wanted), float(found)
    near = abs(found - wanted) <= item.atol + item.rtol * abs(wanted)
    return wanted == found or near or same_number(wanted, found)


# Tensors


def tensor_refusal(
    constraint: ir.TensorConstraint,
    where: str,
    desc: ir.TensorDesc | None,
    sizes: Callable[[str], ir.Dim | None],
) -> Refusal | list[tuple[str, ir.Dim]]:
    """Whether a tensor is as stated; if so, the named sizes that become known by it.

    Args:
        where: what the pattern calls the tensor, for the reason.
        sizes: the value of a named size, None while it has none.
    """
    if desc is None:
        return Refusal(f"shape and dtype of {where!r} are not known")
    if constraint.dtypes and desc.dtype not in constraint.dtypes:
        return _differs("dtype", where, constraint.dtypes, desc.dtype)
    if constraint.ranks and desc.shape.rank not in constraint.ranks:
        return _differs("rank", where, constraint.ranks, desc.shape.rank)
    if constraint.devices and not any(_is_on(desc.device, one) for one in constraint.devices):
        return _differs("device", where, constraint.devices, desc.device)
    return (
        [] if constraint.shape is None else _fit_sizes(constraint.shape, where, desc.shape, sizes)
    )


def _differs(what: str, where: str, expected: Iterable[object], got: object) -> Refusal:
    return Refusal(f"the {what} of {where!r} differs", " or ".join(map(str, expected)), str(got))


def _is_on(device: str, wanted: str) -> bool:
    return device == wanted or device.partition(":")[0] == wanted


def _fit_sizes(
    wanted: tuple[ir.DimPattern, ...],
    where: str,
    shape: ir.Shape,
    sizes: Callable[[str], ir.Dim | None],
) -> Refusal | list[tuple[str, ir.Dim]]:
    pairs = _aligned(wanted, shape)
    if pairs is None:
        return _differs("shape", where, [_shape_text(wanted)], shape)
    new: dict[str, ir.Dim] = {}
    for size, dim in pairs:
        if isinstance(size, str):
            known = new.get(size, sizes(size))
            if known is None:
                new[size] = dim
            elif not ir.same_size(known, dim):
                return Refusal(f"size {size!r} in {where!r} differs", str(known), str(dim))
        elif size is not None and not ir.same_size(size, dim):
            return _differs("shape", where, [_shape_text(wanted)], shape)
    return list(new.items())


def _aligned(
    wanted: tuple[ir.DimPattern, ...], shape: ir.Shape
) -> Sequence[tuple[ir.DimPattern, ir.Dim]] | None:
    """The sizes that are compared; None when there are too few or too many."""
    if ... not in wanted:
        return list(zip(wanted, shape, strict=True)) if len(wanted) == len(shape) else None
    front = wanted.index(...)
    back = len(wanted) - front - 1
    if front + back > len(shape):
        return None
    ends = (*shape.dims[:front], *shape.dims[len(shape) - back :])
    return list(zip((*wanted[:front], *wanted[front + 1 :]), ends, strict=True))


def _shape_text(wanted: tuple[ir.DimPattern, ...]) -> str:
    shown = ["any" if size is None else "..." if size is ... else str(size) for size in wanted]
    return f"[{', '.join(shown)}]"
