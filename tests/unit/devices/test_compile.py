"""torch.compile on the device: Dynamo's view of it, and the backends that run there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.forked_python import DYNAMO
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

BACKENDS = ["eager", "aot_eager", "bringup", "inductor"]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ w + 1).sum(-1)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_functions_give_eager_results_and_gradients(backend: str, dynamic: bool) -> None:
    compiled = torch.compile(block, backend=backend, fullgraph=True, dynamic=dynamic)
    for rows in (2, 5):
        x = torch.randn(rows, 4, device="npu", requires_grad=True)
        w = torch.randn(4, 3, device="npu", requires_grad=True)
        expected, got = block(x, w), compiled(x, w)
        assert got.device == x.device
        torch.testing.assert_close(got, expected)
        theirs = torch.autograd.grad(expected.sum(), (x, w))
        torch.testing.assert_close(torch.autograd.grad(got.sum(), (x, w)), theirs)


def test_another_shape_compiles_once_more_and_then_for_all() -> None:
    counter = CompileCounter()
    compiled = torch.compile(lambda x: x.relu() + 1, backend=counter)
    for size in (4, 4, 5, 6, 7):
        compiled(torch.ones(size, device="npu"))
    assert counter.frame_count == 2


def test_a_graph_break_makes_two_graphs() -> None:
    counter = CompileCounter()

    @torch.compile(backend=counter)
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    assert broken(torch.ones(2, device="npu")).tolist() == [4, 4]
    assert counter.frame_count == 2


def test_copies_between_host_and_device_are_traced() -> None:
    compiled = torch.compile(
        lambda x: (x.to("npu") * 2).cpu() + 1, backend="aot_eager", fullgraph=True
    )
    assert compiled(torch.ones(3)).tolist() == [3, 3, 3]


def test_the_default_device_is_that_of_a_graphs_factories() -> None:
    compiled = torch.compile(lambda: torch.ones(2) + 1, backend="aot_eager", fullgraph=True)
    with torch.device("npu"):
        assert compiled().device.type == "npu"


def test_a_module_is_compiled_with_its_parameters() -> None:
    model = torch.nn.Linear(4, 2).to("npu")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    x = torch.randn(3, 4, device="npu")
    compiled(x).square().sum().backward()
    got = model.weight.grad
    model.zero_grad()
    model(x).square().sum().backward()
    torch.testing.assert_close(got, model.weight.grad)


@pytest.mark.usefixtures("settled")
def test_fake_tensors_have_the_device_and_no_memory() -> None:
    before = torch.npu.memory_allocated()
    with FakeTensorMode():
        x = torch.empty(1 << 40, device="npu")
        assert (x + 1).device == torch.device("npu", torch.npu.current_device())
    assert torch.npu.memory_allocated() == before


def test_dynamo_knows_the_device_by_its_interface() -> None:
    from torch._dynamo.device_interface import get_interface_for_device

    interface = get_interface_for_device("npu")
    assert get_interface_for_device("npu:1") is interface
    assert interface.is_available()
    assert interface.device_count() == torch.npu.device_count() == 2
    assert interface.current_device() == 0
    assert interface.exchange_device(1) == 0
    assert torch.npu.current_device() == 1
    assert interface.maybe_exchange_device(-1) == 1
    assert torch.npu.current_device() == 1
    with interface.device(0):
        assert interface.Worker.current_device() == 0
    interface.Worker.set_device(0)
    assert torch.npu.current_device() == 0
    assert interface.get_device_properties(0) == torch.npu.get_device_properties(0)
    assert interface.get_compute_capability(0) == torch.npu.get_device_properties(0).arch
    assert interface.is_bf16_supported()
    assert interface.is_dtype_supported(torch.float64)
    assert not interface.is_triton_capable()
    stream = torch.npu.Stream()
    with interface.stream(stream):
        assert interface.current_stream() == stream
        assert interface.get_raw_stream(0) == stream.native_handle
    interface._set_stream_by_id(stream.stream_id, stream.device_index, stream.device_type)
    assert torch.npu.current_stream() == stream
    interface.set_stream(torch.npu.default_stream())
    x = torch.ones(100, device="npu")
    assert interface.memory_allocated(0) >= x.nbytes
    interface.synchronize(0)


def test_compilers_that_are_imported_before_the_driver_is_loaded_know_it_too(
    fresh_python: Callable[..., str],
) -> None:
    code = """
import torch, torch._dynamo, torch._inductor.codegen.common
from bringup import devices
devices.load_driver("sim")
print(torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(2, device="npu")).tolist())
print(torch.compile(lambda x: x + 1)(torch.ones(2, device="npu")).tolist())
"""
    assert fresh_python(code, preload=DYNAMO) == "[2.0, 2.0]\n[2.0, 2.0]"
