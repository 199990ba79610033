"""Operators with structured arguments: between the function's values and the schema's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter as InspectParameter
from typing import Any

from bringup.ops.schema.infer import Group, Leaf, Signature
from bringup.ops.schema.operator_facts import Facts


class Structure:
    """How one function's arguments are laid out in its operator's schema."""

    def __init__(self, name: str, signature: Signature) -> None:
        self._name = name
        self._parameters = signature.parameters
        self._names = [p.name for p in signature.parameters]
        self._leaves = [[n for n, _ in p.node.named(p.name)] for p in signature.parameters]

    def flatten(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return a call of the function as a call of the operator."""
        values = self._bind(args, kwargs)
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for parameter, names, value in zip(self._parameters, self._leaves, values, strict=True):
            leaves = parameter.node.flatten(value)
            if not parameter.keyword_only:
                positional += leaves
            else:
                keywords.update(zip(names, leaves, strict=True))
        return positional, keywords

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        positional = [p.name for p in self._parameters if not p.keyword_only]
        if len(args) > len(positional):
            raise TypeError(
                f"{self._name}() takes {len(positional)} positional arguments but {len(args)} were "
                "given"
            )
        given = dict(zip(positional, args))  # noqa: B905 - fewer may be given
        for name, value in kwargs.items():
            if name not in self._names or name in given:
                what = "multiple values for" if name in given else "an unexpected keyword"
                raise TypeError(f"{self._name}() got {what} argument '{name}'")
            given[name] = value
        for parameter in self._parameters:
            if parameter.name not in given:
                if parameter.default is InspectParameter.empty:
                    raise TypeError(f"{self._name}() is missing the argument '{parameter.name}'")
                given[parameter.name] = parameter.default
        return [given[name] for name in self._names]

    def rebuild(self, leaves: Sequence[Any]) -> list[Any]:
        values: list[Any] = []
        start = 0
        for parameter in self._parameters:
            part = leaves[start : start + parameter.node.size]
            start += parameter.node.size
            value = parameter.node.build(part)
            values.append(parameter.default if parameter.filled and value is None else value)
        return values

    def kernel(self, facts: Facts, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` as it is called with the operator's arguments."""

        def call(*args: Any, **kwargs: Any) -> Any:
            positional, keywords = self._split(self.rebuild(facts.values(args, kwargs)))
            return function(*positional, **keywords)

        return call

    def setup_context(self, setup: Callable[..., Any]) -> Callable[..., Any]:
        if any(p.keyword_only for p in self._parameters):

            def call_with_keywords(
                ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any
            ) -> None:
                values = self.rebuild([*inputs, *keyword_only_inputs.values()])
                setup(ctx, *self._split(values), output)

            return call_with_keywords

        def call(ctx: Any, inputs: Any, output: Any) -> None:
            setup(ctx, tuple(self.rebuild(inputs)), output)

        return call

    def vmap_rule(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Return `rule` for the operator's arguments; a structured one's dimensions are a tuple."""

        def call(info: Any, in_dims: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            positional, keywords = self._split(self.rebuild([*args, *kwargs.values()]))
            stream = iter(in_dims)
            dims = [
                next(stream)
                if isinstance(parameter.node, Leaf)
                else tuple(next(stream) for _ in range(parameter.node.size))
                for parameter in self._parameters
            ]
            return rule(info, tuple(dims), *positional, **keywords)

        return call

    def backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:

        def call(ctx: Any, *grads: Any) -> Any:
            result = backward(ctx, *grads)
            gradients = result if type(result) is tuple else (result,)
            missing = [None] * (len(self._parameters) - len(gradients))
            if len(gradients) + len(missing) != len(self._parameters):
                raise RuntimeError(
                    f"the backward of {self._name} returned {len(gradients)} gradients; expected "
                    f"one for each of {', '.join(self._names)}, None where there is none"
                )
            return tuple(
                leaf
                for parameter, gradient in zip(
                    self._parameters, [*gradients, *missing], strict=True
                )
                for leaf in _gradient(parameter.node, gradient)
            )

        return call

    def _split(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        pairs = list(zip(self._parameters, values, strict=True))
        keywords = {p.name: v for p, v in pairs if p.keyword_only}
        return tuple(v for p, v in pairs if not p.keyword_only), keywords


def _gradient(node: Leaf | Group, gradient: Any) -> list[Any]:
    """Return a gradient as the schema's leaves: None, or of the form of the argument."""
    if isinstance(node, Leaf):
        return [gradient]
    if gradient is None:
        return [None] * node.size
    if node.is_dict:
        return [None, [gradient[key] for key in sorted(gradient)]]
    parts = gradient if isinstance(gradient, (tuple, list)) else node.take(gradient)
    return [
        leaf
        for (_, member), part in zip(node.members, parts, strict=True)
        for leaf in _gradient(member, part)
    ]
