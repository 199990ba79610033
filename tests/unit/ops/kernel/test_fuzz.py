"""The fast call is the operator of torch.ops: same values, same errors, whatever is switched on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from bringup import ops
from bringup.errors import BringupError


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


CONTEXTS: dict[str, Callable[[], Any]] = {
    "nothing": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "function mode": _Functions,
    "dispatch mode": _Dispatches,
    "forward mode": forward_ad.dual_level,
}
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "stepped": lambda t: torch.stack([t, t], -1)[..., 0],
    "offset": lambda t: torch.cat([t[:1], t])[1:],
    "expanded": lambda t: t[:1].expand_as(t),
    "meta": lambda t: t.to("meta"),
    "grad": lambda t: t.clone().requires_grad_(t.dtype.is_floating_point),
    "dual": lambda t: forward_ad.make_dual(t, t) if forward_ad._current_level >= 0 else t,
}
TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda call: call,
    "vmap": torch.vmap,
    "grad": lambda call: torch.func.grad(lambda x, y: call(x, y).sum()),
    "jvp": lambda call: lambda x, y: torch.func.jvp(call, (x, y), (x, y)),
}
DTYPES = [torch.float32, torch.float64, torch.int32]


def _outcome(call: Any, transform: str, context: str, xy: list[tuple[Any, ...]]) -> Any:
    try:
        with CONTEXTS[context]():
            x, y = (LAYOUTS[layout](t.clone()) for t, layout in xy)
            return TRANSFORMS[transform](call)(x, y)
    except Exception as error:
        return type(error).__name__, str(error) if isinstance(error, BringupError) else ""


def _seen(outcome: Any) -> Any:
    if not isinstance(outcome, torch.Tensor):
        return [_seen(item) if isinstance(item, torch.Tensor) else item for item in outcome]
    facts = (outcome.shape, outcome.stride(), outcome.dtype, outcome.device, outcome.requires_grad)
    return facts if outcome.is_meta else (*facts, outcome.detach().tolist())


@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    context=st.sampled_from(sorted(CONTEXTS)),
    transform=st.sampled_from(sorted(TRANSFORMS)),
    layouts=st.tuples(*[st.sampled_from(sorted(LAYOUTS))] * 2),
    dtypes=st.tuples(*[st.sampled_from(DTYPES)] * 2),
    shapes=st.tuples(*[st.sampled_from([(2, 3), (0, 3), (1, 1)])] * 2),
    same=st.booleans(),
    overridden=st.booleans(),
)
def test_the_fast_call_gives_what_torch_ops_gives(
    mul: ops.KernelOperator,
    context: str,
    transform: str,
    layouts: tuple[str, str],
    dtypes: tuple[torch.dtype, torch.dtype],
    shapes: tuple[tuple[int, int], tuple[int, int]],
    same: bool,
    overridden: bool,
) -> None:
    if same:
        dtypes, shapes = (dtypes[0],) * 2, (shapes[0],) * 2
    tensors = [torch.arange(s[0] * s[1]).view(s).to(d) for s, d in zip(shapes, dtypes, strict=True)]
    xy = list(zip(tensors, layouts, strict=True))
    library = torch.library.Library(mul.qualified_name.partition("::")[0], "FRAGMENT")
    try:
        if overridden:
            library.impl("mul", lambda x, y: x * y + 1, "CPU", allow_override=True)
        fast, slow = (_outcome(call, transform, context, xy) for call in (mul, mul.overload))
    finally:
        library._destroy()
    assert _seen(fast) == _seen(slow)
