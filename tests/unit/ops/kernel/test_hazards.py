"""What could crash or give wrong numbers without a word: memory that goes away or is shared, texts
that are cut, kernels that throw.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import kernel
from torch.multiprocessing.reductions import StorageWeakRef

from bringup import jit, ops
from bringup.errors import ContractError, KernelError

PATHS = pytest.mark.parametrize(
    "path", [lambda op: op, lambda op: op.overload], ids=["fast", "slow"]
)
Path = Callable[[ops.KernelOperator], Callable[..., Any]]

# Says through one pipe that it runs, waits at another, then reads its list.
WAIT_AND_SUM = """
  char go = 0;
  if (write(INT(2), "r", 1) != 1 || read(INT(3), &go, 1) != 1) return 1;
  const auto* tensors = static_cast<const DLTensor* const*>(LIST(1)->data);
  for (int64_t t = 0; t < LIST(1)->size; ++t)
    for (int64_t i = 0; i < count(tensors[t]); ++i)
      DATA(4)[0] += static_cast<const T*>(tensors[t]->data)[i];"""


@PATHS
def test_a_list_emptied_by_another_thread_during_the_call_keeps_its_tensors(
    define: Define, path: Path
) -> None:
    source = kernel("DATA(4)[0] = 0;" + WAIT_AND_SUM)
    waiting = define(
        "waiting(Tensor x, Tensor[] tensors, int running, int go) -> Tensor",
        source=jit.Source(text="#include <unistd.h>\n" + source.text, name="waiting.cpp"),
        outputs=ops.empty(1, dtype=torch.float32),
        checks=ops.kernel_checks(),
        macros={"T": "float"},
    )
    running, say_running = os.pipe()
    wait, go = os.pipe()
    large = torch.zeros(1 << 15)  # so that the fast call, too, releases the GIL
    tensors = [torch.ones(4096) for _ in range(3)]
    storages = [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors]
    results: list[torch.Tensor] = []
    thread = threading.Thread(
        target=lambda: results.append(path(waiting)(large, tensors, say_running, wait))
    )
    thread.start()
    assert os.read(running, 1) == b"r"
    tensors.clear()
    alive = [not storage.expired() for storage in storages]
    os.write(go, b"g")
    thread.join()
    for pipe in (running, say_running, wait, go):
        os.close(pipe)
    assert alive == [True] * 3
    assert results[0].item() == 3 * 4096
    assert all(storage.expired() for storage in storages)


@pytest.fixture
def into(define: Define) -> ops.KernelOperator:
    """x + y into out, whatever the memory; t is written and not touched."""
    return define(
        "into(Tensor x, Tensor[] ys, Tensor(a!) out, Tensor(b!)? t=None) -> ()",
        source=kernel(
            "for (int64_t i = 0; i < count(TENSOR(2)); ++i) DATA(2)[i] = DATA(0)[i] + 1;"
        ),
        checks=ops.kernel_checks(),
        dtypes={"T": "x"},
    )


@PATHS
def test_a_written_argument_that_shares_part_of_its_memory_is_refused(
    into: ops.KernelOperator, path: Path
) -> None:
    base = torch.zeros(9)
    said = f"{into.qualified_name}: out is written, but shares part of its memory with "
    with pytest.raises(ContractError) as failure:
        path(into)(base[:8], [], base[1:])
    assert str(failure.value) == said + "x; pass a .clone()"
    with pytest.raises(ContractError) as failure:
        path(into)(torch.zeros(8), [torch.zeros(8), base[:8]], base[1:])
    assert str(failure.value) == said + "ys; pass a .clone()"
    square = torch.zeros(2, 2)
    with pytest.raises(ContractError, match="part of its memory with x"):
        path(into)(square.t(), [], square)  # one range, another order
    assert not base.any()


@PATHS
def test_an_input_may_be_written_as_a_whole_and_neighbours_do_not_overlap(
    into: ops.KernelOperator, path: Path
) -> None:
    base = torch.zeros(8)
    path(into)(base, [base], base)
    path(into)(base.view(8), [], base)
    assert base.tolist() == [2] * 8
    path(into)(base[:4], [base[:4]], base[4:])
    path(into)(base[8:], [], base[8:])  # of no size
    assert base.tolist() == [2] * 4 + [3] * 4


@PATHS
def test_two_written_arguments_in_one_place_are_refused(
    into: ops.KernelOperator, path: Path
) -> None:
    x, out = torch.zeros(2), torch.zeros(2)
    for other in (out, out.view(2)):
        with pytest.raises(ContractError) as failure:
            path(into)(x, [], out, other)
        assert str(failure.value) == (
            f"{into.qualified_name}: out is written, but shares its memory with t, which is "
            "written too; pass a .clone()"
        )


@PATHS
def test_one_tensor_twice_in_a_written_list_is_refused(define: Define, path: Path) -> None:
    fill = define("fill(Tensor x, Tensor(a!)[] ys) -> ()", checks=ops.kernel_checks())
    y = torch.zeros(2)
    path(fill)(y, [y, torch.zeros(2)])
    with pytest.raises(ContractError, match="ys is written, but shares its memory with ys"):
        path(fill)(torch.zeros(2), [y, y])


@PATHS
def test_a_text_with_a_nul_is_refused_instead_of_cut(define: Define, path: Path) -> None:
    spell = define(
        "spell(Tensor x, str how) -> Tensor",
        source=kernel("DATA(2)[0] = static_cast<const char*>(args[1])[3];"),
        outputs=ops.empty(1, dtype=torch.int64),
        macros={"T": "int64_t"},
    )
    said = (
        f"{spell.qualified_name}: how has a NUL at byte 3 of 5, where a kernel would take its "
        "text to end; remove it"
    )
    for x in (torch.ones(1), torch.ones(1, device="meta")):
        with pytest.raises(ContractError) as failure:
            path(spell)(x, "abc\0d")
        assert str(failure.value) == said
    assert path(spell)(torch.ones(1), "abcé").item() == ord("Ã") - 256  # its first byte in UTF-8
    assert path(spell)(torch.ones(1), "abc").item() == 0


THROWN = {
    'throw std::runtime_error("no such head");': "no such head",
    "throw 3;": "something that is no std::exception",
}


@PATHS
@pytest.mark.parametrize("statement", THROWN)
def test_a_kernel_that_throws_raises_kernel_error(
    define: Define, path: Path, statement: str
) -> None:
    # Also from the threads of parallel_for, and whatever was said before.
    source = f"""ctx->set_error(ctx, "left over");
      ctx->parallel_for(ctx, 4, 1, [](int64_t, int64_t, void*) {{ {statement} }}, nullptr);"""
    throws = define(
        "throws(Tensor x) -> Tensor",
        source=jit.Source(text="#include <stdexcept>\n" + kernel(source).text, name="throws.cpp"),
        outputs=ops.empty_like("x"),
    )
    silent = define("silent(Tensor x) -> Tensor", source=kernel("return 2;"),
                    outputs=ops.empty_like("x"))  # fmt: skip
    with pytest.raises(KernelError) as failure:
        path(throws)(torch.ones(1))
    assert str(failure.value) == (
        f"{throws.qualified_name}: the kernel threw: {THROWN[statement]} (a kernel should return a "
        "status and call ctx->set_error)"
    )
    with pytest.raises(KernelError, match="status 2: it gave no reason"):
        path(silent)(torch.ones(1))
