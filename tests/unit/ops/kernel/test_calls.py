"""Calls of kernel operators: arguments reach the kernel, wrong ones raise Python errors."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest
import torch
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import ADD, ADD_INPLACE, SCALE, each, kernel, variant_count

from bringup import jit, ops
from bringup.errors import CompileError, ContractError, KernelError

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_with_a_c_type_has_its_own_kernel(
    add: ops.KernelOperator, dtype: torch.dtype
) -> None:
    x, y = torch.arange(6).reshape(2, 3).to(dtype), torch.ones(2, 3, dtype=dtype)
    assert torch.equal(add(x, y), x + y)
    assert torch.equal(add.overload(x, y), x + y)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (2, 3, 4)], ids=str)
def test_shapes_also_empty_and_without_dimensions(
    add: ops.KernelOperator, shape: tuple[int, ...]
) -> None:
    x, y = torch.randn(shape), torch.randn(shape)
    assert torch.equal(add(x, y), x + y)


def test_inputs_of_any_layout_reach_the_kernel_contiguous(add: ops.KernelOperator) -> None:
    base = torch.randn(4, 6)
    for x in (base.t(), base[:, ::2], base[1:, 3:], base[:1].expand(4, 6), base.flip(0).T):
        y = torch.randn(x.shape)
        for call in (add, add.overload):
            result = call(x, y)
            assert torch.equal(result, x + y)
            assert result.is_contiguous()


def test_strided_kernels_see_strides(define: Define) -> None:
    strides = define(
        "strides(Tensor x) -> Tensor",
        source=kernel("for (int i = 0; i < 2; ++i) DATA(1)[i] = TENSOR(0)->strides[i];"),
        outputs=ops.empty(2, dtype=torch.int64),
        layout="strided",
        macros={"T": "int64_t"},
    )
    assert strides(torch.empty(3, 5).t()).tolist() == [1, 5]


EVERY_KIND = """
  T* out = DATA(14);
  for (int i = 0; i < 14; ++i) out[i] = args[i] == nullptr ? -1 : 0;
  out[1] = INT(1); out[2] = DOUBLE(2); out[3] = INT(3);
  out[4] = static_cast<const char*>(args[4])[0];
  out[5] = INT(5);
  for (int i = 6; i < 9; ++i) if (args[i] != nullptr) out[i] = LIST(i)->size;
  if (args[6] != nullptr) out[6] += 10 * static_cast<const int64_t*>(LIST(6)->data)[1];
  if (args[7] != nullptr) out[7] += 10 * static_cast<const double*>(LIST(7)->data)[1];
  if (args[8] != nullptr) out[8] += 10 * static_cast<const int64_t*>(LIST(8)->data)[1];
  const auto* tensors = static_cast<const DLTensor* const*>(LIST(9)->data);
  for (int i = 0; i < LIST(9)->size; ++i) out[9] += 10 + tensors[i]->shape[0];
  if (args[10] != nullptr) out[10] = TENSOR(10)->shape[0];
  if (args[11] != nullptr) out[11] = INT(11);
"""


def test_every_schema_type_reaches_the_kernel_on_both_paths(define: Define) -> None:
    every = define(
        "every(Tensor x, int i, float f, bool b, str s, ScalarType d, int[] il, float[] fl,"
        " bool[] bl, Tensor[] tl, Tensor? t=None, int? oi=None, float? of=None, str? os=None)"
        " -> Tensor",
        source=kernel(EVERY_KIND),
        outputs=ops.empty(14, dtype=torch.float64),
        checks=ops.kernel_checks(),
        macros={"T": "double"},
    )
    x = torch.ones(3)
    tensors = [torch.ones(2), torch.ones(3)]
    for call in (every, every.overload):
        got = call(x, 7, 2.5, True, "A", torch.int64, [1, 2], (0.5, 3.0), [True, True], tensors)
        assert got.tolist() == [0, 7, 2.5, 1, 65, 4, 22, 32, 12, 25, -1, -1, -1, -1]
        got = call(x, 7, 2, False, "A", torch.int64, [3] * 90, [0.0] * 90, [False] * 90, [], x, 5)
        assert got.tolist() == [0, 7, 2, 0, 65, 4, 120, 90, 90, 0, 3, 5, -1, -1]


def test_defaults_and_keywords_are_filled_on_the_fast_path(define: Define) -> None:
    scale = define(
        "scale(Tensor x, float factor=2.0) -> Tensor",
        source=SCALE,
        outputs=ops.empty_like("x"),
        dtypes={"T": "x"},
    )
    x = torch.randn(4)
    for got, factor in [(scale(x), 2), (scale(x, 3), 3), (scale(factor=0.5, x=x), 0.5)]:
        assert torch.equal(got, x * factor)


WRONG_CALLS = [
    ((torch.ones(5), torch.ones(3)), r"x and y must have the same shape, got x: \[5\], y: \[3\]"),
    (
        (torch.ones(5), torch.ones(5, dtype=torch.float64)),
        "x and y must have the same dtype, got x: torch.float32, y: torch.float64",
    ),
    (
        (torch.ones(2, dtype=torch.complex32), torch.ones(2, dtype=torch.complex32)),
        "x is torch.complex32, which has no C type",
    ),
]


@pytest.mark.parametrize(("args", "text"), WRONG_CALLS)
def test_inputs_that_break_the_contract_raise_alike_on_both_paths(
    add: ops.KernelOperator, args: tuple[torch.Tensor, ...], text: str
) -> None:
    with pytest.raises(ContractError, match=f"{add.qualified_name}: {text}") as fast:
        add(*args)
    with pytest.raises(ContractError) as slow:
        add.overload(*args)
    assert str(fast.value) == str(slow.value)


def test_none_for_a_tensor_is_refused(add: ops.KernelOperator) -> None:
    for call in (add, add.overload):
        with pytest.raises(ContractError, match="add: y is None, expected a tensor"):
            call(torch.ones(1), None)


def test_dtypes_that_no_kernel_knows_are_refused(define: Define) -> None:
    copy = define("copy(Tensor x) -> Tensor", outputs=ops.empty_like("x"))
    for call in (copy, copy.overload):
        with pytest.raises(ContractError, match=r"kernels cannot take torch\.complex32, the dtype"):
            call(torch.ones(1, dtype=torch.complex32))


def test_meta_tensors_break_the_contract_with_the_same_words(add: ops.KernelOperator) -> None:
    for args, _ in WRONG_CALLS[:2]:
        with pytest.raises(ContractError) as real:
            add(*args)
        with pytest.raises(ContractError) as meta:
            add(*(x.to("meta") for x in args))
        assert str(meta.value) == str(real.value)


def test_tensors_on_two_devices_are_refused(add: ops.KernelOperator) -> None:
    with pytest.raises(ContractError, match="must be on one device, got x: meta, y: cpu"):
        add(torch.ones(2, device="meta"), torch.ones(2))


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, "missing value for argument 'x'"),
        ((1, 2), {}, "Expected a value of type 'Tensor' for argument 'x'"),
        ((torch.ones(1), torch.ones(1), 3), {}, "expected at most 2 argument"),
        ((torch.ones(1),), {"z": 1}, "argument"),
    ],
)
def test_calls_that_do_not_fit_the_schema_raise_as_torch_does(
    add: ops.KernelOperator, args: tuple[object, ...], kwargs: dict[str, object], text: str
) -> None:
    with pytest.raises(RuntimeError, match=text):
        add(*args, **kwargs)


def test_shape_and_dtype_checks_name_what_they_expect(define: Define) -> None:
    norm = define(
        "norm(Tensor x, Tensor? w) -> Tensor",
        outputs=ops.empty_like("x"),
        checks=[ops.shape("w", "x.shape[-1]"), ops.dtype("x", torch.float32, torch.float64)],
    )
    x = torch.ones(2, 8)
    norm(x, None)
    for call in (norm, norm.overload, lambda *a: norm(*(t.to("meta") for t in a))):
        with pytest.raises(
            ContractError, match=r"w must have shape \[8\] \(x.shape\[-1\]\), got \[4\]"
        ):
            call(x, torch.ones(4))
        with pytest.raises(
            ContractError, match=r"x must be torch\.float32 or torch\.float64, got torch\.int64"
        ):
            call(x.long(), torch.ones(8))


def test_a_failing_kernel_raises_with_its_own_words(define: Define) -> None:
    source = """if (INT(1) == 1) return 7;
    if (INT(1) == 2) { ctx->set_error(ctx, "eps must be positive"); return 3; }"""
    fail = define("fail(Tensor x, int how) -> Tensor", source=kernel(source),
                  outputs=ops.empty_like("x"))  # fmt: skip
    x = torch.ones(1)
    for call in (fail, fail.overload):
        with pytest.raises(
            KernelError, match="fail: the kernel failed with status 3: eps must be positive"
        ) as failure:
            call(x, 2)
        assert "frame #" not in str(failure.value)
        with pytest.raises(KernelError, match="status 7: it gave no reason"):
            call(x, 1)
        call(x, 0)


def test_a_kernel_that_does_not_compile_raises_and_is_tried_again(
    define: Define, tmp_path: Path
) -> None:
    path = tmp_path / "late.cpp"
    path.write_text("this is no kernel")
    late = define("late(Tensor x) -> Tensor", source=path, outputs=ops.empty_like("x"))
    for call in (late, late.overload):
        with pytest.raises(CompileError, match="did not compile"):
            call(torch.ones(1))
    path.write_text('extern "C" int run(void**, int, const void*) { return 0; }')
    late(torch.ones(1))


def test_written_arguments_are_written_returned_and_counted(define: Define) -> None:
    add_ = define(
        "add_(Tensor(a!) x, Tensor y) -> Tensor(a!)",
        source=ADD_INPLACE,
        checks=ops.same_shape("x", "y"),
        dtypes={"T": "x"},
    )
    options = {"source": ADD, "checks": ops.same_shape("x", "y", "out"), "dtypes": {"T": "x"}}
    add_out = define("add_out(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)", **options)
    add_into = define("add_into(Tensor x, Tensor y, Tensor(a!) out) -> ()", **options)
    x, y = torch.randn(3), torch.randn(3)
    for mode in (contextlib.nullcontext, torch.profiler.profile):  # the fast and the slow path
        z, out = x.clone(), torch.empty(3)
        with mode():
            assert add_(z, y) is z
            assert add_out(x, y, out=out) is out
            assert torch.equal(z, out)
            assert add_into(x, y, out.zero_()) is None
            assert add_out.overload(x, y, out=out.zero_()) is out
        assert torch.equal(z, out)
        assert (z._version, out._version) == (1, 5)


def test_written_arguments_that_cannot_be_written_are_refused(define: Define) -> None:
    fill = define("fill(Tensor(a!) x) -> ()")
    strided = define("strided(Tensor(a!) x) -> ()", layout="strided")
    with torch.inference_mode():
        inference = torch.ones(2)
    for path in (lambda op: op, lambda op: op.overload):
        with pytest.raises(ContractError, match="x is written and must be contiguous, got strides"):
            path(fill)(torch.ones(6)[::2])
        with pytest.raises(ContractError, match="several of its elements share memory"):
            path(strided)(torch.ones(1).expand(3))
        with pytest.raises(ContractError, match="x is an inference tensor"):
            path(fill)(inference)
        with pytest.raises(RuntimeError, match="fill writes its argument 'x', which is"):
            path(fill)(torch.ones(2, requires_grad=True))


def test_two_threads_that_come_first_load_one_kernel(add: ops.KernelOperator) -> None:
    barrier = threading.Barrier(4)
    results: list[torch.Tensor] = []

    def call() -> None:
        barrier.wait()
        results.append(add(torch.ones(3, dtype=torch.int32), torch.ones(3, dtype=torch.int32)))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [r.tolist() for r in results] == [[2, 2, 2]] * 4
    assert variant_count(add) == 1


def test_a_source_is_looked_up_beside_the_calling_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "k.cpp").write_text('extern "C" int run(void**, int, const void*) { return 0; }')
    script = (
        "from bringup import ops\n"
        "op = ops.kernel_op('bringup_test_beside::k(Tensor x) -> Tensor', source='k.cpp',"
        " outputs=ops.empty_like('x'))\n"
    )
    names: dict[str, ops.KernelOperator] = {}
    exec(compile(script, str(tmp_path / "script.py"), "exec"), names)
    names["op"](torch.ones(1))
    names["op"].undefine()


def test_a_kernel_gets_workspace_and_threads(define: Define) -> None:
    source = """
      auto* sums = static_cast<int64_t*>(ctx->workspace(ctx, 1000 * sizeof(int64_t)));
      ctx->parallel_for(ctx, 1000, 10, [](int64_t b, int64_t e, void* user) {
        for (int64_t i = b; i < e; ++i) static_cast<int64_t*>(user)[i] = i; }, sums);
      for (int i = 0; i < 1000; ++i) DATA(1)[0] += sums[i];"""
    total = define(
        "total(Tensor x) -> Tensor",
        source=kernel("DATA(1)[0] = 0;" + source),
        outputs=ops.empty(1, dtype=torch.int64),
        macros={"T": "int64_t"},
    )
    assert total(torch.ones(1)).item() == 499500


def test_device_code_on_cpu_is_a_plain_call(define: Define) -> None:
    blocks = define(
        "blocks(Tensor x) -> Tensor",
        source=jit.Source(
            text=kernel("DATA(1)[0] = ctx->block_index * 10 + ctx->block_count;").text,
            name="blocks.cpp",
        ),
        outputs=ops.empty(1, dtype=torch.int64),
        kind="device",
        grid="x.shape[0]",
        macros={"T": "int64_t"},
    )
    assert blocks(torch.ones(5)).item() == 1


@pytest.mark.parametrize("returns", ["()", "Tensor(a!)"])
@pytest.mark.parametrize("call", ["fast", "torch.ops"])
def test_a_lazily_negated_tensor_is_written(returns: str, call: str) -> None:
    name = f"lazy{len(returns)}{call[0]}"
    op = ops.kernel_op(
        f"calls_test::{name}(Tensor(a!) x, Tensor y) -> {returns}",
        source=ADD_INPLACE,
        dtypes={"T": "x"},
        checks=[ops.same_shape("x", "y"), ops.same_dtype("x", "y")],
    )
    run = op if call == "fast" else getattr(torch.ops.calls_test, name)
    y = torch.ones(2)
    for _ in range(50):
        x = torch._neg_view(torch.tensor([2.0, 4.0]))
        result = run(x, y)
        assert x.tolist() == [-1, -3]
        assert result is None or result.tolist() == [-1, -3]
    x = torch.zeros(2)
    run(x, torch._neg_view(y))
    assert x.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("name", "default", "wanted"),
    [("real", "float? a=1", 1.0), ("truth", "int a=True", 1), ("whole", "int a=1e3", 1000)],
)
def test_a_default_is_taken_however_it_is_written(name: str, default: str, wanted: float) -> None:
    read = "DOUBLE(1)" if default.startswith("float") else "INT(1)"
    op = ops.kernel_op(
        f"calls_test::{name}(Tensor x, {default}) -> Tensor",
        source=each(f"DATA(2)[i] = {read};"),
        outputs=ops.empty_like("x"),
        dtypes={"T": "x"},
    )
    for call in (op, getattr(torch.ops.calls_test, name)):
        assert call(torch.zeros(2)).tolist() == [wanted] * 2
