"""Host code on copies of device tensors that share memory: what it writes through one it reads
through the others, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

SIZE = 12
View = tuple[int, int, int]  # offset, size, stride


def mix(written: list[Tensor], read: list[Tensor]) -> None:
    """Writes that later reads see."""
    for number, x in enumerate(written):
        x.mul_(2)
        for y in (*read, *written):
            x.add_(y.sum() + number)


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    library = torch.library.Library("fallback_aliases", "FRAGMENT")
    library.define("mix(Tensor(a!)[] written, Tensor[] read) -> ()")
    library.impl("mix", mix, "CPU")
    yield
    library._destroy()


@st.composite
def views(draw: st.DrawFn) -> View:
    stride = draw(st.integers(1, 3))
    offset = draw(st.integers(0, SIZE - 1))
    return offset, draw(st.integers(0, (SIZE - 1 - offset) // stride + 1)), stride


def mixed(device: str, written: list[View], read: list[View]) -> Tensor:
    base = torch.arange(SIZE, device=device)

    def view(place: View) -> Tensor:
        offset, size, stride = place
        return base.as_strided((size,), (stride,), offset)

    mine, theirs = list(map(view, written)), list(map(view, read))
    torch.ops.fallback_aliases.mix(mine, theirs + mine[:1])
    return base.cpu()


# A custom operator may keep what it is given, so it gets copies wherever the memory lies.
@given(st.lists(views(), min_size=1, max_size=4), st.lists(views(), max_size=3))
def test_views_of_one_storage_see_what_others_write(written: list[View], read: list[View]) -> None:
    assert mixed("npu", written, read).equal(mixed("cpu", written, read))


def test_a_tensor_that_comes_twice_in_a_long_list_is_one() -> None:
    apart = [(i % SIZE, 1, 1) for i in range(20)]
    again = [*apart, (0, SIZE, 1), (0, SIZE, 1)]
    assert mixed("npu", again, []).equal(mixed("cpu", again, []))


def test_what_is_written_apart_is_copied_alone() -> None:
    from bringup import devices

    base = torch.zeros(1000, device="npu")
    devices.fallback_report(reset=True)
    torch.ops.fallback_aliases.mix([base[:10], base[10:20]], [])
    (row,) = [r for r in devices.fallback_report().rows if r.operator == "fallback_aliases::mix"]
    assert (row.bytes_to_host, row.bytes_to_device) == (80, 80)


def test_code_in_python_that_runs_an_operator_of_torch_may_keep_what_it_gets(
    fresh_python: Callable[..., str],
) -> None:
    code = """
import torch
from torch import library
from bringup import devices
devices.load_driver("sim")
kept = []

def negated(x):
    kept.append(x)
    return x * -1

for name in ("neg", "atan"):  # the first has a kernel that is not boxed
    library.impl(f"aten::{name}", "CPU", negated)
    x = torch.full((5000,), 3.0, device="npu")
    print(getattr(torch, name)(x).unique().tolist())
    del x
others = [torch.zeros(5000, device="npu") for _ in range(20)]
print([one.unique().tolist() for one in kept])
"""
    assert fresh_python(code).splitlines() == ["[-3.0]", "[-3.0]", "[[3.0], [3.0]]"]


def test_operators_of_torch_see_it_where_the_host_sees_no_device_memory(
    fresh_python: Callable[..., str],
) -> None:
    code = """
import torch
from bringup import devices
devices.load_driver("sim")

def unscaled(device):
    grad, found = torch.ones(6, device=device), torch.zeros(1, device=device)
    half = torch.full((1,), 0.5, device=device)
    torch._amp_foreach_non_finite_check_and_unscale_([grad, grad.view(-1), grad[1:5]], found, half)
    return grad.cpu()

print(unscaled("npu").equal(unscaled("cpu")))
x = torch.arange(6.0, device="npu")
try:
    torch.mul(x[:-1], 2, out=x[1:])
except RuntimeError as error:
    print("single memory location" in str(error))
"""
    assert fresh_python(code, BRINGUP_SIM_ISOLATED="1") == "True\nTrue"
