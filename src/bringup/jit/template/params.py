"""The typed parameter set of one call: which macros a template gets, which values the kernel."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bringup._language.signature import Argument, Layout, c_type, layout_of, signature_of
from bringup.jit.lookup.spec import Spec
from bringup.jit.target.flags import Macro, render_macros
from bringup.jit.template.template import BoundTemplate, Template


@dataclass(frozen=True)
class Field:
    """One run-time value: the item of `params=`, and what it is for the call (an address is None
    where the tensor has no memory).
    """

    item: str
    value: Any


@dataclass(frozen=True, eq=False)
class Params:
    """What a template is compiled with for one kind of call, and what that call passes.

    Attributes:
        bound: the template, resolved against the kernel's arguments.
        dtypes: macro -> C type.
        layouts: macro -> layout.
        choices: macro -> value.
        buckets: macro -> whether the call is in the bucket.
        tile: which set of the template's `tiles`.
        fields: the run-time values; empty when the set was made without a call.
    """

    bound: BoundTemplate
    dtypes: Mapping[str, str]
    layouts: Mapping[str, Layout]
    choices: Mapping[str, str | int | bool]
    buckets: Mapping[str, bool]
    tile: int = 0
    fields: tuple[Field, ...] = ()

    @classmethod
    def of_call(cls, bound: BoundTemplate, values: Sequence[Any]) -> Params:
        """Return the set for these `values` of all arguments of `bound`, outputs among them. Raises
        `ValueError` naming the template and what does not fit it.
        """
        signature = bound.signature
        try:
            return cls(
                bound,
                {
                    macro: _c_type_of(bound, i, _dtype_of(signature[i], values[i]))
                    for macro, i in bound.dtypes
                },
                {c.macro: layout_of(values[c.argument], c.allowed) for c in bound.layouts},
                {
                    c.macro: c.allowed[c.number_of(values[c.argument], signature[c.argument].name)]
                    for c in bound.choices
                },
                {macro: predicate.evaluate(values) != 0 for macro, predicate in bound.buckets},
                fields=tuple(Field(item.text, item.evaluate(values)) for item in bound.items),
            )
        except ValueError as error:
            raise ValueError(f"{bound.template._label}: {error}") from None

    @classmethod
    def of_key(
        cls,
        bound: BoundTemplate,
        dtypes: Sequence[Any],
        layouts: Sequence[int],
        choices: Sequence[int],
        buckets: Sequence[int],
    ) -> Params:
        """Return the set for the numbers that an operator's call was packed into.

        Args:
            bound: the template, resolved against the operator's arguments.
            dtypes: of the tensors that `dtypes=` names, in its order.
            layouts: the number of each `Layout`.
            choices: the number of each allowed value.
            buckets: 1 where the call is in the bucket.

        Raises `ValueError` naming the argument whose dtype has no C type.
        """
        return cls(
            bound,
            {m: _c_type_of(bound, i, d) for (m, i), d in zip(bound.dtypes, dtypes, strict=True)},
            {c.macro: Layout(n) for c, n in zip(bound.layouts, layouts, strict=True)},
            {c.macro: c.allowed[n] for c, n in zip(bound.choices, choices, strict=True)},
            {macro: bool(n) for (macro, _), n in zip(bound.buckets, buckets, strict=True)},
        )

    @property
    def template(self) -> Template:
        """Return the template."""
        return self.bound.template

    @property
    def macros(self) -> dict[str, Macro]:
        """Return all macros that the source is compiled with."""
        template, kind = self.template, self.template.kernel_kind
        return {
            **template.macros, **self.dtypes,
            **{macro: f"BRINGUP_LAYOUT_{layout.name}" for macro, layout in self.layouts.items()},
            **self.choices, **self.buckets, **(template.tiles[self.tile] if template.tiles else {}),
            **({"BRINGUP_KERNEL_KIND": f"BRINGUP_KERNEL_KIND_{kind.upper()}"} if kind else {}),
        }  # fmt: skip

    @property
    def key(self) -> str:
        """128 bits in hex over everything that decides the binary besides what files hold. Run-time
        values are not in it: another shape is the same key.
        """
        template, glued = self.template, self.bound.glued
        facts = (
            str(template.source.path), template.source.text, glued.source.text, glued.source.symbol,
            glued.source.kind, template.flags, render_macros(self.macros),
            *([binding] if (binding := self.bound.binding) else []),
        )  # fmt: skip
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]

    def spec(self, target: str = "cpu") -> Spec:
        """Return the kernel for `target` as a value that `jit.prebuild` takes.

        Raises what `jit.Spec` raises.
        """
        glued = self.bound.glued
        return Spec(glued.source, self.macros, (*glued.flags, *self.template.flags), target)

    def with_tile(self, tile: int) -> Params:
        """Return the same with another set of tile sizes; `ValueError` when there is none."""
        count = len(self.template.tiles)
        if not 0 <= tile < max(count, 1):
            raise self.template.error(f"tile {tile}", f"there are {count} sets of tile sizes")
        return replace(self, tile=tile)

    def __str__(self) -> str:
        lines = [f"{self.template.name} {self.key}"]
        lines += [f"  {macro}" for macro in render_macros(self.macros)]
        lines += [f"  {field.item} = {_shown(field.value)}" for field in self.fields]
        return "\n".join(lines)


def _shown(value: Any) -> str:
    return "no address" if value is None else str(value)


def params(template: Template, /, *, tile: int = 0, **arguments: Any) -> Params:
    """Return the parameter set of a call with these arguments, in the kernel's order, outputs last.

    Args:
        template: the template.
        tile: which set of its tile sizes.
        arguments: tensors (anything with `shape`, `stride()` and `dtype`), ints, floats, strings,
            lists of them, and None for a tensor that is not there.

    Raises:
        TypeError: a value is nothing that a kernel can take.
        ValueError: the template does not fit them, or one is not allowed, which it names.
    """
    if not isinstance(template, Template):
        raise TypeError(
            f"jit.params: expected a jit.Template, got {type(template).__name__} ({template!r})"
        )
    bound = template.bind(signature_of(arguments))
    return Params.of_call(bound, list(arguments.values())).with_tile(tile)


def _dtype_of(argument: Argument, value: Any) -> Any:
    return getattr(value, "dtype", None) if argument.type == "Tensor" else value


def _c_type_of(bound: BoundTemplate, index: int, dtype: Any) -> str:
    try:
        return c_type(dtype)
    except ValueError as error:
        raise ValueError(f"{bound.signature[index].name} is {error}") from None
