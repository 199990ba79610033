"""Storages: where they are, how they are saved and loaded, pinned memory behind them."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch


def saved(value: object, **options: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    buffer.seek(0)
    return buffer


def test_a_storage_is_saved_with_the_place_where_it_was() -> None:
    there = torch.ones(2, device="npu:1")
    assert torch.serialization.location_tag(there.untyped_storage()) == "npu:1"
    assert torch.load(saved(there)).device == torch.device("npu:1")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("target", ["cpu", "npu:0", "npu:1"])
@pytest.mark.parametrize("source", ["cpu", "npu:0"])
def test_tensors_are_loaded_where_they_are_wanted(source: str, target: str, zipped: bool) -> None:
    x = torch.randn(3, 4, device=source)
    pair = {"x": x, "view": x[1:, ::2]}
    file = saved(pair, _use_new_zipfile_serialization=zipped)
    back = torch.load(file, map_location=target)
    assert {t.device for t in back.values()} == {torch.device(target)}
    assert back["x"].cpu().equal(x.cpu())
    back["x"].zero_()
    assert back["view"].abs().sum().item() == 0  # storage is shared after, as before
    assert back["view"].stride() == (4, 2)


def test_a_device_that_is_not_there_is_named_at_load() -> None:
    with pytest.raises(RuntimeError, match="npu:7"):
        torch.load(saved(torch.ones(2, device="npu:0")), map_location="npu:7")


def test_memory_mapped_files_are_loaded_to_the_device(tmp_path: Path) -> None:
    x = torch.randn(100)
    torch.save(x, tmp_path / "x.pt")
    there = torch.load(tmp_path / "x.pt", mmap=True, map_location="npu")
    assert there.is_npu
    assert there.cpu().equal(x)


def test_conjugates_and_negatives_are_saved_as_what_they_mean() -> None:
    x = torch.randn(3, dtype=torch.complex64)
    there = x.to("npu")
    conjugate = torch.load(saved(there.conj()))
    negative = torch.load(saved(there.conj().imag))
    assert conjugate.is_npu
    assert conjugate.is_conj()
    assert negative.is_npu
    assert negative.is_neg()
    assert conjugate.cpu().resolve_conj().equal(x.conj().resolve_conj())
    assert negative.cpu().resolve_neg().equal(x.conj().imag.resolve_neg())


def test_parameters_buffers_and_optimizers_come_back(tmp_path: Path) -> None:
    model = torch.nn.BatchNorm1d(3).to("npu")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 3, device="npu")).square().sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "c")
    kept = torch.load(tmp_path / "c", map_location="npu:1")
    other = torch.nn.BatchNorm1d(3).to("npu:1")
    other.load_state_dict(kept["model"])
    again = torch.optim.AdamW(other.parameters())
    again.load_state_dict(kept["optimizer"])
    assert other.running_mean.cpu().equal(model.running_mean.cpu())
    moments = [again.state[p]["exp_avg"] for p in other.parameters()]
    assert {m.device for m in moments} == {torch.device("npu:1")}
    expected = [optimizer.state[p]["exp_avg"].cpu() for p in model.parameters()]
    assert all(m.cpu().equal(e) for m, e in zip(moments, expected, strict=True))


def test_tensors_pickle_and_deep_copies_have_their_own_memory() -> None:
    x = torch.randn(4, device="npu", requires_grad=True)
    for back in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert back.is_npu
        assert back.requires_grad
        assert back.detach().cpu().equal(x.detach().cpu())
        assert back.data_ptr() != x.data_ptr()


def test_the_pinned_storage_of_a_tensor_stays_pinned_under_another_tensor() -> None:
    pinned = torch.arange(4.0).pin_memory()
    again = torch.empty(0).set_(pinned.untyped_storage())
    assert again.is_pinned()
    assert pinned.untyped_storage().is_pinned()
    assert again.equal(pinned)
    assert again.data_ptr() == pinned.data_ptr()
    assert pinned.pin_memory() is pinned
    assert not torch.arange(4.0).is_pinned()


def test_storages_grow_shrink_and_are_filled() -> None:
    storage = torch.arange(4, dtype=torch.uint8, device="npu").untyped_storage()
    storage.resize_(2)
    assert bytes(storage.cpu()) == b"\x00\x01"
    storage.resize_(4)
    assert storage.nbytes() == 4
    assert bytes(storage.cpu())[:2] == b"\x00\x01"
    storage.fill_(7)
    assert bytes(storage.cpu()) == b"\x07" * 4
    other = torch.UntypedStorage(4, device="npu:1").copy_(storage)
    assert other.device == torch.device("npu:1")
    assert bytes(other.cpu()) == b"\x07" * 4


def test_numpy_says_to_copy_to_the_host_first() -> None:
    with pytest.raises(TypeError, match=r"npu.*cpu"):
        torch.ones(2, device="npu").numpy()
