"""`autotune`: measure calls of operators with tile sizes to choose from as they happen, each
candidate as an operator of its own. What is chosen is `jit.tune`'s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bringup import jit
from bringup.ops.kernel.kernel_op import definition_of

if TYPE_CHECKING:
    from bringup.ops.kernel.kernel_op import _Definition


@contextlib.contextmanager
def autotune() -> Iterator[None]:
    """Measure, in this block and thread, each kind of call of an operator whose template has
    several `tiles`, once, on the arguments of that call.

    What is the fastest is kept in the cache and used from then on, by every process on this
    machine. An operator that has already run for such a call keeps what it has until the process
    ends.

    Does nothing where `BRINGUP_JIT_AUTOTUNE` is 0, the default where `CI` is set.
    """
    with _Measuring():
        yield


class _Measuring(TorchDispatchMode):  # type: ignore[misc]
    """Sees every operator below autograd, with its arguments."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Measure what has to be measured, then calls the operator."""
        kwargs = kwargs or {}
        definition = definition_of(func.name())
        if definition is not None and len(definition.template.tiles) > 1:
            values = definition.schema.bind(args, kwargs)
            if not any(map(_is_fake, values)):
                _tune(definition, values)
        return func(*args, **kwargs)


def _is_fake(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (
        value.is_meta or type(value) not in (torch.Tensor, torch.nn.Parameter)
    )


def _tune(definition: _Definition, values: Sequence[Any]) -> None:
    device = next(value.device for value in values if isinstance(value, torch.Tensor))
    with contextlib.ExitStack() as candidates:

        def prepare(params: jit.Params) -> Callable[[], object]:
            operator = definition.candidate(params.tile)
            candidates.callback(operator.undefine)
            given = [_own(definition, index, value) for index, value in enumerate(values)]
            positional, keywords = definition.schema.split(given)

            def run() -> None:
                operator.overload(*positional, **keywords)
                if device.type != "cpu":
                    torch.get_device_module(device).synchronize()

            return run

        jit.tune(definition.params(*values), prepare, **definition.tuning(device.type))


def _own(definition: _Definition, index: int, value: Any) -> Any:
    """Return the argument, or a copy of one that the operator writes."""
    written = definition.schema.arguments[index].mutated
    return value.clone() if written and isinstance(value, torch.Tensor) else value
