"""Rows: one call of a kernel operator on small tensors on cpu, where host overhead is everything.

Peers are operators of torch itself on the same tensors, and the other ways to an operator of
`_op_peers`; tvm-ffi where it is installed (dependency group `bench`). The kernel is a plain loop
over 16 floats.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType

import torch

from benchmarks import _op_peers
from benchmarks._harness import Row, compare, missing
from bringup import devices, jit, ops, settings
from bringup._native import torch_library

_numbers = itertools.count()

_BINARY = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const auto* x = static_cast<const DLTensor*>(args[0]);
  const auto* a = static_cast<const float*>(x->data);
  const auto* b = static_cast<const float*>(static_cast<const DLTensor*>(args[1])->data);
  auto* out = static_cast<float*>(static_cast<const DLTensor*>(args[2])->data);
  int64_t count = 1;
  for (int32_t i = 0; i < x->ndim; ++i) count *= x->shape[i];
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] OPERATOR b[i];
  return 0;
}
"""
_MUL_BACKWARD = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const float, 1> grad(args[0]), x(args[1]), y(args[2]);
  const bringup::View<float, 1> grad_x(args[3]), grad_y(args[4]);
  for (int64_t i = 0; i < grad.size(0); ++i) {
    grad_x(i) = grad(i) * y(i);
    grad_y(i) = grad(i) * x(i);
  }
  return 0;
}
"""
_MANY = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const float, 1> first(args[0]), last(args[6]);
  const bringup::View<float, 1> out(args[7]);
  const auto shift = *static_cast<const int64_t*>(args[8]);
  const auto factor = *static_cast<const double*>(args[12]);
  for (int64_t i = 0; i < out.size(0); ++i) out(i) = (first(i) + last(i)) * factor + shift;
  return 0;
}
"""


def _binary(signature: str, operator: str, **options: object) -> ops.KernelOperator:
    names = ("x", "y", "out") if "out" in signature else ("x", "y")
    return ops.kernel_op(
        f"bringup_benchmark::{signature}",
        source=jit.Source(text=_BINARY, name="binary.cpp"),
        macros={"OPERATOR": operator},
        checks=[
            ops.same_shape(*names),
            ops.same_dtype(*names),
            *(ops.dtype(name, torch.float32) for name in names[:1]),
        ],
        **options,
    )


def _with_custom_op(x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    @torch.library.custom_op("bringup_benchmark::custom_add", mutates_args=())
    def custom_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    return partial(custom_add, x, y)


def _many_arguments(library: ModuleType, rounds: int) -> Row:
    """8 tensors, 4 integers, 2 floats; both sides write into the eighth tensor."""
    inputs = ", ".join(f"Tensor {name}" for name in _op_peers.TENSORS[:-1])
    many = ops.kernel_op(
        f"bringup_benchmark::many({inputs}, Tensor(a!) h, int i, int j, int k, int l, float u,"
        " float v) -> ()",
        source=jit.Source(text=_MANY, name="many.cpp"),
        checks=ops.kernel_checks(),  # none, as on the other side
    )
    ours = [torch.randn(16) for _ in _op_peers.TENSORS]
    theirs = [*ours[:-1], torch.empty(16)]
    numbers = (1, 2, 3, 4, 0.5, 0.25)
    many(*ours, *numbers)
    library.many(*theirs, *numbers)
    torch.testing.assert_close(ours[-1], theirs[-1])
    return compare(
        "op call, 14 arguments",
        partial(many, *ours, *numbers),
        partial(library.many, *theirs, *numbers),
        peer_name="tvm-ffi",
        budget=0.6,
        rounds=rounds,
    )


def _beside_tvm(
    add_out: ops.KernelOperator, x: torch.Tensor, y: torch.Tensor, rounds: int
) -> list[Row]:
    """Rows against tvm-ffi, whose functions write what they are given."""
    with _op_peers.tvm_functions() as library:
        if library is None:
            return [
                missing(name, "tvm-ffi", "pip install apache-tvm-ffi")
                for name in ("op call, out variant", "op call, 14 arguments")
            ]
        out = torch.empty_like(x)
        return [
            compare(
                "op call, out variant",
                lambda: add_out(x, y, out=out),
                lambda: library.add_out(x, y, out),
                peer_name="tvm-ffi",
                rounds=rounds,
            ),
            _many_arguments(library, rounds),
        ]


def _beside_nanobind(
    add: ops.KernelOperator,
    add_out: ops.KernelOperator,
    tensors: tuple[torch.Tensor, torch.Tensor],
    rounds: int,
) -> list[Row]:
    """Rows against functions over nb::ndarray, which are no operators: no dispatcher, no fake."""
    names = ("op call, 2 tensors -> new tensor", "op call, out variant")
    functions = _op_peers.nanobind_functions()
    if functions is None:
        return [missing(name, "nanobind", "pip install nanobind") for name in names]
    x, y = tensors
    out, theirs = torch.empty_like(x), torch.empty_like(x)
    functions.add_out(x, y, theirs)
    torch.testing.assert_close(functions.add(x, y), add(x, y))
    torch.testing.assert_close(theirs, add_out(x, y, out=out))
    peer = partial(compare, peer_name="nanobind", rounds=rounds)
    return [
        peer(names[0], partial(add, x, y), partial(functions.add, x, y)),
        peer(
            names[1],
            lambda: add_out(x, y, out=out),
            lambda: functions.add_out(x, y, theirs),
        ),
    ]


def _beside_cpp(
    add: ops.KernelOperator,
    mul: ops.KernelOperator,
    tensors: tuple[torch.Tensor, torch.Tensor],
    rounds: int,
) -> list[Row]:
    """Rows against operators that torch's C++ interface makes."""
    x, y = tensors
    gx, gy = x.clone().requires_grad_(), y.clone().requires_grad_()
    peers = _op_peers.cpp_operators()
    torch.testing.assert_close(peers.add(x, y), add(x, y))
    torch.testing.assert_close(peers.mul(gx, gy), mul(gx, gy))
    for product in (peers.mul, mul):
        gradients = torch.autograd.grad(product(gx, gy).sum(), (gx, gy))
        torch.testing.assert_close(gradients, (y, x))
    return [
        compare(
            "op call, 2 tensors -> new tensor",
            partial(add, x, y),
            partial(peers.add.default, x, y),
            peer_name="TORCH_LIBRARY",
            rounds=rounds,
        ),
        compare(
            "op call recording autograd",
            partial(mul, gx, gy),
            partial(peers.mul.default, gx, gy),
            peer_name="autograd::Function",
            rounds=rounds,
        ),
    ]


def _built_peers(
    add: ops.KernelOperator, add_out: ops.KernelOperator, mul: ops.KernelOperator, rounds: int
) -> list[Row]:
    """Rows against what is compiled for half a minute, once."""
    tensors = torch.randn(16), torch.randn(16)
    return [
        *_beside_nanobind(add, add_out, tensors, rounds),
        *_beside_cpp(add, mul, tensors, rounds),
    ]


@contextmanager
def _unpooled() -> Iterator[None]:
    """Memory of small outputs comes from torch's allocator in this block."""
    torch_library().ops.set_output_pool(False)
    try:
        yield
    finally:
        torch_library().ops.set_output_pool(settings.ops_pool())


def _new_output(
    add: ops.KernelOperator, x: torch.Tensor, y: torch.Tensor, rounds: int
) -> list[Row]:
    """A call with a fresh output, with memory of either kind, and against other ways."""
    call, torch_add = partial(add, x, y), partial(torch.add, x, y)
    with _unpooled():
        unpooled = compare(
            "op call, 2 tensors -> new tensor, no pool",
            call,
            torch_add,
            peer_name="torch.add",
            budget=0.50,
            rounds=rounds,
        )
    pooled = partial(compare, "op call, 2 tensors -> new tensor", call, rounds=rounds)
    return [
        unpooled,
        pooled(torch_add, peer_name="torch.add", budget=0.38),
        pooled(_with_custom_op(x, y), peer_name="custom_op"),
        pooled(partial(_op_peers.library_impl(), x, y), peer_name="Library.impl"),
    ]


def _within_autocast(
    add: ops.KernelOperator, x: torch.Tensor, y: torch.Tensor, rounds: int
) -> list[Row]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return [
            compare(
                "op call, inside autocast",
                partial(add, x, y),
                partial(torch.add, x, y),
                peer_name="torch.add",
                budget=0.6,
                rounds=rounds,
            )
        ]


def _on_the_npu(rounds: int) -> list[Row]:
    """The last row: a driver is there from now on. Work of the simulator's thread is part of it."""
    devices.load_driver("sim")
    add = _binary(
        "add_npu(Tensor x, Tensor y) -> Tensor", "+", outputs=ops.empty_like("x"), kind="device"
    )
    x, y = torch.randn(16).to("npu"), torch.randn(16).to("npu")
    return [
        compare(
            "op call, on the npu",
            partial(add, x, y),
            partial(torch.add, x, y),
            peer_name="torch.add",
            rounds=rounds,
            calls=200,
        )
    ]


def _defined(definition: Callable[[str], Callable[[], object]]) -> Callable[[], None]:
    """Defines an operator under a new name and removes it."""

    def define() -> None:
        definition(f"defined{next(_numbers)}")()

    return define


def _define_ours(name: str) -> Callable[[], object]:
    return _binary(
        f"{name}(Tensor x, Tensor y) -> Tensor", "+", outputs=ops.empty_like("x")
    ).undefine


def _define_with_library(name: str) -> Callable[[], object]:
    library = torch.library.Library("bringup_benchmark", "FRAGMENT")
    library.define(f"{name}(Tensor x, Tensor y) -> Tensor")
    library.impl(name, torch.add, "CPU")
    torch.library.register_fake(f"bringup_benchmark::{name}", torch.empty_like, lib=library)
    return library._destroy


def _define_custom_op(name: str) -> Callable[[], object]:
    operator = torch.library.custom_op(f"bringup_benchmark::{name}", mutates_args=())(_sum)
    operator.register_fake(torch.empty_like)
    return operator._lib._destroy


def _sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


_sum.__annotations__ = dict.fromkeys(
    ("x", "y", "return"), torch.Tensor
)  # torch.library reads types


def definitions_by_name(rounds: int) -> list[Row]:
    peers = {"define + impl + fake": _define_with_library, "custom_op": _define_custom_op}
    return [
        compare(
            "defining an operator",
            _defined(_define_ours),
            _defined(definition),
            peer_name=peer,
            rounds=min(rounds, 15),
            calls=5,
        )
        for peer, definition in peers.items()
    ]


def run(*, quick: bool = False) -> list[Row]:
    """The rows; ratios to torch.add and torch.mul on the same tensors."""
    rounds = 5 if quick else 61
    add = _binary("add(Tensor x, Tensor y) -> Tensor", "+", outputs=ops.empty_like("x"))
    add_out = _binary("add_out(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)", "+")
    mul = _binary("mul(Tensor x, Tensor y) -> Tensor", "*", outputs=ops.empty_like("x"))
    mul_backward = ops.kernel_op(
        "bringup_benchmark::mul_backward(Tensor grad, Tensor x, Tensor y) -> (Tensor, Tensor)",
        source=jit.Source(text=_MUL_BACKWARD, name="mul_backward.cpp"),
        outputs=(ops.empty_like("x"), ops.empty_like("y")),
        checks=[ops.same_shape("grad", "x", "y"), ops.same_dtype("grad", "x", "y")],
    )
    mul.register_backward(mul_backward.qualified_name, save=("x", "y"))

    x, y, out = torch.randn(16), torch.randn(16), torch.empty(16)
    gx, gy = x.clone().requires_grad_(), y.clone().requires_grad_()
    return [
        *_new_output(add, x, y, rounds),
        compare(
            "op call, out variant",
            lambda: add_out(x, y, out=out),
            lambda: torch.add(x, y),
            peer_name="torch.add",
            budget=0.16,
            rounds=rounds,
        ),
        compare(
            "op call recording autograd",
            partial(mul, gx, gy),
            partial(torch.mul, gx, gy),
            peer_name="torch.mul",
            budget=0.78,
            rounds=rounds,
        ),
        compare(
            "op call through torch.ops",
            partial(add.overload, x, y),
            partial(torch.add, x, y),
            peer_name="torch.add",
            rounds=rounds,
        ),
        *_within_autocast(add, x, y, rounds),
        *definitions_by_name(rounds),
        *_beside_tvm(add_out, x, y, rounds),
        *([] if quick else _built_peers(add, add_out, mul, rounds)),
        *_on_the_npu(rounds),
    ]
