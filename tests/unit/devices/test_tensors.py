"""Tensors of the device: factories, copies, views, in-place operators, autograd."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (4, 5, 6)])
def test_factories_give_what_cpu_gives(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for factory in (torch.zeros, torch.ones):
        made = factory(shape, dtype=dtype, device="npu")
        assert made.device == torch.device("npu", 0)
        assert torch.equal(made.cpu(), factory(shape, dtype=dtype))


def test_model_forward_and_backward_equal_cpu() -> None:
    torch.manual_seed(0)
    on_cpu = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4)
    )
    on_npu = copy.deepcopy(on_cpu).to("npu")
    x = torch.randn(3, 8)
    expected, got = on_cpu(x), on_npu(x.to("npu"))
    assert got.device.type == "npu"
    torch.testing.assert_close(got.cpu(), expected)
    expected.square().sum().backward()
    got.square().sum().backward()
    for ours, theirs in zip(on_npu.parameters(), on_cpu.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t,
        lambda t: t.t(),
        lambda t: t[1:, ::2],
        lambda t: t[:, 1].unsqueeze(1),
        lambda t: t.unsqueeze(0).expand(3, -1, -1),
        lambda t: t.reshape(-1)[3:],
        lambda t: t[:0],
    ],
    ids=["whole", "transposed", "strided", "column", "expanded", "offset", "empty"],
)
def test_copies_of_any_layout_carry_the_values(view) -> None:  # type: ignore[no-untyped-def]
    base = torch.arange(24.0).reshape(4, 6)
    there = base.to("npu")
    assert torch.equal(view(there).cpu(), view(base))
    assert torch.equal(view(there).clone().cpu(), view(base))
    assert torch.equal(view(base).to("npu").cpu(), view(base))
    assert torch.equal(view(there).to(torch.int32).cpu(), view(base).to(torch.int32))


def test_in_place_operator_returns_its_tensor_and_writes_through_views() -> None:
    x = torch.zeros(3, 4, device="npu")
    row = x[1]
    assert row.add_(2) is row
    assert torch.equal(x.cpu().sum(1), torch.tensor([0.0, 8.0, 0.0]))


@pytest.mark.parametrize(
    "work",
    [
        lambda t: functional.scaled_dot_product_attention(t, t * 2, t + 1),
        lambda t: functional.layer_norm(t, t.shape[-1:]),
        lambda t: functional.linear(t, t[0, 0], None),
        lambda t: torch.cat([t, t.flip(0), t[:1]]),
        lambda t: torch.stack(torch._foreach_mul([t, t + 1], 2)),
        lambda t: functional.conv2d(t, t[:, :1, :2, :2].expand(-1, 3, -1, -1)),
        lambda t: functional.max_pool2d(t, 2),
        lambda t: torch.fft.irfft(torch.fft.rfft(t).conj()),
        lambda t: t.view(torch.int32).view(torch.float32)[..., ::2] * t.sort(-1).values[..., ::2],
        lambda t: t.masked_fill(t > 0, 1.0).cumsum(1).std(dim=(0, 1)),
        lambda t: torch.einsum("abcd,abce->ade", t, t).logsumexp(-1),
    ],
)
def test_operator_without_a_kernel_gives_what_cpu_gives(
    work: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 3, 4, 6, requires_grad=True)
    y = x.detach().to("npu").requires_grad_()
    expected, got = work(x), work(y)
    # Attention takes another formula than on cpu; everything else is the same kernel.
    torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-4)
    expected.square().sum().backward()
    got.square().sum().backward()
    torch.testing.assert_close(y.grad.cpu(), x.grad, rtol=1e-4, atol=1e-4)


def test_embedding_trains() -> None:
    table = torch.nn.Embedding(10, 4)
    there = copy.deepcopy(table).to("npu")
    ids = torch.tensor([[1, 2], [1, 9]])
    table(ids).square().sum().backward()
    there(ids.npu()).square().sum().backward()
    torch.testing.assert_close(there.weight.grad.cpu(), table.weight.grad)


def test_views_made_by_the_fallback_share_memory() -> None:
    x = torch.zeros(6, device="npu")
    windows = x.unfold(0, 2, 2)
    windows[1].fill_(3)
    assert x.cpu().tolist() == [0, 0, 3, 3, 0, 0]
    assert windows.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_out_argument_is_resized_and_returned() -> None:
    x = torch.arange(6.0, device="npu").reshape(2, 3)
    out = torch.empty(0, device="npu")
    assert torch.mul(x, 2, out=out) is out
    assert out.cpu().tolist() == [[0, 2, 4], [6, 8, 10]]
    address = out.data_ptr()
    torch.mul(x, 3, out=out)
    assert out.data_ptr() == address


def test_overlapping_write_is_refused_as_on_cpu() -> None:
    x = torch.zeros(8, device="npu")
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to"):
        x[1:].add_(x[:-1])


OVERLAPPING = """
import torch
from bringup import devices
devices.load_driver("sim")
x = torch.arange(8.0, device="npu")
for write in (lambda: x[1:].add_(x[:-1]), lambda: torch.add(x[:-1], 1, out=x[1:])):
    try:
        write()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
print(x.cpu().tolist() == list(range(8)), x.add_(x.view(2, 4).view(8)).sum().item())
"""


def test_overlapping_write_is_refused_with_memory_that_the_host_cannot_touch(
    fresh_python: Callable[..., str],
) -> None:
    *refusals, last = fresh_python(OVERLAPPING, BRINGUP_SIM_ISOLATED="1").splitlines()
    assert len(refusals) == 2
    assert all("the written-to tensor refer to a single memory" in said for said in refusals)
    assert last == "True 56.0"


def test_mixture_of_devices_is_refused_by_operator_and_devices() -> None:
    x = torch.ones(3, device="npu")
    with pytest.raises(
        RuntimeError,
        match=r"expected all tensors of aten::add.Tensor to be on the same device, but found npu:0",
    ):
        x + torch.ones(3)
    with pytest.raises(RuntimeError, match=r"but found npu:0 and npu:1"):
        x + torch.ones(3, device="npu:1")
    assert (x + torch.tensor(2.0)).cpu().tolist() == [3, 3, 3]
    assert x[torch.tensor([0, 2])].shape == (2,)


def test_operator_without_any_kernel_is_named() -> None:
    with torch.library._scoped_library("devices_test", "DEF") as library:
        library.define("nowhere(Tensor x) -> Tensor")
        with pytest.raises(
            NotImplementedError,
            match="'devices_test::nowhere' has no kernel for device 'npu', and none",
        ):
            torch.ops.devices_test.nowhere(torch.ones(1, device="npu"))


def test_custom_operator_with_a_cpu_kernel_may_keep_what_it_was_given() -> None:
    kept = []
    with torch.library._scoped_library("devices_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: (kept.append(x), x * 2)[1], "CPU")
        x = torch.ones(3, device="npu")
        assert torch.ops.devices_test.twice(x).cpu().tolist() == [2, 2, 2]
        del x
        torch.npu.empty_cache()
        assert kept[0].device.type == "cpu"
        assert kept[0].tolist() == [1, 1, 1]


def test_pinning_a_tensor_of_the_device_is_refused() -> None:
    with pytest.raises(
        RuntimeError, match="only CPU tensors can be pinned, not tensors of device 'npu'"
    ):
        torch.empty(2, device="npu", pin_memory=True)


def test_tensor_prints_saves_and_loads() -> None:
    x = torch.arange(3.0, device="npu:1")
    assert repr(x) == "tensor([0., 1., 2.], device='npu:1')"
    file = io.BytesIO()
    torch.save({"x": x}, file)
    for location, device in ((None, "npu:1"), ("cpu", "cpu"), ("npu:0", "npu:0")):
        file.seek(0)
        loaded = torch.load(file, map_location=location)["x"]
        assert loaded.device == torch.device(device)
        assert loaded.cpu().tolist() == [0, 1, 2]


def test_scalars_and_truth_come_back() -> None:
    x = torch.tensor([2.5], device="npu")
    assert x.item() == 2.5
    assert bool(x > 2)
    assert torch.tensor(3, device="npu").item() == 3
    assert x.tolist() == [2.5]


GROWING = """
import torch
from bringup import devices
assert devices.load_driver("sim").host_visible is False
source = torch.empty(1 << 24, device="npu")
target = torch.empty_like(source)
values = torch.arange(4.0).pin_memory()


def behind_queued_copies(grow):
    x = torch.zeros(4, device="npu")
    torch.npu.synchronize()
    for _ in range(4):
        target.copy_(source)
    x.copy_(values, non_blocking=True)
    grow(x)
    return x.cpu()[:4].tolist()


def set_larger(x):
    x.set_(x.untyped_storage(), 0, (4096,))


print(behind_queued_copies(lambda x: x.resize_(4096)))
print(behind_queued_copies(lambda x: x.resize_as_(target)))
print(behind_queued_copies(set_larger))
print(behind_queued_copies(lambda x: x.untyped_storage().resize_(4096)))
out = torch.empty(0, device="npu")
print(torch.add(torch.ones(3, device="npu"), 1, out=out).cpu().tolist())
"""


def test_storage_that_the_host_cannot_see_grows_after_the_work_queued_before(
    fresh_python: Callable[..., str],
) -> None:
    said = fresh_python(GROWING, BRINGUP_SIM_ISOLATED="1").splitlines()
    assert said == ["[0.0, 1.0, 2.0, 3.0]"] * 4 + ["[2.0, 2.0, 2.0]"]


def test_storage_grows_after_the_work_queued_before() -> None:
    source = torch.empty(1 << 24, device="npu")
    target = torch.empty_like(source)
    values = torch.arange(4.0).pin_memory()
    x = torch.zeros(4, device="npu")
    torch.npu.synchronize()
    for _ in range(4):
        target.copy_(source)
    x.copy_(values, non_blocking=True)
    x.resize_(4096)
    assert x[:4].cpu().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.resize_(-1), r"size calculation overflowed with sizes=\[-1\]"),
        (lambda t: t.resize_(1 << 62, 8), "size calculation overflowed with sizes="),
        (
            lambda t: t.resize_(8, memory_format=torch.preserve_format),
            "resize_ has no memory format Preserve to take: name the format of the result",
        ),
        (lambda t: t.set_(t.untyped_storage(), -1, (2,)), "invalid storage offset -1"),
        (lambda t: t.set_(t.untyped_storage(), 0, (2, 2), (1,)), "unequal size length"),
    ],
)
def test_impossible_size_is_refused_and_changes_nothing(
    change: Callable[[torch.Tensor], torch.Tensor], says: str
) -> None:
    x = torch.arange(4.0, device="npu")
    bytes_before = x.untyped_storage().nbytes()
    with pytest.raises(RuntimeError, match=says):
        change(x)
    assert x.untyped_storage().nbytes() == bytes_before
    assert x.cpu().tolist() == [0, 1, 2, 3]


def test_resize_takes_a_memory_format_and_an_offset_view() -> None:
    x = torch.empty(0, device="npu")
    x.resize_(1, 2, 3, 4, memory_format=torch.channels_last)
    assert x.is_contiguous(memory_format=torch.channels_last)
    tail = torch.arange(4.0, device="npu")[2:]
    tail.resize_(8)
    assert tail[:2].cpu().tolist() == [2, 3]
    assert tail.untyped_storage().nbytes() == 10 * 4


def test_new_elements_are_filled_where_determinism_is_asked_for() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        x = torch.zeros(2, device="npu").resize_(4)
    finally:
        torch.use_deterministic_algorithms(False)
    assert x[2:].isnan().all()


@pytest.mark.parametrize("stranger", ["cpu", "npu:1"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_convolution_refuses_tensors_of_several_devices(place: int, stranger: str) -> None:
    shapes = ((1, 2, 5, 5), (3, 2, 2, 2), (3,))
    tensors = [torch.ones(shape, device="npu:0") for shape in shapes]
    tensors[place] = tensors[place].to(stranger)
    with pytest.raises(RuntimeError, match=r"expected all tensors of aten::.*on the same device"):
        functional.conv2d(*tensors)


def test_convolution_names_itself_and_both_devices() -> None:
    x, weight = torch.ones(1, 1, 4, device="npu:0"), torch.ones(1, 1, 2, device="npu:1")
    with pytest.raises(RuntimeError) as refused:
        functional.conv1d(x, weight)
    assert str(refused.value).startswith(
        "expected all tensors of aten::convolution_overrideable to be on the same device, but "
        "found npu:0 and npu:1"
    )
    with pytest.raises(RuntimeError, match="of aten::convolution_backward_overrideable to be on"):
        torch.ops.aten.convolution_backward(
            x, x, torch.ones(1, 1, 1), None, [1], [0], [1], False, [0], 1, [True, True, False]
        )


def test_resize_keeps_what_fits() -> None:
    x = torch.arange(4.0, device="npu")
    x.resize_(8)
    assert x[:4].cpu().tolist() == [0, 1, 2, 3]
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int64,
        torch.uint32,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.float8_e4m3fn,
    ],
    ids=str,
)
def test_item_is_what_the_cpu_gives(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, 1.0, 3.0]).to(dtype)
    there = values.to("npu")
    for i in range(3):
        assert there[i].item() == values[i].item()
        assert type(there[i].item()) is type(values[i].item())


def test_item_follows_the_work_of_its_stream_and_conjugates() -> None:
    with torch.npu.stream(torch.npu.Stream()):
        there = torch.zeros(1 << 22, device="npu")
        for _ in range(4):
            there = there.clone()
        there.fill_(7)
        assert there[-1].item() == 7
    assert torch.tensor([1 + 2j]).to("npu").conj()[0].item() == 1 - 2j


@pytest.mark.parametrize("made_in_inference_mode", [False, True])
@pytest.mark.parametrize("seen_in_inference_mode", [False, True])
@pytest.mark.parametrize("view", [torch.view_as_complex, lambda x: x.unfold(0, 2, 1)])
def test_a_view_belongs_to_inference_mode_as_it_does_on_cpu(
    made_in_inference_mode: bool, seen_in_inference_mode: bool, view: Callable[..., torch.Tensor]
) -> None:
    def made(device: str) -> tuple[bool, bool, torch.Tensor]:
        with torch.inference_mode(made_in_inference_mode):
            x = torch.arange(6.0, device=device).reshape(3, 2)
        with torch.inference_mode(seen_in_inference_mode):
            seen = view(x)
        x.untyped_storage().fill_(0)
        return seen.is_inference(), seen._is_view(), seen.cpu()

    here, there = made("cpu"), made("npu")
    assert there[:2] == here[:2]
    assert torch.equal(there[2], here[2])
    assert not there[2].any()
