"""What the sweeps of calls pass: every schema type with defaults and values, good and bad, a kernel
that notes what it is given, and the same in Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from bringup.ops.schema.defaults import DTYPES, LAYOUTS, MEMORY_FORMATS

__all__ = ["KINDS", "MACROS", "NOTE", "Kind", "base", "note"]

_DTYPES = list(DTYPES.values())


@dataclass(frozen=True)
class Kind:
    """One schema type beside `Tensor x`.

    Attributes:
        type: as written in a schema.
        defaults: texts of defaults.
        values: what calls pass; those that do not fit are errors on every path.
        in_kernels: whether kernels carry it.
        ours: values that only we refuse, because a function would read past them.
    """

    type: str
    defaults: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()
    in_kernels: bool = True
    ours: tuple[Any, ...] = ()


NUMBERS = (0, -3, 2**40, 2**63, True, 1.5, float("inf"), "a", None, [1], torch.tensor(3))
LISTS = (
    [],
    [1],
    [1, 2],
    (3, 4),
    [True, False],
    [1.5, 2],
    [1, 2, 3],
    5,
    1.5,
    True,
    None,
    "ab",
    [None],
)
KINDS = [
    Kind(
        "Tensor", (), (torch.ones(2), torch.ones(2, dtype=torch.int64), None, 1.0, [torch.ones(2)])
    ),
    Kind("Tensor?", ("None",), (torch.ones(2), None, 2)),
    Kind("Tensor[]", (), ([], [torch.ones(2)], (torch.ones(2), torch.zeros(1)), [None], None, 3)),
    Kind("Tensor?[]", (), ([], [torch.ones(2), None], None, 3)),
    Kind("int", ("3", "-1"), NUMBERS),
    Kind("int?", ("None", "2"), NUMBERS),
    Kind("SymInt", ("3",), NUMBERS),
    Kind("SymInt?", ("None",), NUMBERS),
    Kind("float", ("0.5", "1e-6"), NUMBERS),
    Kind("float?", ("None", "2.5"), NUMBERS),
    Kind("bool", ("True",), NUMBERS),
    Kind("bool?", ("None", "False"), NUMBERS),
    Kind("int[]", ("[1, 2]",), LISTS),
    Kind("int[]?", ("None",), LISTS),
    Kind("SymInt[]", ("[1]",), LISTS),
    Kind("float[]", ("[1., 2.]",), LISTS),
    Kind("bool[]", ("[True]",), LISTS),
    *(
        Kind(
            f"{element}[2]{optional}",
            ("None",) if optional else defaults,
            LISTS,
            ours=([], [1], [1, 2, 3], *([[None]] * (element == "bool"))),
        )
        for element, defaults in (
            ("int", ("3", "[1, 2]")),
            ("SymInt", ("[1, 2]",)),
            ("float", ("[1., 2.]",)),
            ("bool", ("[True, False]",)),
        )
        for optional in ("", "?")
    ),
    Kind("str", ('"a"', "'é'"), ("", "b", "ü", 1, None, b"c")),
    Kind("str?", ("None", '"a"'), ("b", None, 2)),
    Kind("str[]", (), (["a"], [], "a", [1]), in_kernels=False),
    Kind("Scalar", ("1", "1.5"), (*NUMBERS, 1j)),
    Kind("Scalar?", ("None",), (1, 1.5, None, "a")),
    Kind("complex", (), (1j, 1.0, "a")),
    Kind("ScalarType", ("long", "float"), (torch.float16, torch.bool, 1, "float", None)),
    Kind("ScalarType?", ("None", "long"), (torch.float16, None, "float")),
    Kind("Layout", ("strided",), (torch.strided, torch.sparse_coo, 0, None)),
    Kind("Layout?", ("None",), (torch.strided, None)),
    Kind("MemoryFormat", ("contiguous_format",), (torch.channels_last, None)),
    Kind("MemoryFormat?", ("None",), (torch.preserve_format, None)),
    Kind("Device", ('"cpu"',), (torch.device("cpu"), "meta", 1.5, None)),
    Kind("Device?", ("None",), (torch.device("meta"), None)),
    Kind("Generator?", ("None",), (None, torch.Generator(), 3)),
]

# The kernel notes the bytes of what it is given in its output: presence, then up to seven numbers.
NOTE = """#include "bringup/kernel.h"
#include <cstring>
// One of: T_TENSOR, T_TENSORS, T_NUMBER (int64_t), T_SCALAR, T_DEVICE, T_GENERATOR, T_REAL, T_TEXT,
// T_NUMBERS, T_REALS.
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const auto* given = args[1];
  auto* out = static_cast<double*>(static_cast<const DLTensor*>(args[2])->data);
  for (int i = 0; i < 8; ++i) out[i] = 0;
  if (given == nullptr) return 0;
  out[0] = 1;
#if defined(T_TENSOR)
  const auto* tensor = static_cast<const DLTensor*>(given);
  out[1] = tensor->ndim;
  out[2] = tensor->dtype.bits;
  out[3] = tensor->ndim > 0 ? tensor->shape[0] : -1;
#elif defined(T_NUMBER)
  out[1] = static_cast<double>(*static_cast<const int64_t*>(given));
#elif defined(T_SCALAR)
  const bringup_scalar& number = bringup::number(given);
  out[1] = number.real + 100 * number.imaginary;
#elif defined(T_DEVICE)
  out[1] = static_cast<const DLDevice*>(given)->device_type;
#elif defined(T_GENERATOR)
  out[0] = 0;
#elif defined(T_REAL)
  out[1] = *static_cast<const double*>(given);
#elif defined(T_TEXT)
  const auto* text = static_cast<const char*>(given);
  out[1] = static_cast<double>(std::strlen(text));
  out[2] = static_cast<unsigned char>(text[0]);
#else
  const auto* list = static_cast<const bringup_list*>(given);
  out[1] = static_cast<double>(list->size);
  for (int64_t i = 0; i < list->size && i < 6; ++i) {
#if defined(T_TENSORS)
    const auto* item = static_cast<const DLTensor* const*>(list->data)[i];
    out[2 + i] = item == nullptr ? 0 : item->dtype.bits;
#elif defined(T_REALS)
    out[2 + i] = static_cast<const double*>(list->data)[i];
#else
    out[2 + i] = static_cast<double>(static_cast<const int64_t*>(list->data)[i]);
#endif
  }
#endif
  return 0;
}
"""
MACROS = {
    "Tensor": "T_TENSOR",
    "Tensor[]": "T_TENSORS",
    "Tensor?[]": "T_TENSORS",
    "Scalar": "T_SCALAR",
    "complex": "T_SCALAR",
    "Layout": "T_NUMBER",
    "MemoryFormat": "T_NUMBER",
    "Device": "T_DEVICE",
    "Generator": "T_GENERATOR",
    "int": "T_NUMBER",
    "SymInt": "T_NUMBER",
    "bool": "T_NUMBER",
    "ScalarType": "T_NUMBER",
    "float": "T_REAL",
    "str": "T_TEXT",
    "float[]": "T_REALS",
}


def base(kind: Kind) -> str:
    """The type without `?` and length."""
    return kind.type.rstrip("?").replace("[2]", "[]")


def note(value: Any) -> torch.Tensor:
    """What the kernel notes, in Python."""
    noted = [0.0] * 8
    if value is None or isinstance(value, torch.Generator):
        return torch.tensor(noted, dtype=torch.float64)
    noted[0] = 1.0
    if isinstance(value, torch.Tensor):
        noted[1:4] = [value.dim(), 8 * value.element_size(), value.shape[0] if value.dim() else -1]
    elif isinstance(value, str):
        noted[1:3] = [len(value.encode()), (value.encode() or b"\0")[0]]
    elif isinstance(value, (list, tuple)):
        noted[1] = len(value)
        for i, item in enumerate(value[:6]):
            noted[2 + i] = _number(item)
    else:
        noted[1] = _number(value)
    return torch.tensor(noted, dtype=torch.float64)


def _number(value: Any) -> float:
    if isinstance(value, torch.Tensor):
        return 8 * value.element_size()
    if value is None:
        return 0.0
    for known in (_DTYPES, LAYOUTS, MEMORY_FORMATS):
        if any(value is one for one in known):
            return [one is value for one in known].index(True)
    if isinstance(value, torch.device):
        return {"cpu": 1, "meta": 256 + 14}[value.type]
    if isinstance(value, complex):
        return value.real + 100 * value.imag
    if isinstance(value, (int, float)):
        return float(value)
    return float(len(str(value)))
