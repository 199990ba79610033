"""Operators from .cu files on tensors of a GPU, against torch's own results."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from tests.cuda.conftest import Define
from tests.cuda.kernels import (
    CONTEXT,
    PLAIN_FUNCTION,
    ROW_SUMS,
    SCALE,
    SLOW_ADD,
    THROUGH_WORKSPACE,
    TOO_MANY_THREADS,
)

from bringup import jit, ops
from bringup.errors import ContractError, KernelError

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1,), (3, 5), (1000, 1001), (0, 4), ()], ids=str)
def test_result_is_torchs(
    scale: ops.KernelOperator, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = (torch.randn(shape, device="cuda") * 100).to(dtype)
    expected = (x.float() * 3).to(dtype)
    result = scale(x, 3.0)
    assert (result.device, result.dtype) == (x.device, dtype)
    assert torch.equal(result, expected)
    assert torch.equal(scale.overload(x, 3.0), expected)


def test_a_view_is_copied_for_a_kernel_that_takes_rows(scale: ops.KernelOperator) -> None:
    x = torch.randn(64, 48, device="cuda")
    for view in (x.t(), x[:, ::2], x[1:, 1:], x.expand(2, 64, 48)):
        assert torch.equal(scale(view, 2.0), view * 2)


def test_memory_that_is_aligned_to_one_element_only_is_read_and_written(
    scale: ops.KernelOperator,
) -> None:
    whole = torch.randn(1025, device="cuda")
    assert torch.equal(scale(whole[1:], 2.0), whole[1:] * 2)


def test_strides_reach_a_kernel_that_takes_them(define: Define) -> None:
    row_sums = define(
        "row_sums(Tensor x) -> Tensor",
        ROW_SUMS,
        outputs=ops.empty("size(x,0)", dtype="x"),
        checks=(ops.rank("x", 2), ops.dtype("x", torch.float32)),
        layout="strided",
    )
    x = torch.randn(300, 200, device="cuda")
    for view in (x, x.t(), x[::3, 1::2]):
        torch.testing.assert_close(row_sums(view), view.sum(1), rtol=1e-4, atol=1e-4)


def test_a_written_argument_must_be_contiguous_and_is_written_in_place(define: Define) -> None:
    slow_add = define("slow_add(Tensor(a!) x, float value, int cycles) -> ()", SLOW_ADD)
    x = torch.zeros(8, 2, device="cuda")
    with pytest.raises(ContractError, match="x is written and must be contiguous"):
        slow_add(x[:, 0], 1.0, 0)
    y = torch.zeros(1000, device="cuda")
    version = y._version
    slow_add(y, 2.5, 0)
    assert y.unique().tolist() == [2.5]
    assert y._version == version + 1


def test_the_kernel_is_told_its_device_and_the_current_stream(define: Define) -> None:
    tell = define("tell(Tensor(a!) out) -> ()", CONTEXT)
    out = torch.zeros(3, dtype=torch.int64, device="cuda")
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            tell(out)
            assert out.tolist() == [2, 0, stream.cuda_stream]


def test_scratch_memory_comes_from_the_stream_and_goes_back(define: Define) -> None:
    square = define("square(Tensor x) -> Tensor", THROUGH_WORKSPACE, outputs=ops.empty_like("x"))
    x = torch.randn(1 << 20, device="cuda")
    square(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(50):
        result = square(x)
        assert torch.equal(result, x * x)
    del result
    assert torch.cuda.memory_allocated() == before


def test_outputs_come_from_torchs_pool_and_go_back(scale: ops.KernelOperator) -> None:
    x = torch.randn(1 << 20, device="cuda")
    scale(x, 1.0)
    before = torch.cuda.memory_allocated()
    kept = scale(x, 1.0)
    assert torch.cuda.memory_allocated() - before == x.nbytes
    del kept
    assert torch.cuda.memory_allocated() == before
    reserved = torch.cuda.memory_reserved()
    for _ in range(100):
        scale(x, 1.0)
    assert torch.cuda.memory_reserved() == reserved


def test_gradients_come_from_a_backward_operator_on_the_gpu(
    define: Define, scale: ops.KernelOperator
) -> None:
    graded = define(
        "graded(Tensor x, float factor) -> Tensor",
        SCALE,
        outputs=ops.empty_like("x"),
        dtypes={"ELEMENT": "x"},
    )
    graded.register_backward(scale.qualified_name, gradients=["x"])
    x = torch.randn(200, device="cuda", requires_grad=True)
    graded(x, 4.0).sum().backward()
    assert x.grad is not None
    assert x.grad.unique().tolist() == [4.0]


def test_torchs_opcheck_passes(scale: ops.KernelOperator) -> None:
    report = torch.library.opcheck(scale.overload, (torch.randn(5, 3, device="cuda"), 2.0))
    assert set(report.values()) == {"SUCCESS"}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor", "bringup"])
def test_torch_compile_keeps_the_operator(scale: ops.KernelOperator, backend: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(scale(x + 1, 2.0)).sum(1)

    x = torch.randn(64, 32, device="cuda")
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), function(x))
    torch._dynamo.reset()


def test_two_threads_on_streams_of_their_own_get_their_own_results(
    scale: ops.KernelOperator,
) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.full((1 << 18,), float(number), device="cuda")
            for _ in range(200):
                if not bool((scale(x, 2.0) == 2 * number).all()):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_tensors_on_cpu_and_gpu_are_refused(define: Define) -> None:
    both = define(
        "both(Tensor x, Tensor y) -> Tensor",
        SCALE,
        outputs=ops.empty_like("x"),
        checks=ops.kernel_checks(),
    )
    with pytest.raises(ContractError, match="must be on one device, got x: cuda:0, y: cpu"):
        both(torch.ones(1, device="cuda"), torch.ones(1))


def test_a_launch_that_cuda_refuses_is_an_error_in_cudas_words(define: Define) -> None:
    refused = define("refused(Tensor x) -> Tensor", TOO_MANY_THREADS, outputs=ops.empty_like("x"))
    with pytest.raises(
        KernelError, match=r"refused: the kernel failed .* invalid .*argument|config"
    ):
        refused(torch.ones(4, device="cuda"))
    assert torch.ones(4, device="cuda").sum().item() == 4


def test_host_code_and_device_code_do_not_run_on_a_gpu(define: Define) -> None:
    text = (
        '#include "bringup/kernel.h"\n'
        "BRINGUP_EXPORT int32_t run(void**, int32_t, const bringup_ctx*) { return 0; }"
    )
    for name, kind in (("host.cpp", "host"), ("code.cu", "device")):
        source = jit.Source(text=text, name=name, kind=kind)
        operator = define(
            f"{kind}(Tensor x) -> Tensor", "", source=source, outputs=ops.empty_like("x")
        )
        with pytest.raises(NotImplementedError, match="'CUDA' backend"):
            operator(torch.ones(4, device="cuda"))


def test_a_library_that_was_built_for_cuda_is_called_as_it_is(
    define: Define, tmp_path: Path
) -> None:
    binary = jit.compile(
        jit.Source(text=PLAIN_FUNCTION, name="plain.cu", entry="twice_of", abi="function"),
        target="cuda",
    )
    library = tmp_path / "libplain.so"
    library.write_bytes(binary.path.read_bytes())
    twice = define(
        "twice(Tensor x) -> Tensor",
        "",
        source=library,
        entry="twice_of",
        args="ptr(out), ptr(x), numel(x), stream",
        outputs=ops.empty_like("x"),
        checks=ops.dtype("x", torch.float32),
    )
    x = torch.randn(1000, device="cuda")
    assert torch.equal(twice(x), 2 * x)
    assert torch.equal(twice.overload(x), 2 * x)
