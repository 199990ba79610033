"""Tensors that are not strided: COO works, the rest is refused in words that say what to do."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

INDICES = torch.tensor([[0, 2, 0], [1, 0, 1]])
VALUES = torch.tensor([1.0, 2.0, 3.0])


def coo(device: str = "npu") -> torch.Tensor:
    return torch.sparse_coo_tensor(INDICES.to(device), VALUES.to(device), (3, 3))


def assert_same(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.device.type == "npu"
    assert got.layout == expected.layout
    torch.testing.assert_close(got.cpu(), expected)


MADE: dict[str, Callable[[str], torch.Tensor]] = {
    "of two tensors": coo,
    "on a device by name": lambda d: torch.sparse_coo_tensor(INDICES, VALUES, (3, 3), device=d),
    "moved": lambda d: coo("cpu").to(d),
    "of a dense tensor": lambda d: torch.eye(3, device=d).to_sparse(),
    "with dense dimensions": lambda d: torch.ones(3, 2, device=d).to_sparse(1),
    "empty": lambda d: torch.empty(3, 3, layout=torch.sparse_coo, device=d),
    "zeros": lambda d: torch.zeros(3, 3, layout=torch.sparse_coo, device=d),
    "like another": lambda d: torch.zeros_like(coo(d)),
    "cloned": lambda d: coo(d).clone(),
    "in half": lambda d: coo(d).half(),
}


@pytest.mark.parametrize("how", MADE)
def test_a_coo_tensor_is_made(how: str) -> None:
    assert_same(MADE[how]("npu"), MADE[how]("cpu"))


COMPUTED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "coalesced": lambda s, d: s.coalesce(),
    "dense": lambda s, d: s.to_dense(),
    "sum of two": lambda s, d: s + s,
    "added to dense": lambda s, d: d + s,
    "times a number": lambda s, d: s * 2,
    "times dense": lambda s, d: s * d,
    "matrix product": lambda s, d: torch.sparse.mm(s, d),
    "operator": lambda s, d: s @ d,
    "addmm": lambda s, d: torch.sparse.addmm(d, s, d),
    "transposed": lambda s, d: s.t(),
    "summed": lambda s, d: torch.sparse.sum(s, dim=0),
    "masked": lambda s, d: d.sparse_mask(s.coalesce()),
    "selected": lambda s, d: s.index_select(0, torch.tensor([0, 2], device=s.device)),
    "softmax": lambda s, d: torch.sparse.softmax(s.coalesce(), 1),
    "concatenated": lambda s, d: torch.cat([s, s]),
    "its values": lambda s, d: s.coalesce().values(),
    "its indices": lambda s, d: s.coalesce().indices(),
    "written in place": lambda s, d: s.clone().mul_(3),
    "added in place": lambda s, d: s.clone().add_(s, alpha=2),
    "zeroed": lambda s, d: s.clone().zero_(),
    "dense written in place": lambda s, d: d.clone().add_(s, alpha=-1),
    "copied into": lambda s, d: torch.zeros_like(s).copy_(s),
}


@pytest.mark.parametrize("how", COMPUTED)
def test_operators_of_coo_tensors_give_the_cpus_results(how: str) -> None:
    dense = torch.arange(9.0).reshape(3, 3)
    expected = COMPUTED[how](coo("cpu"), dense)
    assert_same(COMPUTED[how](coo(), dense.to("npu")), expected)


def test_a_coo_tensor_prints_saves_and_tells_its_parts() -> None:
    s = coo()
    assert "device='npu:0'" in repr(s)
    assert "layout=torch.sparse_coo" in repr(s)
    assert (s._nnz(), s.sparse_dim(), s.dense_dim(), s.is_coalesced()) == (3, 2, 0, False)
    assert s.coalesce()._nnz() == 2
    file = io.BytesIO()
    torch.save(s, file)
    file.seek(0)
    assert_same(torch.load(file), coo("cpu"))


@pytest.mark.parametrize(
    "optimizer", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam]
)
def test_an_embedding_trains_with_sparse_gradients(optimizer: type[torch.optim.Optimizer]) -> None:
    def trained(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        table = torch.nn.Embedding(10, 4, sparse=True).to(device)
        steps = optimizer(table.parameters(), lr=0.1)  # type: ignore[call-arg]
        for batch in ([1, 2, 2], [2, 7, 9], [0, 0, 0]):
            steps.zero_grad()
            table(torch.tensor(batch, device=device)).square().sum().backward()
            assert table.weight.grad.layout == torch.sparse_coo
            steps.step()
        return table.weight.detach()

    torch.testing.assert_close(trained("npu").cpu(), trained("cpu"))


def test_gradients_flow_through_sparse_products() -> None:
    def gradients(device: str) -> list[torch.Tensor]:
        dense = torch.arange(9.0, device=device).reshape(3, 3).requires_grad_()
        sparse = coo(device).coalesce().requires_grad_()
        torch.sparse.mm(sparse, dense).square().sum().backward()
        return [dense.grad, sparse.grad.to_dense()]

    for ours, theirs in zip(gradients("npu"), gradients("cpu"), strict=True):
        assert_same(ours, theirs)


def test_sparse_operators_are_counted_and_forbidden_as_others_are() -> None:
    from bringup import devices

    s = coo()
    devices.fallback_report(reset=True)
    s.coalesce()
    rows = {row.operator: row for row in devices.fallback_report().rows}
    assert rows["aten::_coalesce"].calls == 1
    with (
        devices.fallback_policy("allow", {"aten::_coalesce": "forbid"}),
        pytest.raises(NotImplementedError, match="'aten::_coalesce'"),
    ):
        coo().coalesce()


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "CSR of dense": (lambda: torch.eye(3, device="npu").to_sparse_csr(), "COO"),
    "CSR moved": (lambda: torch.eye(3).to_sparse_csr().to("npu").to_dense(), "COO"),
    "CSC": (lambda: torch.eye(3, device="npu").to_sparse_csc(), "COO"),
    "BSR": (lambda: torch.eye(4, device="npu").to_sparse_bsr((2, 2)), "COO"),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(3, device="npu"), 0.1, 0, torch.qint8),
        "quantize on cpu",
    ),
    "quantized by channel": (
        lambda: torch.quantize_per_channel(
            torch.ones(3, 2, device="npu"),
            torch.ones(3, device="npu"),
            torch.zeros(3, device="npu"),
            0,
            torch.qint8,
        ),
        "quantize on cpu",
    ),
    "quantized moved": (
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).to("npu"),
        "quantize on cpu",
    ),
    "quantized factory": (
        lambda: torch._empty_affine_quantized(
            (2,), scale=0.1, zero_point=0, dtype=torch.qint8, device="npu"
        ),
        "quantize on cpu",
    ),
    "nested": (
        lambda: repr(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).to("npu")),
        "torch.jagged",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_layouts_are_refused_with_what_to_do(what: str) -> None:
    make, remedy = REFUSED[what]
    with pytest.raises(NotImplementedError, match=f"device 'npu'.*{remedy}"):
        make()


SENTENCES: dict[str, Callable[[], object]] = {
    "CSR": lambda: torch.eye(3, device="npu").to_sparse_csr(),
    "CSR moved": lambda: torch.eye(3).to_sparse_csr().to("npu").to_dense(),
    "BSR": lambda: torch.eye(4, device="npu").to_sparse_bsr((2, 2)),
    "quantized": lambda: torch.quantize_per_tensor(
        torch.ones(3, device="npu"), 0.1, 0, torch.qint8
    ),
    "semi-structured": lambda: torch.sparse.to_sparse_semi_structured(
        torch.tensor([0, 0, 1, 1], dtype=torch.float16, device="npu").tile(32, 16)
    ),
    "strided nested": lambda: torch.nested.nested_tensor([torch.ones(2)], device="npu"),
}


@pytest.mark.parametrize("what", SENTENCES)
def test_the_status_page_has_the_sentence_of_a_refusal(what: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "status.md").read_text()
    with pytest.raises(RuntimeError) as raised:  # or its kind NotImplementedError
        SENTENCES[what]()
    assert f"`{raised.value}`" in page


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr", "bsc"])
def test_a_compressed_tensor_that_was_moved_can_be_printed_and_brought_back(layout: str) -> None:
    """An error in `repr` would leave torch.func switched off while the traceback lives."""
    matrix = torch.tensor([[0.0, 2, 0, 0], [1, 0, 3, 0]])
    there = getattr(matrix, f"to_sparse_{layout}")(*[(1, 2)][: layout.startswith("b")])
    moved = there.to("npu")
    assert repr(moved).replace(", device='npu:0'", "") == repr(there)
    assert moved.values().device.type == "npu"
    assert torch.equal(moved.cpu().to_dense(), matrix)


def test_jagged_nested_tensors_work() -> None:
    parts = [torch.ones(2, device="npu"), torch.ones(3, device="npu")]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    assert [part.tolist() for part in (nested * 2).unbind()] == [[2, 2], [2, 2, 2]]
    assert nested.device.type == "npu"


def test_fake_quantization_works() -> None:
    x = torch.tensor([0.04, 0.26], device="npu")
    assert torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255).cpu().tolist() == (
        pytest.approx([0.0, 0.3])
    )


COPIES = """
import torch
from bringup import devices
assert not devices.load_driver("sim").host_visible
s = torch.sparse_coo_tensor([[0, 2, 0], [1, 0, 1]], [1.0, 2.0, 3.0], (3, 3), device="npu")
s.mul_(2)
dense = torch.ones(3, 3, device="npu").add_(s)
print(s.coalesce().to_dense().cpu().tolist(), dense.cpu().tolist())
"""


def test_coo_tensors_work_where_the_host_sees_no_device_memory(
    fresh_python: Callable[..., str],
) -> None:
    told = fresh_python(COPIES, BRINGUP_SIM_ISOLATED="1")
    assert told == (
        "[[0.0, 8.0, 0.0], [0.0, 0.0, 0.0], [4.0, 0.0, 0.0]] "
        "[[1.0, 9.0, 1.0], [1.0, 1.0, 1.0], [5.0, 1.0, 1.0]]"
    )
