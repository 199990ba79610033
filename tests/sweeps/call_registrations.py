"""One operator registered by everybody, and whether their calls do what torch.library's does."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from bringup import ops
from bringup.errors import ContractError

__all__ = ["Call", "Operators", "compare", "outcome", "registered"]

Call = Callable[..., Any]
_numbers = itertools.count()


@dataclass
class Operators:
    """One schema registered five times.

    Attributes:
        oracle: the plain torch.library registration.
        ours: who made it -> the paths to it.
    """

    oracle: Call
    ours: dict[str, list[Call]]


@contextlib.contextmanager
def registered(
    signature: str, function: Call, fake: Call, kernel: Call | None
) -> Iterator[Operators]:
    """The operators of a signature such as `(Tensor x, int k) -> Tensor`.

    `kernel(name)` defines the kernel operator, None where there is none.
    """
    namespace = f"sweep_calls_{next(_numbers)}"
    with contextlib.ExitStack() as stack:
        plain = torch.library.Library(namespace, "FRAGMENT")
        stack.callback(plain._destroy)
        plain.define(f"oracle{signature}")
        plain.impl("oracle", function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{namespace}::oracle", fake, lib=plain)
        packet = getattr(torch.ops, namespace)
        ours: dict[str, list[Call]] = {}

        made = ops.custom_op(f"{namespace}::custom", function, schema=signature)
        stack.callback(made.undefine)
        made.register_fake(fake)
        ours["custom_op"] = [made, made.overload, packet.custom]

        library = ops.Library(namespace, "FRAGMENT")
        stack.callback(library._destroy)
        library.define(f"library{signature}")
        library.impl("library", function, "CompositeExplicitAutograd")
        ops.register_fake(f"{namespace}::library", fake)
        ours["Library"] = [packet.library, packet.library.default]

        handle = ops.adopt(f"{namespace}::oracle")
        stack.callback(handle.undefine)
        ours["adopt"] = [handle]

        if kernel is not None:
            operator = kernel(f"{namespace}::kernel")
            stack.callback(operator.undefine)
            ours["kernel_op"] = [operator, operator.overload, packet.kernel]
        yield Operators(packet.oracle, ours)


def outcome(call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result, or the exception; instead of a result that was given, which one it is."""
    copied_args, copied_kwargs = _pytree.tree_map_only(
        torch.Tensor, torch.clone, (tuple(args), kwargs)
    )
    leaves = _pytree.tree_leaves((copied_args, copied_kwargs))
    try:
        result = call(*copied_args, **copied_kwargs)
    except Exception as error:
        return error

    def named(tensor: torch.Tensor) -> Any:
        same = [i for i, leaf in enumerate(leaves) if leaf is tensor]
        return (
            ("argument", same)
            if same
            else (tensor.dtype, tensor.shape, tensor.stride(), tensor.tolist())
        )

    written = [leaf.tolist() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return type(result), _pytree.tree_map_only(torch.Tensor, named, result), written


def family(error: Exception) -> str:
    """What counts of an error: torch words the same mismatch as either of these."""
    if isinstance(error, ContractError):
        return "contract"
    return (
        "mismatch"
        if isinstance(error, (RuntimeError, TypeError, ValueError, OverflowError))
        else type(error).__name__
    )


def compare(
    operators: Operators,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    ours_refuse: bool,
    counts: Counter[str],
) -> None:
    """Every path does what the oracle does; a list of the wrong length is our error only."""
    expected = outcome(operators.oracle, args, kwargs)
    for who, paths in operators.ours.items():
        answers = [outcome(path, args, kwargs) for path in paths]
        counts["calls"] += len(paths)
        where = f"{who}{args}{kwargs}"
        for answer in answers:
            if who == "kernel_op" and _is_none_refused(answer):
                continue  # torch hands None on for a Tensor; a kernel would read it
            if ours_refuse and who != "adopt":
                assert isinstance(answer, ContractError), f"{where}: {answer}"
            elif isinstance(expected, Exception):
                assert isinstance(answer, Exception), (
                    f"{where}: {answer}, torch raises {expected!r}"
                )
                assert family(answer) == family(expected), f"{where}: {answer!r}, not {expected!r}"
            else:
                assert not isinstance(answer, Exception), f"{where}: {answer!r}, not {expected}"
                assert _equal(answer, expected), f"{where}: {answer}, not {expected}"


def _is_none_refused(answer: Any) -> bool:
    return isinstance(answer, ContractError) and "is None, expected a tensor" in str(answer)


def _equal(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)  # NaN and nested results alike
