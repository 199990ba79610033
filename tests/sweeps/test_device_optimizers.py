"""OptimizerInfo on the device: every optimizer of torch with its own configurations takes the steps
that it takes on the CPU, as a loop, as lists of tensors and fused.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from bringup import devices
from bringup.conformance._samples import Mover, outcome, told

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

STEPS = 3
IMPLEMENTATIONS = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


@pytest.fixture(scope="module", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


def parameters(info: OptimizerInfo) -> list[nn.Parameter]:
    torch.manual_seed(0)
    shapes = [(3, 4), (4, 2)] if info.name == "Muon" else [(3, 4), (4,), (2, 3, 2), ()]
    return [nn.Parameter(torch.randn(shape)) for shape in shapes]


def steps(
    info: OptimizerInfo, params: list[nn.Parameter], options: dict[str, Any]
) -> list[torch.Tensor]:
    optimizer = info.optim_cls(params, **options)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        total = sum((param * param).sum() for param in params) / 2
        if info.only_supports_sparse_grads:
            for param in params:
                param.grad = sparse_gradient(param)
        else:
            total.backward()
        return total.detach()

    for _ in range(STEPS):
        if info.step_requires_closure:
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()
    return [param.detach() for param in params]


def sparse_gradient(param: torch.Tensor) -> torch.Tensor:
    values = param.detach().reshape(param.shape[0] if param.dim() else 1, -1)
    rows = torch.arange(0, values.shape[0], 2, device=param.device)
    picked = values[rows].reshape(-1, *param.shape[1:])
    return torch.sparse_coo_tensor(rows[None], picked, param.shape)


def flags(info: OptimizerInfo, implementation: str) -> dict[str, bool]:
    wanted = IMPLEMENTATIONS[implementation].items()
    return {option: on for option, on in wanted if option in info.supported_impls}


def configurations() -> list[Any]:
    found = []
    for info in optim_db:
        # of a GPU: they include the capturable ones, which torch allows a renamed device
        for given in info.optim_inputs_func(device="cuda"):
            for name in IMPLEMENTATIONS:
                if name == "loop" or name in info.supported_impls:
                    words = f"{info.name}-{name}-{given.desc}".replace(" ", "_")
                    found.append(pytest.param(info, name, given.kwargs, id=words))
    return found


@pytest.mark.parametrize(("info", "implementation", "options"), configurations())
def test_optimizer_steps_as_a_loop_on_the_cpu(
    info: OptimizerInfo, implementation: str, options: dict[str, Any], sweep_counts: Counter[str]
) -> None:
    here = [p for p in parameters(info) if p.dim() or not info.only_supports_sparse_grads]
    there = [nn.Parameter(p.detach().to("npu")) for p in here]
    plain = {option: value for option, value in options.items() if option != "capturable"}
    expected, their_error = outcome(lambda: steps(info, here, plain | flags(info, "loop")))
    chosen = Mover("npu")(options) | flags(info, implementation)
    got, our_error = outcome(lambda: steps(info, there, chosen))
    sweep_counts["configurations"] += 1
    assert told(got, our_error, expected, their_error, True, "npu") == ""
    assert their_error is None
