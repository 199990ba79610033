"""A torch function of tensors, traced to ATen on fake tensors whose sizes may be symbolic."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    ShapeEnv,
    _ShapeEnvGuardError,
    free_unbacked_symbols,
)

from bringup import ir
from bringup.compiler.fake_results import unlogged
from bringup.compiler.mirror import Mirror
from bringup.errors import PassError, first_line

_DATA_DEPENDENT = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)
_GENERIC_SIZE = 80640  # has many divisors, for views with numbers in them; no trace has data


def parameters_of(function: Callable[..., Any], role: str) -> dict[str, object]:
    """Return parameters with defaults. Raises `TypeError` if not by position and name."""
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise TypeError(f"{role} must be a function written in Python, got {function!r}")
    signature = inspect.signature(function)
    found = {}
    for item in signature.parameters.values():
        if item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD, item.KEYWORD_ONLY):
            raise TypeError(
                f"{role} has the parameter {str(item)!r}: each must be given by position and have "
                f"a name of its own, got {signature}"
            )
        found[item.name] = item.default
    return found


def symbolic_inputs(examples: Sequence[torch.Tensor], count: int) -> list[FakeTensor]:
    """Return fakes like `examples`, or `count` matrices; equal sizes but 0, 1 share a symbol."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    given = examples or [torch.empty(_GENERIC_SIZE, _GENERIC_SIZE, device="meta")] * count
    with torch.no_grad():
        fakes = [
            mode.from_tensor(tensor.detach(), source=ConstantSource(f"input{index}"))
            for index, tensor in enumerate(given)
        ]
        if examples:
            return fakes
        with mode:  # what the function makes itself is on the host by default
            return [torch.empty(tuple(fake.shape), device="cpu") for fake in fakes]


class _WritesError(PassError):
    """The function writes one of its inputs."""


class TracedFunction:
    """A function of tensors, and what it is on fake ones; `scalars` are numbers."""

    def __init__(self, function: Callable[..., Any], role: str, scalars: Collection[str]) -> None:
        parameters = parameters_of(function, role)
        for name in scalars:
            if name not in parameters:
                raise TypeError(
                    f"scalar_workaround: {role} has no parameter {name!r}, it has "
                    f"{list(parameters)}"
                )
        self.function = function
        self.text = f"{role} ({getattr(function, '__name__', type(function).__name__)})"
        self.tensors = tuple(
            name
            for name, default in parameters.items()
            if name not in scalars and default is inspect.Parameter.empty
        )
        if not self.tensors:
            raise TypeError(f"{self.text} takes no tensor")

    def at(
        self,
        inputs: Sequence[torch.Tensor],
        scalars: Mapping[str, object],
        mode: Any,
        *,
        may_guard: bool = False,
    ) -> ir.Graph:
        """Return the ATen operators that it calls on `inputs`, fake tensors of `mode`.

        Raises `PassError` when it cannot be traced, writes an input, has tensors of its own, or
        returns something else than tensors; and, unless it `may_guard`, when it depends on sizes
        that are symbols.
        """
        guards: AbstractContextManager[Any] = nullcontext()
        if mode.shape_env is not None and not may_guard:
            guards = mode.shape_env.error_on_new_guards()
        try:
            with unlogged(), guards:
                graph = self._traced(inputs, scalars, mode)
        except _ShapeEnvGuardError as error:
            raise PassError(
                f"{self.text} depends on sizes that differ from call to call: {first_line(error)}"
            ) from error
        except _WritesError:
            raise
        except _DATA_DEPENDENT as error:
            raise PassError(f"{self.text} depends on data: {first_line(error)}") from error
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise PassError(f"{self.text} cannot be traced: {reason}") from error
        self._require_functional(graph)
        return graph

    def _traced(
        self, inputs: Sequence[torch.Tensor], scalars: Mapping[str, object], mode: Any
    ) -> ir.Graph:
        def call(*tensors: torch.Tensor) -> Any:
            by_name = dict(zip(self.tensors, tensors, strict=True))
            results = self.function(**by_name, **scalars)
            for name, tensor in by_name.items():
                if torch._functionalize_has_data_mutation(tensor.elem):
                    raise _WritesError(f"{self.text} writes {name!r}: return what is new instead")
            return results

        with mode, torch.no_grad(), torch._C._DisableAutocast(), enable_python_dispatcher():
            # one tensor may stand for two parameters, which are two inputs all the same
            own = [tensor.detach() for tensor in inputs]
            traced = make_fx(dispatch_functionalize(call, FunctionalTensorMode()))(*own)
        traced.graph.eliminate_dead_code()  # reads of sizes, and what the function throws away
        return Mirror(traced).graph

    def _require_functional(self, graph: ir.Graph) -> None:
        for node in graph.nodes:
            if node.op_type == ir.CONSTANT:
                raise PassError(
                    f"{self.text} uses a tensor of its own ({node.name!r}): make it a parameter, "
                    "or make it of numbers (torch.full)"
                )
            if any(free_unbacked_symbols(value.meta) for value in node.outputs):
                raise PassError(f"{self.text} depends on data by {node.op_type}")
            if node.operator.mutates:
                raise PassError(
                    f"{self.text} writes memory by {node.op_type}: return what is new instead"
                )
            if node.operator.opaque:
                raise PassError(f"{self.text} calls {node.op_type}, which is no torch operator")
        results = graph.output_node.arguments[0]
        listed = results if isinstance(results, tuple) else (results,)
        if not listed or not all(
            isinstance(item, ir.Value) and isinstance(item.meta, torch.Tensor) for item in listed
        ):
            raise PassError(
                f"{self.text} must return a tensor or a tuple of tensors, got "
                f"{ir.argument_text(results)}"
            )
