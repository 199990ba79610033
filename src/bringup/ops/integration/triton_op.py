"""`triton_op`: a Triton kernel becomes a torch operator; triton is imported with the first one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from bringup import jit
from bringup._language.c_call import CParameter, ValueKind, parse_call
from bringup._language.expression import Opcode
from bringup._language.reader import parse_expression
from bringup.errors import ContractError, DeviceError, MissingCompilerError, SchemaError
from bringup.jit.target.triton import TritonKernel
from bringup.ops.contract.constraints import (
    BoundConstraint,
    CheckKind,
    InputConstraint,
    verify,
)
from bringup.ops.contract.outputs import BoundOutput, OutputRule, packed
from bringup.ops.custom.custom_op import CustomOperator, custom_op
from bringup.ops.kernel.kernel_op import bound_constraints, bound_outputs
from bringup.ops.kernel.variants import signature_of_schema
from bringup.ops.schema.schema import Schema, parse_schema

Grid = int | str | Sequence[int | str] | Callable[[dict[str, Any]], Sequence[int]]

_NOTHING: Mapping[str, Any] = {}
_NO_DRIVER = "active drivers"  # in triton's own words
_TYPES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64",
    torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8",
    torch.bool: "i1",
}  # fmt: skip
_SCALARS = {ValueKind.FLOAT64: "fp32", ValueKind.FLOAT32: "fp32", ValueKind.BOOL: "i1"}
_REFUSED = (Opcode.STREAM, Opcode.DEVICE, Opcode.WORKSPACE, Opcode.LIST_DATA, Opcode.FAULT)


class TritonOperator(CustomOperator):
    """What `triton_op` returns: an operator with the methods of `custom_op`, and `prebuild`."""

    launcher: Launcher

    def prebuild(
        self, target: str = "triton", *, dtypes: Mapping[str, torch.dtype] = _NOTHING
    ) -> jit.Binary:
        """Return the kernel for a GPU that need not be there, from jit's cache or built now.

        Args:
            target: `"triton:sm_90"`, `"triton:gfx942"`, ...
            dtypes: of the tensor arguments, as far as no check says them.

        Returns:
            The binary, a cubin or hsaco; its folder also has the assembly (`kernel.ptx`,
            `kernel.amdgcn`) and `kernel.json` with what a launch needs to know.

        Raises:
            SchemaError: the dtype of a tensor is not known, or one that triton has not.
            MissingCompilerError: triton is not installed, or the kernel is the interpreter's.
            CompileError: triton refused the kernel.
            ValueError: there is no such target.
        """
        return jit.compile(self.launcher.source(dtypes), target=target)


class Launcher:
    """A kernel with what each of its parameters gets."""

    def __init__(
        self,
        schema: Schema,
        kernel: Any,
        grid: Grid,
        outputs: tuple[BoundOutput, ...],
        checks: tuple[BoundConstraint, ...],
        args: str | None,
        constants: Mapping[str, Any],
        options: Mapping[str, Any],
        layout: str,
    ) -> None:
        self.schema = schema
        self.name = schema.qualified_name
        self.kernel = kernel
        self.function = _function_of(kernel, self.name)
        self.outputs = outputs
        self.checks = checks
        self.options = dict(options)
        self.contiguous = layout == "contiguous"
        self.signature = signature_of_schema(schema)
        self.names = list(inspect.signature(self.function).parameters)
        self.constants = self._constants(constants)
        self.parameters = self._parameters(args)
        self.grid = self._grid(grid)

    def _constants(self, given: Mapping[str, Any]) -> dict[str, Any]:
        declared = inspect.signature(self.function).parameters
        wanted = {name for name, one in declared.items() if _is_constant(one.annotation)}
        if unknown := sorted(given.keys() - wanted):
            raise SchemaError(
                f"{self.name}: constants= has {unknown[0]!r}, which is no tl.constexpr parameter "
                f"of {self.function.__name__} (those are {', '.join(sorted(wanted)) or 'none'})"
            )
        found = {
            name: given.get(name, declared[name].default) for name in declared if name in wanted
        }
        missing = [name for name, value in found.items() if value is inspect.Parameter.empty]
        if missing and _jit_function(self.kernel) is self.kernel:
            raise SchemaError(
                f"{self.name}: {self.function.__name__} has the tl.constexpr parameter "
                f"{missing[0]!r}; give its value, as in constants={{{missing[0]!r}: 128}}"
            )
        return {n: v for n, v in found.items() if v is not inspect.Parameter.empty}

    def _parameters(self, args: str | None) -> dict[str, CParameter]:
        declared = inspect.signature(self.function).parameters
        names = [name for name, one in declared.items() if not _is_constant(one.annotation)]
        text = self._by_name(names) if args is None else args
        try:
            found = parse_call(text, self.signature, f"{self.name}: args", tvm_ffi=True)
        except ValueError as error:
            raise SchemaError(str(error)) from None
        if len(found) != len(names):
            raise SchemaError(
                f"{self.name}: {self.function.__name__} takes {', '.join(names)} besides its "
                f"constants, args= has {len(found)}: {', '.join(p.text for p in found)}"
            )
        for parameter in found:
            self._check_parameter(parameter)
        return dict(zip(names, found, strict=True))

    def _check_parameter(self, parameter: CParameter) -> None:
        steps = {step.opcode for step in parameter.program}
        if parameter.by_reference or steps.intersection(_REFUSED):
            raise SchemaError(
                f"{self.name}: args: {parameter.text!r}: a Triton kernel gets tensors and numbers"
            )

    def _by_name(self, names: Sequence[str]) -> str:
        known = [argument.name for argument in self.signature]
        found = [name if name in known else name.removesuffix("_ptr") for name in names]
        for name, given in zip(names, found, strict=True):
            if given not in known:
                raise SchemaError(
                    f"{self.name}: {self.function.__name__} has the parameter {name!r}, which is "
                    f"no argument or output (there are {', '.join(known)}); say what each gets, as "
                    "in args='x, out, numel(x)'"
                )
        return ", ".join(found)

    def _grid(self, grid: Grid) -> Callable[[Sequence[Any]], Any]:
        if callable(grid):
            made = grid
            return lambda values: made  # triton calls it with the kernel's arguments
        sizes: list[Any] = list(grid) if isinstance(grid, (list, tuple)) else [grid]
        if not 1 <= len(sizes) <= 3 or not all(isinstance(s, (int, str)) for s in sizes):
            raise SchemaError(
                f"{self.name}: grid={grid!r}: expected one to three numbers of programs, each an "
                "integer or an expression like '(numel(x) + 127) // 128', or a function as triton's"
            )
        where = f"{self.name}: grid"
        programs = [parse_expression(s, self.signature, where, none_is_zero=True) for s in sizes]
        return lambda values: tuple(program.evaluate(values) for program in programs)

    def fake(self, *args: Any, **kwargs: Any) -> Any:
        values = self.schema.bind(args, kwargs)
        return packed(self._allocate(values))

    def _allocate(self, values: Sequence[Any]) -> list[Any]:
        arguments = self.schema.arguments
        try:
            device = verify(self.checks, values, self.schema)
            return [rule.fake(i, values, arguments, device) for i, rule in enumerate(self.outputs)]
        except ContractError as error:
            raise ContractError(f"{self.name}: {error}") from None

    def run(self, *args: Any, **kwargs: Any) -> Any:
        values = self.schema.bind(args, kwargs)
        results = self._allocate(values)
        passed = [self._passed(i, value) for i, value in enumerate(values)] + results
        try:
            given = {name: _given(one, passed) for name, one in self.parameters.items()}
        except ContractError as error:
            raise ContractError(f"{self.name}: args: {error}") from None
        grid = self._grid_of(passed)
        if grid is not None:
            self._launch(grid, given, next(t.device for t in passed if isinstance(t, torch.Tensor)))
        return packed(results)

    def _grid_of(self, values: Sequence[Any]) -> Any:
        """Return the grid; None when there is nothing to do."""
        try:
            grid = self.grid(values)
        except ContractError as error:
            raise ContractError(f"{self.name}: grid: {error}") from None
        if callable(grid):
            return grid
        if any(size < 0 for size in grid):
            raise ContractError(f"{self.name}: the grid must not be negative, got {grid}")
        return grid if all(grid) else None

    def _passed(self, index: int, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not self.contiguous or value.is_contiguous():
            return value
        argument = self.schema.arguments[index]
        if argument.mutated:
            raise ContractError(
                f"{self.name}: {argument.name} is written and must be contiguous, got strides "
                f"{tuple(value.stride())}; pass .contiguous(), or declare layout='strided'"
            )
        return value.contiguous()

    def _launch(self, grid: Any, given: dict[str, Any], device: torch.device) -> None:
        interpreted = _is_interpreted(self.kernel)
        if not interpreted and device.type in {"cpu", torch._C._get_privateuse1_backend_name()}:
            raise self._cannot_run(device)
        try:
            if interpreted:
                self.kernel[grid](**given, **self.constants)
            else:
                with torch.get_device_module(device).device(device):
                    self.kernel[grid](**given, **self.constants, **self.options)
        except RuntimeError as error:
            if _NO_DRIVER in str(error):
                raise self._cannot_run(device) from error
            raise

    def _cannot_run(self, device: torch.device) -> DeviceError:
        return DeviceError(
            f"{self.name}: the Triton kernel {self.function.__name__!r} cannot run on {device}: "
            "triton compiles for GPUs; set TRITON_INTERPRET=1 before the kernel is defined to run "
            "it by triton's interpreter, or build it for a GPU with .prebuild('triton:sm_90')"
        )

    def source(self, dtypes: Mapping[str, torch.dtype]) -> jit.Source:
        """Return what jit's target `triton` compiles, for inputs of these dtypes."""
        if _is_interpreted(self.kernel):
            raise MissingCompilerError(
                f"{self.name}: {self.function.__name__!r} was defined under TRITON_INTERPRET=1, so "
                "there is only the interpreter's form of it; prebuild it in a process without"
            )
        known = self._dtypes(dtypes)
        types = {name: self._type(one, known) for name, one in self.parameters.items()}
        signature = {name: types.get(name, "constexpr") for name in self.names}
        if missing := [n for n in self.names if n not in types and n not in self.constants]:
            raise SchemaError(
                f"{self.name}: give the constant {missing[0]!r} with constants= to prebuild a "
                "kernel that triton tunes"
            )
        kernel = _jit_function(self.kernel)
        return TritonKernel.of(kernel, signature, self.constants, self.options).source()

    def _dtypes(self, given: Mapping[str, torch.dtype]) -> dict[int, torch.dtype]:
        arguments = self.schema.arguments
        if unknown := sorted(given.keys() - {a.name for a in arguments if a.type == "Tensor"}):
            raise SchemaError(f"{self.name}: dtypes= has {unknown[0]!r}, which is no tensor")
        known = {i: given[a.name] for i, a in enumerate(arguments) if a.name in given}
        for check in self.checks:
            if check.kind is CheckKind.DTYPE and len(check.dtypes) == 1:
                known |= {i: check.dtypes[0] for i in check.indices if i not in known}
        for check in self.checks:
            first = next((known[i] for i in check.indices if i in known), None)
            if check.kind is CheckKind.SAME_DTYPE and first is not None:
                known |= {i: first for i in check.indices if i not in known}
        for number, output in enumerate(self.outputs):
            place = len(arguments) + number
            if output.dtype_of < 0:
                known[place] = output.dtype
            elif output.dtype_of in known:
                known[place] = known[output.dtype_of]
        return known

    def _type(self, parameter: CParameter, known: Mapping[int, torch.dtype]) -> str:
        if parameter.kind is not ValueKind.TENSOR:
            whole = "i64" if parameter.bounds and parameter.c_type == "int64_t" else "i32"
            return _SCALARS.get(parameter.kind, whole)
        index = parameter.program[0].argument
        name, dtype = self.signature[index].name, known.get(index)
        if dtype is None:
            raise SchemaError(
                f"{self.name}: the dtype of {name} is not known; give it, as in "
                f"prebuild(dtypes={{{name!r}: torch.float32}})"
            )
        if dtype not in _TYPES:
            raise SchemaError(f"{self.name}: {name} is {dtype}, which triton does not take")
        return f"*{_TYPES[dtype]}"


def _given(parameter: CParameter, values: Sequence[Any]) -> Any:
    """Return what a parameter is for these values of all arguments; of an address, its tensor."""
    first = parameter.program[0]
    if first.opcode in (Opcode.DATA, Opcode.TENSOR):
        return values[first.argument]
    return parameter.evaluate(values)


def _is_constant(annotation: Any) -> bool:
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name.rpartition(".")[2] == "constexpr"


def _jit_function(kernel: Any) -> Any:
    """Return the function under what tunes it."""
    while not inspect.isfunction(kernel.fn):
        kernel = kernel.fn
    return kernel


def _is_interpreted(kernel: Any) -> bool:
    return type(_jit_function(kernel)).__name__ == "InterpretedFunction"


def _function_of(kernel: Any, name: str) -> Any:
    """Return a kernel's Python function. Raises `MissingCompilerError` and `SchemaError`."""
    try:
        from triton.runtime.jit import KernelInterface
    except ImportError as error:
        raise MissingCompilerError(
            f"{name}: ops.triton_op needs triton, which is not installed in {sys.prefix}: "
            "pip install 'bringup[triton]'"
        ) from error
    if not isinstance(kernel, KernelInterface):
        raise SchemaError(
            f"{name}: kernel={kernel!r}: expected a function decorated with @triton.jit, got "
            f"{type(kernel).__name__}"
        )
    return _jit_function(kernel).fn


def triton_op(
    schema: str,
    *,
    kernel: Any,
    grid: Grid,
    outputs: OutputRule | Sequence[OutputRule] = (),
    checks: InputConstraint | Sequence[InputConstraint] = (),
    args: str | None = None,
    constants: Mapping[str, Any] = _NOTHING,
    options: Mapping[str, Any] = _NOTHING,
    layout: Literal["contiguous", "strided"] = "contiguous",
) -> TritonOperator:
    """Define a torch operator whose implementation is a Triton kernel. Returns a callable with the
    methods of `custom_op` and `prebuild`.

    It runs where triton runs: on a GPU, or by triton's interpreter (`TRITON_INTERPRET=1`, set
    before the kernel is defined) on any device. Elsewhere a call raises and says so.

    Args:
        schema: as for `kernel_op`; a written argument is not returned.
        kernel: a function decorated with `@triton.jit`, also one that is tuned.
        grid: how many programs: an integer or an expression over the arguments
            (`"(numel(x) + 127) // 128"`), up to three of them, or a function of the kernel's
            arguments as triton takes it.
        outputs: how each return is allocated, as for `kernel_op`.
        checks: the input contract, as for `kernel_op`.
        args: what the kernel's parameters get besides its constants, in order:
            `"x, out, numel(x), stride(x,0)"`. By default the argument or output of their name, also
            without `_ptr`.
        constants: values of the `tl.constexpr` parameters.
        options: of triton's compiler, such as `{"num_warps": 8}`.
        layout: "contiguous": the kernel sees contiguous tensors; "strided": as they are.

    Raises:
        SchemaError: the definition is wrong, or the name is taken. Nothing is registered then.
        MissingCompilerError: triton is not installed.
    """
    parsed = parse_schema(schema)
    name = parsed.qualified_name
    if any(alias >= 0 for alias in parsed.returns):
        raise SchemaError(
            f"{name}: a Triton operator does not return what it writes: write '-> ()'"
        )
    if parsed.overload:
        raise SchemaError(f"{name}: a Triton operator has no overloads")
    if layout not in {"contiguous", "strided"}:
        raise SchemaError(f"{name}: layout={layout!r}: expected 'contiguous' or 'strided'")
    rules, contract = bound_outputs(parsed, outputs), bound_constraints(parsed, checks)
    if any(rule.list or rule.count >= 0 for rule in rules):
        raise SchemaError(
            f"{name}: a Triton operator has no outputs of type Tensor[] or ops.at_most(...)"
        )
    launcher = Launcher(parsed, kernel, grid, rules, contract, args, constants, options, layout)

    def run(*given: Any, **keywords: Any) -> Any:
        return launcher.run(*given, **keywords)

    function = launcher.function
    run.__module__, run.__qualname__ = function.__module__, function.__qualname__
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    written = [parsed.arguments[i].name for i in parsed.written]
    operator = custom_op(name, run, mutates_args=written, schema=parsed.text, make=TritonOperator)
    assert isinstance(operator, TritonOperator)
    operator.launcher = launcher
    operator.register_fake(launcher.fake)
    return operator
