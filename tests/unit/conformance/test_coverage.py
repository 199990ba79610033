"""`conformance.coverage`: what a model needs, what it costs, and where it runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tests.forked_python import output_of
from tests.unit.conformance.conftest import Register
from torch import nn

from bringup import conformance, devices
from bringup.conformance import Coverage, Need, Support
from bringup.errors import ModelError

IN_PROCESS = """
import json, torch
from bringup import conformance, devices
devices.load_driver("sim")
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).double()
found = conformance.coverage(model, (torch.randn(2, 4, dtype=torch.float64),))
needs = [(n.operator, n.phase, n.support.value, n.reason) for n in found.needs]
print(json.dumps({"notes": found.notes, "needs": needs}))
"""


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Softmax(-1))


def listed(**named: Any) -> Coverage:
    return conformance.coverage(model(), (torch.randn(4, 8),), **named)


def need(found: Coverage, operator: str, phase: str = "forward") -> Need:
    (one,) = [n for n in found.needs if (n.operator, n.phase) == (operator, phase)]
    return one


def test_the_most_work_comes_first() -> None:
    found = listed()
    keys = [(n.flops, n.bytes) for n in found.needs]
    assert keys == sorted(keys, reverse=True)
    assert found.needs[0].flops == 2 * 4 * 8 * 16
    assert found.phases == ("forward", "backward")


def test_a_call_has_dtypes_shapes_flops_and_bytes() -> None:
    one = need(listed(), "aten::addmm")
    assert one.dtypes == ("float32",)
    assert one.shapes == ((16,), (4, 8), (8, 16))
    assert (one.calls, one.flops) == (1, 2 * 4 * 8 * 16)
    assert one.bytes == 4 * (16 + 4 * 8 + 8 * 16 + 4 * 16)


def test_calls_of_one_kind_are_one_row() -> None:
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    found = conformance.coverage(layers, (torch.randn(4, 8),))
    assert need(found, "aten::addmm").calls == 3
    assert need(found, "aten::addmm").flops == 3 * 2 * 4 * 8 * 8


def test_an_operator_is_native_where_the_device_has_it(device_kernel: Register) -> None:
    assert need(listed(), "aten::gelu").support is Support.FALLBACK
    device_kernel("gelu", lambda x, approximate="none": torch.ops.aten.gelu(x))
    found = listed()
    assert need(found, "aten::gelu").support is Support.NATIVE
    assert need(found, "aten::gelu").on_host == set()
    assert need(found, "aten::_softmax").support is Support.FALLBACK


def test_a_kernel_that_calls_what_falls_back_is_not_native() -> None:
    library = torch.library.Library("aten", "IMPL")
    library.impl("gelu", lambda x, approximate="none": torch.sigmoid(x * 1.7) * x, "PrivateUse1")
    try:
        one = need(listed(backward=False), "aten::gelu")
    finally:
        library._destroy()
    assert one.support is Support.FALLBACK
    assert "aten::sigmoid" in one.on_host


def test_what_the_policy_forbids_is_impossible_and_the_list_goes_on() -> None:
    with devices.fallback_policy("allow", {"aten::gelu": "forbid", "aten::mm": "forbid"}):
        found = listed()
    refused = {(n.operator, n.phase) for n in found.of(Support.IMPOSSIBLE)}
    assert refused == {("aten::gelu", "forward"), ("aten::mm", "backward")}
    assert "the fallback policy forbids" in need(found, "aten::gelu").reason
    assert need(found, "aten::_softmax").support is Support.FALLBACK
    assert found.notes == []


def test_what_is_forbidden_in_place_is_computed_all_the_same() -> None:
    class InPlace(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            return y.clamp_(min=0).mul_(2)

    with devices.fallback_policy("allow", {"aten::clamp_": "forbid"}):
        found = conformance.coverage(InPlace(), (torch.randn(4),))
    assert {n.operator for n in found.of(Support.IMPOSSIBLE)} == {"aten::clamp_"}
    assert need(found, "aten::mul_.Tensor").calls == 1


def test_a_model_that_the_device_cannot_hold_is_listed_all_the_same() -> None:
    told = json.loads(output_of(IN_PROCESS, BRINGUP_SIM_FAULTS="hidden_dtypes=float64"))
    assert "each tried on npu" in told["notes"][0]
    by_name = {(name, phase): (support, reason) for name, phase, support, reason in told["needs"]}
    support, reason = by_name["aten::gelu", "forward"]
    assert support == "impossible"
    assert "float64" in reason
    assert ("aten::gelu_backward", "backward") in by_name


def test_a_step_of_an_optimizer_is_a_phase() -> None:
    found = listed(optimizer="SGD")
    assert found.phases == ("forward", "backward", "optimizer")
    assert any(n.phase == "optimizer" for n in found.needs)


def test_an_optimizer_that_is_none_is_refused() -> None:
    with pytest.raises(ModelError, match="no optimizer 'Sgd': expected one like 'AdamW'"):
        listed(optimizer="Sgd")


def test_a_model_that_fails_everywhere_is_refused() -> None:
    with pytest.raises(ModelError, match="fails on cpu as well: RuntimeError"):
        conformance.coverage(nn.Linear(3, 3), (torch.randn(4, 8),))


def test_shares_are_of_all_and_an_operator_is_as_good_as_its_worst_call() -> None:
    found = Coverage("npu", [], (), [])
    found.needs = [
        Need("a", "forward", (), (), calls=1, flops=6, bytes=1),
        Need("a", "backward", (), (), calls=3, flops=2, bytes=1, support=Support.FALLBACK),
        Need("b", "forward", (), (), calls=4, flops=0, bytes=2),
    ]
    assert found.share(Support.NATIVE, "flops") == 0.75
    assert found.share(Support.FALLBACK, "calls") == 0.375
    assert found.share(Support.FALLBACK, "operators") == 0.5
    assert found.share(Support.IMPOSSIBLE, "operators") == 0.0
    assert Coverage("npu", [], (), []).share(Support.NATIVE, "operators") == 0.0


def test_attention_of_the_cpu_has_the_flops_of_torchs_counter() -> None:
    class Attention(nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(q, q, q)

    found = conformance.coverage(Attention(), (torch.randn(1, 2, 8, 16),))
    assert max(n.flops for n in found.needs) == 2 * (2 * 2 * 8 * 8 * 16)
