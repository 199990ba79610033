"""Entries in C++, by include/bringup/element.h: of kernel.h's form, and with plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bringup.jit.source.c_loops import C_LOOPS, KEEPS_VECTORS
from bringup.jit.source.element import FUNCTIONS, ElementExpression
from bringup.jit.source.generated import ENTRY, c_text, included
from bringup.jit.source.loop_language import LoopLanguage
from bringup.jit.source.source import Source
from bringup.jit.source.writer import KEPT, RANK, Element, Operand, Writer, Written

_VALUES, _DENSE, _LIST = "bringup_values", "bringup_dense", "bringup_calls"
_MOST_CALLS = 64  # of a list in kernel.h's form


class CppWriter(Writer):
    """Writes entries in C++, for targets whose code is built like the host's."""

    repeated = frozenset(FUNCTIONS)  # calls of libm, or arithmetic without branches

    @property
    def loops(self) -> LoopLanguage:
        """Return C."""
        return C_LOOPS

    def expression(
        self, name: str, expression: ElementExpression, operands: Sequence[Operand], computed: str
    ) -> Source:
        """Return a function template; its numbers are all of the type computed in."""
        given, known = self.parameters(expression, operands, "T")
        body = expression.code(computed, known, "std::")
        gives = "T" if expression.results == 1 else "void"
        signature = f"static {gives} {name}({', '.join(given)})"
        rounding = _ROUNDING if expression.calls & {"float16", "bfloat16"} else ""
        text = f"{_PRELUDE}{rounding}template <class T>\n{signature} {{\n{body}}}\n"
        return Source(text=text, name=f"{name}.cpp", kind="device")

    def pointwise(self, element: Element, *, values: bool) -> Written:
        tensors = [i for i, operand in enumerate(element.operands) if operand.form == "tensor"]
        text = _pointwise_body(element, tensors)
        if not values:
            count = len(element.operands) + len(element.results)
            made = _entry(element, text, _LIST_ENTRY.format(name=_LIST, count=count))
            return replace(made, several=(_LIST, _MOST_CALLS))
        binding = element.pointwise_values(self, dense=False)
        dense = element.pointwise_values(self, dense=True)
        calls = self.calls(dense)
        more = _values_entry(_VALUES, element, RANK) + _values_entry(_DENSE, element, 0)
        if calls > 1:
            more += _list_of_values(element, calls, self.elements)
        made = _entry(element, text, more, _VALUES, values=True)
        several = (_LIST, calls) if calls > 1 else None
        return Written(made.source, made.flags, binding, (_DENSE, dense), several)

    def reduction(self, element: Element, *, values: bool) -> Written:
        """Return an entry that feeds the author's class, or one that calls it."""
        text = _reduction_body(element)
        if not values:
            return _entry(element, text)
        made = _entry(element, text, _reduction_values(element), _VALUES, values=True)
        return Written(made.source, made.flags, element.reduction_values(self))


def _pointwise_body(element: Element, tensors: Sequence[int]) -> str:
    operands = element.operands
    places = {i: place for place, i in enumerate(tensors)}
    lines = [_constant(i, operand) for i, operand in enumerate(operands)]
    lines += [
        f"const auto* const data_{i} = static_cast<const {operands[i].c_type}*>"
        f"(bringup::tensor(args[{i}]).data);"
        for i in tensors
    ]
    outs = {out: len(tensors) + r for r, out in enumerate(element.outs)}
    all_of_them = [*tensors, *range(len(operands), len(operands) + len(outs))]
    lines += [
        f"auto* const data_{out} = static_cast<bringup_result_{r}*>"
        f"(bringup::tensor(args[{len(operands) + r}]).data);"
        for r, out in enumerate(outs)
    ]
    rows = [
        f"const {operands[i].c_type}* const row_{i} = data_{i} + offsets[{places[i]}];"
        for i in tensors
    ]
    rows += [
        f"bringup_result_{r}* const row_{out} = data_{out} + offsets[{place}];"
        for r, (out, place) in enumerate(outs.items())
    ]
    drawn = "".join(
        f"        const bringup_random value_{i} = bringup_random_at(point_{i}[0], point_{i}[1], "
        "first + i);\n"
        for i, operand in enumerate(operands)
        if operand.form == "random"
    )
    return _POINTWISE.format(
        constants="".join(f"  {line}\n" for line in lines if line),
        tensors=", ".join(f"&bringup::tensor(args[{i}])" for i in all_of_them),
        rows="".join(f"    {line}\n" for line in rows),
        count=len(all_of_them),
        number="  int64_t first = range.begin;\n" if drawn else "",
        counted="    first += n;\n" if drawn else "",
        dense="".join(_loaded(i, operands[i], "[i]") for i in tensors)
        + drawn
        + _stores(element, dict.fromkeys(outs, "[i]")),
        strided="".join(_loaded(i, operands[i], f"[i * strides[{places[i]}]]") for i in tensors)
        + drawn
        + _stores(element, {out: f"[i * strides[{place}]]" for out, place in outs.items()}),
    )


def _reduction_body(element: Element) -> str:
    operands, results = element.operands, element.results
    rest = list(enumerate(operands))[1:]
    kept = len(operands)
    given = ", ".join(_value(i, operand) for i, operand in rest if operand.given)
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
    return _REDUCTION.format(
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
        function=element.function,
        given=f"({given})" if given else "{}",
        store=store,
    )


def _entry(
    element: Element, body: str, more: str = "", entry: str = ENTRY, *, values: bool = False
) -> Written:
    source = element.source
    types = f"using bringup_computed = {element.computed};\n" + "".join(
        f"using bringup_result_{r} = {c_type};\n" for r, c_type in enumerate(element.results)
    )
    name = Path(source.file_name)
    text = (
        KEEPS_VECTORS
        + _TEXT.format(
            random='#include "bringup/random.h"\n' if element.draws else "",
            source=included(source),
            types=types,
            body=body,
        )
        + more
    )
    glued = Source(
        text=text,
        name=f"{name.stem}.entry{name.suffix}",
        entry=entry,
        abi="values" if values else "args",
        kind="device",
    )
    return Written(glued, (f"-iquote{source.directory}",) if source.path is not None else ())


class _Values:
    """The parameters of an entry with plain values, and kernel.h's arguments made of them."""

    def __init__(self, element: Element) -> None:
        self._element = element
        self._parameters: list[str] = []
        self._lines: list[str] = []
        self._args: list[str] = []

    def tensor(self, name: str, strides: int, rank: int, shape: str, step: str = "1") -> None:
        """Add a tensor; one without strides of its own is dense, or has one element for all."""
        own = [f"{name}_{d}" for d in range(strides)]
        self._parameters += [f"void* {name}", *(f"int64_t {one}" for one in own)]
        self._lines += [
            f"int64_t strides_{name}[] = {{{', '.join(own) or step}}};",
            f"DLTensor tensor_{name} = {{{name}, {{12, 0}}, {rank}, {{0, 0, 1}}, {shape}, "
            f"strides_{name}, 0}};",
        ]
        self._args.append(f"&tensor_{name}")

    def operand(self, i: int, strides: int, rank: int) -> None:
        operand = self._element.operands[i]
        if operand.form == "tensor":
            step = "0" if operand.single else "1"
            return self.tensor(f"a{i}", strides, rank, "shape", step)
        if operand.form in ("none", "string"):
            return self._args.append("nullptr")
        if operand.form == "random":
            return self.random(i)
        is_real = operand.form == "float" or operand.c_type == "double"
        wide = "double" if is_real else "int64_t"
        passed = "float" if is_real and not self._element.float64 else wide
        self._parameters.append(f"{passed} a{i}")
        return self.constant(f"number_{i}", wide, f"a{i}")

    def random(self, i: int) -> None:
        self._parameters += [f"int64_t a{i}_seed", f"int64_t a{i}_offset"]
        self._lines += [
            f"int64_t point_{i}[] = {{a{i}_seed, a{i}_offset}};",
            f"bringup_list list_{i} = {{point_{i}, 2}};",
        ]
        self._args.append(f"&list_{i}")

    def constant(self, name: str, c_type: str, value: str) -> None:
        self._lines.append(f"{c_type} {name} = {value};")
        self._args.append(f"&{name}")

    def parameters(self, sizes: Sequence[str], last: Sequence[str] = ()) -> list[str]:
        return [*self._parameters, *(f"int64_t {one}" for one in (*sizes, *last))]

    def text(self, name: str, sizes: Sequence[str], last: Sequence[str] = ()) -> str:
        return _VALUES_ENTRY.format(
            name=name,
            parameters=", ".join(self.parameters(sizes, last)),
            sizes=", ".join(sizes),
            lines="".join(f"  {line}\n" for line in self._lines),
            args=", ".join(self._args),
            count=len(self._args),
        )


def _pointwise_values(element: Element, strides: int, rank: int) -> _Values:
    written = _Values(element)
    for i in range(len(element.operands)):
        written.operand(i, strides, rank)
    for out in element.outs:
        written.tensor(out, strides, rank, "shape")
    return written


def _values_entry(name: str, element: Element, strides: int) -> str:
    rank = strides or 1
    written = _pointwise_values(element, strides, rank)
    return written.text(name, [f"z{d}" for d in range(rank)])


def _list_of_values(element: Element, calls: int, elements: int) -> str:
    parameters = _pointwise_values(element, 0, 1).parameters(["n"])
    names = [one.rpartition(" ")[2] for one in parameters]
    return _LIST_OF_VALUES.format(
        name=_LIST,
        parameters=", ".join(f"{one}_{call}" for call in range(calls) for one in parameters),
        calls="".join(
            _CALL_OF_LIST.format(
                count=f"n_{call}",
                less=elements - 1,
                elements=elements,
                dense=_DENSE,
                given=", ".join(f"{one}_{call}" for one in names),
            )
            for call in range(calls)
        ),
    )


def _reduction_values(element: Element) -> str:
    written, rank = _Values(element), 2 * KEPT
    written.operand(0, rank, rank)
    for i in range(1, len(element.operands)):
        written.operand(i, 0, 0)
    written.constant("kept", "int64_t", str(KEPT))
    for r in range(len(element.results)):
        written.tensor(f"out{r}", KEPT, KEPT, "shape")
    return written.text(_VALUES, [f"z{d}" for d in range(rank)], ["bringup_shared"])


def _constant(i: int, operand: Operand) -> str:
    if operand.form in {"integer", "float"}:
        is_float = str(operand.form == "float").lower()
        read = f"bringup::element::number<bringup_computed, {is_float}>(args[{i}])"
        read = _rounded(operand, read)
        return f"const bringup_computed value_{i} = static_cast<bringup_computed>({read});"
    if operand.form == "random":
        return (
            f"const auto* const point_{i} = static_cast<const int64_t*>"
            f"(static_cast<const bringup_list*>(args[{i}])->data);"
        )
    if operand.form == "number":
        kind = operand.c_type
        c_type = "bringup_computed" if kind == "double" and not operand.exact else kind
        return (
            f"const {c_type} value_{i} = static_cast<{c_type}>(bringup::scalar<{kind}>(args[{i}]));"
        )
    return ""


def _rounded(operand: Operand, number: str) -> str:
    if not operand.rounded:
        return number
    return f"static_cast<{operand.rounded}>(static_cast<float>({number}))"


def _loaded(i: int, operand: Operand, index: str) -> str:
    read = f"static_cast<bringup_computed>({_rounded(operand, f'row_{i}{index}')})"
    return f"        const bringup_computed value_{i} = {read};\n"


def _value(i: int, operand: Operand) -> str:
    if operand.form == "string":
        return c_text(operand.text)
    if operand.form == "none":
        return f"static_cast<const {operand.c_type or 'bringup_computed'}*>(nullptr)"
    return f"&value_{i}" if operand.optional else f"value_{i}"


def _stores(element: Element, places: Mapping[str, str]) -> str:
    """Return the call of the author's function, and where its results go."""
    given = [_value(i, one) for i, one in enumerate(element.operands) if one.given]
    function = f"{element.function}<bringup_computed>"
    if len(places) == 1:
        call = f"static_cast<bringup_result_0>({function}({', '.join(given)}))"
        return "".join(f"        row_{out}{at} = {call};\n" for out, at in places.items())
    given += [f"&{out}" for out in places]
    lines = [f"bringup_computed {out};" for out in places]
    lines += [f"{function}({', '.join(given)});"]
    lines += [
        f"row_{out}{at} = static_cast<bringup_result_{r}>({out});"
        for r, (out, at) in enumerate(places.items())
    ]
    return "".join(f"        {line}\n" for line in lines)


_PRELUDE = """\
#include <cmath>
#include "bringup/functions.h"
template <class T>
static T bringup_min(T a, T b) {
  const T least = b < a ? b : a;
  return b != b ? b : least;
}
template <class T>
static T bringup_max(T a, T b) {
  const T most = b > a ? b : a;
  return b != b ? b : most;
}
"""
_ROUNDING = """\
static float bringup_round_half(float v) { return static_cast<float>(bringup::half(v)); }
static float bringup_round_bfloat16(float v) { return static_cast<float>(bringup::bfloat16(v)); }
"""
_VALUES_ENTRY = """
BRINGUP_EXPORT void {name}(const bringup_position* at, {parameters}) {{
  int64_t shape[] = {{{sizes}}};
{lines}  void* args[] = {{{args}}};
  bringup_ctx ctx{{}};
  ctx.struct_size = sizeof ctx;
  ctx.block_index = at->block_idx.x;
  ctx.block_count = at->grid_dim.x;
  bringup_run(args, {count}, &ctx);
}}
"""
_LIST_OF_VALUES = """
BRINGUP_EXPORT void {name}(const bringup_position* at, {parameters}) {{
  bringup_position here = *at;
  uint32_t first = 0;
{calls}}}
"""
_CALL_OF_LIST = """\
  here.grid_dim.x = static_cast<uint32_t>(({count} + {less}) / {elements});
  here.block_idx.x = at->block_idx.x - first;
  if (here.block_idx.x < here.grid_dim.x) return {dense}(&here, {given});
  first += here.grid_dim.x;
"""
_LIST_ENTRY = """
BRINGUP_EXPORT int32_t {name}(void** args, int32_t n, const bringup_ctx* ctx) {{
  for (int32_t i = 0; i < n; i += {count}) bringup_run(args + i, {count}, ctx);
  return 0;
}}
"""
_TEXT = """\
#include "bringup/element.h"
#include "bringup/device.h"
{random}{source}

{types}
BRINGUP_EXPORT int32_t bringup_run(void** args, int32_t, const bringup_ctx* ctx) {{
{body}  return 0;
}}
"""
_POINTWISE = """\
{constants}  const DLTensor* const tensors[{count}] = {{{tensors}}};
  const bool dense = bringup::element::has_unit_strides(tensors);
  int64_t strides[{count}];
  for (int t = 0; t < {count}; ++t) strides[t] = bringup::element::inner_stride(*tensors[t]);
  const auto range = bringup::element::block_range(ctx, bringup::numel(*tensors[0]));
{number}  bringup::element::for_each_row(tensors, range, [&](const int64_t* offsets, int64_t n) {{
{rows}    if (dense) {{
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) {{
{dense}      }}
    }} else {{
      for (int64_t i = 0; i < n; ++i) {{
{strided}      }}
    }}
{counted}  }});
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
