"""Functionalization of operators whose results are, or are views of, their arguments.

`Tensor(a!) -> Tensor(a!)`: torch 2.13 functionalizes two such forms, by tag, and Inductor then
gives the argument's memory away while the return is in use: wrong numbers. So a second operator
without returns stands for it in functional graphs; the result is the written argument.

`Tensor(a) -> Tensor(a)`: torch refuses these; a graph gets the views that the function makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bringup._native import has_torch_library, torch_library
from bringup.errors import SchemaError
from bringup.ops.schema.operator_facts import Facts, find_overload, is_defined

_FUNCTIONALIZE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)


def install(
    overload: Any, facts: Facts, text: str, library: torch.library.Library, function: Any = None
) -> Any:
    """Make an `overload` that returns views, or written arguments only, functionalizable. Returns
    what has to be kept as long as `library`; `function` is a native kernel operator's callable.
    """
    operator = facts.name.partition("::")[2]
    if overload._schema._is_view_op():
        library.impl(operator, _view_kernel(facts, overload), "Functionalize")
    if not facts.returns_written:
        return None
    bare = _name_without_returns(operator)
    arguments = text[text.index("(") :].rpartition("->")[0]
    library.define(f"{bare}{arguments}-> ()", tags=(torch.Tag.pt2_compliant_tag,))
    name = f"{library.ns}::{bare}"

    def run(*args: Any, **kwargs: Any) -> None:
        overload(*args, **kwargs)

    torch.library.register_fake(name, run, lib=library)
    library.impl(operator, _kernel(facts, find_overload(name)), "Functionalize")
    if not has_torch_library():
        library.impl(bare, run, "CompositeExplicitAutograd")
        return None
    schema = overload._schema
    return torch_library().ops.run_without_returns(
        schema.name, schema.overload_name, name, function
    )


def refuse_taken_name(name: str, facts: Facts, known: Facts) -> None:
    """Raise `SchemaError` when the schema's second name is another's, but of `known`."""
    second = _name_without_returns(name)
    if facts.returns_written and not known.returns_written and is_defined(second):
        raise SchemaError(
            f"{name} returns what it writes, which needs an operator {second}; other code has "
            "defined one of that name. Choose another name"
        )


def _name_without_returns(name: str) -> str:
    return f"{name.replace('.', '_')}_without_returns"


def _kernel(facts: Facts, without_returns: Any) -> Callable[..., Any]:
    """Return the operator on functional tensors: what it would write becomes their new value."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        values = facts.values(args, kwargs)
        with torch._C._ExcludeDispatchKeyGuard(_FUNCTIONALIZE):
            written = _run(facts, without_returns, [_below(value) for value in values])
        for index, new in zip(facts.written, written, strict=True):
            _update(facts.names[index], values[index], new)
        returned = tuple(values[index] for index in facts.returned)
        return returned[0] if len(returned) == 1 else returned

    return kernel


def _view_kernel(facts: Facts, overload: Any) -> Callable[..., Any]:
    """Run the operator's own kernel on functional tensors, which makes functional views."""
    redispatch = overload._handle.redispatch_boxed

    def kernel(*args: Any, **kwargs: Any) -> Any:
        values = facts.values(args, kwargs)
        tensors = [t for _, t in facts.tensors_of(values, range(len(values)))]
        key = torch._C._dispatch_key_for_device(tensors[0].device.type)
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        result = redispatch(keys, *args, **kwargs)
        storages = {t.untyped_storage()._cdata for t in tensors}
        for _, view in facts.tensors_of([result], [0]):
            if view.untyped_storage()._cdata not in storages:
                raise RuntimeError(
                    f"{facts.name} cannot be compiled: its schema says that it returns a view, and "
                    "traced it returned another tensor; make the view by torch's operators, such "
                    "as x[i] or x.view(...)"
                )
        return result

    return kernel


def _run(facts: Facts, without_returns: Any, values: list[Any]) -> Sequence[Any]:
    """Return what the written arguments hold after the operator."""
    if torch._C._are_functorch_transforms_active():  # where auto_functionalized is not known
        for index in facts.written:
            values[index] = _clone(values[index])
        args, kwargs = facts.split(values)
        without_returns(*args, **kwargs)
        return [values[index] for index in facts.written]
    from torch._higher_order_ops.auto_functionalize import auto_functionalized

    given = dict(zip(facts.names, values, strict=True))
    results: Sequence[Any] = auto_functionalized(without_returns, **given)
    return results[-len(facts.written) :]


def _clone(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_clone(item) for item in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


def _below(value: Any) -> Any:
    """Return the argument without functionalization, as it is now."""
    if isinstance(value, (list, tuple)):
        return [_below(item) for item in value]
    if not isinstance(value, torch.Tensor) or not torch._is_functional_tensor(value):
        return value
    torch._sync(value)
    return torch._from_functional_tensor(value)


def _update(name: str, given: Any, result: Any) -> None:
    """Give a functional tensor, or a list of them, new values."""
    pairs: Sequence[tuple[Any, Any]] = [(given, result)]
    if isinstance(given, (list, tuple)):
        pairs = list(zip(given, result, strict=True))
    for tensor, new in pairs:
        if tensor is None:
            continue
        if not torch._is_functional_tensor(tensor):
            raise RuntimeError(
                f"the argument '{name}' is written, but was not made inside the function that is "
                "functionalized; pass it as an argument of that"
            )
        torch._functionalize_replace(tensor, new)
        torch._functionalize_commit_update(tensor)
        torch._functionalize_sync(tensor)
