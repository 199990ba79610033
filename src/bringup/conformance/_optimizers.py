"""OptimizerInfo on a device: torch's configurations as loop, lists and fused, beside the CPU's."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bringup.conformance._opinfo import Watch
from bringup.conformance._samples import Mover, describe_difference, described, outcome

if TYPE_CHECKING:
    from torch.testing._internal.common_optimizers import OptimizerInfo

_STEPS = 3
_IMPLEMENTATIONS = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def _parameters(info: OptimizerInfo) -> list[nn.Parameter]:
    torch.manual_seed(0)
    shapes = [(3, 4), (4, 2)] if info.name == "Muon" else [(3, 4), (4,), (2, 3, 2), ()]
    return [nn.Parameter(torch.randn(shape)) for shape in shapes]


def _steps(
    info: OptimizerInfo, params: list[nn.Parameter], options: dict[str, Any]
) -> list[torch.Tensor]:
    optimizer = info.optim_cls(params, **options)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        total = sum((param * param).sum() for param in params) / 2
        if info.only_supports_sparse_grads:
            for param in params:
                param.grad = _sparse_gradient(param)
        else:
            total.backward()
        return total.detach()

    for _ in range(_STEPS):
        if info.step_requires_closure:
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()
    return [param.detach() for param in params]


def _sparse_gradient(param: torch.Tensor) -> torch.Tensor:
    values = param.detach().reshape(param.shape[0] if param.dim() else 1, -1)
    rows = torch.arange(0, values.shape[0], 2, device=param.device)
    picked = values[rows].reshape(-1, *param.shape[1:])
    return torch.sparse_coo_tensor(rows[None], picked, param.shape)


def _flags(info: OptimizerInfo, implementation: str) -> dict[str, bool]:
    wanted = _IMPLEMENTATIONS[implementation].items()
    return {option: on for option, on in wanted if option in info.supported_impls}


def optimizer_cases() -> Iterator[tuple[str, OptimizerInfo, str, dict[str, Any]]]:
    """Yield every configuration by name: optimizer, implementation and options."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_optimizers import optim_db
    for info in optim_db:
        # of a GPU: they include the capturable ones, which torch allows a renamed device
        for given in info.optim_inputs_func(device="cuda"):
            for name in _IMPLEMENTATIONS:
                if name == "loop" or name in info.supported_impls:
                    words = f"{info.name}-{name}-{given.desc}".replace(" ", "_")
                    yield words, info, name, given.kwargs


def optimizer_difference(
    info: OptimizerInfo,
    implementation: str,
    options: dict[str, Any],
    device: str,
    watch: Watch | None = None,
) -> str:
    """Return how the steps of "loop", "foreach" or "fused" differ from a loop on the CPU, or ""."""
    watch = watch or Watch()
    here = [p for p in _parameters(info) if p.dim() or not info.only_supports_sparse_grads]
    there = [nn.Parameter(p.detach().to(device)) for p in here]
    plain = {option: value for option, value in options.items() if option != "capturable"}
    expected, their_error = outcome(lambda: _steps(info, here, plain | _flags(info, "loop")))
    chosen = Mover(device)(options) | _flags(info, implementation)
    with watch.calls():
        got, our_error = outcome(lambda: _steps(info, there, chosen))
    if their_error is not None:
        return f"the CPU fails: {described(their_error)}"
    words = describe_difference(
        got, our_error, expected, their_error, True, torch.device(device).type
    )
    if not words:
        watch.results(got, expected)
    return words
