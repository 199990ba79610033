"""A Python function as an operator's kernel: what is checked around each run of it.

Always: that no output shares memory with an input or with another output, which autograd and
compilers take for granted. With debugging on (`debugging()`, or `BRINGUP_OPS_DEBUG=1`) also that
the function wrote no tensor that its schema does not say it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from bringup import settings
from bringup.errors import ContractError
from bringup.ops._facts import Facts

__all__ = ["Slot", "debugging", "python_kernel"]

_is_alias_of = torch._C._is_alias_of
_Tensor = torch.Tensor


class Slot:
    """Where a kernel finds its function at each call, so that it can be replaced."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


class _Debugging:
    """Whether undeclared writes are looked for: one switch for the process."""

    on = settings.ops_debug()


@contextmanager
def debugging(enabled: bool = True) -> Iterator[None]:
    """Within it, operators written in Python are checked for writes that their schema hides.

    Each run of a function keeps copies of its inputs and compares, so this is for tests. The
    setting `BRINGUP_OPS_DEBUG=1` does the same for a whole process.

    Raises, at the call of such an operator:
        ContractError: it changed an input that is not in `mutates_args`.
    """
    before = _Debugging.on
    _Debugging.on = enabled
    try:
        yield
    finally:
        _Debugging.on = before


def python_kernel(facts: Facts, slot: Slot) -> Callable[..., Any]:
    """The kernel that runs the function in `slot`."""
    if facts.returns_aliases:
        return _unchecked_kernel(facts, slot)
    if facts.returns == 1 and not facts.returns_lists and not facts.lists:
        return _one_output_kernel(facts, slot)
    return _general_kernel(facts, slot)


def _unchecked_kernel(facts: Facts, slot: Slot) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _run(facts, slot.function, args, kwargs)

    return kernel


def _one_output_kernel(facts: Facts, slot: Slot) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = (
            _run(facts, slot.function, args, kwargs)
            if _Debugging.on
            else slot.function(*args, **kwargs)
        )
        if isinstance(result, _Tensor):
            for value in args if not kwargs else (*args, *kwargs.values()):
                if isinstance(value, _Tensor) and _shares_memory(result, value):
                    raise _aliased(facts, value, facts.values(args, kwargs))
        return result

    return kernel


def _general_kernel(facts: Facts, slot: Slot) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = _run(facts, slot.function, args, kwargs)
        outputs = list(_tensors(result))
        if outputs:
            values = facts.values(args, kwargs)
            for value in _tensors(values):
                if any(_shares_memory(output, value) for output in outputs):
                    raise _aliased(facts, value, values)
            for i, output in enumerate(outputs):
                if any(_shares_memory(output, other) for other in outputs[:i]):
                    raise ContractError(
                        f"{facts.name}: output {i} shares memory with another output; return a "
                        "clone of it"
                    )
        return result

    return kernel


def _shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other:
        return True
    try:
        return bool(_is_alias_of(one, other))
    except (RuntimeError, NotImplementedError):  # a layout without a storage, sparse for example
        return False


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, _Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _aliased(facts: Facts, tensor: torch.Tensor, values: Sequence[Any]) -> ContractError:
    name = next(n for n, t in facts.tensors_of(values, range(len(values))) if t is tensor)
    return ContractError(
        f"{facts.name}: an output shares memory with the argument '{name}'; return a clone, or "
        "declare a view with schema='(Tensor(a) x) -> Tensor(a)'"
    )


def _run(
    facts: Facts, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Runs `function`; while debugging, refuses a change of an input that may not be written."""
    if not _Debugging.on:
        return function(*args, **kwargs)
    values = facts.values(args, kwargs)
    readonly = [i for i in range(len(values)) if i not in facts.written]
    written = [t for _, t in facts.tensors_of(values, facts.written)]
    before = [
        (name, tensor, tensor.detach().clone(), tensor._version)
        for name, tensor in facts.tensors_of(values, readonly)
        if not tensor.is_inference() and not any(_shares_memory(tensor, other) for other in written)
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
    """Whether both hold the same bits, so that NaN equals itself."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return True
    one, other = (t.detach().contiguous().view(-1) for t in (tensor, copy))
    return bool(torch.equal(one.view(torch.uint8), other.view(torch.uint8)))
