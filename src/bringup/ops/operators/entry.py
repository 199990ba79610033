"""The code around an author's function: an entry of kernel.h's form for one choice of dtypes.

What its pieces mean is in include/bringup/element.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bringup import jit
from bringup.jit.template.c_code import c_text
from bringup.jit.template.glue import ENTRY, included

Form = Literal["tensor", "integer", "float", "number", "none", "string"]


@dataclass(frozen=True)
class Operand:
    """What the kernel gets for one argument.

    Attributes:
        form: a tensor of the device; an integer or a float of the host that is converted to the
            type computed in; a number of its schema type; None; a string.
        c_type: of a tensor, its elements; of a number, its own.
        optional: whether the function takes a pointer, which may be null.
        text: of a string.
        rounded: of a tensor, the half precision that its elements have before they are widened to
            the type computed in: torch promotes operands first.
    """

    form: Form
    c_type: str = ""
    optional: bool = False
    text: str = ""
    rounded: str = ""


def pointwise_entry(
    source: jit.Source, function: str, operands: Sequence[Operand], computed: str, result: str
) -> tuple[jit.Source, tuple[str, ...]]:
    """`source` with an entry that calls `function<computed>` for each element; and the flags that
    it needs. `computed` and `result` are C types.
    """
    tensors = [i for i, operand in enumerate(operands) if operand.form == "tensor"]
    places = {i: place for place, i in enumerate(tensors)}
    lines = [_constant(i, operand) for i, operand in enumerate(operands)]
    lines += [
        f"const auto* const data_{i} = static_cast<const {operands[i].c_type}*>"
        f"(bringup::tensor(args[{i}]).data);"
        for i in tensors
    ]
    out = len(operands)
    call = _call(function, operands)
    body = _POINTWISE.format(
        constants="".join(f"  {line}\n" for line in lines if line),
        tensors=", ".join(f"&bringup::tensor(args[{i}])" for i in [*tensors, out]),
        rows="".join(
            f"    const {operands[i].c_type}* const row_{i} = data_{i} + offsets[{places[i]}];\n"
            for i in tensors
        ),
        last=len(tensors),
        count=len(tensors) + 1,
        out=out,
        dense="".join(_loaded(i, operands[i], "[i]") for i in tensors),
        strided="".join(_loaded(i, operands[i], f"[i * strides[{places[i]}]]") for i in tensors),
        call=call,
    )
    return _source(source, computed, [result], body)


def reduction_entry(
    source: jit.Source,
    function: str,
    operands: Sequence[Operand],
    computed: str,
    results: Sequence[str],
) -> tuple[jit.Source, tuple[str, ...]]:
    """`source` with an entry that gives the elements behind each result to a `function<computed>`;
    and the flags that it needs. The first operand is the input.
    """
    rest = list(enumerate(operands))[1:]
    kept = len(operands)
    given = ", ".join(_value(i, operand) for i, operand in rest)
    places = [kept + 1 + r for r in range(len(results))]
    if len(results) == 1:
        store = "data_0[at[0]] = static_cast<bringup_result_0>(state.result(count));"
    else:
        values = ", ".join(f"value_{r}" for r in range(len(results)))
        store = (
            "bringup_computed value_0{}; bringup_result_1 value_1{};\n"
            f"    state.result(count, {values});\n    "
            "data_0[at[0]] = static_cast<bringup_result_0>(value_0);\n    "
            "data_1[at[1]] = value_1;"
        )
    body = _REDUCTION.format(
        constants="".join(f"  {_constant(i, o)}\n" for i, o in rest if _constant(i, o)),
        element=operands[0].c_type,
        kept=kept,
        count=len(results),
        tensors=", ".join(f"&bringup::tensor(args[{place}])" for place in places),
        data="".join(
            f"  auto* const data_{r} = static_cast<bringup_result_{r}*>"
            f"(bringup::tensor(args[{place}]).data);\n"
            for r, place in enumerate(places)
        ),
        function=function,
        given=f"({given})" if given else "{}",
        store=store,
    )
    return _source(source, computed, results, body)


def _source(
    source: jit.Source, computed: str, results: Sequence[str], body: str
) -> tuple[jit.Source, tuple[str, ...]]:
    types = f"using bringup_computed = {computed};\n" + "".join(
        f"using bringup_result_{r} = {c_type};\n" for r, c_type in enumerate(results)
    )
    name = Path(source.file_name)
    text = _TEXT.format(source=included(source), types=types, body=body)
    glued = jit.Source(
        text=text, name=f"{name.stem}.entry{name.suffix}", entry=ENTRY, kind="device"
    )
    return glued, (f"-iquote{source.directory}",) if source.path is not None else ()


def _constant(i: int, operand: Operand) -> str:
    """Return what is read once for all elements."""
    if operand.form in {"integer", "float"}:
        is_float = str(operand.form == "float").lower()
        read = f"bringup::element::number<bringup_computed, {is_float}>(args[{i}])"
        return f"const bringup_computed value_{i} = {read};"
    if operand.form == "number":
        kind = operand.c_type
        c_type = "bringup_computed" if kind == "double" else kind
        return (
            f"const {c_type} value_{i} = static_cast<{c_type}>(bringup::scalar<{kind}>(args[{i}]));"
        )
    return ""


def _loaded(i: int, operand: Operand, index: str) -> str:
    element = f"row_{i}{index}"
    if operand.rounded:
        element = f"static_cast<{operand.rounded}>(static_cast<float>({element}))"
    read = f"static_cast<bringup_computed>({element})"
    return f"        const bringup_computed value_{i} = {read};\n"


def _value(i: int, operand: Operand) -> str:
    if operand.form == "string":
        return c_text(operand.text)
    if operand.form == "none":
        return f"static_cast<const {operand.c_type or 'bringup_computed'}*>(nullptr)"
    return f"&value_{i}" if operand.optional else f"value_{i}"


def _call(function: str, operands: Sequence[Operand]) -> str:
    given = ", ".join(_value(i, operand) for i, operand in enumerate(operands))
    return f"static_cast<bringup_result_0>({function}<bringup_computed>({given}))"


_TEXT = """\
#include "bringup/element.h"
{source}

{types}
BRINGUP_EXPORT int32_t bringup_run(void** args, int32_t, const bringup_ctx* ctx) {{
{body}  return 0;
}}
"""
_POINTWISE = """\
{constants}  const DLTensor& out = bringup::tensor(args[{out}]);
  auto* const data_out = static_cast<bringup_result_0*>(out.data);
  const DLTensor* const tensors[{count}] = {{{tensors}}};
  const bool dense = bringup::element::has_unit_strides(tensors);
  int64_t strides[{count}];
  for (int t = 0; t < {count}; ++t) strides[t] = bringup::element::inner_stride(*tensors[t]);
  const auto range = bringup::element::block_range(ctx, bringup::numel(*tensors[0]));
  bringup::element::for_each_row(tensors, range, [&](const int64_t* offsets, int64_t n) {{
{rows}    bringup_result_0* const row_out = data_out + offsets[{last}];
    if (dense) {{
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) {{
{dense}        row_out[i] = {call};
      }}
    }} else {{
      for (int64_t i = 0; i < n; ++i) {{
{strided}        row_out[i * strides[{last}]] = {call};
      }}
    }}
  }});
"""
_REDUCTION = """\
{constants}  const DLTensor& input = bringup::tensor(args[0]);
  const auto* const elements = static_cast<const {element}*>(input.data);
  const int32_t kept = bringup::scalar<int32_t>(args[{kept}]);
{data}  const DLTensor* const results[{count}] = {{{tensors}}};
  namespace element = bringup::element;
  element::for_each_result(ctx, input, kept, results, [&](int64_t from, const int64_t* at) {{
    {function}<bringup_computed> state{given};
    const int64_t count = element::feed<bringup_computed>(state, elements + from, input, kept);
    {store}
  }});
"""
