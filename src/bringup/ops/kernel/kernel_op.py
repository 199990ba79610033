"""`kernel_op`: a C-ABI kernel file becomes a torch operator.

Owns checking a definition, registering it (schema, kernels, fake, Dynamo), macros for dtypes and
compiling on first use. The call itself is native (native/torch/ops).
"""

from __future__ import annotations

import copyreg
import functools
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn, TypeVar

import torch

from bringup import jit, settings
from bringup._language.c_call import Cluster, Extent
from bringup._language.expression import Expression
from bringup._language.reader import parse_expression
from bringup._native import has_torch_library, torch_library
from bringup.errors import ContractError, MissingKernelError, SchemaError
from bringup.jit.builder.diagnose import compiling_for
from bringup.ops.contract.constraints import (
    BoundConstraint,
    CheckKind,
    InputConstraint,
    fixed_lengths,
    verify,
)
from bringup.ops.contract.outputs import (
    BoundOutput,
    Counted,
    FakeCounts,
    OutputRule,
    number_output,
    packed,
    strided_arguments,
)
from bringup.ops.kernel.c_function import CFunction, GridSize, implied_ranks, with_dtypes
from bringup.ops.kernel.dynamo import substitute
from bringup.ops.kernel.kernel_source import template_for
from bringup.ops.kernel.kernel_target import architecture, runs_on_cuda, target_for
from bringup.ops.kernel.methods import KernelMethods, KernelOperator
from bringup.ops.kernel.variants import Variants
from bringup.ops.kernel.without_library import UnavailableOperator
from bringup.ops.registration.definition_rollback import defining, note, rehearsed
from bringup.ops.registration.functionalize import refuse_taken_name
from bringup.ops.registration.handle_lifetime import (
    REDEFINED,
    UNDEFINED,
    destroy,
    expired,
    hold_for_users,
)
from bringup.ops.registration.methods import forget, remember
from bringup.ops.registration.pickling import find_operator_by, reduced
from bringup.ops.schema.schema import MAX_ARGUMENTS, NUMBERS, Schema, parse_schema

__all__ = ["KernelOperator", "bound_constraints", "bound_outputs", "kernel_op"]

_Built = TypeVar("_Built")
_NO_MACROS: Mapping[str, jit.Macro] = {}

_METHODS = [name for name in dir(KernelMethods) if name.startswith("register_")]

definitions_by_name: dict[str, _Definition] = {}
_candidates = itertools.count()


@dataclass
class _Definition:
    """One operator: all that was declared, and what it registered."""

    schema: Schema
    template: jit.Template
    variants: Variants
    outputs: tuple[BoundOutput, ...]
    checks: tuple[BoundConstraint, ...]
    grid: Expression | None
    work_items: Expression | None
    strided: tuple[int, ...]
    release_gil: Literal["auto"] | bool
    where: str
    module: str
    library: Any = field(default=None, repr=False)
    function: Any = field(default=None, repr=False)
    methods: Any = field(default=None, repr=False)
    thread: Any = field(default_factory=lambda: weakref.ref(threading.current_thread()), repr=False)

    def register(self) -> KernelOperator:
        """Put the operator into the dispatcher; leaves no trace when that fails."""
        self._register()
        definitions_by_name[self.schema.qualified_name] = self
        remember(self.schema.qualified_name, self.methods)
        if has_torch_library():
            substitute(self.function)
        operator: KernelOperator = self.function
        note(operator)
        return operator

    def register_instead_of(self, known: _Definition) -> KernelOperator:
        """Register it instead of `known`: first by another name, so that what fails leaves it."""
        name = self.schema.qualified_name
        text = rehearsed(name) + self.schema.text[self.schema.text.index("(") :]
        trial = replace(self, schema=parse_schema(text))
        trial._register()
        try:
            refuse_taken_name(name, trial.methods.facts, known.methods.facts)
        finally:
            trial._remove()
        of_another_thread = known.thread() is not threading.current_thread()
        has_successor = of_another_thread and self.replaces(known)
        known.remove(known.call_successor if has_successor else expired(name, REDEFINED))
        return self.register()

    def call_successor(self, *args: Any, **kwargs: Any) -> Any:
        """Call the same definition that another thread has put in the place of this one."""
        name = self.schema.qualified_name
        with defining(name):
            found = definitions_by_name.get(name)
        if found is None or not found.replaces(self):
            return expired(name, UNDEFINED if found is None else REDEFINED)()
        return found.function(*args, **kwargs)

    def defined(self, redefine: bool) -> KernelOperator:
        """Register it, in the place of an earlier definition where it may have that."""
        name = self.schema.qualified_name
        with defining(name):
            known = definitions_by_name.get(name)
            if known is None:
                return self.register()
            if not redefine and not self.replaces(known):
                raise SchemaError(
                    f"{name} is defined already, at {known.where}; choose another name, pass "
                    "redefine=True to replace it, or call undefine() on it first"
                )
            return self.register_instead_of(known)

    def _register(self) -> None:
        name = self.schema.qualified_name
        namespace, _, bare = name.partition("::")
        self.library = torch.library.Library(namespace, "FRAGMENT")
        self.function = self.methods = None
        try:
            self.library.define(self.schema.text.partition("::")[2], tags=self._tags())
            torch.library.register_fake(name, self.fake, lib=self.library)
            packet = getattr(getattr(torch.ops, namespace), bare.partition(".")[0])
            self._make_callable(getattr(packet, self.schema.overload or "default"))
            self.methods = KernelMethods(self.schema, self.outputs, self.function, self.library)
            for method in _METHODS:
                setattr(self.function, method, getattr(self.methods, method))
            self.methods.install_functionalization(self.schema.text, self.function)
        except BaseException as error:
            self._remove()
            if isinstance(error, RuntimeError) and "multiple times" in str(error):
                raise SchemaError(f"{name} is defined already, by other code: {error}") from error
            raise

    def replaces(self, known: _Definition) -> bool:
        """Return whether it is the definition of `known` run again, as a notebook does."""
        return self._declared() == known._declared()

    def _declared(self) -> tuple[object, ...]:
        """Return what decides what a call does, to compare; files are compared by name."""
        template = repr(self.template)  # which tells macros of 1 and True apart
        launched = (self.grid, self.work_items)
        return self.schema.text, template, self.outputs, self.checks, launched, self.strided

    def _tags(self) -> tuple[torch.Tag, ...]:
        tags = [torch.Tag.pt2_compliant_tag]
        if not self.strided and not self.template.layouts:
            tags.append(torch.Tag.needs_contiguous_strides)
        if any(output.count >= 0 for output in self.outputs):
            tags.append(torch.Tag.dynamic_output_shape)
        if any(output.number for output in self.outputs):
            tags.append(torch.Tag.data_dependent_output)
        if any(argument.type == "Generator" for argument in self.schema.arguments):
            tags.append(torch.Tag.nondeterministic_seeded)
        return tuple(tags)

    def _make_callable(self, overload: Any) -> None:
        schema = self.schema
        if has_torch_library():
            self.function = self._define_natively(overload)
        else:
            self.function = UnavailableOperator(schema, overload, self.library)
        self.function.__doc__ = schema.text
        self.function.schema = schema.text
        self.function.qualified_name = schema.qualified_name
        self.function.overload = overload
        self.function.undefine = self.undefine
        self.function.params = self.params
        copyreg.pickle(type(self.function), _reduce)

    def _define_natively(self, overload: Any) -> Any:
        schema = self.schema
        name = schema.name.partition("::")[2]
        _set_output_pool()
        native = torch_library().ops
        return native.define(
            name=schema.name,
            overload_name=schema.overload,
            returns=list(schema.returns),
            outputs=[output.native() for output in self.outputs],
            checks=[check.native() for check in self.checks if check.kind is not CheckKind.KERNEL],
            key_fields=[native.KeyField(**field._asdict()) for field in self.variants.fields()],
            strided=[*self.strided],
            release_gil=None if self.release_gil == "auto" else bool(self.release_gil),
            grid=self.grid.native() if self.grid else None,
            work_items=self.work_items.native() if self.work_items else None,
            cuda=runs_on_cuda(self.template),
            callable_name=name,
            doc=f"{name}{schema.signature()}\n--\n\n{schema.text}",
            overload=overload,
            compile=self.compile,
        )

    def compile(self, device: str, values: Sequence[Any]) -> int:
        """Return the kernel's number for a device type and a key. Called natively."""
        return self.built(self.template.load, device, self.variants.params_of_key(values))

    def built(self, build: Callable[..., _Built], device: str, params: jit.Params) -> _Built:
        """Return what `build` gives for a device type and a set with its measured tile sizes."""
        name = self.schema.qualified_name
        tuning = self.tuning(device)
        try:
            with compiling_for(name):
                return build(jit.tuned(params, **tuning), target=tuning["target"])
        except MissingKernelError as error:
            raise MissingKernelError(
                f"{name}: {error}", spec=error.spec, command=error.command
            ) from None

    def tuning(self, device: str) -> dict[str, Any]:
        """Return the arguments of `jit.tune` beside a call's parameter set."""
        return {
            "name": self.schema.qualified_name,
            "target": target_for(self.schema.qualified_name, self.template, device),
            "threads": torch.get_num_threads(),
            "device": architecture(device),
        }

    def candidate(self, tile: int) -> KernelOperator:
        """Return an operator of its own that does the same with this one set of tile sizes."""
        schema = self.schema
        name = f"bringup_tune::{schema.qualified_name.replace('::', '_').replace('.', '_')}"
        text = f"{name}_{next(_candidates)}{schema.text[schema.text.index('(') :]}"
        template = replace(self.template, tiles=(self.template.tiles[tile],))
        renamed = parse_schema(text)
        variants = Variants(template, renamed)
        return replace(self, schema=renamed, template=template, variants=variants).register()

    def params(self, *args: Any, **kwargs: Any) -> jit.Params:
        values = self.schema.bind(args, kwargs)
        try:
            return self.variants.params_of_call(values, self.outputs, self.strided)
        except ContractError as error:
            raise ContractError(f"{self.schema.qualified_name}: {error}") from None

    def fake(self, *args: Any, **kwargs: Any) -> Any:
        """Make the outputs on fake or meta tensors, under the same contract; compute nothing."""
        values = self.schema.bind(args, kwargs)
        arguments = self.schema.arguments
        try:
            device = self.verify(values)
            if any(output.number for output in self.outputs):
                self._refuse_number(values)
            count = FakeCounts()
            results = tuple(
                rule.fake(i, values, arguments, device, count)
                for i, rule in enumerate(self.outputs)
            )
        except ContractError as error:
            raise ContractError(f"{self.schema.qualified_name}: {error}") from None
        return packed(results or [values[index] for index in self.schema.returns])

    def _refuse_number(self, values: Sequence[Any]) -> NoReturn:
        from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor

        if any(isinstance(value, FakeTensor) for value in values):
            raise DataDependentOutputException(self.function.overload)
        raise ContractError("it returns a number, which meta tensors do not have")

    def verify(self, values: Sequence[Any]) -> Any:
        """Check the contract; return the one device. Raises `ContractError` without the name."""
        device = verify(self.checks, values, self.schema)
        self.variants.verify(values)
        return device

    def undefine(self) -> None:
        self.remove(expired(self.schema.qualified_name, UNDEFINED))

    def remove(self, instead: Callable[..., Any]) -> None:
        """Remove the operator; what it and torch.ops gave out calls `instead` from then on."""
        name = self.schema.qualified_name
        with defining(name):
            if definitions_by_name.get(name) is self:
                del definitions_by_name[name]
                forget(name)
                hold_for_users(name, instead)
                self._remove(instead)

    def _remove(self, instead: Callable[..., Any] | None = None) -> None:
        """Take what was registered out of the dispatcher, the definition last."""
        if self.methods is not None:
            self.methods.destroy()
        if self.function is not None and has_torch_library():
            name = self.schema.qualified_name
            torch_library().ops.close(self.function, instead or expired(name, UNDEFINED))
        destroy(self.library)


@functools.cache
def _set_output_pool() -> None:
    sanitized = "address" in settings.jit_debug()  # it sees what lies beside memory of its own
    torch_library().ops.set_output_pool(settings.ops_pool() and not sanitized)


def _reduce(function: Any) -> tuple[Any, ...]:
    """Return how a callable is pickled and copied; its type is native."""
    name = function.qualified_name
    return reduced(name, definition.module if (definition := definitions_by_name.get(name)) else "")


def definition_of(qualified_name: str) -> _Definition | None:
    """Return the definition of a kernel operator, or None when it is another library's."""
    return definitions_by_name.get(qualified_name)


find_operator_by(lambda name: getattr(definition_of(name), "function", None))


def kernel_op(
    schema: str,
    *,
    source: str | os.PathLike[str] | jit.Source | jit.Template,
    outputs: OutputRule | Iterable[OutputRule] = (),
    checks: InputConstraint | Iterable[InputConstraint] = (),
    dtypes: Mapping[str, str] = _NO_MACROS,  # type: ignore[assignment]
    layout: Literal["contiguous", "strided"] = "contiguous",
    entry: str | None = None,
    args: str | None = None,
    returns: Literal["status", "void"] | None = None,
    strided: Iterable[str] = (),
    kind: Literal["host", "device"] | None = None,
    grid: Extent | None = None,
    block: Extent | None = None,
    shared: int | str | None = None,
    work_items: Extent | None = None,
    cluster: Cluster | None = None,
    cooperative: bool = False,
    flags: Iterable[str] = (),
    macros: Mapping[str, jit.Macro] = _NO_MACROS,
    release_gil: Literal["auto"] | bool = "auto",
    redefine: bool = False,
    build: bool = False,
) -> KernelOperator:
    """Define a torch operator whose implementation is a kernel file with the C ABI of
    `bringup/kernel.h`.

    The kernel gets the inputs in schema order, then the outputs. It is compiled on first use, once
    for each device and each choice of the dtypes in `dtypes`.

    Args:
        schema: `"namespace::name(Tensor x, float eps=1e-6) -> Tensor"`. Types: Tensor, int, float,
            bool, Scalar, complex, str, ScalarType, Device, Layout, MemoryFormat, one Generator,
            lists of Tensor, Tensor?, int, float and bool, and optional forms; written arguments are
            `Tensor(a!)`, and a return may be one of them. New results are Tensor or Tensor[], and
            int, float and bool, which the kernel writes to tensors without dimensions and which
            are waited for.
        source: the kernel: a path (looked up beside the calling file, then in the current folder),
            or a `jit.Source`; a shared library (`.so`) is taken as it is, without a compiler. Or a
            `jit.Template`, which has the macros and flags of its own; `dtypes`, `macros` and
            `flags` are not given then.
        outputs: how each return that is a new tensor is allocated, e.g. `ops.empty_like("x")`.
        checks: the input contract; required with two or more tensor arguments. That all tensors are
            on one device is checked always.
        dtypes: macros that hold the C type of a tensor argument's dtype, or of an output's:
            `{"T": "x"}`. Outputs are called like their returns, otherwise `out`, or `out0`, ...
        layout: "contiguous": the kernel sees contiguous inputs (others are copied; a written
            argument must be contiguous). "strided": it sees the strides as they are.
        entry: the function to start, where it is not `run`; `"tvm_ffi:name"` for what tvm-ffi
            exports as `__tvm_ffi_name`.
        args: what a function gets that is not of kernel.h's form: `"ptr(out), ptr(x), size(x,0),
            eps, stream"` (docs/ops/c-function.md lists all of it). A tvm-ffi export gets all
            arguments, outputs last, unless this says otherwise.
        returns: what a function of a library returns: "status", an int that is 0 when all went
            well (the default), or "void". A source says so itself.
        strided: the tensor arguments whose strides the kernel sees as they are, the others being
            contiguous.
        kind: "host": the entry runs on the host and launches for itself; "device": device code,
            started by the driver over `grid`. On cpu both are a plain call. By default what the
            source says.
        grid: number of blocks of device code, an integer or an expression over the arguments; with
            `block` up to three of them, for x, y and z.
        block: number of threads of a block, likewise: the kernel is device code of
            `bringup/device.h`, which gets its place and the plain arguments that `args` lists. A
            driver has to take these (BRINGUP_HAS_LAUNCH_VALUES).
        shared: bytes of a block's shared memory, likewise, with `block`.
        work_items: with `args`, instead of `grid`, `block` and `shared`: how many independent
            threads there are, which the device divides into blocks. None waits for another, and
            none but these run. Without `args`, beside `grid`: how many pieces of work the blocks
            share, at least one each; a driver may then run another number of blocks.
        cluster: with `block`: how many blocks, or up to three numbers of them, form a cluster, and
            share their memory. The grid is of whole clusters.
        cooperative: with `block`: all blocks run at the same time and may wait for each other.
            These two are for devices that have them, which NVIDIA's GPUs do.
        flags: more compiler options.
        macros: more macros, the same for every call.
        release_gil: whether other Python threads run: "auto": where the tensors have so
            many elements that it is worth it; True or False: always or never. A call through
            `torch.ops` always lets them run.
        redefine: replaces an operator of this name that was defined otherwise (`release_gil`
            apart); the same definition replaces it anyway, as when a notebook runs a cell again or
            the source file has changed. Calls of the earlier callable raise from then on.
        build: whether it is compiled now, for cpu, so that what the compiler says comes here; not
            where a call chooses macros.

    Returns:
        A callable; the operator is also `torch.ops.namespace.name`.

    Raises:
        SchemaError: the definition is wrong, or the name is taken. Nothing is registered then,
            and an earlier operator stays.
        FileNotFoundError: there is no such source file.
        CompileError: with `build`, the source does not compile.

    Examples:
        >>> from bringup import jit, ops
        >>> text = "void twice(float* y, const float* x, long n) { while (n--) y[n] = 2 * x[n]; }"
        >>> twice: ops.KernelOperator = ops.kernel_op(
        ...     "example::twice(Tensor x) -> Tensor",
        ...     source=jit.Source(name="twice.c", text=text),
        ...     entry="twice",
        ...     args="ptr(out), ptr(x), numel(x)",
        ...     outputs=ops.empty_like("x"),
        ... )
        >>> twice(torch.ones(2))
        tensor([2., 2.])
    """
    caller = sys._getframe(1)
    parsed = parse_schema(schema)
    if layout not in {"contiguous", "strided"}:
        raise SchemaError(
            f"{parsed.qualified_name}: layout={layout!r}: expected 'contiguous' or 'strided'"
        )
    function = CFunction(entry, args, returns)
    size = GridSize(grid, block, shared, work_items, cluster, cooperative or None)
    template = template_for(
        parsed, source, kind, caller, dtypes, macros, tuple(flags), function, size
    )
    if release_gil not in ("auto", True, False):
        raise SchemaError(
            f"{parsed.qualified_name}: release_gil={release_gil!r}: expected 'auto', True or False"
        )
    rules = bound_outputs(parsed, outputs)
    variants = Variants(template, parsed, counts=any(rule.count >= 0 for rule in rules))
    definition = _Definition(
        schema=parsed,
        template=template,
        variants=variants,
        outputs=rules,
        checks=_contract(parsed, variants, rules, bound_constraints(parsed, checks)),
        grid=_count(parsed, "grid", grid) if template.abi != "values" else None,
        work_items=_count(parsed, "work_items", work_items) if template.abi != "values" else None,
        strided=strided_arguments(parsed, layout, strided, rules),
        release_gil=release_gil,
        where=f"{caller.f_code.co_filename}:{caller.f_lineno}",
        module=caller.f_globals.get("__name__", ""),
    )
    if build:
        if variants.fields():
            raise SchemaError(f"{parsed.qualified_name}: build=: macros are those of a call")
        definition.built(template.compile, "cpu", variants.params_of_key(()))
    return definition.defined(redefine)


def define_again(schema: str, template: Mapping[str, Any], rest: Mapping[str, Any]) -> Any:
    """Return the callable of a definition that another process has taken apart."""
    parsed, made = parse_schema(schema), jit.Template(**template)
    counts = any(rule.count >= 0 for rule in rest["outputs"])
    variants = Variants(made, parsed, counts=counts)
    return _Definition(parsed, made, variants, **rest, where="", module="").register()


def bound_outputs(
    schema: Schema, outputs: OutputRule | Iterable[OutputRule]
) -> tuple[BoundOutput, ...]:
    """Return the output rules of a definition. Raises `SchemaError` for what does not fit."""
    name = schema.qualified_name
    rules = _listed(outputs, OutputRule)
    if not all(isinstance(rule, OutputRule) for rule in rules):
        raise SchemaError(
            f"{name}: outputs={outputs!r}: expected rules such as ops.empty_like('x')"
        )
    fresh = schema.return_types[: schema.fresh_outputs]
    allocated = sum(kind not in NUMBERS for kind in fresh)
    if len(rules) != allocated:
        raise SchemaError(
            f"{name}: {allocated} returns are allocated by the operator, but outputs= "
            f"has {len(rules)} rules; give one for each, e.g. outputs=ops.empty_like('x')"
        )
    counts: dict[Counted, int] = {}
    rest = iter(rules)
    bound = tuple(
        number_output(NUMBERS[kind]) if kind in NUMBERS else next(rest).bind(schema, i, counts)
        for i, kind in enumerate(fresh)
    )
    if counts and len(schema.arguments) + len(bound) >= MAX_ARGUMENTS:
        raise SchemaError(
            f"{name}: arguments, outputs and the counts are more than the {MAX_ARGUMENTS} that a "
            "kernel call carries"
        )
    return bound


def _listed(given: Any, kind: type) -> tuple[Any, ...]:
    """Return a list of one thing or several; their kind is for the caller to check."""
    several = isinstance(given, Iterable) and not isinstance(given, (kind, str))
    return tuple(given) if several else (given,)


def bound_constraints(
    schema: Schema, checks: InputConstraint | Iterable[InputConstraint]
) -> tuple[BoundConstraint, ...]:
    """Return the input contract of a definition. Raises `SchemaError` for what does not fit."""
    name = schema.qualified_name
    contract = _listed(checks, InputConstraint)
    if not all(isinstance(check, InputConstraint) for check in contract):
        raise SchemaError(
            f"{name}: checks={checks!r}: expected checks such as ops.same_shape('x', 'y')"
        )
    if len(schema.tensors) > 1 and not contract:
        tensors = ", ".join(schema.arguments[i].name for i in schema.tensors)
        raise SchemaError(
            f"{name}: checks= is required with two or more tensor arguments ({tensors}): say what "
            "must fit, e.g. ops.same_shape(...), or ops.kernel_checks() when the kernel itself "
            "refuses"
        )
    return tuple(check.bind(schema, f"{name}: {check!r}") for check in contract)


def _contract(
    schema: Schema,
    variants: Variants,
    outputs: Sequence[BoundOutput],
    checks: Sequence[BoundConstraint],
) -> tuple[BoundConstraint, ...]:
    """Return what is declared, and what the schema and the function's parameters imply."""
    implied = implied_ranks(schema, variants.bound, outputs, checks)
    complete = (*fixed_lengths(schema), *implied, *checks)
    return with_dtypes(schema, variants.bound, outputs, complete)


def _count(schema: Schema, option: str, given: Extent | None) -> Expression | None:
    if given is None:
        return None
    if not isinstance(given, (int, str)):
        raise SchemaError(
            f"{schema.qualified_name}: {option}={given!r}: expected a number or expression"
        )
    return parse_expression(given, schema.arguments, f"{schema.qualified_name}: {option}")
