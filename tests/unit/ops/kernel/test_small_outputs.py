"""Memory of small outputs on cpu is kept for the next ones: reused, never while somebody has it."""

from __future__ import annotations

import queue
import textwrap
import threading

import pytest
import torch
from tests.forked_python import output_of

from bringup import ops
from bringup._native import torch_library


def pooled_blocks() -> int:
    return int(torch_library().ops.pooled_blocks())


def test_a_freed_output_is_the_next_output(add: ops.KernelOperator) -> None:
    x = torch.ones(16)
    first = add(x, x)
    address, kept = first.data_ptr(), pooled_blocks()
    assert address % 64 == 0
    del first
    assert pooled_blocks() == kept + 1
    second = add(x, x)
    assert second.data_ptr() == address
    assert pooled_blocks() == kept


def test_sizes_do_not_share_blocks_and_large_outputs_are_not_kept(add: ops.KernelOperator) -> None:
    for count in (1, 16, 17, 32, 64, 128):
        x = torch.arange(float(count))
        outputs = [add(x, x) for _ in range(50)]
        assert len({o.data_ptr() for o in outputs}) == 50
        assert all(torch.equal(o, 2 * x) for o in outputs)
    before = pooled_blocks()
    large = add(torch.ones(129), torch.ones(129))
    del large
    assert pooled_blocks() == before


def test_a_thread_keeps_a_bounded_number(add: ops.KernelOperator) -> None:
    x = torch.ones(4)
    outputs = [add(x, x) for _ in range(1000)]
    outputs.clear()
    assert pooled_blocks() <= 4 * 32


def test_views_and_gradients_outlive_their_output(mul: ops.KernelOperator) -> None:
    x = torch.arange(16.0)
    view = mul(x, x)[4:]
    leaf = x.clone().requires_grad_()
    loss = mul(mul(leaf, x), x).sum()
    for _ in range(100):
        mul(x + 1, x + 1)
    assert torch.equal(view, (x * x)[4:])
    loss.backward()
    assert torch.equal(leaf.grad, x * x)


def test_an_output_can_be_resized_shared_and_cloned_lazily(add: ops.KernelOperator) -> None:
    x = torch.arange(16.0)
    out = add(x, x)
    lazy = torch._lazy_clone(out)
    out.add_(1)
    assert torch.equal(lazy, 2 * x)
    out.resize_(1000)
    assert torch.equal(out[:16], 2 * x + 1)
    shared = add(x, x).share_memory_()
    for _ in range(100):
        add(x + 1, x)
    assert torch.equal(shared, 2 * x)
    assert torch.equal(lazy, 2 * x)


def test_outputs_may_be_freed_by_other_threads(add: ops.KernelOperator) -> None:
    """Producers and consumers: every block is one thread's at a time, and threads end."""
    handed: queue.Queue[tuple[float, torch.Tensor] | None] = queue.Queue(maxsize=64)
    wrong: list[float] = []

    def produce(start: int) -> None:
        for i in range(start, start + 2000):
            x = torch.full((1 + i % 100,), float(i))
            handed.put((2.0 * i, add(x, x)))
        handed.put(None)

    def consume() -> None:
        kept: list[tuple[float, torch.Tensor]] = []
        while (item := handed.get()) is not None:
            kept.append(item)
            if len(kept) == 40:
                wrong.extend(value for value, tensor in kept if not bool((tensor == value).all()))
                kept.clear()
        wrong.extend(value for value, tensor in kept if not bool((tensor == value).all()))

    threads = [threading.Thread(target=produce, args=(n * 10_000,)) for n in range(3)]
    threads += [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(("setting", "kept"), [("1", 1), ("0", 0)])
def test_the_setting_switches_it(setting: str, kept: int) -> None:
    script = f"""
        import torch
        from tests.unit.ops.support import ADD
        from bringup import ops
        from bringup._native import torch_library
        add = ops.kernel_op("s::add(Tensor x, Tensor y) -> Tensor", source=ADD,
                            outputs=ops.empty_like("x"), checks=ops.same_shape("x", "y"),
                            dtypes={{"T": "x"}})
        out = add(torch.ones(4), torch.ones(4))
        assert out.tolist() == [2] * 4
        del out
        assert torch_library().ops.pooled_blocks() == {kept}
    """
    output_of(textwrap.dedent(script), BRINGUP_OPS_POOL=setting)
