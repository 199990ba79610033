"""`kernel_op`: a C-ABI kernel file becomes a torch operator.

Owns checking a definition, registering it (schema, kernels, fake, Dynamo), choosing macros for
dtypes and compiling on first use, and backward operators. The call itself is native
(native/torch/ops).
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol

import torch

from bringup import devices, jit
from bringup._native import has_torch_library, torch_library
from bringup.errors import (
    ContractError,
    DeviceError,
    MissingKernelError,
    SchemaError,
)
from bringup.ops._c_function import CFunction, with_dtypes
from bringup.ops._defined import note
from bringup.ops._dynamo import substitute
from bringup.ops._expressions import Expression, parse_expression
from bringup.ops._library import forget
from bringup.ops._rules import (
    BoundCheck,
    BoundOutput,
    Check,
    CheckKind,
    OutputRule,
    verify_devices,
    verify_texts,
)
from bringup.ops._schema import Schema, parse_schema
from bringup.ops._variants import Variants, template_of
from bringup.ops._without_library import PythonOperator

__all__ = ["KernelOperator", "bound_checks", "bound_outputs", "kernel_op", "locate"]

_NO_MACROS: Mapping[str, jit.Macro] = {}

_definitions: dict[str, _Definition] = {}
_candidates = itertools.count()


class KernelOperator(Protocol):
    """What `kernel_op` returns: a builtin function with attributes.

    Calling it is calling `overload`, only faster; both take positional and keyword arguments and
    defaults, and both raise the same errors: `ContractError` for inputs that break the contract,
    `KernelError` when the kernel fails, `TypeError` and `RuntimeError` as torch does for arguments
    that do not fit the schema.

    Attributes:
        schema: the schema as registered.
        qualified_name: `namespace::name`, with `.overload` where there is one.
        overload: the operator in `torch.ops`.
    """

    schema: str
    qualified_name: str
    overload: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the operator."""

    def register_backward(
        self, operator: str, *, save: Sequence[str] = (), gradients: Sequence[str] | None = None
    ) -> None:
        """Makes another operator the backward of this one.

        The backward operator's arguments are one gradient for each output that can have one, then
        inputs and outputs of this operator, matched by name. Tensors among those must be in `save`;
        numbers, texts and lists are kept by themselves. It returns one gradient for each argument
        in `gradients`.

        Args:
            operator: `"namespace::name"` of any registered operator.
            save: names of tensor arguments, or of named returns, that backward reads.
            gradients: names of the tensor arguments that get gradients, in the order of the
                backward operator's returns; by default every `Tensor` argument. An argument left
                out is not differentiable.

        Raises:
            SchemaError: the two operators do not fit together, or this one writes its arguments.
        """

    def params(self, *args: Any, **kwargs: Any) -> jit.Params:
        """The parameter set of a call with these arguments: which macros its kernel is compiled
        with, which values it gets. `jit.Template.compile` of it makes the operator's own binary.
        """

    def undefine(self) -> None:
        """Removes the operator, so that its name can be defined again. Calls of it raise from then
        on.
        """


@dataclass
class _Definition:
    """One operator: all that was declared, and what it registered."""

    schema: Schema
    template: jit.Template
    variants: Variants
    outputs: tuple[BoundOutput, ...]
    checks: tuple[BoundCheck, ...]
    grid: Expression | None
    layout: Literal["contiguous", "strided"]
    where: str
    library: Any = field(default=None, repr=False)
    function: Any = field(default=None, repr=False)
    python: PythonOperator | None = field(default=None, repr=False)
    kernels: dict[tuple[str, tuple[Any, ...]], int] = field(default_factory=dict, repr=False)

    def register(self) -> KernelOperator:
        """Puts the operator into the dispatcher; leaves no trace when that fails."""
        name = self.schema.qualified_name
        known = _definitions.get(name)
        if known is not None:
            raise SchemaError(
                f"{name} is defined already, at {known.where}; choose another name or call "
                "undefine() on it first"
            )
        namespace, _, bare = name.partition("::")
        self.library = torch.library.Library(namespace, "FRAGMENT")
        try:
            self.library.define(self.schema.text.partition("::")[2], tags=self._tags())
            torch.library.register_fake(name, self.fake, lib=self.library)
            packet = getattr(getattr(torch.ops, namespace), bare.partition(".")[0])
            self._make_callable(getattr(packet, self.schema.overload or "default"))
        except BaseException as error:
            self.library._destroy()
            if isinstance(error, RuntimeError) and "multiple times" in str(error):
                raise SchemaError(
                    f"{name} is defined already, by somebody else: {error}"
                ) from error
            raise
        _definitions[name] = self
        if self.python is None:
            substitute(self.function, self._traceable(self.function.overload))
        operator: KernelOperator = self.function
        note(operator)
        return operator

    def _tags(self) -> tuple[torch.Tag, ...]:
        tags = [torch.Tag.pt2_compliant_tag]
        if self.layout == "contiguous" and not self.template.layouts:
            tags.append(torch.Tag.needs_contiguous_strides)
        return tuple(tags)

    def _make_callable(self, overload: Any) -> None:
        schema = self.schema
        if not has_torch_library():
            self.python = PythonOperator(self, overload, self._traceable(overload))
            self.function = self.python.function
        else:
            self.function = self._define_natively(overload)
        self.function.__doc__ = schema.text
        self.function.schema = schema.text
        self.function.qualified_name = schema.qualified_name
        self.function.overload = overload
        self.function.register_backward = self.register_backward
        self.function.undefine = self.undefine
        self.function.params = self.params

    def _define_natively(self, overload: Any) -> Any:
        schema = self.schema
        name = schema.name.partition("::")[2]
        return torch_library().ops.define(
            schema.name,
            schema.overload,
            [
                (a.name, a.type, a.optional, a.keyword_only, a.mutated, a.required, a.default)
                for a in schema.arguments
            ],
            list(schema.returns),
            [output.spec() for output in self.outputs],
            [check.spec() for check in self.checks if check.kind is not CheckKind.KERNEL],
            self.variants.specs(),
            self.layout == "contiguous",
            self.template.kind == "device",
            (self.grid.text, [tuple(step) for step in self.grid.program])
            if self.grid
            else ("1", []),
            name,
            f"{name}{schema.signature()}\n--\n\n{schema.text}",
            overload,
            self.compile,
        )

    def compile(self, device: str, values: Sequence[Any]) -> int:
        """The kernel's number for a device type and what a call's key holds. Called natively."""
        name = self.schema.qualified_name
        tuning = self.tuning(device)
        params = jit.tuned(self.variants.params_of_key(values), **tuning)
        try:
            with jit.compiling_for(name):
                return self.template.load(params, target=tuning["target"])
        except MissingKernelError as error:
            raise MissingKernelError(
                f"{name}: {error}", spec=error.spec, command=error.command
            ) from None

    def kernel_for(self, device: str, values: Sequence[Any], *, again: bool = False) -> int:
        """The kernel's number for a call with these values; loaded anew with `again`."""
        key = self.variants.key_of_call(values, self.outputs, self.contiguous)
        if again or (device, key) not in self.kernels:
            self.kernels[device, key] = self.compile(device, key)
        return self.kernels[device, key]

    @property
    def contiguous(self) -> bool:
        """Whether the kernel sees contiguous inputs only."""
        return self.layout == "contiguous"

    def tuning(self, device: str) -> dict[str, Any]:
        """What measured tile sizes are kept under besides a call's parameter set: the arguments of
        `jit.tune`.
        """
        arch = ""
        if device != "cpu" and devices.loaded() is not None:
            arch = str(torch.get_device_module(device).get_device_properties().arch)
        return {
            "name": self.schema.qualified_name,
            "target": self._target(device),
            "threads": torch.get_num_threads(),
            "device": arch,
        }

    def candidate(self, tile: int) -> KernelOperator:
        """An operator of its own that does the same with this one set of tile sizes."""
        schema = self.schema
        name = f"bringup_tune::{schema.qualified_name.replace('::', '_').replace('.', '_')}"
        text = f"{name}_{next(_candidates)}{schema.text[schema.text.index('(') :]}"
        template = replace(self.template, tiles=(self.template.tiles[tile],))
        renamed = parse_schema(text)
        variants = Variants(template, renamed)
        return replace(
            self, schema=renamed, template=template, variants=variants, kernels={}
        ).register()

    def params(self, *args: Any, **kwargs: Any) -> jit.Params:
        """See `KernelOperator.params`."""
        values = self.schema.bind(args, kwargs)
        try:
            return self.variants.params_of_call(values, self.outputs, self.contiguous)
        except ContractError as error:
            raise ContractError(f"{self.schema.qualified_name}: {error}") from None

    def _target(self, device: str) -> str:
        """What jit builds for: device code for the family of the device ("sim" of "sim-1")."""
        if device == "cpu":
            return "cpu"
        if devices.loaded() is None:
            raise DeviceError(
                f"{self.schema.qualified_name}: bringup has no driver for device {device!r}; a "
                "kernel operator runs on cpu, or on the device of devices.load_driver()"
            )
        if self.template.kind == "host":
            return "cpu"
        properties = torch.get_device_module(device).get_device_properties()
        return str(properties.arch).partition("-")[0]

    def fake(self, *args: Any, **kwargs: Any) -> Any:
        """The operator on fake or meta tensors: same contract, same outputs, nothing computed."""
        values = self.schema.bind(args, kwargs)
        arguments = self.schema.arguments
        try:
            device = self.verify(values)
            results = tuple(
                rule.fake(i, values, arguments, device) for i, rule in enumerate(self.outputs)
            )
        except ContractError as error:
            raise ContractError(f"{self.schema.qualified_name}: {error}") from None
        if not results:
            return None
        return results[0] if len(results) == 1 else results

    def verify(self, values: Sequence[Any]) -> Any:
        """Checks the input contract; the one device of all tensors. Raises `ContractError` without
        the operator's name.
        """
        arguments = self.schema.arguments
        device = verify_devices(values, self.schema)
        verify_texts(values, arguments)
        for check in self.checks:
            if check.kind is not CheckKind.KERNEL:
                check.verify(values, arguments)
        self.variants.verify(values)
        return device

    def _traceable(self, overload: Any) -> Callable[..., Any]:
        """Plain Python over the operator: what Dynamo traces for a call of the callable."""
        if self.schema.fresh_outputs or not self.schema.returns:

            def call(*args: Any, **kwargs: Any) -> Any:
                return overload(*args, **kwargs)

            return call

        written = [(index, self.schema.arguments[index].name) for index in self.schema.returns]

        def call_and_return_written(*args: Any, **kwargs: Any) -> Any:
            overload(*args, **kwargs)
            results = tuple(
                args[index] if index < len(args) else kwargs.get(name) for index, name in written
            )
            return results[0] if len(results) == 1 else results

        return call_and_return_written

    def register_backward(
        self, operator: str, *, save: Sequence[str] = (), gradients: Sequence[str] | None = None
    ) -> None:
        """See `KernelOperator.register_backward`."""
        from bringup.ops._backward import match

        plan = match(self.schema, self.outputs, operator, tuple(save), gradients)
        if self.python is not None:
            self.python.set_backward(plan)
        else:
            torch_library().ops.set_backward(
                self.function, plan.name, plan.overload, plan.sources, plan.receivers
            )

    def undefine(self) -> None:
        """See `KernelOperator.undefine`."""
        if _definitions.get(self.schema.qualified_name) is not self:
            return
        del _definitions[self.schema.qualified_name]
        forget(self.schema.qualified_name)
        if self.python is not None:
            self.python.close()
        else:
            torch_library().ops.close(self.function)
        self.library._destroy()


def definition_of(qualified_name: str) -> _Definition | None:
    """The definition of a kernel operator, or None when it is somebody else's."""
    return _definitions.get(qualified_name)


def kernel_op(
    schema: str,
    *,
    source: str | os.PathLike[str] | jit.Source | jit.Template,
    outputs: OutputRule | Sequence[OutputRule] = (),
    checks: Check | Sequence[Check] = (),
    dtypes: Mapping[str, str] = _NO_MACROS,  # type: ignore[assignment]
    layout: Literal["contiguous", "strided"] = "contiguous",
    entry: str | None = None,
    args: str | None = None,
    returns: Literal["status", "void"] | None = None,
    kind: Literal["host", "device"] | None = None,
    grid: int | str | None = None,
    flags: Sequence[str] = (),
    macros: Mapping[str, jit.Macro] = _NO_MACROS,
) -> KernelOperator:
    """Defines a torch operator whose implementation is a kernel file with the C ABI of
    `bringup/kernel.h`.

    The kernel gets the inputs in schema order, then the outputs. It is compiled on first use, once
    for each device and each choice of the dtypes in `dtypes`.

    Args:
        schema: `"namespace::name(Tensor x, float eps=1e-6) -> Tensor"`. Types: Tensor, int, float,
            bool, str, ScalarType, lists of Tensor, int, float and bool, and optional forms of all
            but Tensor[]; written arguments are `Tensor(a!)`, and a return may be one of them.
        source: the kernel: a path (looked up beside the calling file, then in the current folder),
            or a `jit.Source`; a shared library (`.so`) is taken as it is, without a compiler. Or a
            `jit.Template`, which has the macros and flags of its own; `dtypes`, `macros` and
            `flags` are not given then.
        outputs: how each return that is not a written argument is allocated, e.g.
            `ops.empty_like("x")`.
        checks: the input contract; required with two or more tensor arguments. That all tensors are
            on one device is checked always.
        dtypes: macros that hold the C type of a tensor argument's dtype: `{"T": "x"}`.
        layout: "contiguous": the kernel sees contiguous inputs (others are copied; a written
            argument must be contiguous). "strided": it sees the strides as they are.
        entry: the function to start, where it is not `run`; `"tvm_ffi:name"` for what tvm-ffi
            exports as `__tvm_ffi_name`.
        args: what a function gets that is not of kernel.h's form: `"ptr(out), ptr(x), size(x,0),
            eps, stream"` (docs/ops/c-function.md lists all of it). A tvm-ffi export gets all
            arguments, outputs last, unless this says otherwise.
        returns: what a function of a library returns: "status", an int that is 0 when all went
            well (the default), or "void". A source says so itself.
        kind: "host": the entry runs on the host and launches for itself; "device": device code,
            started by the driver over `grid`. On cpu both are a plain call. By default what the
            source says.
        grid: number of blocks of device code, an integer or an expression over the arguments.
        flags: more compiler options.
        macros: more macros, the same for every call.

    Returns:
        A callable; the operator is also `torch.ops.namespace.name`.

    Raises:
        SchemaError: the definition is wrong, or the name is taken. Nothing is registered then.
        FileNotFoundError: there is no such source file.
    """
    caller = sys._getframe(1)
    parsed = parse_schema(schema)
    if layout not in {"contiguous", "strided"}:
        raise SchemaError(
            f"{parsed.qualified_name}: layout={layout!r}: expected 'contiguous' or 'strided'"
        )
    function = CFunction(entry, args, returns)
    template = _template(parsed, source, kind, caller, dtypes, macros, flags, function)
    variants = Variants(template, parsed)
    rules = bound_outputs(parsed, outputs)
    return _Definition(
        schema=parsed,
        template=template,
        variants=variants,
        outputs=rules,
        checks=with_dtypes(parsed, variants.bound, rules, bound_checks(parsed, checks)),
        grid=_grid(parsed, grid),
        layout=layout,
        where=f"{caller.f_code.co_filename}:{caller.f_lineno}",
    ).register()


def bound_outputs(
    schema: Schema, outputs: OutputRule | Sequence[OutputRule]
) -> tuple[BoundOutput, ...]:
    """The output rules of a definition. Raises `SchemaError` for what does not fit the schema."""
    name = schema.qualified_name
    rules = (outputs,) if isinstance(outputs, OutputRule) else tuple(outputs)
    if not all(isinstance(rule, OutputRule) for rule in rules):
        raise SchemaError(f"{name}: outputs={rules!r}: expected rules such as ops.empty_like('x')")
    if len(rules) != schema.fresh_outputs:
        raise SchemaError(
            f"{name}: {schema.fresh_outputs} returns are allocated by the operator, but outputs= "
            f"has {len(rules)} rules; give one for each, e.g. outputs=ops.empty_like('x')"
        )
    return tuple(rule.bind(schema, f"{name}: output {i}: {rule!r}") for i, rule in enumerate(rules))


def bound_checks(schema: Schema, checks: Check | Sequence[Check]) -> tuple[BoundCheck, ...]:
    """The input contract of a definition. Raises `SchemaError` for what does not fit the schema."""
    name = schema.qualified_name
    contract = (checks,) if isinstance(checks, Check) else tuple(checks)
    if not all(isinstance(check, Check) for check in contract):
        raise SchemaError(
            f"{name}: checks={contract!r}: expected checks such as ops.same_shape('x', 'y')"
        )
    if len(schema.tensors) > 1 and not contract:
        tensors = ", ".join(schema.arguments[i].name for i in schema.tensors)
        raise SchemaError(
            f"{name}: checks= is required with two or more tensor arguments ({tensors}): say what "
            "must fit, e.g. ops.same_shape(...), or ops.kernel_checks() when the kernel itself "
            "refuses"
        )
    return tuple(check.bind(schema, f"{name}: {check!r}") for check in contract)


def _grid(schema: Schema, grid: int | str | None) -> Expression | None:
    if grid is None:
        return None
    return parse_expression(grid, schema.arguments, f"{schema.qualified_name}: grid")


def _template(
    schema: Schema,
    source: str | os.PathLike[str] | jit.Source | jit.Template,
    kind: Literal["host", "device"] | None,
    caller: FrameType,
    dtypes: Mapping[str, str],
    macros: Mapping[str, jit.Macro],
    flags: Sequence[str],
    function: CFunction,
) -> jit.Template:
    """The template behind the operator: the given one, or one around the given source."""
    name = schema.qualified_name
    if isinstance(source, jit.Template):
        given = {"dtypes": dtypes, "macros": macros, "flags": flags, **function.options}
        if both := [option for option, value in given.items() if value]:
            raise SchemaError(
                f"{name}: {both[0]}= belongs to the template {source.name!r}; declare it there"
            )
        return source if kind is None else replace(source, kind=kind)
    plain = _source(schema, source, caller)
    _check_dtype_arguments(schema, dtypes)
    try:
        plain = function.of(plain if kind is None else replace(plain, kind=kind))
        return template_of(plain, dtypes, macros, flags, function.args or "", function.returns)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{name}: {error}") from error


def _check_dtype_arguments(schema: Schema, dtypes: Mapping[str, str]) -> None:
    for macro, argument in dtypes.items():
        index = schema.index.get(argument)
        if (
            index is None
            or schema.arguments[index].type != "Tensor"
            or schema.arguments[index].optional
        ):
            raise SchemaError(
                f"{schema.qualified_name}: dtypes={{{macro!r}: {argument!r}}}: expected the name "
                "of an argument of type Tensor"
            )


def _source(
    schema: Schema,
    source: str | os.PathLike[str] | jit.Source,
    caller: FrameType,
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
    if path.is_absolute():
        candidates = [path]
    else:
        candidates = [Path(caller.f_code.co_filename).parent / path, Path.cwd() / path]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(
        f"{name}: there is no source file {str(path)!r}; looked for "
        f"{' and '.join(map(str, candidates))}"
    )
