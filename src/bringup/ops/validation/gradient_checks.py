"""The checks that need gradients: finite differences against backward, double and forward mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from torch.utils import _pytree

from bringup.errors import BringupError
from bringup.ops.validation.basic_checks import (
    CheckFunction,
    Failed,
    NotApplicable,
    Subject,
    compare,
    refusals,
)
from bringup.ops.validation.samples import Sample, resized

_Call = Callable[..., tuple[torch.Tensor, ...]]


def _prepare(
    subject: Subject, sample: Sample
) -> tuple[_Call, list[torch.Tensor], dict[str, float]]:
    """Return the call as a function of its floating tensors, those, and the tolerances."""
    if subject.facts.written:
        raise NotApplicable("it writes its arguments")
    copies = sample.copied().tensors()
    if not any(t.dtype.is_floating_point and t.numel() for t in copies):
        raise NotApplicable("no floating-point argument")
    wide = [t.double() if t.dtype.is_floating_point else t for t in copies]
    tolerance = {"eps": 1e-6, "atol": 1e-5, "rtol": 1e-3}
    try:
        _function(subject, sample, wide)[0](*_leaves(wide))
    except Exception:  # it takes float32 only, or the like: differences are coarse then
        wide, tolerance = copies, {"eps": 1e-2, "atol": 5e-2, "rtol": 5e-2}
    function, leaves = _function(subject, sample, wide)
    if not any(t.dtype in {torch.float32, torch.float64} for t in leaves):
        raise NotApplicable(f"finite differences need float32 or float64, got {leaves[0].dtype}")
    return function, leaves, tolerance


def _leaves(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors if t.dtype.is_floating_point]


def _function(
    subject: Subject, sample: Sample, tensors: list[torch.Tensor]
) -> tuple[_Call, list[torch.Tensor]]:
    def call(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        floating = iter(leaves)
        rest = iter(tensors)

        def choose(_: torch.Tensor) -> torch.Tensor:
            tensor = next(rest)
            return next(floating) if tensor.dtype.is_floating_point else tensor

        given = sample.mapped(choose)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            results = _pytree.tree_leaves(subject.overload(*given.args, **given.kwargs))
        return tuple(
            t for t in results if isinstance(t, torch.Tensor) and t.dtype.is_floating_point
        )

    return call, _leaves(tensors)


def _says_it_has_none(subject: Subject, error: Exception) -> bool:
    """Return whether an operator without a gradient says so, naming itself, as it should."""
    bare = subject.name.partition("::")[2].partition(".")[0]
    return bare in str(error) or isinstance(error, NotImplementedError) or refusals(error)


def _differentiable(
    subject: Subject, sample: Sample
) -> tuple[_Call, list[torch.Tensor], dict[str, float]]:
    """See `_prepare`; `NotApplicable` where there is no gradient."""
    function, leaves, tolerance = _prepare(subject, sample)
    results = [result for result in function(*leaves) if result.requires_grad]
    if not results:
        raise NotApplicable("no result requires grad")
    try:
        torch.autograd.grad(
            results, leaves, [torch.ones_like(result) for result in results], allow_unused=True
        )
    except Exception as error:
        if not _says_it_has_none(subject, error):
            raise Failed(f"backward raises {type(error).__name__}: {error}") from error
        raise NotApplicable(f"no gradient: {error}") from None
    return function, leaves, tolerance


def _verdict(call: Callable[[], Any], what: str, subject: Subject) -> None:
    try:
        call()
    except GradcheckError as error:
        raise Failed(f"{what}: {' '.join(str(error).split())[:400]}") from None
    except Exception as error:
        if not _says_it_has_none(subject, error):
            raise
        raise NotApplicable(f"{what} is refused: {error}") from None


def gradient(subject: Subject, sample: Sample) -> None:
    """Compare backward with finite differences."""
    function, leaves, tolerance = _differentiable(subject, sample)
    _verdict(
        lambda: gradcheck(
            function,
            leaves,
            check_undefined_grad=False,
            check_batched_grad=False,
            nondet_tol=1e-12,
            **tolerance,
        ),
        "backward",
        subject,
    )


def double_backward(subject: Subject, sample: Sample) -> None:
    """Require that backward of backward is right, or raises; never silently zero."""
    function, leaves, tolerance = _differentiable(subject, sample)
    if leaves[0].dtype is not torch.float64:
        raise NotApplicable("finite differences of gradients need float64")
    results = [result for result in function(*leaves) if result.requires_grad]
    seeds = [torch.ones_like(result, requires_grad=True) for result in results]
    gradients = torch.autograd.grad(results, leaves, seeds, create_graph=True, allow_unused=True)
    if not any(g is not None and g.requires_grad for g in gradients):
        raise Failed("gradients are detached: double backward is silently zero; raise instead")
    try:
        torch.autograd.grad(
            [g.sum() for g in gradients if g is not None and g.requires_grad],
            [*leaves, *seeds],
            allow_unused=True,
        )
    except Exception as error:
        raise NotApplicable(f"double backward is refused: {error}") from None
    _verdict(
        lambda: gradgradcheck(
            function, leaves, check_undefined_grad=False, nondet_tol=1e-12, **tolerance
        ),
        "double backward",
        subject,
    )


def forward_mode(subject: Subject, sample: Sample) -> None:
    """Require the derivatives of finite differences from forward mode, or an error."""
    function, leaves, tolerance = _prepare(subject, sample)
    if not any(result.requires_grad for result in function(*leaves)):
        raise NotApplicable("no result requires grad")
    _verdict(
        lambda: gradcheck(
            function,
            leaves,
            check_forward_ad=True,
            check_backward_ad=False,
            check_undefined_grad=False,
            check_batched_grad=False,
            **tolerance,
        ),
        "forward mode",
        subject,
    )


def gradient_layouts(subject: Subject, sample: Sample) -> None:
    """Require equal gradients for any strides of those that come to backward from what follows."""
    checked = _layouts_checked(*_differentiable(subject, sample)[:2])
    for what, variant in resized(sample, times=0):
        try:
            function, leaves, _ = _differentiable(subject, variant)
        except Exception:  # the rows "zero-size" and "gradient" are about that
            continue
        checked = _layouts_checked(function, leaves, f"{what}, ") or checked
    if not checked:
        raise NotApplicable("backward refuses all but contiguous gradients")


def _layouts_checked(function: _Call, leaves: list[torch.Tensor], what: str = "") -> bool:
    """Return whether backward took one layout and more, all with the same gradients."""

    def backward(seeds: list[torch.Tensor]) -> list[Any]:
        results = [result for result in function(*leaves) if result.requires_grad]
        return [*torch.autograd.grad(results, leaves, seeds, allow_unused=True)]

    shapes = [result for result in function(*leaves) if result.requires_grad]
    checked = False
    for name, lay_out in _LAYOUTS.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            seeds = [lay_out(torch.randn_like(one, requires_grad=False)) for one in shapes]
        plain = [seed.resolve_neg().clone(memory_format=torch.contiguous_format) for seed in seeds]
        expected = backward(plain)
        try:
            got = backward(seeds)
        except Exception as error:
            if not isinstance(error, BringupError) and "contiguous" not in str(error):
                raise Failed(f"{what}{name}: {type(error).__name__}: {error}") from error
            continue
        compare(got, expected, f"{what}{name} gradients")
        checked = True
    return checked


def _within(values: torch.Tensor, sizes: list[int], step: int = 1, offset: int = 0) -> torch.Tensor:
    """Return the values as part of larger rows full of NaN, for kernels that assume contiguity."""
    strides = [step * math.prod(sizes[d + 1 :]) for d in range(values.dim())]
    memory = values.new_full((step * math.prod(sizes) + offset + values.numel(),), math.nan)
    return memory.as_strided(values.shape, strides, offset).copy_(values)


def _reversed(values: torch.Tensor) -> torch.Tensor:
    return values.permute([*range(values.dim())][::-1])


def _expanded(values: torch.Tensor) -> torch.Tensor:
    memory = values.new_full((values.numel() + 1,), math.nan)
    return memory[:1].fill_(1.75).as_strided(values.shape, [0] * values.dim())


def _expanded_rows(values: torch.Tensor) -> torch.Tensor:
    if not values.numel() or not values.dim():
        return _expanded(values)
    return _within(values[:1], [*values.shape]).expand(values.shape)


_LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "expanded": _expanded,
    "expanded rows of": _expanded_rows,
    "transposed": lambda v: _reversed(_within(_reversed(v), [*v.shape[::-1]])),
    "narrowed": lambda v: _within(v, [size + 2 for size in v.shape], offset=1),
    "strided": lambda v: _within(v, [*v.shape], step=2),
    "negated": lambda v: torch._neg_view(v.neg()),
}


CHECKS: dict[str, CheckFunction] = {
    "gradient": gradient,
    "gradient layouts": gradient_layouts,
    "double backward": double_backward,
    "forward mode": forward_mode,
}
