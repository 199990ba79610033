"""Entries in OpenCL C around an author's function for one element.

`T` is a macro for the type computed in. Half precision is read and written by `vload_half` and
`vstore_half`, which every device has, and computed with as float.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from bringup import jit
from bringup_opencl._halves import HALVES
from bringup_opencl._loops import LOOPS

__all__ = ["OpenCLWriter"]

_RANK, _KEPT = jit.Writer.RANK, jit.Writer.KEPT
_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "int64_t": "long", "int32_t": "int", "int16_t": "short", "int8_t": "char",
        "uint8_t": "uchar", "bool": "uchar", "bringup::half": "half", "bringup::bfloat16": "ushort",
    }
)  # fmt: skip

# Processors gather these into vectors; of others straight code is slower than a loop.
_GATHERED = frozenset(("float", "double", "int64_t", "int32_t"))
_FLOATING = ("float", "double", "bringup::half", "bringup::bfloat16")


class OpenCLWriter(jit.Writer):
    """Writes device code with plain values; there is no code of kernel.h's form for OpenCL."""

    threads = 256
    elements = 1024
    lanes = 64
    number = "bringup_number"

    @property
    def loops(self) -> jit.LoopLanguage:
        """Return OpenCL C."""
        return LOOPS

    def c_type(self, c_type: str) -> str:
        """Return what OpenCL calls the elements: those of bool are uchar, of bfloat16 ushort."""
        return _TYPES.get(c_type, c_type)

    def expression(
        self,
        name: str,
        expression: jit.ElementExpression,
        operands: Sequence[jit.Operand],
        computed: str,
    ) -> jit.Source:
        """Return a function of numbers of the type computed in."""
        c_type = self.c_type(computed)
        given, known = self.parameters(expression, operands, c_type)
        body = expression.code(c_type, known)
        gives = c_type if expression.results == 1 else "void"
        text = (
            '#include "bringup/functions.h"\n'
            f"__attribute__((always_inline)) {gives} bringup_{name}"
            f"({', '.join(given)}) {{\n{body}}}\n"
            f"#define {name} bringup_{name}\n"
        )
        return jit.Source(text=text, name=f"{name}.cl", kind="device")

    def pointwise(self, element: jit.Element, *, values: bool) -> jit.Written:
        """Return an entry with a thread for each element, and one for dense operands."""
        self._need_values(values)
        parameters = _Parameters(self, element)
        for i in range(len(element.operands)):
            parameters.operand(i, _RANK)
        dense = _Parameters(self, element)
        for i in range(len(element.operands)):
            dense.operand(i, 0)
        for out, c_type in zip(element.outs, element.results, strict=True):
            parameters.tensor(out, c_type, _RANK)
            dense.tensor(out, c_type, 0)
        body = _constants(self, element)
        tensors = [f"a{i}" for i, one in enumerate(element.operands) if one.form == "tensor"]
        text = _POINTWISE.format(
            strided=", ".join([*parameters.texts, *(f"long z{d}" for d in range(_RANK))]),
            dense=", ".join([*dense.texts, "long n"]),
            sizes=" * ".join(f"z{d}" for d in range(_RANK)),
            constants=body,
            strided_loops=_strided_loops(self, element, [*tensors, *element.outs]),
            dense_stored=_stored(element, _dense_place(element)),
            quotient=_QUOTIENT,
            elements=self.elements,
            threads=self.threads,
        )
        strided, flat = (element.pointwise_values(self, dense=one) for one in (False, True))
        calls = self.calls(flat)
        several = ("bringup_calls", calls) if calls > 1 else None
        if several:
            text += self._list([*dense.texts, "long n"], calls, element, body)
        source = self._source(element, text)
        folder = _folder_of(element)
        return jit.Written(source, folder, strided, ("bringup_dense", flat), several)

    def _list(self, given: Sequence[str], calls: int, element: jit.Element, constants: str) -> str:
        blocks = f"(n + {self.elements - 1}) / {self.elements}"
        parameters, chosen = _chosen(given, calls, blocks)
        return _LIST.format(
            parameters=parameters,
            chosen=chosen,
            constants=constants,
            elements=self.elements,
            threads=self.threads,
            stored=_stored(element, _dense_place(element)),
        )

    def reduction(self, element: jit.Element, *, values: bool) -> jit.Written:
        """Return an entry in which `shared` threads of a block, a power of 2, make one result."""
        self._need_values(values)
        operands, results = element.operands, element.results
        parameters = _Parameters(self, element)
        parameters.tensor("a0", operands[0].c_type, 2 * _KEPT, constant=True)
        for i in range(1, len(operands)):
            parameters.operand(i, 0)
        outs = [f"out{r}" for r in range(len(results))]
        for out, c_type in zip(outs, results, strict=True):
            parameters.tensor(out, c_type, _KEPT)
        given = [_value(i, one) for i, one in enumerate(operands) if i and one.given]
        told = {
            "name": element.function,
            "lanes": self.lanes,
            "constants": _constants(self, element),
            "given": "".join(f", {one}" for one in given),
            "declared": "".join(
                f"      {'T' if r == 0 else self.c_type(c)} value_{r};\n"
                for r, c in enumerate(results)
            ),
            "values": "".join(f", &value_{r}" for r in range(len(results))),
        }

        def stores(place: str) -> str:
            return "".join(
                f"      {_store(f'out{r}', c, place.format(r), f'value_{r}')}\n"
                for r, c in enumerate(results)
            )

        text = _REDUCTION.format(
            parameters=", ".join([*parameters.texts, *(f"long z{d}" for d in range(2 * _KEPT))]),
            kept=" * ".join(f"z{d}" for d in range(_KEPT)),
            count=" * ".join(f"z{d}" for d in range(_KEPT, 2 * _KEPT)),
            offsets=_offsets("ulong", ["a0", *outs], _KEPT),
            inner=_offsets("ulong", ["a0"], _KEPT, first=_KEPT, prefix="in", declared=""),
            last=2 * _KEPT - 1,
            element=_loaded("a0", operands[0], "at_a0 + in_a0", element.computed),
            stores=stores("at_out{}"),
            **told,
        )
        dense = _Parameters(self, element)
        dense.tensor("a0", operands[0].c_type, 0, constant=True)
        for i in range(1, len(operands)):
            dense.operand(i, 0)
        for out, c_type in zip(outs, results, strict=True):
            dense.tensor(out, c_type, 0)
        of_one = [*dense.texts, "long count"]
        told |= {
            "element": _loaded("a0", operands[0], "i", element.computed),
            "stores": stores("0"),
        }
        text += _WHOLE.format(entry="dense", parameters=", ".join(of_one), chosen="", **told)
        binding = element.reduction_values(self, dense=True)
        if (calls := self.calls(binding)) > 1:
            listed, chosen = _chosen(of_one, calls, "1")
            text += _WHOLE.format(entry="calls", parameters=listed, chosen=chosen, **told)
        return jit.Written(
            self._source(element, text),
            _folder_of(element),
            element.reduction_values(self),
            ("bringup_dense", binding),
            ("bringup_calls", calls) if calls > 1 else None,
        )

    def _need_values(self, values: bool) -> None:
        if not values:
            raise ValueError("an OpenCL kernel gets plain values, from a driver with launch_values")

    def _source(self, element: jit.Element, entry: str) -> jit.Source:
        source = element.source
        wide = "double" in (element.computed, *element.results) or any(
            one.c_type == "double" and one.form == "tensor" for one in element.operands
        )
        text = _TEXT.format(
            wide="#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" if wide else "",
            computed=self.c_type(element.computed),
            number="double" if element.float64 else "float",
            random='#include "bringup/random.h"\n' if element.draws else "",
            halves=HALVES,
            name=source.file_name,
            source=source.content().decode(),
            entry=entry,
        )
        name = f"{source.file_name.rpartition('.')[0]}.entry.cl"
        return jit.Source(text=text, name=name, entry="bringup_run", abi="values", kind="device")


def _chosen(given: Sequence[str], calls: int, blocks: str) -> tuple[str, str]:
    """Return the parameters of several calls, and lines by which a block has those of its own, of
    which each has a number of `blocks`.
    """
    names = [one.rpartition(" ")[2] for one in given]
    lines = "  long block = get_group_id(0), blocks;\n  int behind;\n  "
    lines += " ".join(f"{one} = {name}_0;" for one, name in zip(given, names, strict=True))
    for call in range(1, calls):
        lines += f"\n  blocks = {blocks};\n  behind = block >= blocks; "
        lines += "block -= behind ? blocks : 0;\n  "
        lines += " ".join(f"{one} = behind ? {one}_{call} : {one};" for one in names)
    parameters = ", ".join(f"{one}_{call}" for call in range(calls) for one in given)
    return parameters, f"{lines}\n"


def _folder_of(element: jit.Element) -> tuple[str, ...]:
    return (f"-I{element.source.directory}",) if element.source.path is not None else ()


class _Parameters:
    """The parameters of an entry, in the order of what it is called with."""

    def __init__(self, writer: jit.Writer, element: jit.Element) -> None:
        self._writer = writer
        self._element = element
        self.texts: list[str] = []

    def tensor(self, name: str, c_type: str, strides: int, constant: bool = False) -> None:
        kind = f"global {'const ' if constant else ''}{self._writer.c_type(c_type)}*"
        self.texts += [f"{kind} {name}", *(f"long {name}_{d}" for d in range(strides))]

    def operand(self, i: int, strides: int) -> None:
        operand = self._element.operands[i]
        if operand.form == "tensor":
            self.tensor(f"a{i}", operand.c_type, strides, constant=True)
        elif operand.form == "float" or (operand.form == "number" and operand.c_type == "double"):
            self.texts.append(f"{'double' if self._element.float64 else 'float'} a{i}")
        elif operand.form in ("integer", "number"):
            self.texts.append(f"long a{i}")
        elif operand.form == "random":
            self.texts += [f"long a{i}_seed", f"long a{i}_offset"]


def _constants(writer: jit.Writer, element: jit.Element) -> str:
    """Return what is computed once for all elements: the numbers."""
    lines = ""
    for i, operand in enumerate(element.operands):
        if operand.form in ("integer", "float"):
            lines += f"  const T value_{i} = (T){_rounded(operand, f'a{i}')};\n"
        elif operand.form == "number":
            c_type = "T" if operand.c_type == "double" else writer.c_type(operand.c_type)
            c_type = writer.number if operand.exact else c_type
            lines += f"  const {c_type} value_{i} = ({c_type})a{i};\n"
    return lines


def _offsets(
    number: str,
    tensors: Sequence[str],
    rank: int,
    first: int = 0,
    prefix: str = "at",
    declared: str = "long ",
) -> str:
    """Return lines that take `index` apart, the last dimension first; those of size 1 cost a
    comparison.
    """
    lines = "".join(f"{declared}{prefix}_{one} = 0; " for one in tensors)
    lines += f"{{ {number} rest = ({number})index; {number} here; "
    for d in reversed(range(rank)):
        size = f"({number})z{first + d}"
        moved = "".join(f"{prefix}_{one} += (long)here * {one}_{first + d}; " for one in tensors)
        lines += f"if (z{first + d} != 1) {{ here = rest % {size}; rest /= {size}; {moved}}} "
    return lines + "}"


def _offsets_of_few(tensors: Sequence[str]) -> str:
    """Return the same for 4 dimensions and less than 1 << 31 elements, without divisions."""
    lines = f"const uint left{_RANK} = (uint)index; "
    places = {_RANK - 4: f"(long)left{_RANK - 3}"}
    for d in range(_RANK - 1, _RANK - 4, -1):
        lines += f"const uint left{d} = bringup_quotient(left{d + 1}, (uint)z{d}, by{d}); "
        places[d] = f"(long)(left{d + 1} - left{d} * (uint)z{d})"
    for one in tensors:
        moved = " + ".join(f"{place} * {one}_{d}" for d, place in places.items())
        lines += f"const long at_{one} = {moved}; "
    return lines


def _strided_loops(writer: jit.Writer, element: jit.Element, tensors: Sequence[str]) -> str:
    """Return the loops over elements of any layout: a short one, and one for all sizes."""
    stored = _stored(element, lambda name: f"at_{name}")
    large = _LOOP.format(offsets=_offsets("ulong", tensors, _RANK), stored=stored)
    types = [one.c_type for one in element.operands if one.form == "tensor"]
    if not {*types, *element.results} <= _GATHERED:
        small = _LOOP.format(offsets=_offsets("uint", tensors, _RANK), stored=stored)
        return f"  if (n <= UINT_MAX) {{\n{small}  }} else {{\n{large}  }}\n"
    few = _UNROLLED.format(
        elements=writer.elements,
        threads=writer.threads,
        inverses=" ".join(
            f"const uint by{d} = UINT_MAX / (uint)z{d};" for d in range(_RANK - 3, _RANK)
        ),
        offsets=_offsets_of_few(tensors),
        stored=stored,
    )
    return f"  if (z0 * z1 == 1 && n <= INT_MAX) {{\n{few}  }} else {{\n{large}  }}\n"


def _rounded(operand: jit.Operand, number: str) -> str:
    if not operand.rounded:
        return number
    to = "half" if operand.rounded == "bringup::half" else "bfloat16"
    return f"bringup_round_{to}((float){number})"


def _loaded(name: str, operand: jit.Operand, index: str, computed: str) -> str:
    element = {
        "bringup::half": f"vload_half({index}, {name})",
        "bringup::bfloat16": f"bringup_from_bfloat16({name}[{index}])",
    }.get(operand.c_type, f"{name}[{index}]")
    element = _rounded(operand, element)
    # To unsigned bytes torch goes by way of long, where a negative number has a meaning.
    by_long = computed == "uint8_t" and operand.c_type in _FLOATING
    return f"(T)(long){element}" if by_long else f"(T){element}"


def _store(name: str, c_type: str, index: str, value: str) -> str:
    if c_type == "bringup::half":
        return f"vstore_half(1.0f * ({value}), {index}, {name});"  # float of whole numbers
    if c_type == "bringup::bfloat16":
        return f"{name}[{index}] = bringup_to_bfloat16((float){value});"
    if c_type == "bool":
        return f"{name}[{index}] = ({value}) != 0;"
    return f"{name}[{index}] = ({_TYPES.get(c_type, c_type)})({value});"


def _value(i: int, operand: jit.Operand) -> str:
    if operand.form == "string":
        return '"' + operand.text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if operand.form == "none":
        return "0"
    return f"&value_{i}" if operand.optional else f"value_{i}"


def _dense_place(element: jit.Element) -> Callable[[str], str]:
    single = {f"a{i}" for i, one in enumerate(element.operands) if one.single}
    return lambda name: "0" if name in single else "index"


def _stored(element: jit.Element, place: Callable[[str], str]) -> str:
    """Return lines that load the operands of one element, call the function and store."""
    lines = ""
    for i, operand in enumerate(element.operands):
        if operand.form == "tensor":
            loaded = _loaded(f"a{i}", operand, place(f"a{i}"), element.computed)
            lines += f"const T value_{i} = {loaded}; "
        elif operand.form == "random":
            point = f"a{i}_seed, a{i}_offset, index"
            lines += f"const bringup_random value_{i} = bringup_random_at({point}); "
    given = [_value(i, one) for i, one in enumerate(element.operands) if one.given]
    if len(element.outs) == 1:
        call = f"{element.function}({', '.join(given)})"
        return lines + _store("out", element.results[0], place("out"), call)
    called = ", ".join([*given, *(f"&value_{out}" for out in element.outs)])
    lines += "".join(f"T value_{out}; " for out in element.outs) + f"{element.function}({called}); "
    return lines + " ".join(
        _store(out, c_type, place(out), f"value_{out}")
        for out, c_type in zip(element.outs, element.results, strict=True)
    )


_TEXT = """\
{wide}#pragma OPENCL FP_CONTRACT OFF
#define T {computed}
#define bringup_number {number}
{random}T bringup_min(T a, T b) {{ return a != a || a < b ? a : b; }}
T bringup_max(T a, T b) {{ return a != a || a > b ? a : b; }}
{halves}#line 1 "{name}"
{source}
#line 1 "{name} (its entry)"
{entry}"""
_LOOP = """\
    for (ulong index = get_global_id(0); index < n; index += get_global_size(0)) {{
      {offsets}
      {stored}
    }}
"""
_QUOTIENT = """\
// `inverse`: UINT_MAX / divisor. Of numbers below 1 << 31 the product is the quotient or one less.
uint bringup_quotient(uint number, uint divisor, uint inverse) {
  const uint near = (ulong)number * inverse >> 32;
  return near + (number - near * divisor >= divisor);
}
"""
# Without a loop that threads leave at different times compilers make vectors of threads.
_UNROLLED = """\
    const long first = (long)get_group_id(0) * {elements} + get_local_id(0);
    {inverses}
#pragma unroll
    for (int k = 0; k < {elements}; k += {threads}) {{
      const long index = first + k;
      if (index < n) {{ {offsets} {stored} }}
    }}
"""
_POINTWISE = """\
{quotient}kernel void bringup_run({strided}) {{
  const long n = {sizes};
{constants}{strided_loops}}}
kernel void bringup_dense({dense}) {{
{constants}  const long first = (long)get_group_id(0) * {elements} + get_local_id(0);
#pragma unroll
  for (int k = 0; k < {elements}; k += {threads}) {{
    const long index = first + k;
    if (index < n) {{ {dense_stored} }}
  }}
}}
"""
# A block finds its call, whose elements it takes as one of bringup_dense does; without branches, so
# that this is no part of the loops over threads.
_LIST = """\
kernel void bringup_calls({parameters}) {{
{chosen}{constants}  const long first = block * {elements} + get_local_id(0);
#pragma unroll
  for (int k = 0; k < {elements}; k += {threads}) {{
    const long index = first + k;
    if (index < n) {{ {stored} }}
  }}
}}
"""
_REDUCTION = """\
kernel void bringup_run({parameters}, long shared) {{
  local {name}_state states[{lanes}];
  const long kept = {kept}, count = {count};
  const int thread = get_local_id(0), lane = thread % (int)shared, each = {lanes} / (int)shared;
  const long first_of_next = get_num_groups(0) * each;
{constants}  for (long first = get_group_id(0) * each; first < kept; first += first_of_next) {{
    const long result = first + thread / (int)shared;
    {name}_state state;
    {name}_start(&state{given});
    ulong index = result;
    {offsets}
    for (long i = lane; result < kept && i < count; i += shared) {{
      long in_a0 = i * a0_{last};
      if (count != z{last}) {{ index = i; {inner} }}
      {name}_add(&state, {element}, i);
    }}
    states[thread] = state;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = (int)shared / 2; step > 0; step /= 2) {{
      if (lane < step) {{
        const {name}_state other = states[thread + step];
        {name}_merge(&state, &other);
        states[thread] = state;
      }}
      barrier(CLK_LOCAL_MEM_FENCE);
    }}
    if (result < kept && lane == 0) {{
{declared}      {name}_result(&state, count{values});
{stores}    }}
    barrier(CLK_LOCAL_MEM_FENCE);
  }}
}}
"""
# One block, one result.
_WHOLE = """\
kernel void bringup_{entry}({parameters}) {{
{chosen}  local {name}_state states[{lanes}];
  const int lane = get_local_id(0);
{constants}  {name}_state state;
  {name}_start(&state{given});
  for (long i = lane; i < count; i += {lanes}) {name}_add(&state, {element}, i);
  states[lane] = state;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = {lanes} / 2; step > 0; step /= 2) {{
    if (lane < step) {{
      const {name}_state other = states[lane + step];
      {name}_merge(&state, &other);
      states[lane] = state;
    }}
    barrier(CLK_LOCAL_MEM_FENCE);
  }}
  if (lane == 0) {{
{declared}      {name}_result(&state, count{values});
{stores}  }}
}}
"""
