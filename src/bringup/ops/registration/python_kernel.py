"""Checks around a Python kernel: no shared memory; with debugging, no undeclared writes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from bringup import settings
from bringup._differences import same_bytes
from bringup.errors import ContractError
from bringup.ops.schema.operator_facts import Facts

_shares_memory = torch._C._any_output_is_alias_to_input_or_output


class FunctionCell:
    """Where a kernel finds its function at each call, so that it can be replaced."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


class _Debugging:
    """Whether undeclared writes are looked for: one switch for the process."""

    on = settings.ops_debug()


@contextmanager
def debugging(enabled: bool = True) -> Iterator[None]:
    """Check operators written in Python, in this block, for writes that their schema hides.

    Each run of a function keeps copies of its inputs and compares, so this is for tests. The
    setting `BRINGUP_OPS_DEBUG=1` does the same for a whole process.

    Raises, at the call of such an operator:
        ContractError: it changed an input that is not in `mutates_args`.

    Args:
        enabled: False switches the check off within it.
    """
    before = _Debugging.on
    _Debugging.on = enabled
    try:
        yield
    finally:
        _Debugging.on = before


def python_kernel(facts: Facts, slot: FunctionCell) -> Callable[..., Any]:
    one_tensor = facts.returns == ("Tensor",)
    arity = len(facts.names)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if facts.lengths or len(args) + len(kwargs) < arity:  # the dispatcher leaves defaults out
            values = facts.values(args, kwargs)
            facts.check_lengths(values)
            args, kwargs = facts.split(values)
        if _Debugging.on:
            result = _run_watched(facts, slot.function, args, kwargs)
        elif kwargs:
            result = slot.function(*args, **kwargs)
        else:
            result = slot.function(*args)
        outputs = result if type(result) is tuple else (result,)
        if not (isinstance(result, torch.Tensor) if one_tensor else _fits(facts, result)):
            raise _wrong_result(facts, result)
        if _shares_memory(args, kwargs, outputs):
            raise _aliased(facts, outputs, facts.values(args, kwargs))
        return result

    def view_kernel(*args: Any, **kwargs: Any) -> Any:
        values = facts.values(args, kwargs)
        facts.check_lengths(values)
        args, kwargs = facts.split(values)
        result = slot.function(*args, **kwargs)
        parts = result if isinstance(result, tuple) and len(facts.returns) > 1 else (result,)
        if len(parts) != len(facts.returns):
            raise _wrong_result(facts, result)
        for index, part in zip(facts.returned, parts, strict=True):
            if index >= 0 and not _is_same(part, values[index]):
                raise ContractError(
                    f"{facts.name}: its schema says that it returns its argument "
                    f"'{facts.names[index]}', and the function returned "
                    f"{'another tensor' if isinstance(part, torch.Tensor) else part!r}; return the "
                    "argument itself"
                )
        return result

    return view_kernel if facts.returns_aliases else kernel


def _is_same(result: Any, argument: Any) -> bool:
    """Return whether a result is the argument, or a list of the same tensors."""
    if isinstance(argument, (list, tuple)) and isinstance(result, (list, tuple)):
        return len(result) == len(argument) and all(map(operator.is_, result, argument))
    return result is argument


def _fits(facts: Facts, result: Any) -> bool:
    """Return whether tensors are where the schema says; None may stand for any."""
    if len(facts.returns) < 2:
        return result is None if not facts.returns else True
    return (
        isinstance(result, tuple)
        and len(result) == len(facts.returns)
        and all(
            kind != "Tensor" or isinstance(part, torch.Tensor)
            for kind, part in zip(facts.returns, result, strict=True)
        )
    )


def _wrong_result(facts: Facts, result: Any) -> ContractError:
    parts = result if isinstance(result, tuple) else (result,)
    got = ", ".join(type(part).__name__ for part in parts)
    if isinstance(result, tuple) and len(result) < 2:
        got = f"a tuple of one {got}" if result else "an empty tuple"
    expected = ", ".join(facts.returns) or "None"
    return ContractError(f"{facts.name}: the function returned {got}; its schema says {expected}")


def _aliased(facts: Facts, outputs: Sequence[Any], values: Sequence[Any]) -> ContractError:
    storages = [_storage(output) for output in _tensors(outputs)]
    for name, tensor in facts.tensors_of(values, range(len(values))):
        if _storage(tensor) in storages:
            return ContractError(
                f"{facts.name}: an output shares memory with the argument '{name}'; return a clone "
                "or declare a view with schema='(Tensor(a) x) -> Tensor(a)'"
            )
    return ContractError(f"{facts.name}: two outputs share memory; return a clone of one")


def _storage(tensor: torch.Tensor) -> int:
    """Return what is the same for tensors that share memory, and only for them."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # a layout without a storage, sparse for example
        return id(tensor)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _run_watched(
    facts: Facts, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run `function`, and refuses a change of an input that may not be written."""
    values = facts.values(args, kwargs)
    readonly = [i for i in range(len(values)) if i not in facts.written]
    written = [_storage(t) for _, t in facts.tensors_of(values, facts.written)]
    before = [
        (name, tensor, tensor.detach().clone(), tensor._version)
        for name, tensor in facts.tensors_of(values, readonly)
        if not tensor.is_inference() and _storage(tensor) not in written
    ]
    result = function(*args, **kwargs)
    for name, tensor, copy, version in before:
        if tensor._version != version or not _identical(tensor, copy):
            raise ContractError(
                f"{facts.name}: the function wrote its argument '{name}', which its schema "
                "does not say; name it in mutates_args, or write a clone"
            )
    return result


def _identical(tensor: torch.Tensor, copy: torch.Tensor) -> bool:
    """Return whether both hold the same bits, so that NaN equals itself."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return True
    one, other = (t.detach().contiguous().view(-1) for t in (tensor, copy))
    return same_bytes(one, other)
