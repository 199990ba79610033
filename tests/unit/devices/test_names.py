"""The names that torch gives a renamed device: on tensors, storages, modules, packed sequences."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence


def test_the_same_name_again_changes_nothing_and_another_is_refused() -> None:
    torch.utils.rename_privateuse1_backend("npu")
    with pytest.raises(RuntimeError, match="already been set! Current backend: npu"):
        torch.utils.rename_privateuse1_backend("other")
    assert torch._C._get_privateuse1_backend_name() == "npu"


def test_the_device_module_cannot_be_registered_twice_or_under_another_device() -> None:
    with pytest.raises(RuntimeError, match="'npu' has already been registered"):
        torch._register_device_module("npu", torch.npu)
    with pytest.raises(RuntimeError, match="other"):
        torch._register_device_module("other", torch.npu)


def test_methods_cannot_be_generated_twice() -> None:
    with pytest.raises(RuntimeError, match="is_npu"):
        torch.utils.generate_methods_for_privateuse1_backend()


def test_a_tensor_goes_there_by_its_method_and_knows_where_it_is() -> None:
    x = torch.arange(3.0)
    there = x.npu()
    assert there.is_npu
    assert not x.is_npu
    assert there.device == torch.device("npu", torch.npu.current_device())
    assert x.npu(1).device.index == 1
    assert there.npu() is there
    assert x.pin_memory().npu(non_blocking=True).cpu().equal(x)


def test_a_storage_goes_there_by_its_method() -> None:
    typed = torch.arange(3.0).storage()
    assert typed.npu().is_npu
    assert not typed.is_npu
    assert typed.npu().device.type == "npu"
    untyped = torch.arange(3.0).untyped_storage()
    there = untyped.npu()
    assert there.is_npu
    assert there.device.type == "npu"
    assert there.nbytes() == untyped.nbytes()
    assert bytes(there.cpu()) == bytes(untyped)


def test_a_module_goes_there_by_its_method() -> None:
    module = torch.nn.BatchNorm1d(3).npu(1)
    tensors = [*module.parameters(), *module.buffers()]
    assert {t.device for t in tensors} == {torch.device("npu", 1)}


def test_a_packed_sequence_goes_there_by_its_method() -> None:
    packed = pack_sequence([torch.arange(3.0), torch.arange(2.0)])
    there = packed.npu()
    assert there.is_npu
    assert there.data.is_npu
    assert not packed.is_npu
    assert there.batch_sizes.device.type == "cpu"  # where torch wants them
    assert there.data.cpu().equal(packed.data)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float32, "torch.npu.FloatTensor"),
        (torch.float64, "torch.npu.DoubleTensor"),
        (torch.int64, "torch.npu.LongTensor"),
        (torch.bool, "torch.npu.BoolTensor"),
        (torch.bfloat16, "torch.npu.BFloat16Tensor"),
    ],
)
def test_a_tensors_type_has_the_devices_name(dtype: torch.dtype, name: str) -> None:
    x = torch.ones(2, device="npu", dtype=dtype)
    assert x.type() == name
    back = torch.ones(2).type(name)
    assert (back.dtype, back.device.type) == (dtype, "npu")
