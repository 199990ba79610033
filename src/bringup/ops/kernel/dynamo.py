"""Teach Dynamo, once others import it, that an operator's callable is that of torch.ops."""

from __future__ import annotations

import functools
from typing import Any

from bringup._after_import import after_import


def substitute(function: Any) -> None:
    """Make Dynamo, once it is imported, take `function` for `function.overload`."""
    after_import("torch._dynamo", functools.partial(_install, function))


def _install(function: Any) -> None:
    _rule_map().add(function)


class _RuleMap:
    """Dynamo's map from objects to variables with our callables, which outlive its resets."""

    def __init__(self, of_torch: Any) -> None:
        self._of_torch = of_torch
        self._known: Any = None
        self._functions: list[Any] = []

    def __call__(self) -> Any:
        rules = self._of_torch()
        if rules is not self._known:
            self._known = rules
            rules.update(dict.fromkeys(self._functions, _variable()))
        return rules

    def add(self, function: Any) -> None:
        """Add a callable, for good."""
        self._functions.append(function)
        self()[function] = _variable()

    def cache_clear(self) -> None:
        self._of_torch.cache_clear()


@functools.cache
def _rule_map() -> _RuleMap:
    from torch._dynamo import trace_rules

    rules = _RuleMap(trace_rules.get_torch_obj_rule_map)
    trace_rules.get_torch_obj_rule_map = rules
    return rules


@functools.cache
def _variable() -> Any:
    """Return what a callable is while Dynamo traces."""
    from torch._dynamo.exc import raise_observed_exception
    from torch._dynamo.source import AttrSource
    from torch._dynamo.variables import ConstantVariable, TorchInGraphFunctionVariable
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.torch import BaseTorchVariable

    class KernelOperatorVariable(BaseTorchVariable):  # type: ignore[misc]
        """A kernel operator's callable: itself, but in a call its overload."""

        def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
            return TorchInGraphFunctionVariable(self.value.overload).call_function(tx, args, kwargs)

        def as_proxy(self) -> Any:
            return self.value.overload

        def python_type(self) -> type:
            return type(self.value)

        def is_python_equal(self, other: object) -> bool:
            return isinstance(other, VariableTracker) and other.as_python_constant() is self.value

        def has(self, name: str) -> bool:
            # functools.wraps asks for the dictionary, which torch's own functions do not have
            return name != "__dict__" and hasattr(self.value, name)

        def call_obj_hasattr(self, tx: Any, name: str) -> Any:
            return ConstantVariable.create(self.has(name))

        def var_getattr(self, tx: Any, name: str) -> Any:
            if not self.has(name):
                raise_observed_exception(AttributeError, tx)
            source = self.source and AttrSource(self.source, name)
            return VariableTracker.build(tx, getattr(self.value, name), source)

    return KernelOperatorVariable
