"""Triton kernels as operators. What needs the package runs where it is installed, in processes of
their own: whether a kernel is triton's or its interpreter's is decided as the kernel is defined.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from bringup import devices, jit, ops
from bringup.errors import ContractError, DeviceError, MissingCompilerError, SchemaError

TRITON = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed: pip install 'bringup[triton]'",
)
WITHOUT = pytest.mark.skipif(
    importlib.util.find_spec("triton") is not None, reason="triton is installed"
)


class constexpr:  # noqa: N801 - triton's name
    """Stands for `triton.language.constexpr`."""


class KernelInterface:
    """Stands for triton's base class of what can be launched: notes its launches."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.launches: list[tuple[Any, dict[str, Any]]] = []

    def __getitem__(self, grid: Any) -> Any:
        return lambda **given: self.launches.append((grid, given))


class InterpretedFunction(KernelInterface):
    pass


class JITFunction(KernelInterface):
    cache_key = "0123"


class Autotuner(KernelInterface):
    pass


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Just enough of the package for what is decided without running a kernel."""
    for name in ("triton", "triton.runtime", "triton.runtime.jit"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["triton.runtime.jit"].KernelInterface = KernelInterface  # type: ignore[attr-defined]


def add(x_ptr: Any, y: Any, out: Any, n: Any, step: Any, BLOCK: constexpr) -> None:  # noqa: N803
    raise AssertionError("a stand-in is not run")


SCHEMA = "bringup_test_triton::add(Tensor x, Tensor y, int n=7) -> Tensor"
OPTIONS: dict[str, Any] = {
    "outputs": ops.empty_like("x"),
    "checks": [ops.same_shape("x", "y"), ops.same_dtype("x", "y")],
    "constants": {"BLOCK": 128},
    "args": "x, y, out, numel(x), f32(0.5)",
    "grid": ("(numel(x) + 127) // 128", 2),
}


@pytest.fixture
def defined(stand_in: None) -> Iterator[Any]:
    operators: list[ops.TritonOperator] = []

    def define(kernel: Any, schema: str = SCHEMA, **options: Any) -> ops.TritonOperator:
        operators.append(ops.triton_op(schema, kernel=kernel, **{**OPTIONS, **options}))
        return operators[-1]

    yield define
    for operator in operators:
        operator.undefine()


def test_a_kernel_gets_tensors_numbers_constants_and_a_grid(defined: Any) -> None:
    kernel = InterpretedFunction(add)
    operator = defined(kernel)
    x = torch.randn(20, 10)
    result = operator(x.t(), x.t())
    assert result.shape == (10, 20)
    ((grid, given),) = kernel.launches
    assert grid == (2, 2)
    assert {n: v for n, v in given.items() if n in {"n", "step", "BLOCK"}} == {
        "n": 200, "step": 0.5, "BLOCK": 128,
    }  # fmt: skip
    assert given["out"].data_ptr() == result.data_ptr()
    assert given["x_ptr"].is_contiguous()
    assert torch.equal(given["x_ptr"], x.t())
    assert torch.ops.bringup_test_triton.add(x, x).shape == (20, 10)
    assert operator(torch.empty(0), torch.empty(0)).shape == (0,)
    assert len(kernel.launches) == 2, "an empty grid starts nothing"


def test_strided_tensors_and_functions_of_a_grid_are_passed_as_they_are(defined: Any) -> None:
    kernel = InterpretedFunction(add)
    made = lambda meta: (meta["n"],)  # noqa: E731
    operator = defined(
        kernel, layout="strided", grid=made, args="x, y, out, stride(x, 0), has(y) + 3 * n"
    )
    x = torch.randn(3, 4).t()
    operator(x, x)
    ((grid, given),) = kernel.launches
    assert grid is made
    assert (given["n"], given["step"]) == (1, 22)
    assert given["x_ptr"].stride() == (1, 4)


def test_parameters_find_arguments_and_outputs_of_their_name(defined: Any) -> None:
    kernel = InterpretedFunction(add)
    schema = SCHEMA.replace("n=7", "n=7, float step=2.0")
    operator = defined(kernel, schema, args=None)
    operator(torch.ones(3), torch.ones(3), 5)
    assert (kernel.launches[0][1]["n"], kernel.launches[0][1]["step"]) == (5, 2.0)


def test_fake_and_real_calls_share_the_contract(defined: Any) -> None:
    operator = defined(InterpretedFunction(add))
    for device in ("cpu", "meta"):
        x = torch.ones(2, device=device)
        with pytest.raises(ContractError, match="bringup_test_triton::add: x and y must have"):
            operator(x, torch.ones(3, device=device))
    assert operator(torch.ones(4, device="meta"), torch.ones(4, device="meta")).shape == (4,)


def test_where_it_cannot_run_one_sentence_says_why(defined: Any) -> None:
    operator = defined(JITFunction(add))
    devices.load_driver("sim")
    for device in ("cpu", "npu"):
        x = torch.ones(2, device=device)
        with pytest.raises(DeviceError) as failure:
            operator(x, x)
        assert str(failure.value).startswith(
            f"bringup_test_triton::add: the Triton kernel 'add' cannot run on {x.device}: triton "
            "compiles for GPUs; set TRITON_INTERPRET=1 before the kernel is defined"
        )
        assert "\n" not in str(failure.value)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"kernel": add}, "expected a function decorated with @triton.jit, got function"),
    ({"constants": {}}, "has the tl.constexpr parameter 'BLOCK'; give its value"),
    ({"constants": {"BLOCK": 1, "N": 2}}, "has 'N', which is no tl.constexpr parameter of add"),
    ({"args": None}, "has the parameter 'step', which is no argument or output (there are x, y"),
    ({"args": "x, y, out"}, "takes x_ptr, y, out, n, step besides its constants, args= has 3"),
    ({"args": "x, y, out, z, 1"}, "there is no argument 'z'"),
    ({"args": "x, y, out, n, stream"}, "a Triton kernel gets tensors and numbers"),
    ({"args": "x, y, out, n, workspace(8)"}, "a Triton kernel gets tensors and numbers"),
    ({"args": "x, y, out, n, ref(n)"}, "a Triton kernel gets tensors and numbers"),
    ({"grid": ()}, "expected one to three numbers of programs"),
    ({"grid": "x"}, "grid: 'x': x is Tensor, expected int or bool"),
    ({"grid": 2.5}, "expected one to three numbers of programs"),
    ({"grid": "m"}, "there is no argument 'm'"),
    ({"layout": "dense"}, "expected 'contiguous' or 'strided'"),
    ({"checks": ()}, "checks= is required with two or more tensor arguments"),
    ({"outputs": ()}, "outputs= has 0"),
    ({"schema": "t::f(Tensor(a!) x, Tensor y) -> Tensor(a!)"}, "does not return what it writes"),
    ({"schema": "t::f.o(Tensor x, Tensor y) -> Tensor"}, "has no overloads"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_a_wrong_definition_is_refused(defined: Any, options: dict[str, Any], words: str) -> None:
    given = {"kernel": InterpretedFunction(add), **options}
    with pytest.raises(SchemaError) as failure:
        defined(**given)
    assert words in str(failure.value)


def test_the_signature_to_prebuild_comes_from_checks_and_dtypes(defined: Any) -> None:
    operator = defined(JITFunction(add), args="x, y, out, i64(numel(x)), 0.5")
    with pytest.raises(SchemaError, match=r"the dtype of x is not known; give it, as in prebuild"):
        operator.prebuild()
    with pytest.raises(SchemaError, match="dtypes= has 'z', which is no tensor"):
        operator.prebuild(dtypes={"z": torch.float32})
    with pytest.raises(SchemaError, match=r"x is torch\.complex64, which triton does not take"):
        operator.prebuild(dtypes={"x": torch.complex64})
    source = operator.launcher.source({"x": torch.bfloat16})
    assert source.language == "triton"
    for part in (
        '"x_ptr": "*bf16"', '"y": "*bf16"', '"out": "*bf16"', '"n": "i64"', '"step": "fp32"',
        '"BLOCK": "constexpr"', '"BLOCK": 128', '"content": "0123"',
    ):  # fmt: skip
        assert part in str(source.text)


def test_only_triton_can_prebuild_and_only_its_own_kernels(defined: Any) -> None:
    interpreted = defined(InterpretedFunction(add))
    with pytest.raises(MissingCompilerError, match="was defined under TRITON_INTERPRET=1"):
        interpreted.prebuild(dtypes={"x": torch.float32})
    interpreted.undefine()
    tuned = defined(Autotuner(JITFunction(add)), constants={})
    with pytest.raises(SchemaError, match="give the constant 'BLOCK' with constants= to prebuild"):
        tuned.prebuild(dtypes={"x": torch.float32})


@WITHOUT
def test_without_triton_a_definition_says_how_to_get_it() -> None:
    with pytest.raises(MissingCompilerError, match=r"ops\.triton_op needs triton, which is not"):
        ops.triton_op(SCHEMA, kernel=add, **OPTIONS)
    problem = jit.toolchain("triton:sm_80", kind="device").problem
    assert problem is not None
    assert "the triton package is not installed" in problem


@pytest.mark.parametrize("variant", ["sm80", "gfx", "rtx"])
def test_an_unknown_gpu_is_refused(variant: str) -> None:
    with pytest.raises(ValueError, match=r"expected an architecture like sm_90 or gfx942"):
        jit.compile(jit.Source(text="{}", name="k.triton"), target=f"triton:{variant}")


KERNEL = """
import json, os, sys, torch, triton, triton.language as tl
from bringup import devices, jit, ops

@triton.jit
def square(x):
    return x * x

@triton.jit
def scale_square(x_ptr, out_ptr, n, by, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < n
    tl.store(out_ptr + at, square(tl.load(x_ptr + at, mask=there)) * by, mask=there)

scale = ops.triton_op(
    "real::scale(Tensor x, float by) -> Tensor", kernel=scale_square, outputs=ops.empty_like("x"),
    grid="(numel(x) + 63) // 64", args="x, out, numel(x), by", constants={"BLOCK": 64},
)
"""
RUN = """
x = torch.randn(7, 30)
torch.testing.assert_close(scale(x.t(), 3.0), x.t() * x.t() * 3)
torch.testing.assert_close(torch.ops.real.scale(x, 0.5), x * x * 0.5)
devices.load_driver("sim")
torch.testing.assert_close(scale(x.to("npu"), 3.0).cpu(), x * x * 3)
scale.register_autograd(lambda ctx, g: (g * 2 * ctx.saved_tensors[0] * ctx.by, None),
                        setup_context=lambda ctx, i, o: (ctx.save_for_backward(i[0]),
                                                         setattr(ctx, "by", i[1])))
x.requires_grad_()
compiled = torch.compile(scale, fullgraph=True, backend="aot_eager")
(grad,) = torch.autograd.grad(compiled(x, 2.0).sum(), x)
torch.testing.assert_close(grad, 4 * x.detach())
"""
PREBUILD = """
try:
    scale(torch.ones(3), 1.0)
except Exception as error:
    assert "cannot run on cpu: triton compiles for GPUs" in str(error), error
for target, text, machine in (("triton:sm_80", "ptx", 190), ("triton:gfx942", "amdgcn", 224)):
    binary = scale.prebuild(target, dtypes={"x": torch.float16})
    assert scale.prebuild(target, dtypes={"x": torch.float16}) == binary
    assert scale.prebuild(target, dtypes={"x": torch.float32}).key != binary.key
    content = binary.path.read_bytes()
    assert content[:4] == b"\\x7fELF" and int.from_bytes(content[18:20], "little") == machine
    assert "scale_square" in (binary.folder / f"kernel.{text}").read_text()
    facts = json.loads((binary.folder / "kernel.json").read_text())
    assert facts["name"] == "scale_square" and facts["num_warps"] == 4, facts
    with jit.frozen():
        assert scale.prebuild(target, dtypes={"x": torch.float16}) == binary
"""


def run(folder: Path, script: str, interpret: str) -> None:
    file = folder / "script.py"
    file.write_text(textwrap.dedent(script))
    environment = {**os.environ, "TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, file], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@TRITON
def test_a_kernel_runs_by_the_interpreter(tmp_path: Path) -> None:
    run(tmp_path, KERNEL + RUN, "1")


@TRITON
def test_a_kernel_is_built_for_gpus_that_are_not_there(tmp_path: Path) -> None:
    run(tmp_path, KERNEL + PREBUILD, "0")


@TRITON
def test_a_kernel_that_triton_refuses_is_a_compile_error(tmp_path: Path) -> None:
    wrong = KERNEL.replace("square(tl.load", "unknown(tl.load") + (
        "from bringup.errors import CompileError\n"
        "try:\n    scale.prebuild(dtypes={'x': torch.float32})\n"
        "except CompileError as error:\n    assert 'scale_square.triton: error' in str(error)\n"
        "else:\n    raise AssertionError\n"
    )
    run(tmp_path, wrong, "0")
