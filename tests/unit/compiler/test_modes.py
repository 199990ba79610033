"""`options={"mode": ...}`: what is frozen and captured without being asked for, and when not."""

import gc
import logging

import pytest
import torch
from torch import nn

from bringup import compiler
from bringup.compiler.backend import warn_of_gradients
from bringup.errors import CaptureError


class Two(nn.Module):
    """Two products of one input, which become one where weights are frozen."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.left(x) * self.right(x)


def model_and_input():
    torch.manual_seed(0)
    return Two().eval(), torch.randn(3, 8)


def compiled(model, **options):
    torch._dynamo.reset()
    return torch.compile(model, backend="bringup", options=options)


def is_frozen():
    return compiler.last_report().matches["LibraryMergeProjections"] == 1


@pytest.fixture(autouse=True)
def shipped(empty_registry, monkeypatch):
    monkeypatch.delenv("BRINGUP_PASS_LIBRARY")


@pytest.fixture
def log(caplog):
    with caplog.at_level(logging.INFO, logger="bringup.compiler"):
        yield lambda: [
            record.getMessage() for record in caplog.records if record.name == "bringup.compiler"
        ]


@pytest.fixture
def count_captures(log):
    """The number of captures made so far."""
    return lambda: sum(line.startswith("captured ") for line in log())


def test_weights_are_frozen_without_gradients_and_in_evaluation_mode():
    model, x = model_and_input()
    run = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x))
    assert is_frozen()


def test_weights_are_not_frozen_while_gradients_are_enabled():
    model, x = model_and_input()
    model.requires_grad_(False)
    run = compiled(model)
    torch.testing.assert_close(run(x), model(x))
    assert not is_frozen()
    with torch.no_grad():  # Dynamo guards it
        run(x)
    assert is_frozen()


@torch.no_grad()
def test_weights_are_not_frozen_in_training_mode_and_a_guard_notices_the_change(log):
    model, x = model_and_input()
    run = compiled(model)
    run(x)
    assert is_frozen()
    model.train()
    run(x)
    assert not is_frozen()
    assert "no weight is frozen: L['self'] (Two) is in training mode" in " ".join(log())
    model.eval()
    run(x)
    with torch.no_grad():
        model.left.weight.add_(1)
    torch.testing.assert_close(run(x), model(x))


@pytest.mark.parametrize("mode", ["default", "serve", "max"])
def test_a_mode_for_serving_says_once_that_gradients_are_on(log, mode):
    warn_of_gradients.cache_clear()
    model, x = model_and_input()
    for _ in range(2):
        compiled(model, mode=mode)(x)
    model.requires_grad_(False)
    for _ in range(2):
        compiled(model, mode=mode)(x)
    assert not is_frozen()
    text = f"mode={mode!r}: gradients are on: nothing is {{}}; call the model under torch.inference"
    told = [line for line in log() if "gradients are on" in line]
    expected = (
        [] if mode == "default" else [text.format(w) for w in ("frozen or captured", "frozen")]
    )
    assert [line[: len(want)] for line, want in zip(told, expected, strict=True)] == expected


@torch.no_grad()
def test_one_module_in_training_mode_is_enough():
    model, x = model_and_input()
    model.right.train()
    torch.testing.assert_close(compiled(model)(x), model(x))
    assert not is_frozen()


@torch.no_grad()
def test_module_that_a_function_calls_is_frozen_too():
    model, x = model_and_input()
    run = compiled(lambda x: model(x) + 1)
    torch.testing.assert_close(run(x), model(x) + 1)
    assert is_frozen()


@torch.no_grad()
def test_static_tensor_that_no_module_owns_stays_an_input():
    cache = torch.zeros(4)
    torch._dynamo.mark_static_address(cache)
    run = compiled(lambda x, cache: x + cache.cos())
    for value in range(5):
        cache.fill_(value)
        torch.testing.assert_close(run(torch.ones(4), cache), 1 + cache.cos())


@torch.no_grad()
def test_weights_that_go_on_changing_are_frozen_no_longer_and_the_others_stay(log):
    model, x = model_and_input()
    run = compiled(model)
    for _ in range(6):
        torch.testing.assert_close(run(x), model(x))
        model.left.weight.add_(0.5)
    (said,) = [line for line in log() if "no longer frozen" in line]
    assert "left.weight" in said
    assert "right" not in said


@torch.no_grad()
def test_environment_forbids_freezing_and_capture(monkeypatch, count_captures):
    model, x = model_and_input()
    monkeypatch.setenv("BRINGUP_FREEZE", "0")
    monkeypatch.setenv("BRINGUP_CAPTURE", "0")
    torch.testing.assert_close(compiled(model, mode="serve", freeze=True)(x), model(x))
    assert not is_frozen()
    assert count_captures() == 0


@torch.no_grad()
@pytest.mark.parametrize(("mode", "captures"), [("default", 0), ("serve", 2), ("max", 2)])
def test_modes_capture_once_for_each_kind_of_call(mode, captures, count_captures):
    model, _ = model_and_input()
    run = compiled(model, mode=mode)
    for rows in (3, 3, 2, 2):
        given = torch.randn(rows, 8)
        torch.testing.assert_close(run(given), model(given), rtol=0.02, atol=0.02)
    assert count_captures() == captures


@torch.no_grad()
def test_results_belong_to_the_caller_unless_outputs_are_static():
    model, x = model_and_input()
    run = compiled(model, mode="serve")
    first, second = run(x), run(x + 1)
    torch.testing.assert_close(first, model(x))
    torch.testing.assert_close(second, model(x + 1))
    run = compiled(model, mode="serve", static_outputs=True)
    first = run(x)
    second = run(x + 1)
    assert first.data_ptr() == second.data_ptr()
    torch.testing.assert_close(second, model(x + 1))


@torch.no_grad()
def test_serve_runs_what_cannot_be_captured_and_says_why_once(log):
    def places(x):
        return torch.nonzero(x > 0)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run = compiled(places, mode="serve")
        for _ in range(3):
            x = torch.randn(6)
            assert torch.equal(run(x), places(x))
        (said,) = [line for line in log() if "runs as it is" in line]
        assert "aten::nonzero gives a result whose shape depends on data" in said
        with pytest.raises(CaptureError, match="Compile it without capture"):
            compiled(places, capture=True)(x)


def test_serve_trains():
    model, x = model_and_input()
    run = compiled(model, mode="serve")
    run(x).sum().backward()
    got = model.left.weight.grad.clone()
    model.left.weight.grad = None
    model(x).sum().backward()
    torch.testing.assert_close(got, model.left.weight.grad)


@torch.no_grad()
def test_serve_notices_that_a_weight_was_replaced():
    model, x = model_and_input()
    run = compiled(model, mode="serve")
    run(x)
    model.left.weight = nn.Parameter(torch.randn(8, 8))
    torch.testing.assert_close(run(x), model(x))
    model.left.weight.zero_()
    torch.testing.assert_close(run(x), model(x))


@torch.no_grad()
def test_captures_are_counted_in_bytes(log):
    def doubled(x):
        return torch.relu(x) * 2

    torch._dynamo.reset()
    gc.collect()
    before = len(compiler.captures())
    run = compiled(doubled, mode="serve", max_captures=2)
    run(torch.randn(1000))
    report = compiler.captures()[before]
    # a copy of the input and two results; a captured graph's memory is in pages of its own
    assert 3 * 4000 <= report.memory_bytes <= 20 * 4000
    assert (report.captures, report.uncaptured, report.max_captures) == (1, 0, 2)
    for length in (2000, 3000):
        run(torch.randn(length))
    later = compiler.captures()[before:]
    assert [item.name for item in later] == [report.name] * 2  # static, then dynamic
    assert sum(item.captures for item in later) == 3
    first = next(line for line in log() if line.startswith("captured "))
    assert first == f"captured {report.name} in 0.0 MB: 1 of at most 2, 0.0 MB in all"
    del run
    torch._dynamo.reset()
    gc.collect()
    assert len(compiler.captures()) == before


@torch.no_grad()
def test_calls_that_cannot_be_captured_are_counted(log):
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run = compiled(lambda x: torch.nonzero(x > 0), mode="serve")
        run(torch.randn(6))
    report = compiler.captures()[-1]
    assert (report.captures, report.uncaptured, report.memory_bytes) == (0, 1, 0)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 8),
        ({"max_captures": 3}, 3),
        ({"buckets": [4, 8]}, 8),
        ({"buckets": list(range(1, 13))}, 12),
        ({"buckets": "auto"}, 24),
        ({"buckets": list(range(1, 13)), "max_captures": 5}, 5),
        ({"buckets": dict.fromkeys(range(1, 13), 1)}, 8),
        ({"buckets": dict.fromkeys(range(1, 13), 1), "max_captures": 10}, 10),
    ],
)
def test_as_many_captures_are_kept_as_there_are_buckets(options, most):
    parsed = compiler.CompileOptions.parse(options, "serve")
    assert parsed.most_captures == most
    if isinstance(options.get("buckets"), dict):
        assert len(parsed.ladder) == most


@torch.no_grad()
@pytest.mark.parametrize("autotune", [True, False])
def test_layouts_are_measured_unless_autotune_is_off(monkeypatch, autotune):
    asked = []

    def best_layout(*given, **options):
        asked.append(given)
        return "panels"

    monkeypatch.setattr("bringup.kernels._linear_choice.best_layout", best_layout)
    model, x = model_and_input()
    run = compiled(model, autotune=autotune)
    torch.testing.assert_close(run(x), model(x))
    assert compiler.last_report().matches["LibraryPackLinear"] == 1
    assert bool(asked) is autotune


def test_weights_that_are_asked_for_narrow_are_not_measured():
    assert compiler.CompileOptions.parse({}).for_passes()["autotune"]
    assert compiler.CompileOptions.parse({}, "max").for_passes()["autotune"]
    assert not compiler.CompileOptions.parse({"weights": "int8"}).for_passes()["autotune"]
