"""Which binary runs for a call of an operator, and what its results are.

torch's Meta kernel is asked once a choice of dtypes, and the CPU's where Meta has no check.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from keyword import iskeyword
from typing import Any, NamedTuple

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.utils._python_dispatch import _disable_current_modes

from bringup import jit
from bringup._language.c_call import Binding, Extent, parse_call, parse_size, plain_values
from bringup._language.signature import ELEMENT_TYPES, Argument, dtype_name
from bringup.errors import MissingKernelError, SchemaError
from bringup.jit.builder.diagnose import compiling_for
from bringup.jit.target.target import called_as_declared, find_target
from bringup.ops.operators.contract import is_number, refusal
from bringup.ops.operators.family import Kind, Overload, functional_form

# Dtypes of the results, number of the kernel, the dtype that chose it; of the kernel for operands
# that are dense, or 0; of the one for several calls, or 0, and how many these are at most.
Plan = tuple[tuple[torch.dtype, ...], int, torch.dtype, int, int, int]

_WIDENED = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
# torch rounds what half precision is compared with; arithmetic takes the number as it is.
_COMPARISONS = frozenset(f"aten::{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge"))


@dataclass(frozen=True)
class PlainLaunch:
    """How a raw kernel with plain values is started; the arguments of `ops.kernel_op`."""

    args: str  # what its function gets
    grid: Extent = 1  # the blocks, by default one
    block: Extent = 1  # the threads of a block
    shared: int | str = 0  # the bytes of a block's shared memory
    work_items: Extent | None = None  # instead of these, independent threads

    def binding(self, source: jit.Source, signature: Sequence[Argument], where: str) -> Binding:
        """Return the same for these arguments. Raises `SchemaError` for what does not fit."""
        try:
            parameters = parse_call(self.args, signature, where)
            plain_values(parameters, where)
            extents = (self.grid, self.block, self.shared)
            size = parse_size(*extents, signature, where, self.work_items)
            called = called_as_declared(source, parameters, where, signature)
            return Binding("values", called, size)
        except ValueError as error:
            raise SchemaError(str(error)) from None


@dataclass(frozen=True)
class Declaration:
    """What an author declared for a family."""

    kind: Kind  # as of `devices.kernel`
    source: jit.Source | None  # the kernel's source; None for an expression
    entry: str  # the function, or "run" for one of kernel.h's form
    supports: frozenset[torch.dtype]  # the dtypes that it computes in
    # Of a raw kernel, macro -> the argument or result ("out", "out0", ...) whose C type it is.
    dtypes: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()  # more compiler options
    # What a pointwise kernel computes, where it has no source.
    expression: jit.ElementExpression | None = None
    launch: PlainLaunch | None = None  # of a raw kernel with plain values, how its entry is called
    # Whether it draws though its operator takes no generator: then it gets one behind all
    # arguments.
    random: bool = False

    @property
    def takes_views(self) -> bool:
        """Return whether a pointwise kernel loops over the views itself."""
        return self.kind == "pointwise" and self.entry == "run"


class Expressed(NamedTuple):
    """What a call computes where an expression says it, for one that has been planned."""

    expression: jit.ElementExpression
    operands: tuple[jit.Operand, ...]
    computed: str  # the C type
    results: tuple[str, ...]  # theirs
    target: str
    float64: bool
    flags: tuple[str, ...]
    given: tuple[int, ...]  # arguments that are operands, in order
    written: tuple[int, ...]


class Planner:
    """Plans calls of one overload; called natively for each new choice of dtypes."""

    def __init__(
        self,
        overload: Overload,
        declaration: Declaration,
        device_name: str,
        takes_plain_values: bool,
    ) -> None:
        """Plan for devices of a type. Raises `SchemaError` for a macro without an argument."""
        self._overload = overload
        self._functional = functional_form(overload, declaration.kind)
        self._declaration = declaration
        self._device_name = device_name
        self._plain_values = takes_plain_values
        if takes_plain_values and declaration.takes_views:
            raise self._error(
                "the device's code is not the host's, so there are no views of kernel.h for "
                "entry='run'; write a function of one element, or a raw kernel"
            )
        self._check_macros()

    def _check_macros(self) -> None:
        names = {p.name for p in self._overload.parameters if p.role in {"tensor", "tensor_list"}}
        for macro, name in self._declaration.dtypes.items():
            if name in names or name.removeprefix("out").isdigit() or name == "out":
                continue
            raise SchemaError(
                f"{self._overload.qualified_name}: dtypes={{{macro!r}: {name!r}}}: expected a "
                f"tensor argument ({', '.join(sorted(names))}), or out, out0, out1, ..."
            )

    def __call__(self, values: list[Any]) -> Plan | Exception | None:
        """Return a call's plan; None when the kernel does not take it. Raises torch's error."""
        with _disable_current_modes():
            try:
                inputs = [values[i] for i in self._overload.operands]
                shapes, results, written = self._described(inputs, values)
            except NotImplementedError:
                return None
            except Exception as error:
                return error.with_traceback(None)
        if self._declaration.kind == "pointwise":
            self._check_shape(inputs, shapes)
        if not results or (self._declaration.kind != "pointwise" and written != results):
            return None  # such a kernel converts nothing: whether torch would, the CPU's knows
        if not all(_has_c_type(v) and _has_one_dtype(v) for v in inputs) or not all(
            dtype_name(dtype) in ELEMENT_TYPES and dtype in self._properties(values).dtypes
            for dtype in (*results, *written)
        ):
            return None
        decided = self._decided(inputs, results[0], written[0])
        if decided not in self._declaration.supports or not self._has_named_dtypes(inputs):
            return None
        if self._declaration.kind == "raw" and not self._takes_scalars(inputs, decided, results):
            return None
        if self._declaration.kind == "reduction" and _rounds(inputs[0].dtype, decided):
            return None  # before it adds, which the kernel does not
        if any(m in _WIDENED and w is not m for m, w in zip(results, written, strict=True)):
            return None  # torch rounds to half precision, and converts that
        if shapes:
            with _disable_current_modes():
                refused = refusal(
                    self._overload,
                    self._declaration.kind,
                    self._declaration.supports,
                    values,
                    shapes,
                    written,
                )
            if refused is not None:
                return refused
        kernels = self._compile(values, inputs, decided, written)
        return None if kernels is None else (written, kernels[0], decided, *kernels[1:])

    def _properties(self, values: Sequence[Any]) -> Any:
        """Return the properties of a call's device: that of its first tensor there."""
        given = [one for v in values for one in (v if isinstance(v, (list, tuple)) else (v,))]
        devices = [one.device for one in given if isinstance(one, torch.Tensor)]
        here = next((device for device in devices if device.type == self._device_name), None)
        return torch.get_device_module(self._device_name).get_device_properties(here)

    def _has_named_dtypes(self, inputs: Sequence[Any]) -> bool:
        """Return whether each tensor's dtype has a macro or is `T`, as a raw kernel needs."""
        if self._declaration.kind != "raw":
            return True
        macros = self._declaration.dtypes
        names = [self._overload.parameters[i].name for i in self._overload.operands]
        dtypes = map(self._dtype_in, self._overload.operands, inputs)
        given = {n: d for n, d in zip(names, dtypes, strict=True) if d is not None}
        known = given.get(macros["T"]) if "T" in macros else next(iter(given.values()), None)
        named = set(macros.values())
        lists = {p.name for p in self._overload.parameters if p.role == "tensor_list"}
        if (named & lists) - given.keys():
            return False  # nothing in the list says which type it is
        return known is None or all(d is known for name, d in given.items() if name not in named)

    def _dtype_in(self, argument: int, value: Any) -> torch.dtype | None:
        """Return the dtype of what a raw kernel gets, also of a number in a tensor's place."""
        if self._overload.parameters[argument].role == "tensor":
            value = torch.tensor(value) if isinstance(value, (bool, int)) else value
            value = torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else value
        return _dtype_of(value)

    def _has_number(self, inputs: Sequence[Any]) -> bool:
        return any(
            self._overload.parameters[i].role == "tensor"
            and value is not None
            and (not isinstance(value, torch.Tensor) or is_number(value))
            for value, i in zip(inputs, self._overload.operands, strict=True)
        )

    def _takes_scalars(
        self, inputs: Sequence[Any], decided: torch.dtype, results: Sequence[torch.dtype]
    ) -> bool:
        """Return whether Scalars are exact as double, or each as int64_t, for a raw kernel."""
        if decided.is_floating_point or results[0].is_floating_point:
            return True
        roles = (self._overload.parameters[i].role for i in self._overload.operands)
        return not any(
            role == "scalar" and isinstance(value, float)
            for role, value in zip(roles, inputs, strict=True)
        )

    def _given_dtype(self, values: Sequence[Any]) -> torch.dtype | None:
        paired = zip(values, self._overload.parameters, strict=True)
        return next((value.dtype for value, p in paired if p.role == "out"), None)

    def _described(
        self, inputs: Sequence[Any], values: Sequence[Any]
    ) -> tuple[list[torch.Size], tuple[torch.dtype, ...], tuple[torch.dtype, ...]]:
        """Return shapes and dtypes of the results, and the dtypes of what is written."""
        if self._overload.results == 0:  # it writes lists, and the first says the dtype
            dtype = _dtype_of(values[0])
            return [], (dtype,) * (dtype is not None), (dtype,) * (dtype is not None)
        shapes, results = self._made(inputs, self._given_dtype(values))
        return shapes, results, self._written(values, results)

    def _made(
        self, inputs: Sequence[Any], dtype: torch.dtype | None = None
    ) -> tuple[list[torch.Size], tuple[torch.dtype, ...]]:
        options = {"dtype": dtype, "device": "meta"}
        missing = self._functional.parameters[len(inputs) :]
        made = self._functional.call(
            [*map(_meta, inputs), *(options.get(parameter.name) for parameter in missing)]
        )
        return [result.shape for result in _present(made)], _dtypes(made)

    def _written(
        self, values: Sequence[Any], results: tuple[torch.dtype, ...]
    ) -> tuple[torch.dtype, ...]:
        """Return the dtypes of what is written, which torch casts to where it allows that."""
        if self._overload.functional:
            return results
        own = [v for v, p in zip(values, self._overload.parameters, strict=True) if p.written]
        if self._declaration.kind == "pointwise":
            # Not asked: some Meta kernels of written forms say it in words of their own.
            for result, one in zip(results, own, strict=True):
                _check_cast(result, one.dtype)
            return tuple(one.dtype for one in own)
        paired = zip(values, self._overload.parameters, strict=True)
        given = tuple(value.dtype for value, p in paired if p.role == "out")
        if given and given != results:
            return given  # left to the CPU's kernel, whose words Meta kernels do not have
        return _dtypes(self._overload.call([_meta(v) for v in values]))

    def _check_shape(self, inputs: Sequence[Any], shapes: Sequence[torch.Size]) -> None:
        given = [v.shape for v in inputs if isinstance(v, torch.Tensor)]
        with contextlib.suppress(RuntimeError):  # shapes that do not broadcast
            common = torch.broadcast_shapes(*given)
            shapes = [shape for shape in shapes if shape != common]
            if not shapes:
                return
        raise SchemaError(
            f"{self._overload.qualified_name}: its result has shape {list(shapes[0])} for "
            f"arguments of shapes {', '.join(str(list(shape)) for shape in given)}: it is not "
            "pointwise; use kind='raw'"
        )

    def _decided(
        self, inputs: Sequence[Any], result: torch.dtype, written: torch.dtype
    ) -> torch.dtype:
        """Return the dtype of computation, which selects the binary, before half is widened."""
        tensors = [v for v in inputs if isinstance(v, torch.Tensor)]
        if self._declaration.kind == "raw":
            named = next(iter(self._declaration.dtypes.values()), None)
            names = [self._overload.parameters[i].name for i in self._overload.operands]
            given = _dtype_of(inputs[names.index(named)]) if named in names else None
            found = (one for v in inputs if (one := _dtype_of(v)) is not None)
            return given or next(found, written)
        if self._declaration.kind == "reduction":
            if any(p.role == "dtype" for p in self._overload.parameters):
                return written  # torch converts the elements first
            own: torch.dtype = tensors[0].dtype
            index = not result.is_floating_point and own.is_floating_point
            return own if index or result is torch.bool else result
        if result is not torch.bool:
            return result
        values = [
            v.item() if isinstance(v, torch.Tensor) and is_number(v) else v
            for v, i in zip(inputs, self._overload.operands, strict=True)
            if self._overload.parameters[i].role in {"tensor", "scalar"} and v is not None
        ]
        promoted: torch.dtype = elementwise_dtypes(
            *values, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH
        )[1]
        # add's alpha promotes nothing: of bools it computes in bool, unlike a comparison.
        of_bools = all(v.dtype is torch.bool for v in tensors)
        return result if of_bools and not self._compares(inputs) else promoted

    def _compares(self, inputs: Sequence[Any]) -> bool:
        """Return whether the results are bools of numbers, too."""
        numbers = [
            torch.empty(v.shape, device="meta") if isinstance(v, torch.Tensor) else v
            for v in inputs
        ]
        try:
            with _disable_current_modes():
                return self._made(numbers)[1][0] is torch.bool
        except RuntimeError:  # bitwise operators take none
            return False

    def _compile(
        self,
        values: Sequence[Any],
        inputs: Sequence[Any],
        decided: torch.dtype,
        results: Sequence[torch.dtype],
    ) -> tuple[int, int, int, int] | None:
        """Return what a plan has of kernels; None where it takes no such call."""
        name, properties = self._overload.qualified_name, self._properties(values)
        on_host = self._declaration.source is not None and self._declaration.source.kind == "host"
        target = "cpu" if on_host else jit.target_of_arch(properties.arch)
        writer = find_target(target).writer
        written = self._written_by(writer, inputs, decided, results, properties)
        if written is None:
            return None
        macros = {
            macro: writer.c_type(c_type) if writer is not None else c_type
            for macro, c_type in self._macros(values, decided, results).items()
        }
        if written.source.is_library:
            macros = {}
        flags = (*written.flags, *self._declaration.flags)
        try:
            with compiling_for(name):
                binary = jit.compile(written.source, macros=macros, target=target, flags=flags)
                kernel = replace(binary, binding=written.binding).kernel_id
                entry, binding = written.dense or ("", None)
                dense = replace(binary, entry=entry, binding=binding).kernel_id if entry else 0
                entry, calls = written.several or ("", 0)
                several = replace(binary, entry=entry, binding=binding).kernel_id if entry else 0
                return kernel, dense, several, calls
        except MissingKernelError as error:
            raise MissingKernelError(
                f"{name}: {error}", spec=error.spec, command=error.command
            ) from None

    def _written_by(
        self,
        writer: jit.Writer | None,
        inputs: Sequence[Any],
        decided: torch.dtype,
        results: Sequence[torch.dtype],
        properties: Any,
    ) -> jit.Written | None:
        """Return what is compiled; None where it takes no such call."""
        declared = self._declaration
        if declared.kind == "raw" and declared.source is not None:
            is_floating = decided.is_floating_point or results[0].is_floating_point
            return jit.Written(declared.source, binding=self._binding(is_floating))
        if declared.takes_views and declared.source is not None:
            tensors = [v for v in inputs if isinstance(v, torch.Tensor) and v.device.type != "cpu"]
            if any(tensor.dtype is not decided for tensor in tensors) or self._has_number(inputs):
                return None  # such a kernel converts nothing, and has no view of a number
            return jit.Written(declared.source)
        if writer is None:
            raise self._error(
                f"the target of {properties.arch!r} writes no entries around a {declared.kind} "
                "function; use kind='raw'"
            )
        operands, computed = (
            self._operands(inputs, decided),
            _c_type(_WIDENED.get(decided, decided)),
        )
        source = declared.source
        if declared.expression is not None:
            source = writer.expression(declared.entry, declared.expression, operands, computed)
        if source is None:
            raise self._error("it has neither a source nor an expression")
        element = jit.Element(
            source,
            declared.entry,
            tuple(operands),
            computed,
            tuple(map(_c_type, results)),
            properties.supports_float64,
        )
        write = writer.pointwise if declared.kind == "pointwise" else writer.reduction
        return write(element, values=self._plain_values)

    def expressed(self, values: Sequence[Any]) -> Expressed | None:
        """Return what a planned call computes; None where no expression says it."""
        declared, overload = self._declaration, self._overload
        if declared.expression is None or declared.random:
            return None
        inputs = [values[i] for i in overload.operands]
        with _disable_current_modes():
            results = self._made(inputs, self._given_dtype(values))[1]
            written = self._written(values, results)
        decided, properties = (
            self._decided(inputs, results[0], written[0]),
            self._properties(values),
        )
        return Expressed(
            declared.expression,
            tuple(self._operands(inputs, decided)),
            _c_type(_WIDENED.get(decided, decided)),
            tuple(map(_c_type, written)),
            jit.target_of_arch(properties.arch),
            properties.supports_float64,
            declared.flags,
            overload.operands,
            tuple(i for i, p in enumerate(overload.parameters) if p.written),
        )

    def _error(self, reason: str) -> SchemaError:
        return SchemaError(f"{self._overload.qualified_name}: {reason}")

    def _binding(self, is_floating: bool) -> Binding | None:
        """Return how a raw kernel is called: the operator's arguments by name, then its results."""
        launch, source = self._declaration.launch, self._declaration.source
        if launch is None or source is None:
            return None
        scalar = "float" if is_floating else "int"
        types = {**_RAW_TYPES, "scalar": scalar}
        signature = [
            Argument(_word(p.name), types.get(p.role) or _LISTED.get(p.type, p.type), p.optional)
            for p in (self._overload.parameters[i] for i in self._overload.operands)
        ]
        if self._declaration.random and not self._overload.takes_generator:
            signature.append(Argument("generator", "int[]"))
        count = self._overload.results
        names = ["out"] if count == 1 else [f"out{i}" for i in range(count)]
        signature += [Argument(name, "Tensor", optional=True) for name in names]
        return launch.binding(source, signature, self._overload.qualified_name)

    def _operands(self, inputs: Sequence[Any], decided: torch.dtype) -> list[jit.Operand]:
        operands = []
        compares = self._overload.qualified_name.partition(".")[0].rstrip("_") in _COMPARISONS
        all_single = not any(isinstance(v, torch.Tensor) and v.dim() > 0 for v in inputs)
        for value, i in zip(inputs, self._overload.operands, strict=True):
            parameter = self._overload.parameters[i]
            if self._declaration.kind == "reduction" and parameter.role in _NOT_GIVEN:
                continue
            # In an expression every argument that is given is a number.
            as_number = self._declaration.expression is not None
            optional = parameter.optional and not as_number
            if parameter.role == "generator":
                operands.append(jit.Operand("random"))
            elif isinstance(value, torch.Tensor) and not is_number(value):
                rounded = _c_type(decided) if _rounds(value.dtype, decided) else ""
                single = value.dim() == 0 and not all_single
                operands.append(
                    jit.Operand(
                        "tensor", _c_type(value.dtype), optional, rounded=rounded, single=single
                    )
                )
            elif value is None:
                c_type = _NUMBERS.get(parameter.type, "")
                operands.append(jit.Operand("none", c_type, given=not as_number))
            elif isinstance(value, str):
                operands.append(jit.Operand("string", text=value, given=not as_number))
            elif parameter.role == "number":
                c_type = _NUMBERS[parameter.type]
                exact = as_number and c_type == "double"
                operands.append(jit.Operand("number", c_type, optional, exact=exact))
            else:
                number = value.item() if isinstance(value, torch.Tensor) else value
                form = "float" if isinstance(number, float) else "integer"
                rounded = _c_type(decided) if compares and decided in _WIDENED else ""
                operands.append(
                    jit.Operand(form, optional=optional, rounded=rounded)  # type: ignore[arg-type]
                )
        if self._declaration.random and not self._overload.takes_generator:
            operands.append(jit.Operand("random"))
        return operands

    def _macros(
        self, values: Sequence[Any], decided: torch.dtype, results: Sequence[torch.dtype]
    ) -> dict[str, str]:
        """Return the C types that the source asks for by macros."""
        if self._declaration.takes_views:
            return {"T": _c_type(decided), "OUT": _c_type(results[0])}
        names = [p.name for p in self._overload.parameters]
        given, places = dict(zip(names, values, strict=True)), {n: i for i, n in enumerate(names)}
        macros: dict[str, str] = {}
        for macro, name in self._declaration.dtypes.items():
            dtype = self._dtype_in(places[name], given[name]) if name in given else None
            if dtype is not None:
                macros[macro] = _c_type(dtype)
            elif name.startswith("out") and name not in given:
                macros[macro] = _c_type(results[int(name[3:] or 0)])
            else:
                macros[macro] = "void"
        return macros


_RAW_TYPES = {
    "tensor": "Tensor", "tensor_list": "Tensor[]", "string": "str", "dtype": "int",
    "generator": "int[]",
}  # fmt: skip
_LISTED = {
    "SymInt": "int", "List[int]": "int[]", "List[SymInt]": "int[]", "List[bool]": "bool[]",
    "List[float]": "float[]",
}  # fmt: skip
_NOT_GIVEN = {"dim", "keepdim", "dtype"}
_NUMBERS = {"int": "int64_t", "SymInt": "int64_t", "bool": "bool", "float": "double"}


def _check_cast(result: torch.dtype, written: torch.dtype) -> None:
    if torch.can_cast(result, written):
        return
    # As torch's errors call them: "Float" of "torch.FloatTensor".
    names = [torch.empty(0, dtype=dtype, device="cpu").type()[6:-6] for dtype in (result, written)]
    raise RuntimeError(
        f"result type {names[0]} can't be cast to the desired output type {names[1]}"
    )


def _word(name: str) -> str:
    """Return what `args=` calls an argument: `from` is a word of Python's."""
    return f"{name}_" if iskeyword(name) else name


def _c_type(dtype: torch.dtype) -> str:
    return ELEMENT_TYPES[dtype_name(dtype)]


def _dtype_of(value: Any) -> torch.dtype | None:
    """Of a tensor, or of a list's first one."""
    if isinstance(value, (list, tuple)):
        value = next((one for one in value if one is not None), None)
    return value.dtype if isinstance(value, torch.Tensor) else None


def _has_one_dtype(value: Any) -> bool:
    tensors = value if isinstance(value, (list, tuple)) else ()
    return len({v.dtype for v in tensors if isinstance(v, torch.Tensor)}) <= 1


def _rounds(given: torch.dtype, computed: torch.dtype) -> bool:
    """Return whether torch rounds an operand to half precision before it computes."""
    return computed in _WIDENED and given is not computed


def _has_c_type(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_has_c_type, value))
    if isinstance(value, torch.Tensor):
        return dtype_name(value.dtype) in ELEMENT_TYPES
    return not isinstance(value, complex)


def _meta(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_meta(item) for item in value]
    if not isinstance(value, torch.Tensor) or is_number(value):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _present(results: Any) -> list[torch.Tensor]:
    """Without the gradients that a mask leaves out."""
    several = results if isinstance(results, (tuple, list)) else (results,)
    return [result for result in several if result is not None]


def _dtypes(results: Any) -> tuple[torch.dtype, ...]:
    return tuple(result.dtype for result in _present(results))
