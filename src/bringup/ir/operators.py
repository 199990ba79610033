"""The facts of one operator, as a dialect gives them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Parameter:
    """One parameter of an operator's schema.

    Attributes:
        name: its name.
        type: its type, as the schema writes it.
        keyword_only: whether it is given by name alone.
    """

    name: str
    type: str
    keyword_only: bool = False


@dataclass(frozen=True)
class Operator:
    """The facts of one operator: schema, and what a call does besides computing its outputs.

    Attributes:
        type: namespace, name and overload, e.g. `aten::add.Tensor`; the default overload has no
            suffix.
        parameters: in schema order; the arguments of a node stand in the same order.
        output_count: how many values a call returns, or None when that depends on the call (a
            list).
        mutates: indices of the parameters that a call writes.
        aliases: indices of the parameters that an output may share memory with.
        random: whether two calls with equal arguments may differ.
        kept: whether it is called for an effect other than writing memory (an assertion).
        opaque: whether the effects are unknown; then nothing may be moved across a call.
        commutes: whether the first two arguments of a call may change places.
        commutes_if_one: the index of an argument that must be 1 for that (`alpha`); None if none.
        optional_outputs: how many outputs more a call may ask for (`outputs=`).
    """

    type: str
    parameters: tuple[Parameter, ...] = ()
    output_count: int | None = 1
    mutates: frozenset[int] = frozenset()
    aliases: frozenset[int] = frozenset()
    random: bool = False
    kept: bool = False
    opaque: bool = False
    commutes: bool = False
    commutes_if_one: int | None = None
    optional_outputs: int = 0

    @property
    def pure(self) -> bool:
        """Return whether a call only computes outputs: it may be moved, merged, folded, dropped."""
        return not (self.mutates or self.random or self.kept or self.opaque)

    def index_of(self, name: str) -> int:
        """Return the position of parameter `name`; `KeyError` lists the names without one."""
        for index, parameter in enumerate(self.parameters):
            if parameter.name == name:
                return index
        names = ", ".join(parameter.name for parameter in self.parameters)
        raise KeyError(f"{self.type} has no parameter {name!r}; it has ({names})")
