"""Programs of public reports and of users that a device computes as the CPU does: each takes the
device's name and returns what is compared. Some raise on both, by the same type.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Program = Callable[[str], Any]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    """Adds a program to the corpus under its own name."""
    PROGRAMS[function.__name__] = function
    return function


def values(device: str, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """A tensor of fixed random values, made on the CPU and moved."""
    generator = torch.Generator().manual_seed(1 + seed + sum(shape))
    if dtype.is_floating_point or dtype.is_complex:
        made = torch.randn(shape, dtype=dtype, generator=generator)
    else:
        made = torch.randint(0 if dtype is torch.bool else -6, 7, shape, generator=generator)
    return made.to(dtype).to(device)


def constant(module: nn.Module, device: str) -> nn.Module:
    """The module with parameters that depend on nothing random."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.linspace(-0.9, 1.1, parameter.numel()).view_as(parameter))
    return module.to(device)


# -- layouts, views and overlaps


@program
def operands_of_four_layouts(d: str) -> Any:
    x = values(d, 6, 8)
    return x.t() @ x, x[::2, 1::2] * x[1::2, ::2], x.t() + values(d, 8, 6), x.flip(0) - x


@program
def a_write_to_a_view_that_its_source_overlaps(d: str) -> Any:
    x, y = values(d, 24), values(d, 24, seed=3)
    x[3:19].copy_(x[:16].clone())
    y[1:].add_(y[:-1].clone())
    return x, y


@program
def an_expanded_tensor_is_not_written(d: str) -> Any:
    return values(d, 3, 1).expand(3, 4).add_(1)


@program
def copies_into_views(d: str) -> Any:
    x = torch.zeros(6, 6, dtype=torch.float64, device=d)
    x[::2, 1::2].copy_(values("cpu", 3, 3))
    x.select(1, 0).copy_(values(d, 6, dtype=torch.int32))
    x.diagonal().copy_(values(d, 6, dtype=torch.float16))
    x.narrow(0, 4, 2)[:, 3:5] = torch.tensor([1, 2], device=d)
    return x


@program
def writes_behind_lazy_bits(d: str) -> Any:
    x = values(d, 5, dtype=torch.complex64)
    x.conj().mul_(2j)
    x.imag.neg_()
    x.conj()[1] = 3 - 1j
    y = x.conj().imag
    return x, y.is_neg(), y + 1, y.clone(), y.tolist(), x.conj().resolve_conj()


@program
def lazily_conjugated_operands(d: str) -> Any:
    x = values(d, 4, 4, dtype=torch.complex64)
    return x.conj() * x, x.T.conj() @ x, x.abs(), x.angle(), torch.view_as_real(x), x.real


# -- results that the caller gives


@program
def results_on_top_of_operands(d: str) -> Any:
    x = values(d, 4, 4)
    torch.add(x, x, alpha=2, out=x)
    strided = torch.empty(4, 4, device=d).t()
    torch.sub(x, 1, out=strided)
    return x, strided, strided.stride()


@program
def a_result_of_a_slice(d: str) -> Any:
    pool = torch.arange(12.0, device=d)
    torch.mul(values(d, 4), 3, out=pool[2:6])
    torch.sum(values(d, 3, 4), 1, out=pool[8:11])
    return pool


@program
def a_result_that_has_no_elements_is_resized(d: str) -> Any:
    return torch.cumsum(values(d, 5), 0, out=torch.empty(0, device=d))


@program
def a_result_of_a_narrower_kind_is_refused(d: str) -> Any:
    return torch.add(values(d, 3), 1, out=torch.empty(3, dtype=torch.int32, device=d))


@program
def a_written_tensor_is_not_broadcast(d: str) -> Any:
    return values(d, 5).add_(values(d, 4, 5))


@program
def an_integer_takes_no_fraction(d: str) -> Any:
    x = values(d, 5, dtype=torch.int32)
    x += 1.5
    return x


@program
def written_tensors_broadcast_others(d: str) -> Any:
    x = values(d, 4, 5)
    x += values(d, 5)
    x *= values(d, 4, 1)
    x[0] -= 1
    x[:, 1] = 7
    x[x > 1] = 0
    x[[0, 2]] += 1
    return x


# -- no elements, no dimensions, special values


@program
def nothing(d: str) -> Any:
    x = values(d, 0, 3)
    joined = torch.cat([x, values(d, 2, 3)])
    return x + 1, x.sum(), x.sum(0), x.mean(0), x @ values(d, 3, 2), x.t().contiguous(), joined


@program
def the_largest_of_nothing_is_refused(d: str) -> Any:
    return values(d, 0).argmax()


@program
def a_narrow_of_nothing_has_a_gradient(d: str) -> Any:
    x = values(d, 4).requires_grad_()
    (x.narrow(0, 2, 0).sum() + x.sum()).backward()
    return x.grad


@program
def one_number(d: str) -> Any:
    x = values(d, 5).sum()
    return x * 2, x + values(d, 3), x.item(), x.view(1), x.expand(3), torch.stack([x, x])


@program
def special_values(d: str) -> Any:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 2.0], device=d)
    unary = x.isnan(), x.sign(), x.nan_to_num(), 1 / x, x.relu(), x.clamp(-1, 1)
    return *unary, x.max(), x.argmax(), x.sort()[0], torch.maximum(x, x.flip(0)), x.nansum()


@program
def integers(d: str) -> Any:
    x = values(d, 8, dtype=torch.int8)
    wide = x.long() * 2**40
    return x // 3, x % 3, x >> 1, x << 2, x**2, x / 3, wide, wide.float(), ~x, x.abs(), -x


@program
def booleans(d: str) -> Any:
    x = values(d, 4, 5, dtype=torch.bool)
    return x & ~x, x.sum(), x.any(1), x.all(0), x + x, x * 2, x[x].shape, x.nonzero(), x.cumsum(1)


@program
def bools_are_not_subtracted(d: str) -> Any:
    return values(d, 4, dtype=torch.bool) - values(d, 4, dtype=torch.bool)


@program
def an_integer_divided_by_zero_is_refused(d: str) -> Any:
    return values(d, 4, dtype=torch.int32) // torch.zeros(4, dtype=torch.int32, device=d)


@program
def narrow_floats(d: str) -> Any:
    x = values(d, 16, 16, dtype=torch.bfloat16)
    eighth = values(d, 16).to(torch.float8_e4m3fn)
    return x.sum(), x.mean(0), x.to(torch.float16), eighth.float(), eighth.view(torch.uint8)


@program
def numbers_in_front_and_of_the_host(d: str) -> Any:
    x = values(d, 3)
    two = torch.tensor(2.0)
    return 1 - x, 2 / x, x + two, two * x, torch.where(x > 0, torch.tensor(1.0), x), x**two


@program
def kinds_of_python_numbers(d: str) -> Any:
    kinds = torch.bool, torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.float64
    read = [values(d, 1, dtype=kind).item() for kind in kinds]
    return read, bool(torch.ones(1, device=d)), int(torch.tensor(3.7, device=d))


@program
def twelve_dimensions(d: str) -> Any:
    x = values(d, *[2] * 12)
    turned = x.permute(*reversed(range(12)))
    return turned.contiguous(), x.sum((1, 3, 5)), turned * x


# -- indices


@program
def indices_of_the_host_and_of_the_device(d: str) -> Any:
    x = values(d, 5)
    x[torch.tensor([0, 3])] = torch.tensor([1.0, 2.0], device=d)
    return x, x[torch.tensor([4, 1])], x[x > 0], values(d, 3, 4)[:, [1, -1]]


@program
def an_index_beyond_the_end_is_refused(d: str) -> Any:
    return values(d, 5)[torch.tensor([7], device=d)].cpu()


@program
def scattered_writes_with_duplicates(d: str) -> Any:
    x = torch.zeros(5, device=d)
    x.index_add_(0, torch.tensor([1, 1, 3], device=d), values(d, 3))
    where = torch.tensor([0, 0, 4], device=d)
    x.scatter_reduce_(0, where, values(d, 3), "amax", include_self=False)
    expanded = torch.zeros(1, dtype=torch.int64, device=d).expand(3)
    return x, torch.zeros(2, device=d).scatter_add_(0, expanded, values(d, 3))


@program
def orders(d: str) -> Any:
    x = torch.tensor([1, 0, 1, 0, 1], device=d)
    return *x.sort(stable=True), *values(d, 4, 5).topk(2), values(d, 9).median(), x.unique()


@program
def sizes_that_depend_on_values(d: str) -> Any:
    x = torch.tensor([1, 1, 3], device=d)
    return torch.bincount(x), x.repeat_interleave(x), torch.nonzero(x - 1), torch.histc(x.float())


# -- storages, files and copies


@program
def resized_and_replaced_storages(d: str) -> Any:
    x, y = values(d, 2, 3), values(d, 4)
    x.resize_(3, 2)
    y.resize_(8)[4:] = 0
    z = torch.empty(0, device=d).set_(x.untyped_storage(), 1, (2, 2), (2, 1))
    emptied = values(d, 3)
    emptied.untyped_storage().resize_(0)
    emptied.untyped_storage().resize_(12)
    return x, y, z, emptied.fill_(1), x.untyped_storage().nbytes()


@program
def a_storage_is_copied_apart(d: str) -> Any:
    x = values(d, 4)
    other = x.untyped_storage().clone()
    other.fill_(0)
    return x, torch.empty(0, device=d).set_(other, 0, (4,)), x.untyped_storage().cpu().tolist()


@program
def bytes_read_as_another_dtype(d: str) -> Any:
    x = values(d, 4, 4)
    return x.view(torch.int32), x.view(torch.uint8), x[:, :2].view(torch.int32)


@program
def saved_tensors_share_what_they_shared(d: str) -> Any:
    x, file = values(d, 4, 4), io.BytesIO()
    torch.save({"all": x, "part": x[1:], "turned": x.t(), "p": nn.Parameter(x)}, file)
    file.seek(0)
    read = torch.load(file)
    read["part"].zero_()
    return read["all"], read["turned"].stride(), read["p"].requires_grad


@program
def deep_copies_and_pickles(d: str) -> Any:
    module = constant(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), d)
    other = copy.deepcopy(module)
    with torch.no_grad():
        other[0].weight.add_(1)
    x = values(d, 3)
    whole, part = copy.deepcopy((x, x[1:]))
    whole.add_(1)
    return module[0].weight, other[0].weight, part, x, pickle.loads(pickle.dumps(x))


@program
def data_is_replaced(d: str) -> Any:
    p, q = nn.Parameter(values(d, 3)), values(d, 2, 2)
    p.data = values(d, 3) * 2
    q.data = values(d, 5)
    return p, q


@program
def ways_to_make_tensors(d: str) -> Any:
    made = torch.arange(5, device=d), torch.linspace(0, 1, 5, device=d), torch.eye(3, device=d)
    x = values(d, 3)
    more = torch.tensor([x[0], x[1]], device=d), torch.asarray([1.5], device=d)
    return *made, *more, torch.full((2,), True, device=d), torch.tril_indices(3, 3, device=d)


@program
def sparse_coordinates(d: str) -> Any:
    where = torch.tensor([[0, 1, 1], [2, 0, 2]], device=d)
    x = torch.sparse_coo_tensor(where, values(d, 3), (2, 3))
    return x.to_dense(), x @ values(d, 3, 2), (x + x).to_dense(), torch.sparse.sum(x)


@program
def jagged_rows(d: str) -> Any:
    rows = [values(d, 2, 3), values(d, 4, 3)]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged, device=d)
    return x.values(), (x * 2).values(), functional.linear(x, values(d, 5, 3)).values()


# -- linear algebra and signals


@program
def decompositions(d: str) -> Any:
    x = values(d, 4, 4)
    s = x @ x.t() + 4 * torch.eye(4, device=d)
    linalg = torch.linalg
    solved = linalg.solve(s, values(d, 4, 2)), linalg.inv(s), linalg.cholesky(s), linalg.det(s)
    return *solved, linalg.svdvals(x), linalg.eigvalsh(s)


@program
def a_singular_matrix_is_refused(d: str) -> Any:
    return torch.linalg.inv(torch.zeros(3, 3, device=d))


@program
def contractions(d: str) -> Any:
    chained = torch.einsum("bij,bjk->bik", values(d, 2, 3, 4), values(d, 2, 4, 5))
    return (
        chained,
        torch.einsum("ii->i", values(d, 3, 3)),
        torch.cdist(values(d, 3, 2), values(d, 4, 2)),
    )


@program
def a_spectrum_and_back(d: str) -> Any:
    x, window = values(d, 64), torch.hann_window(16, device=d)
    spectrum = torch.stft(x, 16, window=window, return_complex=True)
    return spectrum, torch.istft(spectrum, 16, window=window, length=64)


# -- streams and pinned memory (nothing else than order on the CPU)


@program
def copies_that_nobody_waits_for(d: str) -> Any:
    if d == "cpu":
        return [torch.arange(1000.0) + i for i in range(8)]
    results = []
    for i in range(8):
        source = (torch.arange(1000.0) + i).pin_memory()
        there = source.to(d, non_blocking=True)
        del source
        back = torch.empty(1000).pin_memory()
        back.copy_(there, non_blocking=True)
        del there
        results.append(back)
    torch.accelerator.synchronize()
    return results


@program
def a_block_of_another_stream_is_not_used_again(d: str) -> Any:
    if d == "cpu":
        return torch.full((4096,), 3.0) * 2
    side = torch.Stream(device=d)
    x = torch.full((4096,), 3.0, device=d)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        y = x * 2
    x.record_stream(side)
    del x
    torch.full((4096,), 9.0, device=d)
    side.synchronize()
    return y
