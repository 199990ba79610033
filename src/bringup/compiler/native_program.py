"""A rewritten ATen graph as a native program: no Python runs between its operators."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule

from bringup._native import has_torch_library, torch_library
from bringup.compiler.inner_compiler import BoxedFunction

_ON_HOST = ("_operator", "math")
"""Modules of the functions that compute sizes."""


def run_eagerly(aten: Any, inputs: Sequence[Any]) -> BoxedFunction:
    """Return the graph's operators one by one."""
    from torch._functorch.aot_autograd import make_boxed_func  # see dynamo_backend

    program = native_program(aten)
    if program is not None:
        return program
    # a lazily compiled module would go through Module.__call__ at every call
    _LazyGraphModule.force_recompile(aten)
    return cast(BoxedFunction, make_boxed_func(aten.forward))


class _NotNative(Exception):
    """What a graph has that a program has not."""


def native_program(aten: Any) -> BoxedFunction | None:
    """Return what runs a graph's operators in order through torch's dispatcher; None where there is
    no native library, or the graph has more than operators and sizes (control flow, subgraphs).

    Its constants are those that it has now; tensors are freed behind their last reader.
    """
    if not has_torch_library():
        return None
    native = torch_library("compiler.native_program").compiler
    try:
        program = _Builder(aten, native).program()
    except (_NotNative, native.UnsupportedStepError):
        return None

    def run_program(arguments: list[Any]) -> Any:
        return program.run(arguments)

    run_program._boxed_call = True  # type: ignore[attr-defined]
    return run_program


class _Builder:
    """Gives every value of a graph a register, and every call a step."""

    def __init__(self, aten: Any, native: Any) -> None:
        self._aten = aten
        inputs = aten.graph.find_nodes(op="placeholder")
        self._program = native.Program(len(inputs))
        self._values: dict[Any, Any] = {
            node: self._program.input(place) for place, node in enumerate(inputs)
        }

    def program(self) -> Any:
        for node in self._aten.graph.nodes:
            if node.op == "get_attr":
                self._values[node] = self._constant(str(node.target))
            elif node.op == "call_function":
                self._add(node)
            elif node.op == "output":
                (results,) = node.args
                if not isinstance(results, (tuple, list)):
                    raise _NotNative("one result")
                self._program.finish([self._value(item) for item in results])
            elif node.op != "placeholder":
                raise _NotNative(node.op)
        return self._program

    def _constant(self, name: str) -> torch.Tensor:
        found = operator.attrgetter(name)(self._aten)
        if not isinstance(found, torch.Tensor):
            raise _NotNative(name)
        return found

    def _value(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            if argument not in self._values:
                raise _NotNative(f"all results of {argument.target}")
            return self._values[argument]
        if isinstance(argument, (tuple, list)):
            return [self._value(item) for item in argument]
        return argument

    def _add(self, node: Any) -> None:
        if type(node.target) is torch._ops.OpOverload:
            self._add_operator(node)
        elif node.target is operator.getitem:
            self._add_element(node)
        elif node.target.__module__ in _ON_HOST and not node.kwargs:
            result = self._new(node)
            self._program.add_host_call(
                node.target, [self._value(item) for item in node.args], result
            )
        else:
            raise _NotNative(str(node.target))

    def _new(self, node: Any) -> int:
        self._values[node] = register = self._program.new_register()
        return int(register.place)

    def _add_operator(self, node: Any) -> None:
        schema = node.target._schema
        given = [self._value(item) for item in _in_order(schema, node)]
        if len(schema.returns) == 1:
            results = [self._new(node)]
        else:
            results = [-1] * len(schema.returns)
            registers: dict[int, Any] = {}
            for user in node.users:
                if user.target is not operator.getitem:
                    raise _NotNative(f"all results of {node.target}")
                index = user.args[1] % len(results)
                if index not in registers:
                    registers[index] = self._program.new_register()
                self._values[user] = registers[index]
                results[index] = registers[index].place
        made_by = str(node.meta.get("bringup", {}).get("rule", ""))
        self._program.add_call(schema.name, schema.overload_name, given, results, made_by)

    def _add_element(self, node: Any) -> None:
        if node not in self._values:  # of a list; a result has its register already
            source, index = node.args
            result = self._program.new_register()
            self._program.add_element(self._value(source), index, result)
            self._values[node] = result


def _in_order(schema: Any, node: Any) -> Sequence[Any]:
    """Return all arguments of a call in the order of the schema."""
    given = list(node.args)
    for place, argument in enumerate(schema.arguments):
        if place < len(node.args):
            continue
        if argument.name in node.kwargs:
            given.append(node.kwargs[argument.name])
        elif argument.has_default_value():
            given.append(argument.default_value)
        else:
            raise _NotNative(f"{schema.name} without {argument.name}")
    return given
