"""`ops.check`: operators that break a check each."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import ELEMENTWISE, each, kernel

from bringup import cli, kernels, ops
from bringup.errors import SchemaError
from bringup.ops.validation import sanitized
from bringup.ops.validation.report import CHECKS

_numbers = itertools.count()
Make = Callable[..., Any]


@pytest.fixture
def make() -> Iterator[Make]:
    """`make("(Tensor x) -> Tensor", real, fake)`: an operator of torch's own `Library`, as wrong as
    a test wants it.
    """
    libraries: list[torch.library.Library] = []

    def define(signature: str, real: Any, fake: Any = None, key: str = "CPU") -> Any:
        namespace = f"bringup_check_{next(_numbers)}"
        library = torch.library.Library(namespace, "FRAGMENT")
        libraries.append(library)
        library.define(f"f{signature}")
        library.impl("f", real, key)
        torch.library.register_fake(f"{namespace}::f", fake or torch.empty_like, lib=library)
        return getattr(torch.ops, namespace).f.default

    yield define
    for library in libraries:
        library._destroy()


def failures(op: Any, *samples: tuple[Any, ...], only: tuple[str, ...]) -> dict[str, str]:
    """The checks among `only` that fail, with their reasons."""
    report = ops.check(op, list(samples), skip=set(CHECKS) - set(only))
    return {row.name: row.reason for row in report.failures}


X = torch.arange(1.0, 7.0).view(2, 3)


def test_a_right_operator_passes_and_require_returns_the_report(add: ops.KernelOperator) -> None:
    report = ops.check(add, [(X, X)]).require()
    assert report.failures == ()
    assert [row.name for row in report.rows] == list(CHECKS)
    assert report.row("strides").outcome is ops.CheckOutcome.PASS
    assert report.row("gradient").outcome is ops.CheckOutcome.NOT_APPLICABLE
    assert "has no backward" in report.row("gradient").reason


def test_an_operator_with_a_backward_passes_the_gradient_checks(mul: ops.KernelOperator) -> None:
    report = ops.check(mul, [(X, X + 1)]).require()
    assert report.row("gradient").outcome is ops.CheckOutcome.PASS
    assert "is refused" in report.row("double backward").reason


def test_a_wrong_fake_is_found(make: Make) -> None:
    op = make("(Tensor x) -> Tensor", lambda x: x + 1, lambda x: x.new_empty(x.shape[:1]))
    assert "fake" in failures(op, (X,), only=("fake",))


def test_a_fake_that_is_right_for_the_samples_size_only_is_found(make: Make) -> None:
    op = make("(Tensor x) -> Tensor", lambda x: x + 1, lambda x: x.new_empty(2, 3))
    found = failures(op, (X,), only=("fake", "dynamic shapes"))
    assert list(found) == ["dynamic shapes"]
    assert "with size 4 in place of 2: the fake gives ['[2, 3] " in found["dynamic shapes"]


def test_a_hidden_write_is_found(make: Make) -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        x.data.mul_(2)
        return x.clone()

    found = failures(make("(Tensor x) -> Tensor", write), (X,), only=("hidden writes", "schema"))
    assert set(found) == {"hidden writes", "schema"}
    assert "write Tensor(a!)" in found["hidden writes"]


def test_a_write_behind_an_argument_is_found(define: Define) -> None:
    op = define(
        "past(Tensor x) -> Tensor",
        source=kernel("DATA(1)[0] = 1; DATA(0)[count(TENSOR(0))] = 7;"),
        outputs=ops.empty_like("x"),
        dtypes={"T": "x"},
    )
    roomy = torch.zeros(64)[:1]  # the stray element stays in memory of ours
    report = ops.check(op, [(roomy,)], skip=set(CHECKS) - {"hidden writes"})
    assert "the memory behind tensor 0 is written" in report.row("hidden writes").reason


def test_a_result_that_is_an_argument_is_found(make: Make) -> None:
    op = make("(Tensor x) -> Tensor", lambda x: x.view(x.shape))
    assert "shares its memory with tensor 0" in failures(op, (X,), only=("aliases",))["aliases"]


def test_two_results_in_one_memory_are_found(make: Make) -> None:
    def twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = x.clone()
        return result, result.view(x.shape)

    op = make("(Tensor x) -> (Tensor, Tensor)", twice, lambda x: (x.new_empty(x.shape),) * 2)
    found = failures(op, (X,), only=("aliases",))
    assert "result 1 shares its memory with result 0" in found["aliases"]


def _raw(x: torch.Tensor, offset: int | None = None) -> torch.Tensor:
    """The elements as they lie in memory, as a kernel that ignores strides reads them."""
    start = x.storage_offset() if offset is None else offset
    return x.as_strided((x.numel(),), (int(x.numel() > 0),), start).reshape(x.shape).clone()


def test_a_kernel_that_ignores_strides_is_found(define: Define) -> None:
    op = define(
        "copy(Tensor x) -> Tensor",
        source=each("DATA(1)[i] = DATA(0)[i];"),
        outputs=ops.empty_like("x"),
        dtypes={"T": "x"},
        layout="strided",
    )
    report = ops.check(op, [(X,)], skip=set(CHECKS) - {"strides", "offsets"})
    assert [row.name for row in report.failures] == ["strides"]
    assert "transposed: result 0" in report.row("strides").reason


def test_ignored_offsets_are_found(make: Make) -> None:
    op = make("(Tensor x) -> Tensor", lambda x: _raw(x.contiguous(), 0), torch.empty_like)
    assert list(failures(op, (X,), only=("strides", "offsets"))) == ["offsets"]


def test_ignored_zero_strides_are_found(make: Make) -> None:
    def real(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if 0 in x.stride() else x + 1

    assert list(
        failures(make("(Tensor x) -> Tensor", real), (X,), only=("expanded", "strides"))
    ) == ["expanded"]


def test_a_wrong_channels_last_path_is_found(make: Make) -> None:
    def real(x: torch.Tensor) -> torch.Tensor:
        last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        return x + (2 if last else 1)

    image = torch.randn(2, 3, 4, 5)
    op = make("(Tensor x) -> Tensor", real)
    assert list(failures(op, (image,), only=("channels-last", "strides"))) == ["channels-last"]


def test_an_operator_that_refuses_strides_is_not_wrong(make: Make) -> None:
    def real(x: torch.Tensor) -> torch.Tensor:
        if not x.is_contiguous():
            raise RuntimeError("x must be contiguous")
        return x + 1

    report = ops.check(make("(Tensor x) -> Tensor", real), [(X,)], skip=set(CHECKS) - {"strides"})
    assert report.row("strides").outcome is ops.CheckOutcome.NOT_APPLICABLE
    assert "x must be contiguous" in report.row("strides").reason


def test_a_crash_without_elements_is_found(make: Make) -> None:
    op = make("(Tensor x) -> Tensor", lambda x: x / x.view(-1)[0])
    assert "IndexError" in failures(op, (X,), only=("zero-size",))["zero-size"]


def test_a_dtype_that_the_fake_takes_and_the_kernel_does_not_is_found(make: Make) -> None:
    def real(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is torch.bfloat16:
            raise RuntimeError("no bfloat16 here")
        return x + 1

    assert (
        "no bfloat16 here"
        in failures(make("(Tensor x) -> Tensor", real), (X,), only=("dtypes",))["dtypes"]
    )


def test_wrong_values_in_one_dtype_are_found(make: Make) -> None:
    op = make("(Tensor x) -> Tensor", lambda x: x + (x.dtype is torch.float64))
    assert "torch.float64: result 0" in failures(op, (X,), only=("dtypes",))["dtypes"]


def test_a_call_that_differs_when_compiled_is_found(make: Make) -> None:
    calls = itertools.count()
    op = make("(Tensor x) -> Tensor", lambda x: x + next(calls))
    assert "compiled: result 0" in failures(op, (X,), only=("compile",))["compile"]


def test_a_fake_that_cannot_be_traced_is_found_by_aot_dispatch(make: Make) -> None:
    def fake(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty([int(x.sum()), 3])

    op = make("(Tensor x) -> Tensor", lambda x: x + 1, fake)
    assert set(failures(op, (X,), only=("aot dispatch", "compile"))) == {"aot dispatch", "compile"}


def test_gradients_in_a_cpu_kernel_are_found_by_autograd_registration(make: Make) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0] * 2

    op = make("(Tensor x) -> Tensor", Double.apply)
    assert "autograd registration" in failures(op, (X,), only=("autograd registration",))


def test_a_wrong_batching_rule_is_found(make: Make) -> None:
    op = make("(Tensor x) -> Tensor", lambda x: x + 1)
    torch.library.register_vmap(op, lambda info, dims, x: (x + 2, dims[0]))
    assert "vmap: result 0" in failures(op, (X,), only=("vmap",))["vmap"]


def _differentiable(backward: Callable[..., Any]) -> Any:
    @ops.custom_op(f"bringup_check_{next(_numbers)}::square", mutates_args=())
    def square(x: torch.Tensor) -> torch.Tensor:
        return x * x

    square.register_fake(torch.empty_like)
    square.register_autograd(
        backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0])
    )
    return square


def test_a_wrong_backward_is_found() -> None:
    op = _differentiable(lambda ctx, grad: grad * ctx.saved_tensors[0])
    found = failures(op, (X,), only=("gradient",))
    assert "backward: Jacobian mismatch" in found["gradient"]


def test_a_backward_that_raises_is_found() -> None:
    op = _differentiable(lambda ctx, grad: grad * ctx.saved_tensors[3])
    assert "backward raises IndexError" in failures(op, (X,), only=("gradient",))["gradient"]


def test_a_right_backward_passes_twice() -> None:
    op = _differentiable(lambda ctx, grad: grad * 2 * ctx.saved_tensors[0])
    report = ops.check(op, [(X,)], skip=set(CHECKS) - {"gradient", "double backward"})
    assert [report.row(n).outcome.value for n in ("gradient", "double backward")] == ["pass"] * 2


def test_a_double_backward_that_is_silently_zero_is_found() -> None:
    op = _differentiable(lambda ctx, grad: (grad * 2 * ctx.saved_tensors[0]).detach())
    found = failures(op, (X,), only=("gradient", "double backward"))
    assert list(found) == ["double backward"]
    assert "silently zero" in found["double backward"]


def test_a_wrong_forward_mode_is_found() -> None:
    op = _differentiable(lambda ctx, grad: grad * 2 * ctx.saved_tensors[0])
    op.register_jvp(lambda ctx, tangent: tangent * 0)
    found = failures(op, (X,), only=("forward mode", "gradient"))
    assert list(found) == ["forward mode"]


class _Differs:
    """A callable that is not its operator."""

    def __init__(self, overload: Any, call: Callable[..., Any]) -> None:
        self.overload = overload
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)


def test_a_fast_path_with_other_values_is_found(add: ops.KernelOperator) -> None:
    wrong = _Differs(add.overload, lambda x, y: add(x, y) + 1)
    assert (
        "the sample: result 0" in failures(wrong, (X, X), only=("fast and slow",))["fast and slow"]
    )


def test_a_fast_path_with_other_errors_is_found(add: ops.KernelOperator) -> None:
    def lax(x: Any, y: Any) -> Any:
        return add(x, y) if isinstance(x, torch.Tensor) else torch.zeros(1)

    found = failures(_Differs(add.overload, lax), (X, X), only=("fast and slow",))
    assert "texts for tensors: the callable gives results" in found["fast and slow"]


def test_an_overridden_kernel_is_seen_by_both_paths(add: ops.KernelOperator) -> None:
    library = torch.library.Library(add.qualified_name.partition("::")[0], "FRAGMENT")
    try:
        library.impl("add", lambda x, y: x - y, "CPU", allow_override=True)
        assert failures(add, (X, X), only=("fast and slow",)) == {}
    finally:
        library._destroy()


def test_require_lists_the_failures(make: Make) -> None:
    op = make("(Tensor x) -> Tensor", lambda x: x.view(x.shape))
    report = ops.check(op, lambda: [(X,)], skip=set(CHECKS) - {"aliases"})
    with pytest.raises(
        AssertionError, match="1 of 21 checks failed on 1 sample:\n  aliases: sample 0"
    ):
        report.require()


def test_samples_are_made_from_schema_and_contract() -> None:
    report = ops.check(kernels.rms_norm, skip=set(CHECKS) - {"aliases"})
    assert (report.samples, report.row("aliases").outcome) == (2, ops.CheckOutcome.PASS)


def test_written_arguments_are_checked(define: Define) -> None:
    op = define(
        "add_(Tensor(a!) x, Tensor y) -> Tensor(a!)",
        source=each("DATA(0)[i] = DATA(0)[i] + DATA(1)[i];"),
        checks=ELEMENTWISE,
        dtypes={"T": "x"},
    )
    report = ops.check(op, [(X, X + 1)]).require()
    assert report.row("hidden writes").outcome is ops.CheckOutcome.PASS


def test_without_a_contract_samples_are_asked_for() -> None:
    with pytest.raises(ValueError, match=r"aten::add.Tensor declares no contract .* give samples="):
        ops.check(torch.ops.aten.add.Tensor)


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        ([], "samples is empty"),
        ([X], r"sample 0: expected a tuple of arguments, or \(args, kwargs\), got Tensor"),
        ([(X,)], r"sample 0 cannot be called \(RuntimeError"),
    ],
)
def test_wrong_samples_are_refused(add: ops.KernelOperator, samples: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ops.check(add, samples)


def test_what_is_no_operator_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected an operator .* got int"):
        ops.check(3, [(X,)])
    with pytest.raises(SchemaError, match="there is no operator bringup_none::f"):
        ops.check("bringup_none::f", [(X,)])


def test_an_unknown_check_cannot_be_skipped(add: ops.KernelOperator) -> None:
    with pytest.raises(ValueError, match="skip: no check 'fakes'; there are schema, "):
        ops.check(add, [(X, X)], skip=["fakes"])
    with pytest.raises(KeyError, match="no check 'fakes'"):
        ops.check(add, [(X, X)], skip=list(CHECKS)).row("fakes")


def test_the_command_prints_a_row_for_each_check(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "bringup::bias_gelu"]) == 0
    shown = capfd.readouterr().out
    assert all(name in shown for name in CHECKS)
    assert "0 failures; samples: 1" in shown


def test_the_command_exits_1_where_a_check_fails_and_prints_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bringup_check_module.py").write_text(
        "import torch\n"
        "from bringup import ops\n"
        "library = ops.Library('bringup_check_module', 'FRAGMENT')\n"
        "library.define('f(Tensor x) -> Tensor')\n"
        "library.impl('f', lambda x: x.view(x.shape), 'CPU')\n"
        "SAMPLES = [(torch.ones(2),)]\n"
    )
    monkeypatch.chdir(tmp_path)
    samples = "--samples=bringup_check_module:SAMPLES"
    skipped = [f"--skip={name}" for name in CHECKS if name != "aliases"]
    assert cli.main(["check", "bringup_check_module::f", samples, "--json", "-", *skipped]) == 1
    found = json.loads(capfd.readouterr().out)
    (row,) = [row for row in found["rows"] if row["outcome"] == "fail"]
    assert (found["samples"], row["name"]) == (1, "aliases")


def test_the_command_names_samples_it_cannot_find(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "bringup::bias_gelu", "--samples=json:nothing"]) == 2
    assert "json has no attribute 'nothing'" in capfd.readouterr().err
    assert cli.main(["check", "bringup::bias_gelu", "--samples=json"]) == 2
    assert "expected module:name" in capfd.readouterr().err


def test_the_command_names_the_check_that_ended_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bringup_crashing.py").write_text(
        "import os, signal, torch\n"
        "from bringup import ops\n"
        "@ops.custom_op('bringup_crashing::f')\n"
        "def f(x: torch.Tensor) -> torch.Tensor:\n"
        "    if x.numel() != 8: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    return x + 1\n"
        "SAMPLES = [(torch.ones(8),)]\n"
    )
    monkeypatch.chdir(tmp_path)
    options = ["--import=bringup_crashing", "--samples=bringup_crashing:SAMPLES"]
    assert cli.main(["check", "bringup_crashing::f", *options]) == 1
    said = capfd.readouterr().err
    assert "bringup_crashing::f: the process ended with SIGSEGV in 'zero-size'" in said
    assert "--skip" in said


@pytest.mark.parametrize("x", [X, X.double(), torch.ones(4), torch.ones(2, 3, 2)])
def test_a_backward_that_takes_gradients_for_contiguous_is_found(x: torch.Tensor) -> None:
    def rows(grad: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(grad, grad.shape, torch.empty(grad.shape).stride())

    found = {}
    for name, read in (("right", lambda grad: grad), ("wrong", rows)):
        op = ops.custom_op(f"bringup_check_{next(_numbers)}::{name}", lambda x: x * 2)
        op.register_fake(torch.empty_like)
        op.register_autograd(lambda ctx, grad, read=read: read(grad) * 2)
        found[name] = failures(op, (x,), only=("gradient layouts",))
        op.undefine()
    assert found["right"] == {}
    assert "expanded gradients: result 0" in found["wrong"]["gradient layouts"]


def test_a_backward_that_refuses_other_gradients_than_contiguous_ones_is_right() -> None:
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        if not grad.is_contiguous():
            raise RuntimeError("the gradient must be contiguous")
        return grad * 2

    op = ops.custom_op(f"bringup_check_{next(_numbers)}::strict", lambda x: x * 2)
    op.register_fake(torch.empty_like)
    op.register_autograd(backward)
    assert failures(op, (X,), only=("gradient layouts",)) == {}
    op.undefine()


EIGHT = """#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const auto* x = static_cast<const DLTensor*>(args[0]);
  const auto* out = static_cast<const DLTensor*>(args[1]);
  for (int i = 0; i < 9; ++i) static_cast<T*>(out->data)[i] = static_cast<T*>(x->data)[0];
  return 0;
}
"""


def test_sanitizers_name_the_line_of_a_mistake(define: Define, tmp_path: Path) -> None:
    source = tmp_path / "eight.cpp"
    source.write_text(EIGHT)
    eight = define(
        "eight(Tensor x) -> Tensor", source=source, outputs=ops.empty_like("x"),
        dtypes={"T": "x"},
    )  # fmt: skip
    (row,) = ops.check(eight, [(torch.ones(8),)], sanitize=True).rows
    assert row.outcome is ops.CheckOutcome.FAIL
    assert re.fullmatch(
        r"it writes 4 bytes that are not there \(heap-buffer-overflow\), at eight.cpp:5, in 'the "
        "samples themselves'",
        row.reason,
    )


def test_undefined_behaviour_is_told_in_one_sentence() -> None:
    said = "/x/y/f.cpp:7:12: runtime error: signed integer overflow: 1 + 2\n  #0 f.cpp:9"
    assert sanitized.sentence_of(said, "strides") == (
        "signed integer overflow: 1 + 2, at f.cpp:7, in 'strides'"
    )
    assert sanitized.sentence_of("nothing of interest", "strides") == ""


def test_what_the_sanitizers_pass_is_checked_on(define: Define) -> None:
    double = define(
        "double(Tensor x) -> Tensor", source=each("DATA(1)[i] = DATA(0)[i] + DATA(0)[i];"),
        outputs=ops.empty_like("x"), dtypes={"T": "x"},
    )  # fmt: skip
    others = set(CHECKS) - {"strides"}
    report = ops.check(double, [(torch.ones(2, 3),)], skip=others, sanitize=True).require()
    assert report.row("sanitizers").outcome is ops.CheckOutcome.PASS
    assert report.row("strides").outcome is ops.CheckOutcome.PASS


def test_only_kernels_are_sanitized() -> None:
    with pytest.raises(ValueError, match=r"aten::add\.Tensor: sanitize=True is for kernel oper"):
        ops.check(torch.ops.aten.add.Tensor, [(X, X)], sanitize=True)
