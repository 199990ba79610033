"""`outputs=`, resolved against a schema: for the native library, and for fake and meta tensors."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from bringup._native import torch_library
from bringup.errors import ContractError, SchemaError
from bringup.ops.contract.constraints import (
    Size,
    dimensions_text,
    evaluate,
    first_tensor,
    is_dtype,
    statically_true,
    tensor_index,
    tensors_in,
)
from bringup.ops.contract.expressions import Dimension, parse_dimension, shape_text
from bringup.ops.schema.schema import Schema, SchemaArgument

_FORMATS = (
    torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d,
)  # fmt: skip
_RANKS = {torch.channels_last: 4, torch.channels_last_3d: 5}
_FLAG = re.compile(r"(\w+)(?:\[(\d+)\])?")


@dataclass(frozen=True)
class Promotion:
    """The dtype to which several arguments are promoted. Made by `promote`."""

    names: tuple[str, ...]


def promote(*names: str) -> Promotion:
    """Return the dtype that torch promotes the named arguments to, for `dtype=` of an output rule.

    They are tensors, lists of tensors, or int, float and bool arguments; those that are None are
    left out. As in `torch.result_type`, tensors without dimensions and numbers count only where
    they are of a higher kind (integer, floating-point) than the rest.

    Args:
        names: arguments of the schema, one or more.

    Raises:
        SchemaError: no name is given, or something else than a name.
    """
    if not names or not all(isinstance(name, str) for name in names):
        raise SchemaError(f"ops.promote(*{names!r}): expected the names of one argument or more")
    return Promotion(names)


@dataclass(frozen=True)
class Counted:
    """A size that the kernel finds out. Made by `at_most`."""

    bound: Size
    name: str


def at_most(bound: Size, *, name: str = "count") -> Counted:
    """Return the first size of an output, where only the data say how many rows there are.

    The output is allocated with `bound` rows and cut to what the kernel has counted. Behind its
    outputs the kernel gets one more, `counts`: an int64 tensor with an element for each `name`, in
    the order in which they appear in `outputs=`. It writes there how many rows it has filled.

    Args:
        bound: how many rows there can be, written like other sizes.
        name: outputs with the same name have one count.
    """
    return Counted(bound, name)


@dataclass(frozen=True)
class OutputRule:
    """How an operator's output is allocated, on the device of the inputs.

    Made by `empty_like` and `empty`. Serves the allocation before the kernel runs, fake tensors and
    meta tensors.

    Attributes:
        like: the argument whose sizes and dtype it has; None where `sizes` says them.
        sizes: numbers and expressions over the arguments; the first may be counted by the kernel.
        dtype: a dtype, the name of the argument that gives it, or what `promote` returns; None for
            that of `like`, or of the first tensor.
        memory_format: the order of its dimensions in memory.
        when: the bool argument that says whether it is wanted; None: it always is.
    """

    like: str | None
    sizes: tuple[Size | Counted, ...]
    dtype: str | torch.dtype | Promotion | None
    memory_format: torch.memory_format = torch.contiguous_format
    when: str | None = None

    def bind(self, schema: Schema, number: int, counts: dict[Counted, int]) -> BoundOutput:
        """Return the rule with the argument names of `schema` resolved, for output `number`.

        `counts` numbers what the kernel counts, for all outputs of an operator; this adds to it.
        Raises `SchemaError`.
        """
        return _Binder(schema, f"{schema.qualified_name}: output {number}: {self!r}").bind(
            self, schema.return_types[number] == "Tensor[]", counts
        )


def empty_like(
    name: str,
    *,
    dtype: str | torch.dtype | Promotion | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    when: str | None = None,
) -> OutputRule:
    """Return an output with the sizes and the dtype of the tensor argument `name`.

    For a return of type `Tensor[]`, `name` is a `Tensor[]` argument: one contiguous output for each
    of its tensors.

    Args:
        name: the argument.
        dtype: another dtype: a `torch.dtype`, the name of the argument that gives it, or
            `promote(...)`.
        memory_format: `torch.preserve_format` for the strides that `torch.empty_like` gives, which
            takes an argument that the kernel sees with its strides; `torch.channels_last` or
            `torch.channels_last_3d`. Otherwise the output is contiguous, whatever the argument is.
        when: the name of a bool argument, or an element of a `bool[]` one, `"mask[0]"`: where it is
            False the output has shape [0], and the kernel leaves it alone.
    """
    return OutputRule(name, (), dtype, memory_format, when)


def empty(
    *sizes: Size | Counted,
    dtype: str | torch.dtype | Promotion | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    when: str | None = None,
) -> OutputRule:
    """Return an output of the given sizes.

    Args:
        sizes: integers, or expressions over the arguments: `"x.shape[0]"`, `"x.numel() // 2"`, `"n
            + 1"`, `"x.dim()"`, `"len(lengths)"`. `"*x.shape[:-1]"` puts several sizes, `"*sizes"`
            those of an `int[]` argument. The first may be `at_most(...)`: the kernel counts it.
        dtype: a `torch.dtype`, `promote(...)`, or the name of the argument that gives it: a Tensor,
            or a ScalarType (where that is None, the first Tensor that cannot be None gives it); by
            default that tensor.
        memory_format: `torch.channels_last` or `torch.channels_last_3d`; contiguous by default.
        when: as for `empty_like`.
    """
    return OutputRule(None, sizes, dtype, memory_format, when)


def number_output(dtype: torch.dtype) -> BoundOutput:
    """Return the output of a number that an operator returns."""
    return BoundOutput(like=-1, dimensions=(), dtype_of=-1, dtype=dtype, number=True)


class _Binder:
    """Resolves the names of one output rule; every refusal goes through `error`."""

    def __init__(self, schema: Schema, where: str) -> None:
        self._schema = schema
        self._where = where

    def error(self, reason: str) -> SchemaError:
        return SchemaError(f"{self._where}: {reason}")

    def bind(self, rule: OutputRule, is_list: bool, counts: dict[Counted, int]) -> BoundOutput:
        if is_list:
            return self._bind_list(rule)
        like = -1 if rule.like is None else tensor_index(self._schema, rule.like, self._where)
        sizes, count = self._sizes(rule, counts)
        dtype_of, promoted, dtype = self._dtype(rule)
        when, element = self._when(rule.when)
        return BoundOutput(
            like=like,
            dimensions=tuple(
                parse_dimension(s, self._schema.arguments, self._where) for s in sizes
            ),
            dtype_of=dtype_of,
            dtype=dtype,
            promoted=promoted,
            memory_format=self._format(rule),
            count=count,
            when=when,
            when_element=element,
        )

    def _bind_list(self, rule: OutputRule) -> BoundOutput:
        index = -1 if rule.like is None else self._schema.index.get(rule.like, -1)
        if index < 0 or self._schema.arguments[index].type != "Tensor[]":
            raise self.error("a return of type Tensor[] is ops.empty_like of a Tensor[] argument")
        if rule != OutputRule(rule.like, (), None):
            raise self.error(
                "the tensors of a list are like those of its argument, without options"
            )
        return BoundOutput(like=index, dimensions=(), dtype_of=-1, dtype=torch.float32, list=True)

    def _sizes(self, rule: OutputRule, counts: dict[Counted, int]) -> tuple[tuple[Size, ...], int]:
        plain = tuple(size for size in rule.sizes if not isinstance(size, Counted))
        if len(plain) == len(rule.sizes):
            return plain, -1
        counted = rule.sizes[0]
        if not isinstance(counted, Counted) or len(plain) + 1 < len(rule.sizes):
            raise self.error("only the first size can be ops.at_most(...)")
        if any(known.name == counted.name and known != counted for known in counts):
            raise self.error(f"the count {counted.name!r} has another bound in an output before")
        if rule.memory_format is not torch.contiguous_format or rule.when is not None:
            raise self.error("an output that is cut to a count has no memory_format= or when=")
        count = counts.setdefault(counted, len(counts))
        return (counted.bound, *plain), count

    def _dtype(self, rule: OutputRule) -> tuple[int, tuple[int, ...], torch.dtype]:
        """`dtype_of`, `promoted` and `dtype` of the bound rule."""
        source = rule.dtype if rule.dtype is not None else rule.like
        if isinstance(source, torch.dtype):
            return -1, (), source
        if isinstance(source, Promotion):
            return -1, tuple(self._promotable(name) for name in source.names), torch.float32
        if source is None:
            source = self._schema.arguments[first_tensor(self._schema.arguments)].name
        if not isinstance(source, str):
            raise self.error(
                f"dtype={source!r}: expected a torch.dtype, an argument's name or ops.promote(...)"
            )
        index = self._schema.index.get(source)
        if index is None or not is_dtype(self._schema, index):
            index = tensor_index(self._schema, source, self._where)
        return index, (), torch.float32

    def _promotable(self, name: str) -> int:
        index = self._schema.index.get(name)
        kinds = {"Tensor", "Tensor[]", "Tensor?[]", "int", "float", "bool", "Scalar", "complex"}
        if index is None or self._schema.arguments[index].type not in kinds:
            raise self.error(f"{name!r} is no tensor, list of tensors, int, float or bool argument")
        return index

    def _format(self, rule: OutputRule) -> torch.memory_format:
        if rule.memory_format not in _FORMATS:
            raise self.error(
                f"memory_format={rule.memory_format!r}: expected one of "
                f"{', '.join(map(str, _FORMATS))}"
            )
        if rule.memory_format is torch.preserve_format and rule.like is None:
            raise self.error("torch.preserve_format keeps the strides of an argument: name it")
        return rule.memory_format

    def _when(self, text: str | None) -> tuple[int, int]:
        """Return the argument and, of a list, the element."""
        if text is None:
            return -1, -1
        match = _FLAG.fullmatch(text)
        index = self._schema.index.get(match[1], -1) if match else -1
        wanted = "bool[]" if match and match[2] else "bool"
        if match is None or index < 0 or self._schema.arguments[index].type != wanted:
            raise self.error(
                f"when={text!r}: expected a bool argument, or an element of a bool[] one such as "
                "'mask[0]'"
            )
        return index, int(match[2] or -1)


@dataclass(frozen=True, kw_only=True)
class BoundOutput:
    """An output rule over argument indices, -1 for unused. `dtype_of` is a Tensor or a ScalarType;
    `list`: `like` is a Tensor[]; `number`: the operator returns what it holds; `count` numbers the
    kernel's counts.
    """

    like: int
    dimensions: tuple[Dimension, ...]
    dtype_of: int
    dtype: torch.dtype
    promoted: tuple[int, ...] = ()
    list: bool = False
    number: bool = False
    memory_format: torch.memory_format = torch.contiguous_format
    count: int = -1
    when: int = -1
    when_element: int = -1

    @property
    def differentiable(self) -> bool:
        if self.number:
            return False
        floating = self.dtype.is_floating_point or self.dtype.is_complex
        return self.dtype_of >= 0 or bool(self.promoted) or floating

    def native(self) -> Any:
        return torch_library().ops.OutputRule(
            like=self.like,
            list=self.list,
            number=self.number,
            shape=[dimension.native() for dimension in self.dimensions],
            dtype_of=self.dtype_of,
            promoted=[*self.promoted],
            dtype=self.dtype,
            format=self.memory_format,
            count=self.count,
            when=self.when,
            when_element=self.when_element,
        )

    def fake(
        self,
        number: int,
        values: Sequence[Any],
        arguments: Sequence[SchemaArgument],
        device: Any,
        count: Callable[[int, Any], Any] | None = None,
    ) -> Any:
        """Return an empty tensor, or a list of them, for fake and meta inputs; a size that the
        kernel counts is `count(number, bound)`, or else its bound.
        """
        if self.list:
            return [torch.empty(t.shape, dtype=t.dtype, device=device) for t in values[self.like]]
        dtype = self._dtype(values, arguments)
        if not self._is_wanted(values, arguments):
            return torch.empty(0, dtype=dtype, device=device)
        if self.memory_format is torch.preserve_format:
            return torch.empty_like(values[self.like], dtype=dtype, device=device)
        sizes = self._sizes(number, values, arguments)
        if self.count >= 0 and count is not None:
            sizes[0] = count(self.count, sizes[0])
        rank = _RANKS.get(self.memory_format, len(sizes))
        if rank != len(sizes):
            raise ContractError(
                f"output {number} must have {rank} dimensions for its memory format, got "
                f"{shape_text(sizes)}"
            )
        return torch.empty(sizes, dtype=dtype, device=device, memory_format=self.memory_format)

    def _sizes(
        self, number: int, values: Sequence[Any], arguments: Sequence[SchemaArgument]
    ) -> Any:
        if self.like >= 0:
            return [*values[self.like].shape]
        sizes = evaluate(self.dimensions, values, arguments)
        if any(statically_true(size < 0) for size in sizes):
            raise ContractError(
                f"output {number} would have the negative shape {shape_text(sizes)} "
                f"{dimensions_text(self.dimensions)}"
            )
        return sizes

    def _is_wanted(self, values: Sequence[Any], arguments: Sequence[SchemaArgument]) -> bool:
        flag = values[self.when] if self.when >= 0 else None
        if flag is None:
            return True
        if self.when_element < 0:
            return bool(flag)
        if self.when_element >= len(flag):
            raise ContractError(
                f"{arguments[self.when].name} must have at least {self.when_element + 1} elements, "
                f"got {len(flag)}"
            )
        return bool(flag[self.when_element])

    def _dtype(self, values: Sequence[Any], arguments: Sequence[SchemaArgument]) -> Any:
        if self.promoted:
            return _promoted([values[i] for i in self.promoted])
        if self.dtype_of < 0:
            return self.dtype
        given = values[self.dtype_of]
        if isinstance(given, torch.dtype):
            return given
        return (values[first_tensor(arguments)] if given is None else given).dtype


def strided_arguments(
    schema: Schema,
    layout: Literal["contiguous", "strided"],
    strided: Iterable[str],
    outputs: Sequence[BoundOutput],
) -> tuple[int, ...]:
    """Return the arguments that the kernel takes as they lie in memory."""
    name = schema.qualified_name
    known = {schema.arguments[i].name: i for i in schema.tensors}
    strided = strided if isinstance(strided, str) else tuple(strided)
    if isinstance(strided, str) or not set(strided) <= set(known):
        raise SchemaError(
            f"{name}: strided={strided!r}: expected names of tensor arguments ({', '.join(known)})"
        )
    chosen = tuple(known.values() if layout == "strided" else (known[n] for n in strided))
    for number, output in enumerate(outputs):
        if output.memory_format is not torch.preserve_format:
            continue
        argument = schema.arguments[output.like].name
        if output.like not in chosen:
            raise SchemaError(
                f"{name}: output {number} keeps the strides of {argument!r}, which the kernel gets "
                f"contiguous; pass strided=({argument!r},)"
            )
    return chosen


def packed(results: Sequence[Any]) -> Any:
    """Return several results as an operator gives them: none, one, or a tuple."""
    if not results:
        return None
    return results[0] if len(results) == 1 else tuple(results)


class FakeCounts:
    """The sizes that a kernel would find out, for one call with fake tensors."""

    def __init__(self) -> None:
        self._sizes: dict[int, Any] = {}

    def __call__(self, number: int, bound: Any) -> Any:
        """Return the size that count `number` stands for, at most `bound`."""
        if number not in self._sizes:
            try:
                size = torch.library.get_ctx().new_dynamic_size(min=0)
            except RuntimeError as error:
                if "get_ctx" not in str(error):
                    raise
                raise ContractError(
                    "the size of an output depends on data, which meta tensors do not have"
                ) from error
            torch._check(size <= bound)
            self._sizes[number] = size
        return self._sizes[number]


def _promoted(values: Sequence[Any]) -> torch.dtype:
    """Return `at::native::result_type`: by kind, tensors with dimensions first."""
    given = [item for value in values for item in tensors_in(value)]
    kinds: list[list[torch.dtype]] = [[], [], []]
    for item in given:
        if isinstance(item, torch.Tensor):
            kinds[0 if item.dim() > 0 else 1].append(item.dtype)
        else:
            kinds[2].append(_number_dtype(item))
    result: torch.dtype | None = None
    for kind in reversed(kinds):
        if kind:
            own = functools.reduce(torch.promote_types, kind)
            result = own if result is None else _combined(own, result)
    if result is None:
        raise ContractError("no argument is there whose dtype could be promoted")
    return result


def _combined(higher: torch.dtype, lower: torch.dtype) -> torch.dtype:
    """Return the dtype of `higher`, unless `lower` is of a higher kind."""
    with_size, without = torch.empty(1, dtype=higher, device="meta"), torch.empty((), dtype=lower)
    return torch.result_type(with_size, without)


def _number_dtype(number: Any) -> torch.dtype:
    if isinstance(number, (bool, torch.SymBool)):
        return torch.bool
    if isinstance(number, (int, torch.SymInt)):
        return torch.int64
    default = torch.get_default_dtype()
    return default.to_complex() if isinstance(number, complex) else default
