"""Whatever collection an argument is given as, it is read once and means the same."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.sweeps.support import part

from bringup import jit, ops


def _same(item: Any) -> Any:
    return item


FORMS: dict[str, Callable[[list[Any]], Iterable[Any]]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "keys": dict.fromkeys,
    "generator": lambda items: (item for item in items),
    "map": lambda items: map(_same, items),
    "iterator": iter,
}
_numbers = itertools.count()
ADD = jit.Source(
    name="add.cpp",
    text="""#include <bringup/kernel.h>
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const float> x(args[0]), y(args[1]);
  const bringup::View<float> out(args[2]);
  for (int64_t i = 0; i < out.numel(); ++i) out.at(i) = x.at(i) + y.at(i) * EXTRA;
  return 0;
}
""",
)


def name() -> str:
    return f"sweep_collections::f{next(_numbers)}"


def mutates_args(form: Any) -> str:
    def write(x: torch.Tensor, y: torch.Tensor) -> None:
        x.add_(y)

    operator = ops.custom_op(name(), write, mutates_args=form(["x"]))
    return str(operator.overload._schema).partition("(")[2]


def mutates_args_of_a_decorator_used_twice(form: Any) -> str:
    shown = ""
    make = ops.custom_op(name(), mutates_args=form(["x"]), redefine=True)
    for _ in range(2):

        def write(x: torch.Tensor, y: torch.Tensor) -> None:
            x.add_(y)

        shown += str(make(write).overload._schema).partition("(")[2]
    return shown


def inferred_schema(form: Any) -> str:
    return ops.infer_schema(lambda x, y: None, mutates_args=form(["x", "y"]))


def device_types(form: Any) -> list[float]:
    operator = ops.custom_op(
        name(), lambda x: x + 1, mutates_args=(), device_types=form(["cpu", "npu"])
    )
    return list(operator(torch.ones(1)).tolist())


def tags(form: Any) -> list[str]:
    where, shown = name(), ""
    for _ in range(2):  # the second takes the place of the first
        operator = ops.custom_op(
            where,
            lambda x: x + 1,
            tags=form([torch.Tag.pointwise, torch.Tag.core]),
            redefine=True,
        )
        shown = sorted(map(str, operator.overload.tags))  # type: ignore[assignment]
    return list(shown)


def kernel_devices(form: Any) -> list[float]:
    operator = ops.custom_op(name(), lambda x: x + 1, mutates_args=())
    operator.register_kernel(form(["cpu"]), lambda x: x + 2)
    again = operator.register_kernel(form(["cpu"]))
    again(lambda x: x + 3)
    first = operator(torch.ones(1)).tolist()
    again(lambda x: x + 4)
    return [*first, *operator(torch.ones(1)).tolist()]


def adopted_devices(form: Any) -> list[float]:
    where = name()
    library = torch.library.Library("sweep_collections", "FRAGMENT")
    library.define(f"{where.partition('::')[2]}(Tensor x) -> Tensor")
    handle = ops.adopt(where)
    handle.register_kernel(form(["cpu"]), lambda x: x + 5)
    _kept.extend((library, handle))
    packet = getattr(torch.ops.sweep_collections, where.partition("::")[2])
    return list(packet(torch.ones(1)).tolist())


def library_keys(form: Any) -> list[float]:
    library = ops.Library("sweep_collections", "FRAGMENT")
    _kept.append(library)
    where = name()
    library.define(f"{where.partition('::')[2]}(Tensor x) -> Tensor", tags=form([torch.Tag.core]))
    ops.impl(where, form(["cpu"]), lambda x: x + 6)
    packet = getattr(torch.ops.sweep_collections, where.partition("::")[2])
    return [*packet(torch.ones(1)).tolist(), len(packet.default.tags)]


def kernel_options(form: Any) -> list[float]:
    operator = ops.kernel_op(
        f"{name()}(Tensor x, Tensor y) -> Tensor",
        source=ADD,
        outputs=form([ops.empty("x.shape[0]", dtype="x")]),
        checks=form([ops.same_shape("x", "y"), ops.dtype("x", torch.float32)]),
        strided=form(["x"]),
        flags=form(["-DEXTRA=3"]),
    )
    with pytest.raises(ValueError):
        operator(torch.ones(2), torch.ones(3))
    definition = ops.kernel.kernel_op.definition_of(operator.qualified_name)  # type: ignore
    return [*operator(torch.ones(4)[::2], torch.ones(2)).tolist(), *definition.strided]


def backward_names(form: Any) -> list[float]:
    where = name()
    ops.custom_op(f"{where}_backward", _scaled, mutates_args=())
    operator = ops.kernel_op(
        f"{where}(Tensor x, Tensor y) -> Tensor",
        source=ADD,
        outputs=ops.empty_like("x"),
        checks=ops.same_shape("x", "y"),
        flags=["-DEXTRA=1"],
    )
    operator.register_backward(f"{where}_backward", save=form(["x"]), gradients=form(["y"]))
    y = torch.ones(2, requires_grad=True)
    operator(torch.full((2,), 3.0), y).sum().backward()
    return list(y.grad.tolist())  # type: ignore[union-attr]


def _scaled(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return grad * x


def skipped_checks(form: Any) -> list[str]:
    operator = ops.custom_op(name(), lambda x: x + 1, mutates_args=())
    operator.register_fake(torch.empty_like)
    skip = [check for check in _checks() if check not in ("fake", "schema")]
    report = ops.check(operator, [(torch.ones(2),)], skip=form(skip))
    return [row.name for row in report.rows if row.reason == "skipped"]


def _checks() -> list[str]:
    from bringup.ops.validation.report import CHECKS

    return list(CHECKS)


def launched_arguments(form: Any) -> list[float]:
    """An address beside the tensor, as a set has no order: both are equal."""
    x = torch.ones(2)
    ops.KernelLauncher(_library()).launch("twice", 1, args=form([x]))
    return list(x.tolist())


def two_phase_arguments(form: Any) -> list[int]:
    number = ctypes.c_int64(3)
    ops.TwoPhaseLauncher(_library()).launch("Put", args=form([ctypes.addressof(number)]))
    return [number.value]


_kept: list[Any] = []
_folder: list[Path] = []


def _library() -> Path:
    library = _folder[0] / "liblaunched.so"
    if not library.exists():
        source = library.with_suffix(".c")
        source.write_text("""#include <stdint.h>
int aclrtlaunch_twice(uint32_t n, void* stream, float* x) { x[0] *= 2; x[1] *= 2; return 0; }
static int64_t* place;
int aclnnPutGetWorkspaceSize(int64_t* to, uint64_t* size, void** executor) {
  place = to; *size = 0; *executor = 0; return 0;
}
int aclnnPut(void* workspace, uint64_t size, void* executor, void* stream) {
  *place += 4;
  return 0;
}
""")
        command = ["cc", "-shared", "-fPIC", f"-o{library}", str(source)]
        subprocess.run(command, check=True)
    return library


PARAMETERS = [
    mutates_args,
    mutates_args_of_a_decorator_used_twice,
    inferred_schema,
    device_types,
    tags,
    kernel_devices,
    adopted_devices,
    library_keys,
    kernel_options,
    backward_names,
    skipped_checks,
    launched_arguments,
    two_phase_arguments,
]
CASES = [(used, form) for used in PARAMETERS for form in FORMS]


@pytest.mark.parametrize(
    ("used", "form"), part(CASES, always=[(mutates_args, "generator"), (mutates_args, "map")])
)
def test_a_collection_means_the_same_in_every_form(
    used: Callable[[Any], Any], form: str, tmp_path: Path
) -> None:
    _folder[:] = [tmp_path]
    assert used(FORMS[form]) == used(list)
