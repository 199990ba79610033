"""Every operator of torch that is made of others and takes tensors, called by its schema with
arguments that it accepts, and programs that bring in memory of NumPy or hand theirs out: a replay
with other contents is eager to the bit, or the capture is refused.
"""

from __future__ import annotations

import io
import itertools
import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.sweeps.support import part
from torch import Tensor
from torch.utils import _pytree

from bringup import devices, graphs
from bringup.errors import CaptureError, KernelError

COMPOSITE = "CompositeImplicitAutograd"
NOT_CALLED = {
    "aten::fbgemm_linear_int8_weight", "aten::fbgemm_linear_int8_weight_fp32_activation",
    "aten::fbgemm_pack_gemm_matrix_fp16", "aten::fbgemm_linear_fp16_weight",
    "aten::fbgemm_linear_fp16_weight_fp32_activation", "aten::_cufft_set_plan_cache_max_size",
    "aten::_thnn_differentiable_gru_cell_backward", "aten::quantized_lstm_cell",
}  # fmt: skip
"""Operators of torch that end the process, at times, for arguments of the wrong kind or shape."""
MOST_TRIES, MOST_CALLS = 24, 2
DEVICES = ("cpu", "npu")


def composites() -> list[str]:
    """The names of the operators that are called."""
    return [
        name
        for name in sorted(torch._C._dispatch_get_all_op_names())
        if name.startswith("aten::")
        and torch._C._dispatch_has_kernel_for_dispatch_key(name, COMPOSITE)
        and name.partition(".")[0] not in NOT_CALLED
        and any("Tensor" in str(a.type) for a in _overload(name)._schema.arguments)
        and not any(a.is_out for a in _overload(name)._schema.arguments)
    ]


def _overload(name: str) -> Any:
    base, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def _values(type_: str, device: str) -> list[Callable[[], Any]]:
    """Ways to make an argument of a type."""
    tensors: list[Callable[[], Any]] = [
        lambda: torch.arange(16.0, device=device).reshape(4, 4) / 8,
        lambda: torch.tensor([2, 1]),  # of the host: sizes, lengths, sections
        lambda: torch.tensor([1.5, 0.5, 2.5], device=device),
        lambda: torch.tensor(1, device=device),
    ]
    made: dict[str, list[Callable[[], Any]]] = {
        "Tensor": tensors,
        "List[Tensor]": [lambda: [tensors[0]()], lambda: [tensors[0](), tensors[0]()]],
        "int": [lambda: 1, lambda: 0, lambda: 4],
        "SymInt": [lambda: 1, lambda: 0, lambda: 4],
        "List[int]": [lambda: [1], lambda: [2, 2]],
        "List[SymInt]": [lambda: [1], lambda: [2, 2]],
        "float": [lambda: 0.5],
        "bool": [lambda: False],
        "number": [lambda: 1],
        "str": [lambda: "sum"],
    }
    return made.get(type_, [lambda: None])


def calls_of(func: Any, device: str) -> Iterator[dict[str, Any]]:
    """Arguments, by name, that the operator accepts."""
    needed = [a for a in func._schema.arguments if not a.has_default_value()]
    options = [_values(str(argument.type), device) for argument in needed]
    found = 0
    for makers in itertools.islice(itertools.product(*options), MOST_TRIES):
        try:
            func(**{a.name: make() for a, make in zip(needed, makers, strict=True)})
        except Exception:
            continue
        yield {a.name: make() for a, make in zip(needed, makers, strict=True)}
        found += 1
        if found == MOST_CALLS:
            return


def _packed(device: str) -> Callable[[], Any]:
    data, sizes = torch.arange(6.0, device=device).reshape(6, 1), torch.tensor([3, 2, 1])
    return lambda: torch._VF._pad_packed_sequence(data, sizes, False, 0.0, 5)


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "from_numpy, written": lambda x: x + torch.from_numpy(np.ones(4, np.float32)).add_(1),
    "from_numpy, a view written": lambda x: (
        x + torch.from_numpy(np.ones(8, np.float32))[::2].mul_(2)
    ),
    "from_numpy, out=": lambda x: torch.add(x, 1, out=torch.from_numpy(np.ones(4, np.float32))),
    "from_numpy, read": lambda x: x + torch.from_numpy(np.ones(4, np.float32)),
    "as_tensor, written": lambda x: x + torch.as_tensor(np.ones(4, np.float32)).add_(1),
    "asarray, written": lambda x: x + torch.asarray(np.ones(4, np.float32)).add_(1),
    "frombuffer, written": lambda x: (
        x + torch.frombuffer(bytearray(16), dtype=torch.float32).add_(1)
    ),
    "from_dlpack, written": lambda x: x + torch.from_dlpack(np.ones(4, np.float32)).add_(1),
    "tensor, written": lambda x: x + torch.tensor(np.ones(4, np.float32)).add_(1),
    "from_numpy, copied and written": lambda x: (
        x + torch.from_numpy(np.ones(4, np.float32)).clone().add_(1)
    ),
    "np.from_dlpack": lambda x: x * float(np.from_dlpack(x)[0]),
    "np.asarray": lambda x: x * float(np.asarray(x)[0]),
    "torch.from_dlpack": lambda x: torch.from_dlpack(x) * 2,
    "to_dlpack": lambda x: x * float(np.from_dlpack(_Holder(torch.utils.dlpack.to_dlpack(x)))[0]),
    "torch.save": lambda x: x * torch.load(_saved(x))[0],
    "pickle": lambda x: x * pickle.loads(pickle.dumps(x))[0],
    "storage": lambda x: x * x.untyped_storage()[3],
    "tolist": lambda x: x * x.tolist()[0],
}
"""What memory can come in and go out by; each is given four numbers of float32."""


class _Holder:
    """A capsule for NumPy."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def _saved(x: Tensor) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return file


CASES = [(name, device) for device in DEVICES for name in composites()]
LISTED = [
    *(("aten::tensor_split.tensor_indices_or_sections", device) for device in DEVICES),
    *(("aten::_pad_packed_sequence", device) for device in DEVICES),
]


@pytest.mark.parametrize(("name", "device"), part(CASES, always=LISTED[:2]))
def test_a_composite_operator_sees_other_contents_or_is_refused(
    name: str, device: str, sweep_counts: Counter[str]
) -> None:
    if device == "npu":
        devices.load_driver("sim")
    func, wrong = _overload(name), []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for kwargs in calls_of(func, device):
            sweep_counts["calls"] += 1
            text = _check(lambda k=kwargs: func(**k), _tensors(kwargs), sweep_counts)
            if text:
                wrong.append(f"{kwargs}: {text}"[:600])
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("device", DEVICES)
def test_packed_sequences(device: str, sweep_counts: Counter[str]) -> None:
    if device == "npu":
        devices.load_driver("sim")
    run = _packed(device)
    tensors = [cell.cell_contents for cell in run.__closure__ or ()]
    with torch.no_grad():
        assert _check(run, tensors, sweep_counts, {torch.int64: [2, 2, 2]}) == ""


@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_that_comes_in_or_goes_out(name: str, sweep_counts: Counter[str]) -> None:
    x = torch.ones(4)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert _check(lambda: PROGRAMS[name](x), [x], sweep_counts) == ""


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _change(tensor: Tensor, special: dict[torch.dtype, list[int]]) -> None:
    """Other contents that are as valid as the former ones, as far as one can know."""
    if tensor.dtype in special:
        tensor.copy_(torch.tensor(special[tensor.dtype]))
    elif tensor.dtype.is_floating_point:
        tensor.copy_(tensor.flip(tuple(range(tensor.dim()))) + 0.25)
    elif tensor.dtype == torch.int64:
        tensor.copy_((tensor + 1) % 3)


def _check(
    run: Callable[[], Any],
    tensors: list[Tensor],
    counts: Counter[str],
    special: dict[torch.dtype, list[int]] | None = None,
) -> str:
    graph = graphs.CapturedGraph()
    before = [tensor.clone() for tensor in tensors]
    try:
        with graphs.capture(graph):
            results = _tensors(run())
    except CaptureError:
        counts["captures refused"] += 1
        return ""
    if not graph.nodes:  # which warns: nothing of the operator was computed
        counts["captures without work"] += 1
        return ""
    for round_ in range(2):  # the second finds what the first has left
        for tensor, content in zip(tensors, before, strict=True):
            tensor.copy_(content)
            if round_:
                _change(tensor, special or {})
        start = [tensor.clone() for tensor in tensors]
        try:
            expected = [result.clone() for result in _tensors(run())]
        except Exception:
            counts["contents that eager refuses"] += 1
            return ""
        after = [tensor.clone() for tensor in tensors]
        for tensor, content in zip(tensors, start, strict=True):
            tensor.copy_(content)
        try:
            graph.replay()
        except (RuntimeError, KernelError) as error:
            return f"the replay raises {error}"
        counts["replays"] += 1
        for got, wanted in zip([*results, *tensors], [*expected, *after], strict=True):
            if got.shape != wanted.shape or not torch.equal(_plain(got), _plain(wanted)):
                return f"{got} for {wanted}"
    return ""


def _plain(tensor: Tensor) -> Tensor:
    dense = tensor.cpu().resolve_conj().resolve_neg()
    dense = torch.view_as_real(dense) if dense.is_complex() else dense
    return dense.nan_to_num(nan=1e9) if dense.dtype.is_floating_point else dense
