"""A kernel of the device computes what the CPU computes, or refuses: with indices, sizes, numbers
and shapes that do not fit, it reads and writes nobody else's memory.

One argument of a right call is spoiled at a time. What the CPU refuses the device must not answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.sweeps.support import part

import bringup_sim_ops
from bringup import devices

LOWEST, HIGHEST = -(2**63), 2**63 - 1
_rows, _columns = torch.arange(12.0).reshape(3, 4) / 7, torch.arange(20.0).reshape(4, 5) / 9
_attended = torch.arange(48.0).reshape(1, 2, 6, 4).sin()
_aten: Any = torch.ops.aten


def _norm_backward() -> list[Any]:
    out, mean, rstd = torch.native_layer_norm(_rows, [4], torch.ones(4), torch.zeros(4), 1e-5)
    return [out, _rows, [4], mean, rstd, torch.ones(4), torch.zeros(4), [True, True, True]]


def _loss_backward(reduction: int) -> list[Any]:
    target = torch.tensor([0, 3, 1])
    loss, total = _aten.nll_loss_forward(_rows, target, None, reduction, -100)
    return [torch.ones_like(loss), _rows, target, torch.ones(4), reduction, -100, total]


def _image_loss_backward() -> list[Any]:
    image, target = _rows.reshape(1, 3, 2, 2), torch.tensor([[[0, 2], [1, 1]]])
    loss, total = _aten.nll_loss2d_forward(image, target, None, 1, -100)
    return [torch.ones_like(loss), image, target, torch.ones(3), 1, -100, total]


def _attention_backward() -> list[Any]:
    name = _aten._scaled_dot_product_flash_attention_for_cpu
    out, logsumexp = name(_attended, _attended, _attended)
    return [out, _attended, _attended, _attended, out, logsumexp, 0.0, False]


CALLS: dict[str, list[Any]] = {
    "index_select": [_rows, 1, torch.tensor([0, 3, 1])],
    "gather": [_rows, 1, torch.tensor([[0, 3], [1, 1], [2, 0]])],
    "scatter_add": [_rows, 1, torch.tensor([[0, 3], [1, 1], [2, 0]]), torch.ones(3, 2)],
    "embedding_dense_backward": [_rows, torch.tensor([1, 0, 2]), 5, -1, False],
    "embedding_dense_backward by frequency": [_rows, torch.tensor([1, 0, 1]), 5, 0, True],
    "nll_loss_forward": [_rows, torch.tensor([0, 3, 1]), torch.ones(4), 1, -100],
    "nll_loss_forward of one row": [_rows[0], torch.tensor(3), torch.ones(4), 1, -100],
    "nll_loss_forward of each": [_rows, torch.tensor([0, 3, 1]), torch.ones(4), 0, -100],
    "nll_loss_backward": _loss_backward(1),
    "nll_loss_backward of each": _loss_backward(0),
    "nll_loss2d_forward": [_rows.reshape(1, 3, 2, 2), torch.tensor([[[0, 2], [1, 1]]]),
                           torch.ones(3), 1, -100],
    "nll_loss2d_backward": _image_loss_backward(),
    "mm": [_rows, _columns],
    "bmm": [_rows[None], _columns[None]],
    "addmm": [torch.ones(5), _rows, _columns],
    "_softmax": [_rows, 1, False],
    "_log_softmax": [_rows, 0, False],
    "_softmax_backward_data": [_rows, _rows.softmax(1), 1, torch.float32],
    "_log_softmax_backward_data": [_rows, _rows.log_softmax(1), 1, torch.float32],
    "native_layer_norm": [_rows, [4], torch.ones(4), torch.zeros(4), 1e-5],
    "native_layer_norm_backward": _norm_backward(),
    "_scaled_dot_product_flash_attention_for_cpu": [_attended, _attended, _attended],
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward(),
    "cumsum": [_rows, 1],
    "sort": [_rows, 1, False],
    "topk": [_rows, 2, 1, True, True],
    "cat": [[_rows, _rows], 1],
    "sum.dim_IntList": [_rows, [1], False],
    "mean.dim": [_rows, [0], True],
    "amax": [_rows, [1], False],
    "max.dim": [_rows, 1, False],
    "argmax": [_rows, 1, False],
    "linalg_vector_norm": [_rows, 2.0, [1], False],
    "where.self": [_rows > 1, _rows, _rows],
    "clamp": [_rows, 0.5, 1.0],
}  # fmt: skip


def spoiled(value: Any) -> dict[str, Any]:
    """The value made wrong, in ways that have names."""
    if isinstance(value, torch.Tensor):
        return {**_with_other_shape(value), **_with_other_indices(value)}
    if isinstance(value, bool) or value is None or isinstance(value, (torch.dtype, float)):
        return {}
    if isinstance(value, list):
        made = {"no items": value[:0], "an item more": [*value, *value[:1]]}
        if value and isinstance(value[0], int) and not isinstance(value[0], bool):
            made |= {f"first {n}": [n, *value[1:]] for n in (-1, -3, 3, 5, LOWEST, HIGHEST)}
        if value and isinstance(value[0], torch.Tensor):
            made |= {f"first {k}": [v, *value[1:]] for k, v in spoiled(value[0]).items()}
        return made
    return {str(n): n for n in (-1, -2, -3, 0, 1, 2, 3, 4, 5, 100, LOWEST, HIGHEST)}


def _with_other_shape(value: torch.Tensor) -> dict[str, torch.Tensor]:
    made = {"an axis more": value[None], "nothing": value.new_zeros(0)}
    if value.dim() == 0:
        return {**made, "no element": value.new_zeros(0, 2)}
    made |= {"flat": value.reshape(-1), "scalar": value.reshape(-1)[0]}
    for axis in range(value.dim()):
        made[f"short {axis}"] = value.narrow(axis, 0, value.shape[axis] - 1)
        made[f"one {axis}"] = value.narrow(axis, 0, 1)
        made[f"empty {axis}"] = value.narrow(axis, 0, 0)
        made[f"long {axis}"] = torch.cat([value, value, value], axis)
    return {
        **made,
        "transposed": value.transpose(0, -1),
        "strided": torch.stack([value] * 2, -1)[..., 0],
    }


def _with_other_indices(value: torch.Tensor) -> dict[str, torch.Tensor]:
    made = {}
    if value.dtype is torch.int64 and value.numel():
        for number in (-1, -2, -100, 3, 4, 5, 1000, 2**31, 2**32, LOWEST, HIGHEST):
            for place in (0, -1):
                changed = value.clone()
                changed.reshape(-1)[place] = number
                made[f"{number} at {place}"] = changed
        made["int32"] = value.int()
    return made


# A plan asks the CPU's own kernel where there are no elements, and torch's for these checks little
# itself: wrong shapes and indices end the process there (SIGSEGV, SIGFPE, a double free), or give
# what lies beside the tensors.
UNCHECKED_BY_TORCH = (
    "embedding_dense_backward by frequency",
    "nll_loss_backward of each",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "native_layer_norm_backward",
    "_scaled_dot_product_flash_attention_for_cpu",
)
TIES = ("topk", "long 1")  # equal values in any order


CASES = [
    (name, number, how)
    for name, values in CALLS.items()
    for number, value in enumerate(values)
    for how in spoiled(value)
    if not name.startswith(UNCHECKED_BY_TORCH) and (name, how) != TIES
]


@pytest.fixture(scope="module")
def native() -> Iterator[None]:
    devices.load_driver("sim")
    bringup_sim_ops.load()
    yield
    bringup_sim_ops.unload()


def called(name: str, values: list[Any], device: str) -> Any:
    """What the operator gives, or the exception."""
    packet, _, overload = name.partition(" ")[0].partition(".")
    operator = getattr(getattr(_aten, packet), overload or "default")
    given = [_on(value, device) for value in values]
    try:
        result = operator(*given)
        results = result if isinstance(result, tuple) else (result,)
        torch.npu.synchronize()  # a kernel that refuses is raised here
        return [one.cpu() if one is not None else None for one in results]
    except Exception as error:
        return error


def _on(value: Any, device: str) -> Any:
    if isinstance(value, list):
        return [_on(item, device) for item in value]
    return value.to(device) if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize(("name", "number", "how"), part(CASES))
def test_the_device_answers_as_the_cpu_or_refuses(
    native: None, name: str, number: int, how: str
) -> None:
    values = list(CALLS[name])
    values[number] = spoiled(values[number])[how]
    found = called(name, values, "npu")
    if isinstance(found, Exception):
        return
    right = called(name, values, "cpu")
    assert not isinstance(right, Exception), f"the CPU says {right}"
    for one, other in zip(right, found, strict=True):
        if one is not None and one.numel():
            torch.testing.assert_close(one, other, equal_nan=True)
