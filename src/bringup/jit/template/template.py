"""Templates: a source whose dtypes, layouts, choices, buckets and tile sizes are macros."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol, TypeAlias, get_args

from bringup._language.c_call import (
    Binding,
    Cluster,
    CParameter,
    Extent,
    LaunchSize,
    ValueKind,
    parse_call,
    parse_items,
    parse_size,
    plain_values,
    returning,
)
from bringup._language.expression import Expression
from bringup._language.reader import parse_expression
from bringup._language.signature import Argument, Layout
from bringup.jit.load.binary import Binary, RemovedError
from bringup.jit.load.prebuilt import check_symbol
from bringup.jit.lookup.compilation import compile as compile_source
from bringup.jit.lookup.spec import Spec
from bringup.jit.source.param_struct import check_args_text, check_text
from bringup.jit.source.source import Abi, Kind, Source
from bringup.jit.target.flags import Macro, render_flags, render_macros
from bringup.jit.target.target import called_as_declared
from bringup.jit.template.c_code import value_code
from bringup.jit.template.glue import Form, Glued, glue, glue_function

KernelKind = Literal["cube", "vector", "mix"]
Value: TypeAlias = str | int | bool

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PLAIN_LAYOUTS = (Layout.ROW, Layout.COLUMN, Layout.STRIDED)
NONE_WORD = "none"  # what a str choice that is None is called


class ParameterSet(Protocol):
    """What a binary is chosen by: `params.Params`, as a template sees it."""

    @property
    def bound(self) -> BoundTemplate:
        """Return the template, resolved against the kernel's arguments."""

    def spec(self, target: str = "cpu") -> Spec:
        """Return the kernel as a value."""


@dataclass(frozen=True)
class LayoutChoice:
    """A macro that says how a tensor lies in memory."""

    macro: str
    argument: int
    allowed: tuple[Layout, ...]


@dataclass(frozen=True)
class Choice:
    """A macro that holds the value of an argument, out of a few."""

    macro: str
    argument: int
    allowed: tuple[Value, ...]

    def number_of(self, value: Value | None, name: str) -> int:
        """Return the number of the allowed value. Raises `ValueError` listing them."""
        value = NONE_WORD if value is None else value
        if value in self.allowed:
            return self.allowed.index(value)
        shown = ", ".join(map(repr, self.allowed))
        raise ValueError(f"{name} must be one of {shown}, got {value!r}")


@dataclass(frozen=True, eq=False)
class Template:
    """A kernel source that is compiled for the dtypes, layouts and choices of a call. Shapes and
    other scalars stay run-time values.

    Args:
        path: the source file; see `jit.Source`.
        text: the source itself, instead of a file.
        name: what to call it in messages.
        entry: the function to start.
        abi: the form of the entry. `"function"`: any C function, called with `params`. `"tvm_ffi"`:
            what tvm-ffi exports as `__tvm_ffi_<entry>`, called with `params`, by default with all
            arguments. `"params"`: `run(block_num, stream, params)` of
            `bringup/params.h`. `"ascendc"`: `aclrtlaunch_<entry>(block_dim, stream, ...)` with a
            parameter for each item of `params`. `"values"`: device code that gets its position
            (`bringup/device.h`) and `params`. `"args"`: kernel.h's, which takes all arguments.
        kind: as for `jit.Source`.
        dtypes: macro -> name of a tensor, of an output, or of a ScalarType argument; the macro is
            the C type (`float`, `bringup::half`, ...), `void` for None.
        layouts: macro -> name of a tensor, or `(name, *allowed)` with `"row"`, `"column"`,
            `"strided"` and `"nz"`; by default the first three. The macro is
            `BRINGUP_LAYOUT_ROW` and so on. A tensor with another layout is copied to rows.
        choices: macro -> `(name, *allowed)` for a str or int argument, the name for a bool. The
            macro is the bare word, the number, or 0 and 1.
        buckets: macro -> a predicate over sizes, strides and int arguments; the macro is 0 or 1.
            The only way in which a shape chooses a binary.
        params: what the kernel gets at run time, as a list: `"ptr(out), ptr(x), size(x,0), eps"`.
            With `abi="params"` an item may name its member in the parameter struct, which then has
            to lie there: `"rows=size(x,0), columns=size(x,1)"`.
        returns: what a function of a library returns: `"status"`, an int that is 0 when all went
            well, or `"void"`. A source says so itself.
        kernel_kind: which cores it is written for: `"cube"`, `"vector"` or `"mix"`; the macro
            `BRINGUP_KERNEL_KIND` in the source.
        tiles: sets of macros to choose from by measuring; the first is the default.
        blocks: block_num and block_dim, a number or an item such as `"size(x,0)"`.
        grid: of `abi="values"`: the blocks, a number or an expression, or up to three of them.
        block: likewise the threads of a block.
        shared: likewise the bytes of shared memory of a block.
        work_items: likewise, instead of these three, independent threads, which the device divides
            into blocks.
        cluster: with these three: the blocks of a cluster, numbers alone.
        cooperative: with these three: whether all blocks run at the same time.
        macros: more macros, the same for every call.
        flags: more compiler options.

    Raises:
        TypeError, ValueError: an argument cannot be what it says.
    """

    path: Path | str | None = None
    _: KW_ONLY
    text: str | None = None
    name: str = ""
    entry: str = "run"
    abi: Abi = "params"
    kind: Kind = "host"
    dtypes: Mapping[str, str] = field(default_factory=dict)
    layouts: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    choices: Mapping[str, str | Sequence[Value]] = field(default_factory=dict)
    buckets: Mapping[str, str] = field(default_factory=dict)
    params: str = ""
    returns: Literal["status", "void"] | None = None
    kernel_kind: KernelKind | None = None
    tiles: Sequence[Mapping[str, Macro]] = ()
    blocks: int | str = 1
    grid: Extent = 1
    block: Extent = 1
    shared: int | str = 0
    work_items: Extent | None = None
    cluster: Cluster | None = None
    cooperative: bool = False
    macros: Mapping[str, Macro] = field(default_factory=dict)
    flags: Sequence[str] = ()
    source: Source = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.tiles, Iterator):
            object.__setattr__(self, "tiles", tuple(self.tiles))
        self._check_types()
        source = Source(
            self.path,
            text=self.text,
            name=self.name,
            entry=self.entry,
            abi=self.abi,
            kind=self.kind,
        )
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "path", source.path)
        object.__setattr__(self, "name", source.name)
        object.__setattr__(self, "tiles", tuple(MappingProxyType(dict(t)) for t in self.tiles))
        object.__setattr__(self, "flags", render_flags(self.flags))
        for size in ("grid", "block", "work_items", "cluster"):
            if isinstance(given := getattr(self, size), list):
                object.__setattr__(self, size, tuple(given))
        for mapping in ("dtypes", "layouts", "choices", "buckets", "macros"):
            object.__setattr__(self, mapping, MappingProxyType(dict(getattr(self, mapping))))
        self._check()

    def _check_types(self) -> None:
        where = self._label
        for name in ("dtypes", "layouts", "choices", "buckets", "macros"):
            if not isinstance(given := getattr(self, name), Mapping):
                raise TypeError(
                    f"{where}: {name}={given!r}: expected a mapping from macros, as in "
                    f'{name}={{"MACRO": ...}}'
                )
        if not isinstance(self.params, str):
            raise TypeError(
                f"{where}: params={self.params!r}: expected one text of items separated by "
                'commas, as in "ptr(out), ptr(x)"'
            )
        if isinstance(self.tiles, (str, Mapping)) or not all(
            isinstance(tile, Mapping) for tile in self.tiles
        ):
            raise TypeError(
                f"{where}: tiles={self.tiles!r}: expected a list of sets of macros, as in "
                '[{"TILE": 16}, {"TILE": 32}]'
            )

    def _check(self) -> None:
        if self.kernel_kind not in (None, *get_args(KernelKind)):
            raise self.error(
                f"kernel_kind={self.kernel_kind!r}", f"expected one of {get_args(KernelKind)}"
            )
        if self.abi == "args" and self.params:
            raise self.error("params=", 'belongs to the other forms; "args" gets all')
        if self.abi not in {"params", "ascendc"} and self.blocks != 1:
            raise self.error("blocks=", 'belongs to abi="params" and "ascendc"')
        size = (self.grid, self.block, self.shared, self.work_items, self.cluster)
        if self.abi != "values" and (size != (1, 1, 0, None, None) or self.cooperative):
            options = "grid=, block=, shared=, work_items=, cluster= and cooperative="
            raise self.error(options, 'belong to abi="values"')
        if self.returns is not None:
            self._check_returns()
        if self.source.is_library and (self._variable or self.macros or self.tiles or self.flags):
            raise self.error("a library", "is built already: macros and flags cannot change it")
        if self.abi not in {"args", "tvm_ffi"} and not self.params:
            raise self.error(
                f"abi={self.abi!r}",
                f'needs {self._given_as}=, what the kernel gets: "ptr(out), ptr(x)"',
            )
        seen: set[str] = {"BRINGUP_KERNEL_KIND"}
        for macro in (*self._variable, *self.macros, *self._tile_names):
            if not isinstance(macro, str) or not _IDENTIFIER.match(macro):
                raise self.error(f"macro {macro!r}", "expected the name of a C macro")
            if macro in seen:
                raise self.error(f"macro {macro!r}", "declared twice, or taken")
            seen.add(macro)
        render_macros({**self.macros, **{k: v for t in self.tiles for k, v in t.items()}})

    def _check_returns(self) -> None:
        if self.returns not in ("status", "void"):
            raise self.error(f"returns={self.returns!r}", "expected 'status' or 'void'")
        if self.abi != "function" or not self.source.is_library:
            raise self.error(
                f"returns={self.returns!r}",
                "is for functions of a library; a source says itself what its function returns",
            )

    @property
    def _variable(self) -> tuple[str, ...]:
        return (*self.dtypes, *self.layouts, *self.choices, *self.buckets)

    @property
    def _tile_names(self) -> tuple[str, ...]:
        names = {tuple(sorted(tile)) for tile in self.tiles}
        if len(names) > 1:
            raise self.error("tiles=", f"every set needs the same macros, got {sorted(names)}")
        return next(iter(names), ())

    def error(self, where: str, what: str) -> ValueError:
        """Return a `ValueError` about this template: `where` in it, and `what` is wrong there."""
        return ValueError(f"{self._label}: {where}: {what}")

    # How messages call it and its items, which `kernel_op` has other words for.
    _given_as = "params"

    @property
    def _label(self) -> str:
        return f"jit.Template {str(self.name or self.path)!r}"

    def bind(self, signature: Sequence[Argument]) -> BoundTemplate:
        """Return the template for a kernel with these arguments, outputs last.

        Raises `ValueError` naming what the template declares and the signature has not.
        """
        return BoundTemplate(self, tuple(signature))

    def compile(self, params: ParameterSet, *, target: str = "cpu") -> Binary:
        """Return the binary of a parameter set for `target`, as `jit.compile` makes or finds it.

        Raises what that raises, `FileNotFoundError` for a source that is not there among it;
        `ValueError` for a parameter struct that is not what `params=` says, and for an optional
        function that nothing would call.
        """
        content = self.source.content()  # a missing file by its name, not as a header that is gone
        text = "" if self.source.is_library else content.decode(errors="replace")
        wrong = ""
        if self.abi == "params":
            wrong = check_text(text, self.entry, params.bound.items)
        elif self.abi == "args":
            wrong = check_args_text(text, self.entry)
        if wrong:
            raise self.error(f"{self.entry}()", wrong)
        spec = params.spec(target)
        binary = compile_source(spec.source, **spec.arguments)
        return replace(binary, binding=params.bound.binding)

    def load(self, params: ParameterSet, *, target: str = "cpu") -> int:
        """Return the number in the native kernel table of the kernel for a parameter set.

        Args:
            params: the parameter set.
            target: what it is built for.

        It is built again when the cache is cleared between compile and load. Raises what `compile`
        and `Binary.kernel_id` raise.
        """
        try:
            return self.compile(params, target=target).kernel_id
        except RemovedError:  # by now it is marked as in use, and is not pruned again
            return self.compile(params, target=target).kernel_id

    def __str__(self) -> str:
        return str(self.source)


class BoundTemplate:
    """A template whose names are resolved against a signature.

    Attributes:
        template: the template.
        signature: the arguments, outputs last.
        dtypes: macro and index of the argument whose dtype it is.
        layouts, choices, buckets: the other macros that a call decides.
        items: what the kernel gets at run time; empty for `abi="args"`.
        parameters: the same where the entry is a function.
        launch_size: of `abi="values"`: over how many blocks of how many threads it runs.
    """

    def __init__(self, template: Template, signature: tuple[Argument, ...]) -> None:
        self.template = template
        self.signature = signature
        self.dtypes = tuple(
            (macro, self._index(f"dtypes[{macro!r}]", name, ("Tensor", "ScalarType")))
            for macro, name in template.dtypes.items()
        )
        self.layouts = tuple(self._layout(*item) for item in template.layouts.items())
        self.choices = tuple(self._choice(*item) for item in template.choices.items())
        where = template._label
        self.buckets: tuple[tuple[str, Expression], ...] = tuple(
            (
                macro,
                parse_expression(
                    text,
                    signature,
                    f"{where}: buckets[{macro!r}]",
                    none_is_zero=True,
                    condition=True,
                ),
            )
            for macro, text in template.buckets.items()
        )
        if template.source.is_library:
            check_symbol(template.source)
        self.parameters = self._parameters(f"{where}: {template._given_as}")
        self.items = self.parameters or parse_items(
            template.params,
            signature,
            f"{where}: {template._given_as}",
            named=template.abi == "params",
        )
        self._blocks = self._block_count(where)
        self.launch_size = self._launch_size(where)

    @cached_property
    def glued(self) -> Glued:
        """Return what is compiled: the source, with a generated entry where it needs one."""
        template = self.template
        if template.abi in {"args", "values"} or self.binding is not None:
            return Glued(template.source, ())
        if template.abi == "function":
            return glue_function(template.source, self.parameters)
        form: Form = "params" if template.abi == "params" else "ascendc"
        return glue(template.source, form, self.items, self._blocks)

    @cached_property
    def binding(self) -> Binding | None:
        """Return how the entry is called where nothing is compiled around it."""
        template = self.template
        if template.abi == "tvm_ffi":
            last = len(self.signature) - 1
            steps = [step for parameter in self.parameters for step in parameter.program]
            returned = self.signature[last].written and all(s.argument != last for s in steps)
            return Binding("tvm_tensor" if returned else "tvm_ffi", self.parameters)
        if template.abi == "values":
            return Binding("values", self.parameters, self.launch_size)
        if template.abi == "function" and template.source.is_library:
            return Binding(template.returns or "status", self.parameters)
        return None

    def _launch_size(self, where: str) -> LaunchSize | None:
        template = self.template
        if template.abi != "values":
            return None
        size = (template.grid, template.block, template.shared)
        more = (template.work_items, template.cluster, template.cooperative)
        return parse_size(*size, self.signature, where, *more)

    def _parameters(self, where: str) -> tuple[CParameter, ...]:
        """Return a function's parameters. Raises `ValueError` if it takes others or is missing."""
        template, source = self.template, self.template.source
        if template.abi not in {"function", "tvm_ffi", "values"}:
            return ()
        tvm_ffi = template.abi == "tvm_ffi"
        text = template.params
        if not text and tvm_ffi:
            text = ", ".join(argument.name for argument in self.signature)
        parameters = parse_call(text, self.signature, where, tvm_ffi=tvm_ffi)
        if template.abi == "values":
            plain_values(parameters, where)
        else:
            returning(parameters, where)
        if tvm_ffi or source.is_library:
            return parameters
        return called_as_declared(source, parameters, where, self.signature)

    def _index(self, where: str, name: object, types: Sequence[str]) -> int:
        for index, argument in enumerate(self.signature):
            if argument.name != name:
                continue
            if argument.type not in types:
                raise self.template.error(
                    where, f"{name} is {argument.type}, expected {' or '.join(types)}"
                )
            return index
        known = ", ".join(argument.name for argument in self.signature)
        raise self.template.error(where, f"there is no argument {name!r} (there are {known})")

    def _layout(self, macro: str, declared: str | Sequence[str]) -> LayoutChoice:
        where = f"layouts[{macro!r}]"
        name, *words = [declared] if isinstance(declared, str) else declared
        index = self._index(where, name, ("Tensor",))
        if not words:
            return LayoutChoice(macro, index, _PLAIN_LAYOUTS)
        known = {layout.name.lower(): layout for layout in Layout}
        unknown = [word for word in words if word not in known]
        if unknown:
            raise self.template.error(where, f"{unknown[0]!r} is none of {', '.join(known)}")
        if "row" not in words:
            raise self.template.error(
                where, "'row' has to be allowed: it is what other tensors are copied to"
            )
        return LayoutChoice(macro, index, tuple(known[word] for word in words))

    def _choice(self, macro: str, declared: str | Sequence[Value]) -> Choice:
        where = f"choices[{macro!r}]"
        name, *allowed = [declared] if isinstance(declared, str) else declared
        index = self._index(where, name, ("str", "int", "bool"))
        argument = self.signature[index]
        if argument.type == "bool" and not allowed and not argument.optional:
            return Choice(macro, index, (False, True))
        expected = {"str": str, "int": int, "bool": bool}[argument.type]
        if argument.optional and argument.type == "str":
            allowed = list(dict.fromkeys([*allowed, NONE_WORD]))
        elif argument.optional:
            raise self.template.error(where, f"{name} may be None, which only a str choice can be")
        if not allowed or not all(type(value) is expected for value in allowed):
            raise self.template.error(
                where, f"expected (name, *allowed values of type {argument.type}), got {declared!r}"
            )
        if argument.type == "str":
            for word in allowed:
                if not _IDENTIFIER.match(str(word)):
                    raise self.template.error(where, f"{word!r} is no identifier of C")
        return Choice(macro, index, tuple(dict.fromkeys(allowed)))

    def _block_count(self, where: str) -> str:
        blocks = self.template.blocks
        if isinstance(blocks, bool) or not isinstance(blocks, (int, str)):
            raise self.template.error(f"blocks={blocks!r}", "expected a number or an item")
        if isinstance(blocks, int):
            if not 1 <= blocks < 2**32:
                raise self.template.error(f"blocks={blocks}", "expected 1 to 2**32 - 1")
            return str(blocks)
        items = parse_items(blocks, self.signature, f"{where}: blocks")
        if len(items) != 1 or items[0].kind is not ValueKind.INT:
            raise self.template.error(f"blocks={blocks!r}", "expected one item that is an integer")
        return value_code(items[0].value)
