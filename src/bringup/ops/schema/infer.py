"""From a Python signature to a schema, and from its values to the schema's and back."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import itertools
import json
import math
import numbers
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from bringup.errors import SchemaError
from bringup.ops.schema.schema import with_plain_ints, with_symbolic_ints

_SCALARS: dict[Any, str] = {
    torch.Tensor: "Tensor", torch.nn.Parameter: "Tensor", int: "int", torch.SymInt: "int",
    float: "float", bool: "bool", str: "str", complex: "complex", numbers.Number: "Scalar",
    torch.types.Number: "Scalar", torch.dtype: "ScalarType", torch.device: "Device",
    torch.layout: "Layout", torch.memory_format: "MemoryFormat", torch.Generator: "Generator",
}  # fmt: skip
_IN_LISTS = frozenset(("Tensor", "int", "float", "bool", "str", "Scalar"))
_SEQUENCES = (list, collections.abc.Sequence, collections.abc.Iterable)
_SUPPORTED = (
    "Tensor, int, float, bool, str, complex, Number, torch.dtype, torch.device, torch.layout, "
    "torch.memory_format, torch.Generator, their Optional forms, lists and tuples of them, named "
    "tuples, dataclasses and dictionaries with str keys"
)
_VIEW = re.compile(r"\bTensor\([^)!]*\)")
_SHORT_MUTABLE = re.compile(r"\"[^\"]*\"|'[^']*'|\bTensor!")


@dataclass(frozen=True)
class Leaf:
    """One argument of the schema: its type, and whether the Python function wants a tuple."""

    type: str
    is_tuple: bool = False

    @property
    def size(self) -> int:
        """Return how many schema arguments this is."""
        return 1

    def flatten(self, value: Any) -> list[Any]:
        """Return the schema's values of a Python value."""
        return [list(value) if self.is_tuple and value is not None else value]

    def build(self, values: Sequence[Any]) -> Any:
        """Return the Python value of the schema's values."""
        (value,) = values
        return tuple(value) if self.is_tuple and value is not None else value

    def named(self, name: str) -> list[tuple[str, Leaf]]:
        """Return the schema's arguments by their names, for a parameter of this name."""
        return [(name, self)]


@dataclass(frozen=True)
class Group:
    """A structured argument: its members in schema order, how to take it apart and rebuild it."""

    members: tuple[tuple[str, Leaf | Group], ...]
    take: Callable[[Any], Sequence[Any]]
    rebuild: Callable[..., Any]
    is_dict: bool = False

    @property
    def size(self) -> int:
        return sum(member.size for _, member in self.members)

    def flatten(self, value: Any) -> list[Any]:
        parts = zip(self.members, self.take(value), strict=True)
        return [leaf for (_, member), part in parts for leaf in member.flatten(part)]

    def build(self, values: Sequence[Any]) -> Any:
        stream = iter(values)
        return self.rebuild(
            *(member.build([*itertools.islice(stream, member.size)]) for _, member in self.members)
        )

    def named(self, name: str) -> list[tuple[str, Leaf]]:
        return [leaf for part, node in self.members for leaf in node.named(f"{name}_{part}")]


@dataclass(frozen=True)
class FunctionParameter:
    """One parameter of the Python function."""

    name: str  # as in the function
    node: Leaf | Group  # how it is laid out in the schema
    default: Any  # the function's default; `inspect.Parameter.empty` where there is none
    keyword_only: bool  # whether it stands behind `*`
    # Whether the schema cannot write the default, so that None stands for it there.
    filled: bool = False


@dataclass(frozen=True)
class Signature:
    """What `infer` found: the schema's text as people write it, and the parameters."""

    text: str
    parameters: tuple[FunctionParameter, ...]

    @property
    def plain(self) -> bool:
        """Return whether the schema's values are the function's values, one by one."""
        return not any(
            isinstance(p.node, Group) or p.node.is_tuple or p.filled for p in self.parameters
        )


def infer_schema(
    function: Callable[..., Any],
    *,
    mutates_args: Iterable[str] | Literal["unknown"] = (),
    op_name: str | None = None,
    tags: torch.Tag | Iterable[torch.Tag] | None = (),
) -> str:
    """Return the schema of a Python function: `(Tensor x, float scale=1.0) -> Tensor`.

    Annotations may be strings and may use `X | None`. A parameter or return without an annotation
    is a Tensor. Structured parameters become one argument for each of their members, named
    `parameter_member`.

    Args:
        function: the function.
        mutates_args: names of the tensor parameters that it writes (shown as `Tensor!`), or
            "unknown" for all of them.
        op_name: a name that the text then begins with.
        tags: with `torch.Tag.inplace` the operator returns its first argument, the only one that
            it writes; with `torch.Tag.out` all that it writes, which are keyword-only tensors.

    Raises:
        SchemaError: a parameter or the return has a type that no schema can carry, a default
            cannot be written, `mutates_args` names no tensor parameter, or the function is none
            that `tags` say it is.
    """
    return (op_name or "") + infer(function, taken(mutates_args) or (), tags_of(tags)).text


def tags_of(tags: torch.Tag | Iterable[torch.Tag] | None) -> tuple[torch.Tag, ...]:
    return (tags,) if isinstance(tags, torch.Tag) else tuple(dict.fromkeys(tags or ()))


def taken(names: Iterable[str] | None) -> Collection[str] | str | None:
    """Return names of any iterable but text, for several reads."""
    return names if names is None or isinstance(names, str) else tuple(names)


def infer(
    function: Callable[..., Any],
    mutates_args: Collection[str] | str = (),
    tags: Collection[torch.Tag] = (),
) -> Signature:
    """See `infer_schema`; also gives the parameters."""
    return _SchemaInference(function, mutates_args, tags).signature()


def registered_text(text: str) -> str:
    """Return torch's text: `SymInt` for `int` but of views, `Tensor(m0!)` for `Tensor!`."""
    numbers_of_sets = itertools.count()
    named = _SHORT_MUTABLE.sub(
        lambda m: f"Tensor(m{next(numbers_of_sets)}!)" if m[0] == "Tensor!" else m[0], text
    )
    if _VIEW.search(named.rpartition("->")[2]):
        return with_plain_ints(named)
    head, arrow, tail = with_symbolic_ints(named).rpartition("->")
    return head + arrow + re.sub(r"\bint\b", "SymInt", tail)


class _SchemaInference:
    """One run over one function; every refusal goes through `error`."""

    def __init__(
        self,
        function: Callable[..., Any],
        mutates_args: Collection[str] | str,
        tags: Collection[torch.Tag],
    ) -> None:
        self._function = function
        self._name = getattr(function, "__qualname__", repr(function))
        if isinstance(mutates_args, str) and mutates_args != "unknown":
            raise self.error(
                f"mutates_args={mutates_args!r}: expected names in a list or tuple, or 'unknown'"
            )
        self._mutates = mutates_args
        kinds = [tag for tag in (torch.Tag.inplace, torch.Tag.out) if tag in tags]
        if len(kinds) > 1:
            raise self.error("torch.Tag.inplace and torch.Tag.out are mutually exclusive")
        self._returned_tag = kinds[0] if kinds else None  # what it writes is what it returns
        self._hints = self._annotations()

    def error(self, reason: str) -> SchemaError:
        return SchemaError(f"{self._name}: {reason}")

    def signature(self) -> Signature:
        parameters: list[FunctionParameter] = []
        texts: list[str] = []
        for parameter in inspect.signature(self._function).parameters.values():
            if parameter.kind in (
                parameter.VAR_POSITIONAL,
                parameter.VAR_KEYWORD,
                parameter.POSITIONAL_ONLY,
            ):
                raise self.error(
                    f"parameter '{parameter}' is {parameter.kind.description}; an operator takes "
                    "named parameters"
                )
            if parameter.kind is parameter.KEYWORD_ONLY and "*" not in texts:
                texts.append("*")
            inferred, text = self._parameter(parameter)
            parameters.append(inferred)
            texts += text
        self._check_mutates(parameters)
        returned = self._return(self._hints.get("return", torch.Tensor))
        if self._returned_tag is not None:
            returned = self._written(parameters, returned)
        return Signature(f"({', '.join(texts)}) -> {returned}", tuple(parameters))

    def _annotations(self) -> dict[str, Any]:
        raw = dict(getattr(self._function, "__annotations__", {}))
        names = (
            dict(inspect.getclosurevars(self._function).nonlocals)
            if any(isinstance(a, str) for a in raw.values())
            else {}
        )
        scope = getattr(self._function, "__globals__", {})
        for name, annotation in raw.items():
            if not isinstance(annotation, str):
                continue
            try:
                raw[name] = typing.get_type_hints(
                    types.SimpleNamespace(__annotations__={name: annotation}), scope, names
                )[name]
            except Exception as error:
                raise self.error(
                    f"the annotation {annotation!r} of '{name}' cannot be evaluated: {error}; its "
                    "names must be known in the function's module"
                ) from error
        return raw

    def _parameter(self, parameter: inspect.Parameter) -> tuple[FunctionParameter, list[str]]:
        name = parameter.name
        node = self._node(name, self._hints.get(name, torch.Tensor))
        mutated = self._is_mutated(name, node)
        inferred = FunctionParameter(
            name, node, parameter.default, parameter.kind is parameter.KEYWORD_ONLY
        )
        if isinstance(node, Group):
            if parameter.default is not parameter.empty:
                raise self.error(
                    f"parameter '{name}' is taken apart into several arguments and cannot have a "
                    "default"
                )
            return inferred, [f"{leaf.type} {part}" for part, leaf in node.named(name)]
        type_text = node.type
        if mutated:
            type_text = type_text.replace("Tensor", self._written_type(name))
        if parameter.default is parameter.empty:
            return inferred, [f"{type_text} {name}"]
        default = _default_text(parameter.default)
        if default is not None and _is_writable(node.type, default):
            return inferred, [f"{type_text} {name}={default}"]
        if type_text.endswith("?") or "Tensor" in type_text:
            raise self.error(
                f"parameter '{name}' has the default {parameter.default!r}, which no schema can "
                "write; use None and replace it in the function"
            )
        return dataclasses.replace(inferred, filled=True), [f"{type_text}? {name}=None"]

    def _is_mutated(self, name: str, node: Leaf | Group) -> bool:
        holds = isinstance(node, Leaf) and node.type.startswith("Tensor")
        if isinstance(self._mutates, str):
            return holds
        if name in self._mutates and not holds:
            raise self.error(
                f"mutates_args names '{name}', which is no Tensor; only tensors and lists of them "
                "can be written"
            )
        return name in self._mutates

    def _check_mutates(self, parameters: Sequence[FunctionParameter]) -> None:
        if isinstance(self._mutates, str):
            return
        known = [p.name for p in parameters]
        for name in self._mutates:
            if name not in known:
                raise self.error(
                    f"mutates_args names '{name}', which is no parameter ({', '.join(known)})"
                )

    def _written(self, parameters: Sequence[FunctionParameter], returned: str) -> str:
        """Return the returns of a function with `Tag.inplace` or `Tag.out`: what it writes."""
        tag = self._returned_tag
        written = [p for p in parameters if self._is_mutated(p.name, p.node)]
        if tag is torch.Tag.inplace:
            first = parameters[0] if parameters and not parameters[0].keyword_only else None
            if first is None or first.node != Leaf("Tensor") or written != [first]:
                raise self.error(
                    f"{tag} wants mutates_args to name the first positional parameter, a Tensor, "
                    f"and no other; got {self._mutates!r}"
                )
        elif not written or not all(p.keyword_only and p.node == Leaf("Tensor") for p in written):
            raise self.error(
                f"{tag} wants mutates_args to name keyword-only Tensor parameters, and only such; "
                f"got {self._mutates!r}"
            )
        names = ", ".join(p.name for p in written)
        if returned != self._returns(["Tensor"] * len(written)):
            raise self.error(
                f"{tag} wants the function to return {names}, each annotated as Tensor; the "
                f"annotation says {returned}"
            )
        return self._returns([self._written_type(p.name) for p in written])

    def _written_type(self, name: str) -> str:
        if self._returned_tag is None:
            return "Tensor!"
        return f"Tensor(a{[*inspect.signature(self._function).parameters].index(name)}!)"

    @staticmethod
    def _returns(types_of_them: Sequence[str]) -> str:
        (one, *more) = types_of_them
        return f"({', '.join(types_of_them)})" if more else one

    def _node(self, name: str, annotation: Any) -> Leaf | Group:
        leaf = self._leaf(annotation)
        if leaf is not None:
            return leaf
        if typing.get_origin(annotation) is tuple:
            parts = enumerate(typing.get_args(annotation))
            members = tuple((str(i), self._node(f"{name}_{i}", part)) for i, part in parts)
            return Group(members, list, lambda *values: values)
        if (
            isinstance(annotation, type)
            and issubclass(annotation, tuple)
            and hasattr(annotation, "_fields")
        ):
            return self._fields(name, annotation, annotation._fields, list)
        if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
            fields = [f.name for f in dataclasses.fields(annotation)]
            return self._fields(
                name, annotation, fields, lambda value: [getattr(value, f) for f in fields]
            )
        if typing.get_origin(annotation) in (dict, collections.abc.Mapping):
            return self._dict(name, *typing.get_args(annotation))
        raise self.error(
            f"parameter '{name}' has type {_type_name(annotation)}, which no schema can carry; "
            f"expected one of {_SUPPORTED}"
        )

    def _leaf(self, annotation: Any) -> Leaf | None:
        scalar = _scalar(annotation)
        if scalar is not None:
            return Leaf(scalar)
        inner = _optional(annotation)
        if inner is not None:
            leaf = self._leaf(inner)
            return (
                None
                if leaf is None or leaf.type.endswith("?")
                else Leaf(f"{leaf.type}?", leaf.is_tuple)
            )
        origin, args = typing.get_origin(annotation), typing.get_args(annotation)
        if origin in _SEQUENCES and len(args) == 1:
            return _list(args[0], is_tuple=False)
        if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
            return _list(args[0], is_tuple=True)
        if (
            origin is tuple
            and args
            and all(a in (int, float, bool, str) and a is args[0] for a in args)
        ):
            return _list(args[0], is_tuple=True)
        return None

    def _fields(
        self, name: str, kind: type, fields: Sequence[str], take: Callable[[Any], Sequence[Any]]
    ) -> Group:
        hints = typing.get_type_hints(kind)
        members = tuple(
            (field, self._node(f"{name}_{field}", hints.get(field, torch.Tensor)))
            for field in fields
        )
        return Group(members, take, kind)

    def _dict(self, name: str, key: Any = None, value: Any = None) -> Group:
        values = _list(value, is_tuple=False)
        if key is not str or values is None:
            raise self.error(
                f"parameter '{name}' is a dictionary; expected dict[str, Tensor] or another simple "
                "type of value"
            )
        return Group(
            (("keys", Leaf("str[]")), ("values", values)),
            lambda mapping: (sorted(mapping), [mapping[key] for key in sorted(mapping)]),
            lambda keys, items: dict(zip(keys, items, strict=True)),
            is_dict=True,
        )

    def _return(self, annotation: Any) -> str:
        if annotation is None or annotation is type(None):
            return "()"
        args = typing.get_args(annotation)
        if typing.get_origin(annotation) is tuple and args and args[-1] is not Ellipsis:
            texts = [self._one_return(a) for a in args]
            return f"({', '.join(texts)})" if len(texts) > 1 else f"(({texts[0]}))"
        return self._one_return(annotation)

    def _one_return(self, annotation: Any) -> str:
        leaf = self._leaf(annotation)
        if leaf is None or leaf.type not in {"Tensor?", "Tensor[]", "Tensor?[]", *_IN_LISTS}:
            raise self.error(
                f"the return type {_type_name(annotation)} cannot be carried by a schema; expected "
                "None, Tensor, Optional[Tensor], list[Tensor], int, float, bool, str, Number, or "
                "a tuple of them"
            )
        return leaf.type


def _scalar(annotation: Any) -> str | None:
    try:
        found = _SCALARS.get(annotation)
    except TypeError:  # an annotation that cannot be hashed is none of them
        return None
    if found is None and typing.get_origin(annotation) is Literal:
        kinds = {type(value) for value in typing.get_args(annotation)}
        return _SCALARS.get(kinds.pop()) if len(kinds) == 1 else None
    return found


def _optional(annotation: Any) -> Any:
    """X for `Optional[X]` and `X | None`, None for anything else."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return None
    args = typing.get_args(annotation)
    inner = [a for a in args if a is not type(None)]
    if len(inner) == len(args):
        return None
    return typing.Union[tuple(inner)]  # noqa: UP007 - built from values


def _list(element: Any, *, is_tuple: bool) -> Leaf | None:
    scalar = _scalar(element)
    if scalar in _IN_LISTS:
        return Leaf(f"{scalar}[]", is_tuple)
    if _optional(element) is torch.Tensor:
        return Leaf("Tensor?[]", is_tuple)
    return None


def _default_text(value: Any) -> str | None:
    """Return how a schema writes a default, None where it cannot."""
    if value is None or isinstance(value, (bool, int)):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return json.dumps(str(value))
    if isinstance(value, (list, tuple)) and not any(isinstance(v, str) for v in value):
        parts = [_default_text(v) for v in value]
        return None if None in parts else f"[{', '.join(p for p in parts if p)}]"
    return None


def _is_writable(type_text: str, default: str) -> bool:
    """Return whether torch's parser takes this default; it knows few dtypes and formats."""
    try:
        torch._C.parse_schema(f"f({type_text} x={default}) -> ()")
    except RuntimeError:
        return False
    return True


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__name__
    return str(annotation)
