"""`conformance.compare`: the wrong operator is named, and none that is right."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.unit.conformance.conftest import Register
from torch import nn

from bringup import conformance, devices, jit
from bringup.conformance import _compare
from bringup.conformance._float64_reference import second_opinion
from bringup.errors import DeviceError, ModelError

ATEN = torch.ops.aten


def small() -> nn.Module:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.GELU(), nn.Linear(8, 8))
    return nn.Sequential(nn.Linear(8, 8), inner, nn.Softmax(-1))


def sample() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(4, 8)


def wrong_gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return ATEN.gelu(x, approximate=approximate) * 1.02


def wrong_softmax_backward(
    gradient: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype
) -> torch.Tensor:
    return ATEN._softmax_backward_data(gradient, output, dim, dtype) * 1.01


def test_a_right_model_agrees_forward_and_backward() -> None:
    found = conformance.compare(small(), (sample(),))
    assert found.agrees
    assert found.backward
    assert found.watched.compared > 8
    names = [result.name for result in found.results]
    assert names[:2] == ["output 0", "gradient of 0.weight"]
    assert not found.watched.not_compared


def test_a_gelu_that_is_two_per_cent_wrong_is_found_with_its_module(
    device_kernel: Register,
) -> None:
    device_kernel("gelu", wrong_gelu)
    found = conformance.compare(small(), (sample(),))
    assert found.first is not None
    place = found.first.place
    assert (place.module, place.phase, place.operator) == ("1.0", "forward", "aten::gelu")
    assert found.first.deviation.error == pytest.approx(0.02, rel=1e-3)
    assert len(found.watched.differences) == 1  # what follows it is right on its inputs
    assert not found.agrees


def test_a_wrong_kernel_of_devices_kernel_is_found_and_a_right_one_is_not() -> None:
    x = sample()
    for factor, places in ((1.0, []), (1.02, [("1.0", "aten::gelu")])):
        text = f"""
        #include <cmath>
        template <class T> T gelu(T x, const char*) {{
          return T({factor}) * T(0.5) * x * (T(1) + std::erf(x * T(0.70710678118654752)));
        }}
        """
        source = jit.Source(name="gelu.cpp", text=text)
        kernel = devices.kernel("aten::gelu", source=source, kind="pointwise")
        try:
            found = conformance.compare(small(), (x,))
        finally:
            kernel.close()
        wrong = [(one.place.module, one.place.operator) for one in found.watched.differences]
        assert wrong == places


def test_a_softmax_backward_that_is_one_per_cent_wrong_is_found_with_its_module(
    device_kernel: Register,
) -> None:
    device_kernel("_softmax_backward_data", wrong_softmax_backward)
    found = conformance.compare(small(), (sample(),))
    assert found.first is not None
    place = found.first.place
    assert (place.module, place.phase) == ("2", "backward")
    assert place.operator == "aten::_softmax_backward_data"
    assert found.first.deviation.error == pytest.approx(0.01, rel=1e-3)
    assert len(found.watched.differences) == 1


def test_nothing_of_the_backward_is_called_where_only_the_forward_is_asked_for(
    device_kernel: Register,
) -> None:
    device_kernel("_softmax_backward_data", wrong_softmax_backward)
    found = conformance.compare(small(), (sample(),), backward=False)
    assert found.agrees
    assert [result.name for result in found.results] == ["output 0"]


def test_the_second_of_two_calls_of_a_module_has_its_number(device_kernel: Register) -> None:
    calls = []

    def wrong_the_second_time(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
        calls.append(x)
        return ATEN.gelu(x, approximate=approximate) * (1.02 if len(calls) == 2 else 1)

    device_kernel("gelu", wrong_the_second_time)
    gelu = nn.GELU()
    found = conformance.compare(nn.Sequential(gelu, nn.Linear(8, 8), gelu), (sample(),))
    assert found.first is not None
    assert (found.first.place.module, found.first.place.call) == ("0", 1)
    assert "call 2" in str(found.first)


def test_errors_that_only_add_up_accuse_no_operator(device_kernel: Register) -> None:
    def nearly(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
        return ATEN.gelu(x, approximate=approximate) * (1 + 8e-6)

    device_kernel("gelu", nearly)
    model = nn.Sequential(*(nn.GELU() for _ in range(12)))
    found = conformance.compare(model, (sample() + 3,), backward=False)
    assert found.watched.differences == []
    assert found.watched.first_accumulated is not None
    assert found.results[0].deviation.error > 5e-5  # more than any one of them makes
    assert found.agrees
    strict = conformance.compare(model, (sample() + 3,), backward=False, limit=5e-5)
    assert [result.name for result in strict.far] == ["output 0"]
    assert not strict.agrees


def test_isolated_operators_add_no_errors_up(device_kernel: Register) -> None:
    device_kernel("gelu", wrong_gelu)
    model = nn.Sequential(nn.GELU(), nn.Linear(8, 8), nn.GELU())
    found = conformance.compare(model, (sample(),), isolate=True)
    assert [one.place.module for one in found.watched.differences] == ["0", "2"]
    errors = [one.deviation.error for one in found.watched.differences]
    assert errors == pytest.approx([0.02, 0.02], rel=1e-3)
    assert not found.agrees


def test_a_sum_in_another_order_is_not_to_blame_for_what_cancels(
    device_kernel: Register,
) -> None:
    def in_double(x: torch.Tensor, dims: Any, keepdim: bool = False, **named: Any) -> torch.Tensor:
        return ATEN.sum(x.double().flip(-1), dims, keepdim).float()

    class Sum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum(-1)

    device_kernel("sum.dim_IntList", in_double)
    torch.manual_seed(0)
    large = 1e4 * torch.randn(3, 4096)
    cancelling = torch.cat([large, -large + 1e-3 * torch.randn(3, 4096)], -1)
    found = conformance.compare(Sum(), (cancelling,))
    assert found.watched.differences == []
    assert sum(found.watched.excused.values()) == 1


def test_a_small_element_of_a_pointwise_operator_is_not_excused_by_a_large_one(
    device_kernel: Register,
) -> None:
    def wrong_below_one(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
        return ATEN.gelu(x, approximate=approximate) * torch.where(x < 1, 1.01, 1.0)

    device_kernel("gelu", wrong_below_one)
    found = conformance.compare(nn.GELU(), (torch.tensor([100.0, 0.1]),), backward=False)
    assert found.first is not None
    assert found.first.deviation.index == (1,)


@pytest.mark.parametrize("pointwise", [False, True])
def test_a_pointwise_operator_is_as_near_to_float64_in_each_element(pointwise: bool) -> None:
    x = torch.tensor([20.1, 0.1])
    expected = torch.exp(x)
    got = expected * torch.tensor([1.0, 1.01])
    given = (lambda x: [x.exp()], (x,), 0, got, expected, torch.zeros_like)
    assert bool(second_opinion(*given, pointwise)) != pointwise


def test_a_nan_on_one_side_only_is_found_where_it_appears(device_kernel: Register) -> None:
    def with_nan(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
        result = ATEN.gelu(x, approximate=approximate)
        result[2, 3] = float("nan")
        return result

    device_kernel("gelu", with_nan)
    found = conformance.compare(small(), (sample(),))
    assert found.first is not None
    assert found.first.place.module == "1.0"
    assert (found.first.deviation.kind, found.first.deviation.index) == ("nonfinite", (2, 3))
    assert found.watched.first_nonfinite is not None
    assert found.watched.first_nonfinite.place.module == "1.0"


def test_a_nan_on_both_sides_is_no_difference() -> None:
    found = conformance.compare(nn.GELU(), (torch.tensor([1.0, float("nan"), float("inf")]),))
    assert found.agrees


def test_whole_numbers_have_to_be_equal(device_kernel: Register) -> None:
    class Largest(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.argmax(-1)

    device_kernel("argmax", lambda x, dim=None, keepdim=False: ATEN.argmax(x, dim, keepdim) + 1)
    found = conformance.compare(Largest(), (sample(),))
    assert found.first is not None
    assert found.first.deviation.kind == "exact"
    assert found.notes == ["nothing in the model or its inputs wants a gradient: forward only"]


def test_what_an_operator_writes_in_place_is_compared(device_kernel: Register) -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            y[:, 1:].clamp_(min=0)  # through a view
            return y

    assert conformance.compare(Masked(), (sample(),)).agrees

    def wrong(x: torch.Tensor, min: Any = None, max: Any = None) -> torch.Tensor:  # noqa: A002
        return ATEN.clamp(x, min, max) * 1.5

    library = torch.library.Library("aten", "IMPL")
    library.impl(
        "clamp_", lambda x, low=None, high=None: x.copy_(wrong(x.cpu(), low, high)), "PrivateUse1"
    )
    try:
        found = conformance.compare(Masked(), (sample(),))
    finally:
        library._destroy()
    assert found.first is not None
    assert found.first.place.operator == "aten::clamp_"


def test_random_numbers_are_those_of_the_other_side_and_it_says_so() -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn_like(x)

    found = conformance.compare(Noisy(), (sample(),))
    assert found.watched.random["aten::randn_like"] == 1
    assert found.agrees
    assert found.results[0].deviation.error < 1e-6


def test_dropout_that_only_one_side_calls_leaves_the_results_uncompared() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).train()
    found = conformance.compare(model, (sample(),))
    assert found.watched.is_diverged
    assert found.results == []
    assert any("cannot be compared" in note for note in found.notes)


def test_dropout_that_is_off_is_compared() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).eval()
    found = conformance.compare(model, (sample(),))
    assert found.results
    assert not found.watched.random


def test_an_operator_that_the_device_refuses_ends_the_comparison_with_its_place() -> None:
    with devices.fallback_policy("allow", {"aten::gelu": "forbid"}):
        found = conformance.compare(small(), (sample(),))
    assert "npu: NotImplementedError" in found.failure
    assert "aten::gelu in the forward of 1.0" in found.failure
    assert not found.agrees


def test_the_model_and_its_inputs_stay_as_they_were() -> None:
    model, x = nn.Sequential(nn.BatchNorm1d(8), nn.ReLU(inplace=True)), sample()
    before, kept = copy.deepcopy(model.state_dict()), x.clone()
    found = conformance.compare(model, (x,))
    assert found.agrees
    assert "buffer 0.running_mean" in [result.name for result in found.results]
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert x.equal(kept)


def test_modules_are_compared_innermost_first(device_kernel: Register) -> None:
    device_kernel("gelu", wrong_gelu)
    found = conformance.compare(small(), (sample(),), level="module")
    assert found.first is not None
    assert (found.first.place.module, found.first.place.phase) == ("1.0", "forward")
    assert {one.place.module for one in found.watched.differences} == {"1.0", "1", ""}


def test_a_module_whose_backward_is_wrong_is_found(device_kernel: Register) -> None:
    device_kernel("_softmax_backward_data", wrong_softmax_backward)
    found = conformance.compare(small(), (sample(),), level="module")
    assert found.first is not None
    assert (found.first.place.module, found.first.place.phase) == ("2", "backward")
    assert "gradient of input 0" in found.first.place.operator


@pytest.mark.parametrize("form", ["fused", "captured"])
def test_another_form_of_the_model_agrees(form: str) -> None:
    found = conformance.compare(small(), (sample(),), a="eager", b=form)
    assert found.failure == ""
    assert found.agrees
    assert found.watched.compared == 1  # no inner module has to be looked at


def test_the_innermost_module_that_differs_in_another_form_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong_where_a_gelu_is(name: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        factor = 1.02 if any(isinstance(m, nn.GELU) for m in module.modules()) else 1.0
        return lambda *given, **named: module(*given, **named) * factor

    monkeypatch.setattr(_compare, "make_variant", wrong_where_a_gelu_is)
    found = conformance.compare(small(), (sample(),), a="fused", b="eager")
    assert found.first is not None
    assert found.first.place.module == "1.0"


@pytest.mark.parametrize(
    ("sides", "said"),
    [
        ({"a": "cpu", "b": "cpu"}, "both sides are cpu"),
        ({"a": "fused", "b": "captured"}, "on one side"),
        ({"a": "eager", "b": "eager"}, "on one side"),
    ],
)
def test_sides_that_cannot_be_compared_are_refused(sides: dict[str, str], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        conformance.compare(small(), (sample(),), **sides)


def test_a_device_that_is_none_is_named() -> None:
    with pytest.raises(DeviceError, match="'gpu' is no device"):
        conformance.compare(small(), (sample(),), a="gpu")


def test_an_output_without_tensors_is_refused() -> None:
    class Number(nn.Module):
        def forward(self, x: torch.Tensor) -> float:
            return float(x.sum())

    with pytest.raises(ModelError, match="a float, holds no tensor"):
        conformance.compare(Number(), (sample(),))
