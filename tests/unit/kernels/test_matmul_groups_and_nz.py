"""Grouped products, and operands in the nz layout of 16 x 16 blocks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.kernels.matmul_support import FLOATS, close, matrix

from bringup import kernels
from bringup.errors import ContractError, KernelError


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(13)


# --- groups


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("ends", [[5, 5, 140, 200], [0, 0, 0, 0], [200] * 4, [1, 2, 3, 150]])
def test_grouped_matmul_multiplies_each_groups_rows_by_its_own_matrix(
    ends: list[int], dtype: torch.dtype
) -> None:
    """Grouped, slice m; empty groups, and rows behind the last one."""
    a, b = matrix(200, 40, dtype=dtype), matrix(4, 40, 33, dtype=dtype)
    expected = torch.zeros(200, 33, dtype=torch.float64)
    for group, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        expected[start:end] = a[start:end].double() @ b[group].double()
    close(kernels.grouped_matmul(a, b, torch.tensor(ends)), expected)


@pytest.mark.parametrize("layout", ["row", "column", "strided"])
def test_grouped_matmul_takes_operands_as_they_lie(layout: str) -> None:
    a, b = matrix(50, 20, layout=layout), matrix(2, 20, 30, layout=layout)
    ours = kernels.grouped_matmul(a, b, torch.tensor([20, 50]))
    expected = torch.cat([a[:20].double() @ b[0].double(), a[20:].double() @ b[1].double()])
    close(ours, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("layout", ["row", "column"])
def test_grouped_matmul_over_slices_of_the_depth(layout: str, dtype: torch.dtype) -> None:
    """Grouped, slice k."""
    a, b = matrix(30, 700, dtype=dtype, layout=layout), matrix(700, 40, dtype=dtype, layout=layout)
    ends = [100, 100, 520, 690]
    expected = torch.stack(
        [
            a[:, start:end].double() @ b[start:end].double()
            for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]
    )
    close(kernels.grouped_matmul_slice_k(a, b, torch.tensor(ends)), expected)


@pytest.mark.parametrize("ends", [[3, 2], [-1, 2], [2, 11]])
def test_ends_that_do_not_rise_from_zero_to_the_size_are_refused(ends: list[int]) -> None:
    groups = torch.tensor(ends)
    with pytest.raises(KernelError, match=r"bringup::grouped_matmul: .*rise from 0 to at most m"):
        kernels.grouped_matmul(matrix(10, 4), matrix(2, 4, 5), groups)
    with pytest.raises(KernelError, match=r"bringup::grouped_matmul_slice_k.*rise from 0 to"):
        kernels.grouped_matmul_slice_k(matrix(4, 10), matrix(10, 5), groups)


def test_no_groups_at_all() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert not kernels.grouped_matmul(matrix(3, 4), torch.empty(0, 4, 5), none).any()
    assert kernels.grouped_matmul_slice_k(matrix(3, 4), matrix(4, 5), none).shape == (0, 3, 5)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (torch.tensor([1, 2, 3]), r"group_list must have shape \[2\]"),
        (torch.tensor([1.0, 2.0]), "group_list must be torch.int64"),
    ],
)
def test_a_group_list_that_does_not_fit_is_named(groups: torch.Tensor, words: str) -> None:
    with pytest.raises(ContractError, match=f"bringup::grouped_matmul: {words}"):
        kernels.grouped_matmul(matrix(10, 4), matrix(2, 4, 5), groups)


# --- nz


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(0, 50), columns=st.integers(0, 50), batch=st.lists(st.integers(1, 3)))
def test_nz_and_back_is_the_same_matrix(rows: int, columns: int, batch: list[int]) -> None:
    values = torch.randn(*batch[:2], rows, columns)
    blocks = kernels.to_nz(values)
    assert blocks.shape[-4:] == (-(-columns // 16), -(-rows // 16), 16, 16)
    assert torch.equal(kernels.from_nz(blocks, rows, columns), values)


def test_nz_stores_block_columns_outermost_and_rows_inside_a_block() -> None:
    values = torch.arange(32 * 48).view(32, 48)
    blocks = kernels.to_nz(values)
    for row, column in ((0, 0), (17, 3), (5, 40), (31, 47)):
        element = blocks[column // 16, row // 16, row % 16, column % 16]
        assert element == values[row, column]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (33, 65, 129), (16, 530, 48), (120, 20, 300)])
@pytest.mark.parametrize("which", ["a", "b", "both"])
def test_nz_operands_give_the_same_product(
    which: str, m: int, n: int, k: int, dtype: torch.dtype
) -> None:
    """The layouts row, column and nz (torch_catlass: zN)."""
    a, b = matrix(m, k, dtype=dtype), matrix(k, n, dtype=dtype, layout="column")
    left = kernels.to_nz(a) if which != "b" else a
    right = kernels.to_nz(b) if which != "a" else b
    close(kernels.nz_matmul(left, right, m=m, n=n), a.double() @ b.double())


def test_without_sizes_the_whole_blocks_are_the_result() -> None:
    a, b = matrix(20, 30), matrix(30, 40)
    ours = kernels.nz_matmul(kernels.to_nz(a), kernels.to_nz(b), out_dtype="float32")
    assert ours.shape == (32, 48)
    close(ours[:20, :40].contiguous(), a.double() @ b.double())
    assert not ours[20:].any()


def test_a_part_of_an_nz_operand_is_taken_as_a_view() -> None:
    a, b = matrix(20, 32), matrix(32, 64)
    blocks = kernels.to_nz(b)
    ours = kernels.nz_matmul(a, blocks[1:3])
    close(ours, a.double() @ b[:, 16:48].double())
    ours = kernels.nz_matmul(a[:, 16:], blocks[:, 1:])
    close(ours, a[:, 16:].double() @ b[16:].double())


@pytest.mark.parametrize(
    ("a", "b", "m", "words"),
    [
        ((4, 20), (2, 3, 16, 16), 4, "b must be"),
        ((4, 20), (2, 2, 16, 8), 4, "b must be"),
        ((2, 2, 16, 16), (20, 5), 40, "a must be"),
    ],
)
def test_blocks_that_are_not_those_of_the_product_are_refused_with_the_reason(
    a: tuple[int, ...], b: tuple[int, ...], m: int, words: str
) -> None:
    with pytest.raises(KernelError, match=f"bringup::nz_matmul.*{words} .*nz: contiguous"):
        kernels.nz_matmul(torch.ones(a), torch.ones(b), m=m)


@pytest.mark.parametrize(("a", "b", "name"), [((16,), (16, 5), "a"), ((4, 16), (1, 1, 16), "b")])
def test_operands_of_another_rank_are_named(
    a: tuple[int, ...], b: tuple[int, ...], name: str
) -> None:
    with pytest.raises(ContractError, match=f"nz_matmul: {name} must be a matrix of 2 dimensions"):
        kernels.nz_matmul(torch.ones(a), torch.ones(b))


def test_conversions_refuse_what_is_no_matrix_or_not_its_blocks() -> None:
    with pytest.raises(ValueError, match=r"to_nz: expected a matrix .* got shape \[3\]"):
        kernels.to_nz(torch.ones(3))
    with pytest.raises(ValueError, match=r"from_nz: a matrix of 20 rows and 40 columns has nz"):
        kernels.from_nz(torch.ones(2, 2, 16, 16), 20, 40)
