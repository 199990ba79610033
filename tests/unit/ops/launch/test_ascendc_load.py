"""`ascendc_load`: ordinary AscendC sources on cpu and, block by block, on the simulated NPU."""

from __future__ import annotations

import ctypes
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.forked_python import output_of

from bringup import devices, jit, ops
from bringup.errors import CompileError, KernelError

ROOT = Path(__file__).parents[4]
ADD_CUSTOM = ROOT / "examples/ascendc/add_custom.cpp"

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])


@pytest.fixture(scope="module", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


@pytest.fixture(scope="module")
def adder() -> ops.KernelLauncher:
    return ops.ascendc_load("adder", ADD_CUSTOM)


Load = Callable[..., ops.KernelLauncher]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """`load("...body of one kernel `f(GM_ADDR x, GM_ADDR y, uint32_t n)`...")`, or a whole text."""

    def build(body: str, *, whole: bool = False, **options: object) -> ops.KernelLauncher:
        text = (
            body
            if whole
            else f"""
            #include "kernel_operator.h"
            using namespace AscendC;
            extern "C" __global__ __aicore__ void f(GM_ADDR x, GM_ADDR y, uint32_t n) {{
              GlobalTensor<float> in, out;
              in.SetGlobalBuffer((__gm__ float*)x, n);
              out.SetGlobalBuffer((__gm__ float*)y, n);
              TPipe pipe;
              TBuf<TPosition::VECCALC> buffer;
              TQue<TPosition::VECIN, 1> queue;
              {textwrap.dedent(body)}
            }}
        """
        )
        (tmp_path / "kernel.cpp").write_text(text)
        return ops.ascendc_load("test", tmp_path / "kernel.cpp", **options)  # type: ignore[arg-type]

    return build


@DEVICES
@pytest.mark.parametrize("blocks", [1, 3, 8])
def test_add_custom_adds(adder: ops.KernelLauncher, device: str, blocks: int) -> None:
    """One source, every block count."""
    x = torch.randn(8 * 2048).half().to(device)
    y = torch.randn(8 * 2048).half().to(device)
    z = ops.alloc_like(x)
    adder.launch("add_custom", block_dim=blocks, args=[x, y, z, ops.u32(x.numel())])
    assert torch.equal(z.cpu(), x.cpu() + y.cpu())


def test_each_block_runs_once_and_knows_its_place(load: Load) -> None:
    kernel = load("out.SetValue(GetBlockIdx(), in.GetValue(GetBlockIdx()) + GetBlockNum());")
    x, y = torch.arange(5.0, device="npu"), torch.zeros(5, device="npu")
    kernel.launch("f", block_dim=4, args=[x, y, ops.u32(5)])
    assert y.tolist() == [4, 5, 6, 7, 0]


def test_launches_run_in_the_order_of_their_stream(adder: ops.KernelLauncher) -> None:
    """Behind copies and operators, before what follows."""
    x = torch.zeros(4096, dtype=torch.half, device="npu")
    one = torch.ones(4096, dtype=torch.half, device="npu")
    for _ in range(20):
        adder.launch("add_custom", block_dim=2, args=[x, one, x, ops.u32(4096)])
        x += 1
    assert torch.equal(x.cpu(), torch.full((4096,), 40.0).half())


def test_other_stream_is_taken(adder: ops.KernelLauncher) -> None:
    stream = torch.Stream("npu")
    x = torch.full((1024,), 3.0, dtype=torch.half, device="npu")
    z = ops.alloc_like(x)
    torch.npu.synchronize()
    adder.launch("add_custom", block_dim=1, args=[x, x, z, ops.u32(1024)], stream=stream)
    stream.synchronize()
    assert torch.equal(z.cpu(), torch.full((1024,), 6.0).half())
    with stream:
        adder.launch("add_custom", block_dim=1, args=[z, x, z, ops.u32(1024)])
        assert torch.equal(z.cpu(), torch.full((1024,), 9.0).half())


def test_threads_launch_into_streams_of_their_own(adder: ops.KernelLauncher) -> None:
    results: dict[int, torch.Tensor] = {}

    def work(number: int) -> None:
        with torch.Stream("npu"):
            x = torch.full((1024,), float(number), dtype=torch.half, device="npu")
            for _ in range(50):
                adder.launch("add_custom", block_dim=2, args=[x, x, x, ops.u32(1024)])
                x *= 0.5
            results[number] = x.cpu()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: float(x.float().mean()) for n, x in results.items()} == {n: n for n in range(4)}


def test_other_device_is_taken(adder: ops.KernelLauncher) -> None:
    if devices.load_driver("sim").device_count < 2:
        pytest.skip("the simulator has one device")
    x = torch.full((1024,), 3.0, dtype=torch.half, device="npu:1")
    z = ops.alloc_like(x)
    adder.launch("add_custom", block_dim=1, args=[x, x, ops.tensor_ptr(z), ops.u32(1024)])
    assert torch.equal(z.cpu(), torch.full((1024,), 6.0).half())


def test_views_are_addressed_with_their_offset(adder: ops.KernelLauncher) -> None:
    x = torch.arange(4096, device="npu").half()
    z = torch.zeros_like(x)
    args = [x[1024:], x[2048:], z[1024:], ops.u32(1024)]
    adder.launch("add_custom", block_dim=1, args=args)
    expected = torch.zeros(4096).half()
    expected[1024:2048] = x[1024:2048].cpu() + x[2048:3072].cpu()
    assert torch.equal(z.cpu(), expected)


def test_host_memory_is_refused_by_the_device(adder: ops.KernelLauncher) -> None:
    x = torch.zeros(1024, dtype=torch.half)
    adder.launch("add_custom", block_dim=1, args=[x.data_ptr()] * 3 + [ops.u32(1024)])
    with pytest.raises(KernelError, match=r"'add_custom' failed.*outside this device's memory"):
        torch.npu.synchronize()


def test_blocking_launch_raises_where_it_is_called(
    adder: ops.KernelLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRINGUP_LAUNCH_BLOCKING", "1")
    x = torch.zeros(1024, dtype=torch.half, device="npu")
    args = [x, x, torch.zeros(1024).data_ptr(), ops.u32(1024)]
    with pytest.raises(KernelError, match="argument 2 is a tensor outside this device's memory"):
        adder.launch("add_custom", block_dim=1, args=args)


def test_isolated_memory_is_reached(tmp_path: Path) -> None:
    """On a device whose memory the host cannot see, addresses are translated."""
    script = f"""
        import torch
        from bringup import devices, ops
        assert not devices.load_driver("sim").host_visible
        adder = ops.ascendc_load("adder", {str(ADD_CUSTOM)!r})
        x = torch.arange(2048, device="npu").half()
        z = ops.alloc_like(x)
        adder.launch("add_custom", block_dim=2, args=[x, x, z, ops.u32(2048)])
        assert torch.equal(z.cpu(), (x + x).cpu())
    """
    output_of(textwrap.dedent(script), BRINGUP_SIM_ISOLATED="1")


MISUSES = {
    "DataCopy: 3 elements are 12 bytes, which is no multiple of 32; use DataCopyPad": """
        pipe.InitBuffer(buffer, 64);
        DataCopy(buffer.Get<float>(), in, 3);
    """,
    "DataCopy: on the chip it begins 4 bytes behind a multiple of 32": """
        pipe.InitBuffer(buffer, 64);
        DataCopy(buffer.Get<float>()[1], in, 8);
    """,
    "elements 0 to 24 of a GlobalTensor of 16": """
        pipe.InitBuffer(buffer, 96);
        DataCopy(buffer.Get<float>(), in, 24);
    """,
    "elements 0 to 16 of a LocalTensor of 8": """
        pipe.InitBuffer(buffer, 32);
        DataCopy(buffer.Get<float>(), in, 16);
    """,
    "elements 17 to 17 of a GlobalTensor of 16": "in[17];",
    "elements 16 to 17 of a GlobalTensor of 16": "in.GetValue(16);",
    "a GlobalTensor without SetGlobalBuffer": "GlobalTensor<float> none; none.GetValue(0);",
    "a LocalTensor that no queue or TBuf gave": "LocalTensor<float> none; none.GetValue(0);",
    "AllocTensor: all 1 buffers of the queue are in use; FreeTensor one": """
        pipe.InitBuffer(queue, 1, 32);
        queue.AllocTensor<float>();
        queue.AllocTensor<float>();
    """,
    "DeQue: the queue is empty; EnQue comes first": """
        pipe.InitBuffer(queue, 1, 32);
        queue.DeQue<float>();
    """,
    "EnQue: the tensor is not one of this queue's": """
        pipe.InitBuffer(queue, 1, 32);
        pipe.InitBuffer(buffer, 32);
        queue.EnQue(buffer.Get<float>());
    """,
    "EnQue: 1 tensors wait in a queue of as many buffers": """
        pipe.InitBuffer(queue, 1, 32);
        LocalTensor<float> tensor = queue.AllocTensor<float>();
        queue.EnQue(tensor);
        queue.EnQue(tensor);
    """,
    "FreeTensor: the tensor is free already": """
        pipe.InitBuffer(queue, 1, 32);
        LocalTensor<float> tensor = queue.AllocTensor<float>();
        queue.FreeTensor(tensor);
        queue.FreeTensor(tensor);
    """,
    "InitBuffer: 196640 bytes more on the chip, 0 of 196608 are in use": """
        pipe.InitBuffer(buffer, 196609);
    """,
    "InitBuffer: 0 buffers of 32 bytes": "pipe.InitBuffer(queue, 0, 32);",
    "Get: 40 bytes of a TBuf of 32": "pipe.InitBuffer(buffer, 32); buffer.Get<float>(10);",
    "elements 0 to 9 of a LocalTensor of 8": """
        pipe.InitBuffer(buffer, 32);
        LocalTensor<float> tensor = buffer.Get<float>();
        Add(tensor, tensor, tensor, 9);
    """,
}  # fmt: skip


@pytest.fixture(scope="module")
def misuser(tmp_path_factory: pytest.TempPathFactory) -> ops.KernelLauncher:
    """One library with a kernel `misuse_<i>` for each row of MISUSES."""
    prologue = """
      GlobalTensor<float> in;
      in.SetGlobalBuffer((__gm__ float*)x, 16);
      TPipe pipe;
      TBuf<TPosition::VECCALC> buffer;
      TQue<TPosition::VECIN, 1> queue;
      if (GetBlockIdx() != 1) return;
    """
    text = '#include "kernel_operator.h"\nusing namespace AscendC;\n' + "".join(
        f'extern "C" __global__ __aicore__ void misuse_{i}(GM_ADDR x) {{ {prologue} {body} }}\n'
        for i, body in enumerate(MISUSES.values())
    )
    path = tmp_path_factory.mktemp("misuse") / "misuse.cpp"
    path.write_text(text)
    return ops.ascendc_load("misuse", path)


@pytest.mark.parametrize("number", range(len(MISUSES)), ids=list(MISUSES))
def test_misuse_of_the_chip_is_told_with_kernel_and_block(
    misuser: ops.KernelLauncher, number: int
) -> None:
    words = list(MISUSES)[number]
    x = torch.zeros(16)
    with pytest.raises(
        KernelError, match=rf"kernel 'misuse_{number}' of .* code 1: block 1: "
    ) as at:
        misuser.launch(f"misuse_{number}", block_dim=2, args=[x])
    assert str(at.value).endswith(words)
    misuser.launch(f"misuse_{number}", block_dim=2, args=[x.to("npu")])
    with pytest.raises(KernelError, match=rf"'misuse_{number}' failed in stream.*in block 1") as at:
        torch.npu.synchronize()
    assert f": {words} [driver's detail: code 1, block 1 of 2]" in str(at.value)


def test_exception_of_a_kernel_ends_nothing_but_the_launch(tmp_path: Path) -> None:
    (tmp_path / "throws.cpp").write_text("""
        #include <stdexcept>
        #include "kernel_operator.h"
        extern "C" __global__ __aicore__ void throws(GM_ADDR x, uint32_t what) {
          if (what == 0) throw std::runtime_error("out of patience");
          throw 7;
        }
    """)
    launcher = ops.ascendc_load("throws", tmp_path / "throws.cpp")
    with pytest.raises(KernelError, match="block 0: the kernel threw: out of patience"):
        launcher.launch("throws", block_dim=1, args=[torch.zeros(1), ops.u32(0)])
    launcher.launch("throws", block_dim=1, args=[torch.zeros(1, device="npu"), ops.u32(1)])
    with pytest.raises(KernelError, match=r"'throws' failed .*threw no std::exception"):
        torch.npu.synchronize()


def test_launch_after_a_failed_one_works(misuser: ops.KernelLauncher) -> None:
    x = torch.zeros(16)
    with pytest.raises(KernelError):
        misuser.launch("misuse_0", block_dim=2, args=[x])
    misuser.launch("misuse_0", block_dim=1, args=[x])  # block 1 is not there


def test_on_chip_memory_holds_nan_before_it_is_written(load: Load) -> None:
    kernel = load("""
        pipe.InitBuffer(buffer, 32);
        DataCopy(out, buffer.Get<float>(), 8);
    """)
    y = torch.zeros(8)
    kernel.launch("f", block_dim=1, args=[y, y, ops.u32(8)])
    assert y.isnan().all()


UNARY = {
    "Abs": torch.abs, "Relu": torch.relu, "Exp": torch.exp, "Sqrt": torch.sqrt,
    "Rsqrt": torch.rsqrt, "Reciprocal": torch.reciprocal, "Ln": torch.log,
}  # fmt: skip
BINARY = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div,
    "Max": torch.maximum, "Min": torch.minimum,
}  # fmt: skip
C_TYPES = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat16_t"}


@pytest.fixture(scope="module")
def arithmetic(tmp_path_factory: pytest.TempPathFactory) -> ops.KernelLauncher:
    """Every function of vector.h as a kernel over 16 elements of each type."""
    calls = [
        *(f"{name}(c, a, 16);" for name in UNARY),
        *(f"{name}(c, a, b, 16);" for name in BINARY),
        "Adds(c, a, T(2.5f), 16);", "Muls(c, a, T(2.5f), 16);", "Maxs(c, a, T(0.5f), 16);",
        "Mins(c, a, T(0.5f), 16);", "LeakyRelu(c, a, T(0.5f), 16);", "Duplicate(c, T(2.5f), 16);",
        "Axpy(b, a, T(0.5f), 16); DataCopy(c, b, 16);",
        "Duplicate(c, T(0.0f), 16); ReduceSum(c, a, b, 16);",
    ]  # fmt: skip
    text = '#include "kernel_operator.h"\nusing namespace AscendC;\n' + "".join(
        f"""
        template <class T>
        __aicore__ inline void call_{i}(GM_ADDR x, GM_ADDR y, GM_ADDR z) {{
          GlobalTensor<T> gx, gy, gz;
          gx.SetGlobalBuffer((__gm__ T*)x, 16);
          gy.SetGlobalBuffer((__gm__ T*)y, 16);
          gz.SetGlobalBuffer((__gm__ T*)z, 16);
          TPipe pipe;
          TBuf<TPosition::VECCALC> ba, bb, bc;
          pipe.InitBuffer(ba, 16 * sizeof(T));
          pipe.InitBuffer(bb, 16 * sizeof(T));
          pipe.InitBuffer(bc, 16 * sizeof(T));
          LocalTensor<T> a = ba.Get<T>(), b = bb.Get<T>(), c = bc.Get<T>();
          DataCopy(a, gx, 16);
          DataCopy(b, gy, 16);
          {call}
          DataCopy(gz, c, 16);
        }}
        """
        + "".join(
            f'extern "C" __global__ __aicore__ void call_{i}_{kind}(GM_ADDR a, GM_ADDR b, '
            f"GM_ADDR c) {{ call_{i}<{kind}>(a, b, c); }}\n"
            for kind in C_TYPES.values()
        )
        for i, call in enumerate(calls)
    )
    path = tmp_path_factory.mktemp("arithmetic") / "arithmetic.cpp"
    path.write_text(text)
    return ops.ascendc_load("arithmetic", path)


@pytest.mark.parametrize("dtype", C_TYPES, ids=list(C_TYPES.values()))
def test_vector_arithmetic_is_torch_s(arithmetic: ops.KernelLauncher, dtype: torch.dtype) -> None:
    x = (torch.rand(16) + 0.1).to(dtype)
    y = (torch.rand(16) + 0.1).to(dtype)
    x[::2] *= -1
    expected = [
        *(function(x) for function in UNARY.values()),
        *(function(x, y) for function in BINARY.values()),
        x + 2.5, x * 2.5, x.clamp_min(0.5), x.clamp_max(0.5),
        torch.nn.functional.leaky_relu(x, 0.5), torch.full_like(x, 2.5), y + x * 0.5,
    ]  # fmt: skip
    total = torch.zeros_like(x)
    total[0] = x.float().sum()
    for i, wanted in enumerate([*expected, total]):
        z = torch.zeros_like(x)
        arithmetic.launch(f"call_{i}_{C_TYPES[dtype]}", block_dim=1, args=[x, y, z])
        torch.testing.assert_close(z, wanted, equal_nan=True)


def test_cast_rounds_as_asked(load: Load) -> None:
    modes = ["RINT", "FLOOR", "CEIL", "ROUND", "TRUNC"]
    casts = "".join(
        f"Cast(whole, a, RoundMode::CAST_{mode}, 8); Cast(a2, whole, RoundMode::CAST_NONE, 8);"
        f"DataCopy(out[{8 * i}], a2, 8);"
        for i, mode in enumerate(modes)
    )
    kernel = load(f"""
        TBuf<TPosition::VECCALC> other, integers;
        pipe.InitBuffer(buffer, 32);
        pipe.InitBuffer(other, 32);
        pipe.InitBuffer(integers, 32);
        LocalTensor<float> a = buffer.Get<float>(), a2 = other.Get<float>();
        LocalTensor<int32_t> whole = integers.Get<int32_t>();
        DataCopy(a, in, 8);
        {casts}
    """)
    x = torch.tensor([0.5, 1.5, -0.5, -1.5, 2.4, -2.4, 2.6, -2.6] + [0.0] * 32)
    y = torch.zeros(40)
    kernel.launch("f", block_dim=1, args=[x, y, ops.u32(40)])
    values = x[:8]
    rounded = values.sign() * (values.abs() + 0.5).floor()
    expected = [values.round(), values.floor(), values.ceil(), rounded, values.trunc()]
    assert torch.equal(y, torch.cat(expected))


def test_padded_copies_take_any_number_of_elements(load: Load) -> None:
    kernel = load("""
        pipe.InitBuffer(buffer, 128);
        LocalTensor<float> a = buffer.Get<float>();
        DataCopyExtParams two{2, 3 * sizeof(float), 4, 1, 0};
        DataCopyPadExtParams<float> with{true, 1, 0, -1.0f};
        DataCopyPad(a, in, two, with);
        DataCopyPad(out, a[0], DataCopyExtParams{2, 5 * sizeof(float), 1, 0, 0});
    """)
    x, y = torch.arange(12.0), torch.zeros(12)
    kernel.launch("f", block_dim=1, args=[x, y, ops.u32(12)])
    assert y.tolist() == [-1, 0, 1, 2, -1, -1, 4, 5, 6, -1, 0, 0]


def test_strided_copies_move_whole_units(load: Load) -> None:
    kernel = load("""
        pipe.InitBuffer(buffer, 128);
        LocalTensor<float> a = buffer.Get<float>();
        DataCopy(a, in, DataCopyParams{2, 1, 1, 0});
        DataCopy(out, a, DataCopyParams{2, 1, 0, 1});
    """)
    x, y = torch.arange(32.0), torch.zeros(32)
    kernel.launch("f", block_dim=1, args=[x, y, ops.u32(32)])
    assert torch.equal(y[:8], x[:8])
    assert torch.equal(y[16:24], x[16:24])
    assert not y[8:16].any()


def test_flags_barriers_and_queries_of_a_queue_compile(load: Load) -> None:
    kernel = load("""
        pipe.InitBuffer(queue, 1, 32);
        SetFlag<HardEvent::MTE2_V>(0);
        WaitFlag<HardEvent::MTE2_V>(0);
        PipeBarrier<PIPE_ALL>();
        pipe_barrier(PIPE_V);
        out.SetValue(0, queue.VacantInQue());
        LocalTensor<float> tensor = queue.AllocTensor<float>();
        tensor.SetValue(0, 1.5f);
        queue.EnQue(tensor);
        out.SetValue(1, queue.HasTensorInQue() + queue.GetTensorCountInQue());
        out.SetValue(2, queue.DeQue<float>().ReinterpretCast<int32_t>().GetValue(0));
    """)
    y = torch.zeros(3)
    kernel.launch("f", block_dim=1, args=[y, y, ops.u32(3)])
    assert y.tolist() == [1, 2, 0x3FC00000]


def test_parameters_may_be_structs_and_numbers(load: Load) -> None:
    kernel = load(
        """
        #include "kernel_operator.h"
        // __global__ void comment(int x) {}
        struct Tiling { uint32_t n; float factor; };
        extern "C" __global__ __aicore__ void scale(__gm__ float* x, /* here */ Tiling tiling,
                                                    int8_t sign) {
          for (uint32_t i = 0; i < tiling.n; ++i) x[i] *= tiling.factor * sign;
        }
        extern "C" __global__ __aicore__ void nothing() {}
        """,
        whole=True,
    )

    class Tiling(ctypes.Structure):
        _fields_ = (("n", ctypes.c_uint32), ("factor", ctypes.c_float))

    for device in ("cpu", "npu"):
        x = torch.ones(3, device=device)
        kernel.launch("scale", block_dim=1, args=[x, Tiling(2, 2.5), ops.i8(-1)])
        kernel.launch("nothing", block_dim=1)
        assert x.tolist() == [-2.5, -2.5, 1]
    with pytest.raises(KernelError, match="Symbol 'aclrtlaunch_comment' not found"):
        kernel.launch("comment", block_dim=1, args=[1])


def test_several_sources_may_use_the_same_names(tmp_path: Path) -> None:
    for name, value in (("one", 1), ("two", 2)):
        (tmp_path / f"{name}.cpp").write_text(f"""
            #include "kernel_operator.h"
            constexpr float kValue = {value};
            extern "C" __global__ __aicore__ void {name}(GM_ADDR x) {{
              *(__gm__ float*)x = kValue;
            }}
        """)
    launcher = ops.ascendc_load("both", [tmp_path / "one.cpp", tmp_path / "two.cpp"])
    x = torch.zeros(1)
    launcher.launch("one", block_dim=1, args=[x])
    assert x.item() == 1
    launcher.launch("two", block_dim=1, args=[x])
    assert x.item() == 2


def test_second_load_compiles_nothing(adder: ops.KernelLauncher) -> None:
    with jit.frozen():
        ops.ascendc_load("adder", ADD_CUSTOM)


def test_header_beside_the_source_is_found_and_its_change_is_seen(tmp_path: Path) -> None:
    (tmp_path / "kernel.cpp").write_text("""
        #include "value.h"
        #include "kernel_operator.h"
        extern "C" __global__ __aicore__ void f(GM_ADDR x) { *(__gm__ float*)x = VALUE; }
    """)
    x = torch.zeros(1)
    for value in (1, 2):
        (tmp_path / "value.h").write_text(f"#define VALUE {value}\n")
        ops.ascendc_load("f", tmp_path / "kernel.cpp").launch("f", block_dim=1, args=[x])
        assert x.item() == value


def test_macros_and_flags_reach_the_compiler(load: Load) -> None:
    kernel = load("out.SetValue(0, A + B);", macros={"A": 2}, flags=["-DB=3"])
    y = torch.zeros(1)
    kernel.launch("f", block_dim=1, args=[y, y, ops.u32(1)])
    assert y.item() == 5


def test_launch_syntax_behind_the_samples_own_guard_is_left_out(load: Load) -> None:
    load(
        """
        #include "kernel_operator.h"
        extern "C" __global__ __aicore__ void f(GM_ADDR x) { *(__gm__ float*)x = 1; }
        #ifndef ASCENDC_CPU_DEBUG
        void f_do(uint32_t blocks, void* stream, uint8_t* x) { f<<<blocks, nullptr, stream>>>(x); }
        #endif
        """,
        whole=True,
    )


def test_source_without_a_kernel_is_refused(load: Load) -> None:
    with pytest.raises(ValueError, match=r"kernel.cpp defines no kernel: expected a function like"):
        load("void f() {}", whole=True)


def test_parameter_without_a_name_is_refused(load: Load) -> None:
    with pytest.raises(ValueError, match=r"kernel 'f': cannot read parameter 'GM_ADDR'"):
        load('extern "C" __global__ __aicore__ void f(GM_ADDR) {}', whole=True)


def test_parameter_list_without_an_end_is_refused(load: Load) -> None:
    with pytest.raises(ValueError, match=r"kernel 'f': its parameter list has no end"):
        load('extern "C" __global__ __aicore__ void f(GM_ADDR x', whole=True)


def test_source_that_does_not_compile_shows_its_own_line(load: Load) -> None:
    with pytest.raises(CompileError, match=r"kernel.cpp:\d+:\d+: error: .*no_such_thing"):
        load("no_such_thing();")


def test_missing_source_says_where_it_was_looked_for() -> None:
    with pytest.raises(FileNotFoundError, match=r"ascendc_load\('k'\): there is no source file"):
        ops.ascendc_load("k", "nowhere.cpp")


def test_no_source_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ascendc_load\('k'\): expected at least one source"):
        ops.ascendc_load("k", [])
