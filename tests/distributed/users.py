"""What trains on several devices, each against one process with the whole batch."""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tests.distributed.ranks import Check, Rank, main
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

ROWS = 4  # of the batch, a rank
Optimizer = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]
momentum = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)


class _Net(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the layers give: Dynamo passes over a forward of torch's own behind DDP's."""
        for layer in self:
            x = layer(x)
        return x


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return _Net(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def _normed() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))


def _batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    rows = ROWS * size
    return torch.randn(rows, 8, generator=generator), torch.randn(rows, 4, generator=generator)


def _mine(me: Rank) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = (whole.split(ROWS)[me.rank] for whole in _batch(me.size))
    return x.to(me.device), y.to(me.device)


def _loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = ((model(x) - y) ** 2).mean()
    return loss


def _train(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, optimizer: Optimizer = momentum
) -> torch.optim.Optimizer:
    steps = optimizer(model.parameters())
    for _ in range(3):
        steps.zero_grad()
        _loss(model, x, y).backward()
        steps.step()
    return steps


def _compare(
    me: Rank,
    state: Mapping[str, Any],
    *,
    tolerance: float = 1e-5,
    make: Callable[[], nn.Module] = _net,
    optimizer: Optimizer = momentum,
) -> None:
    """Compare a trained model's state with that of one process."""
    wanted = make()
    _train(wanted, *_batch(me.size), optimizer)
    found = {}
    for name, value in state.items():
        for part in ("_orig_mod.", "module.", "_fsdp_wrapped_"):
            name = name.replace(part, "")
        found[name] = value.full_tensor() if hasattr(value, "full_tensor") else value
    for name, want in wanted.state_dict().items():
        torch.testing.assert_close(found[name].cpu(), want, rtol=0, atol=tolerance)


def _ddp(me: Rank, **options: Any) -> None:
    model = DistributedDataParallel(_net().to(me.device), **options)
    _train(model, *_mine(me))
    _compare(me, model.state_dict())


def data_parallel(me: Rank) -> None:
    _ddp(me)


def data_parallel_with_options(me: Rank) -> None:
    _ddp(me, gradient_as_bucket_view=True)
    _ddp(me, static_graph=True)
    _ddp(me, device_ids=[0])
    _ddp(me, bucket_cap_mb=0.0001)
    _ddp(me, find_unused_parameters=True)


def data_parallel_without_synchronisation(me: Rank) -> None:
    model = DistributedDataParallel(_net().to(me.device))
    steps = momentum(model.parameters())
    x, y = _mine(me)
    half = ROWS // 2
    for _ in range(3):
        steps.zero_grad()
        with model.no_sync():
            (_loss(model, x[:half], y[:half]) / 2).backward()
        (_loss(model, x[half:], y[half:]) / 2).backward()
        steps.step()
    _compare(me, model.state_dict())


def data_parallel_with_uneven_inputs(me: Rank) -> None:
    model = DistributedDataParallel(_net().to(me.device))
    with model.join():
        for _ in range(2 + me.rank):
            model(_mine(me)[0]).sum().backward()
    assert model.module[0].weight.grad.isfinite().all()


def data_parallel_with_hooks(me: Rank) -> None:
    hooks = (
        (default_hooks.allreduce_hook, None, 1e-5),
        (default_hooks.fp16_compress_hook, None, 2e-2),
        (default_hooks.bf16_compress_hook, None, 2e-2),
        (powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(None, 16), 1e-1),
    )
    for hook, state, tolerance in hooks:
        model = DistributedDataParallel(_net().to(me.device))
        model.register_comm_hook(state, hook)
        _train(model, *_mine(me))
        _compare(me, model.state_dict(), tolerance=tolerance)


def sharded_optimizer(me: Rank) -> None:
    model = DistributedDataParallel(_net().to(me.device))
    zero = functools.partial(
        ZeroRedundancyOptimizer, optimizer_class=torch.optim.SGD, lr=0.1, momentum=0.9
    )
    _train(model, *_mine(me), zero)
    _compare(me, model.state_dict())


def batch_norm_over_all_ranks(me: Rank) -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(_normed()).to(me.device)
    _train(DistributedDataParallel(model), *_mine(me))
    _compare(me, model.state_dict(), make=_normed)


def _sharded(me: Rank, model: nn.Sequential | None = None, **options: Any) -> nn.Sequential:
    model = _net().to(me.device) if model is None else model
    for layer in (*model, model):
        if layer is model or isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    return model


def _fsdp(me: Rank, *, tolerance: float = 1e-5, optimizer: Optimizer = momentum, **kw: Any) -> None:
    model = _sharded(me, **kw)
    _train(model, *_mine(me), optimizer)
    _compare(me, model.state_dict(), tolerance=tolerance, optimizer=optimizer)


def fully_sharded(me: Rank) -> None:
    _fsdp(me)
    _fsdp(me, reshard_after_forward=False)
    _fsdp(me, optimizer=functools.partial(torch.optim.AdamW, lr=0.01))
    _fsdp(me, model=_net(), mesh=init_device_mesh(me.device, (me.size,)))


def fully_sharded_in_bfloat16(me: Rank) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    _fsdp(me, tolerance=5e-2, mp_policy=policy)


def fully_sharded_with_weights_on_the_host(me: Rank) -> None:
    mesh = init_device_mesh(me.device, (me.size,))
    _fsdp(me, model=_net(), mesh=mesh, offload_policy=CPUOffloadPolicy())


def fully_sharded_with_a_divide_factor(me: Rank) -> None:
    model = _sharded(me)
    for layer in model.modules():
        if hasattr(layer, "set_gradient_divide_factor"):
            layer.set_gradient_divide_factor(3.0)
    model(_mine(me)[0]).sum().backward()
    wanted = _net()
    wanted(_batch(me.size)[0]).sum().backward()
    found = model[0].weight.grad.full_tensor().cpu()
    torch.testing.assert_close(found, wanted[0].weight.grad / 3, rtol=1e-5, atol=1e-5)


def clipped_gradients(me: Rank) -> None:
    model = _sharded(me)
    _loss(model, *_mine(me)).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor()
    wanted = _net()
    _loss(wanted, *_batch(me.size)).backward()
    torch.testing.assert_close(norm.cpu(), nn.utils.clip_grad_norm_(wanted.parameters(), 0.1))


def hybrid_sharding(me: Rank) -> None:
    for shape in ((1, me.size), (me.size, 1)):
        mesh = init_device_mesh(me.device, shape, mesh_dim_names=("replicate", "shard"))
        _fsdp(me, mesh=mesh)


def the_first_form_of_full_sharding(me: Rank) -> None:
    model = FullyShardedDataParallel(
        _net().to(me.device), device_id=torch.device(me.device, 0), use_orig_params=True
    )
    _train(model, *_mine(me))
    with FullyShardedDataParallel.summon_full_params(model):
        _compare(me, model.state_dict())


def tensor_parallel(me: Rank) -> None:
    model = _net().to(me.device)
    mesh = init_device_mesh(me.device, (me.size,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = _batch(me.size)[0]
    torch.testing.assert_close(model(x.to(me.device)).cpu(), _net()(x), rtol=0, atol=1e-5)


def _folder(me: Rank) -> str:
    chosen = [tempfile.mkdtemp() if me.rank == 0 else ""]
    dist.broadcast_object_list(chosen, 0)
    return chosen[0]


def checkpoints(me: Rank) -> None:
    model, folder = _sharded(me), _folder(me)
    state, steps = get_state_dict(model, _train(model, *_mine(me)))
    dcp.save({"model": state, "steps": steps}, checkpoint_id=folder)
    fresh = _sharded(me)
    optimizer = momentum(fresh.parameters())
    state, steps = get_state_dict(fresh, optimizer)
    dcp.load({"model": state, "steps": steps}, checkpoint_id=folder)
    set_state_dict(fresh, optimizer, model_state_dict=state, optim_state_dict=steps)
    _compare(me, fresh.state_dict())
    whole = _net().state_dict()  # in no shards
    dcp.load({"model": whole}, checkpoint_id=folder)
    _compare(me, whole)


def checkpoints_beside_training(me: Rank) -> None:
    model, folder = _sharded(me), _folder(me)
    _train(model, *_mine(me))
    host = dist.new_group(backend="gloo")
    saved = dcp.async_save({"m": model.state_dict()}, checkpoint_id=folder, process_group=host)
    saved.result()
    fresh = _sharded(me)
    state = fresh.state_dict()
    dcp.load({"m": state}, checkpoint_id=folder)
    fresh.load_state_dict(state)
    _compare(me, fresh.state_dict())


def pipelines(me: Rank) -> None:
    cuts = {2: (0, 2, 5), 4: (0, 1, 2, 4, 5)}[me.size]
    begin, end = cuts[me.rank], cuts[me.rank + 1]
    x, y = _batch(me.size)
    wanted = _net()
    _loss(wanted, x, y).backward()
    for schedule in (ScheduleGPipe, Schedule1F1B):
        part = _net()[begin:end].to(me.device)
        stage = PipelineStage(part, me.rank, me.size, torch.device(me.device, 0))
        run = schedule(stage, 4, loss_fn=lambda out, target: ((out - target) ** 2).mean())
        first = (x.to(me.device),) if me.rank == 0 else ()
        last: dict[str, Any] = (
            {"target": y.to(me.device), "losses": []} if me.rank == me.size - 1 else {}
        )
        run.step(*first, **last)
        for found, want in zip(part.parameters(), wanted[begin:end].parameters(), strict=True):
            torch.testing.assert_close(found.grad.cpu(), want.grad, rtol=0, atol=1e-5)


def interleaved_pipelines(me: Rank) -> None:
    torch.manual_seed(0)
    wanted = nn.Sequential(*(nn.Linear(8, 8) for _ in range(7)), nn.Linear(8, 4))
    cuts = range(0, 9, 4 // me.size)
    numbers = (me.rank, me.rank + me.size)  # of the stages of this rank
    parts = [copy.deepcopy(wanted[cuts[n] : cuts[n + 1]]).to(me.device) for n in numbers]
    x, y = _batch(me.size)
    _loss(wanted, x, y).backward()
    stages = [
        PipelineStage(part, n, 2 * me.size, torch.device(me.device, 0))
        for n, part in zip(numbers, parts, strict=True)
    ]
    run = ScheduleInterleaved1F1B(
        list(stages), 2 * me.size, loss_fn=lambda out, target: ((out - target) ** 2).mean()
    )
    first = (x.to(me.device),) if me.rank == 0 else ()
    last: dict[str, Any] = (
        {"target": y.to(me.device), "losses": []} if me.rank == me.size - 1 else {}
    )
    run.step(*first, **last)
    for n, part in zip(numbers, parts, strict=True):
        want = wanted[cuts[n] : cuts[n + 1]].parameters()
        for mine, its in zip(part.parameters(), want, strict=True):
            torch.testing.assert_close(mine.grad.cpu(), its.grad, rtol=0, atol=1e-5)


def attention_over_parts_of_a_sequence_is_refused_in_words(me: Rank) -> None:
    """Torch has context parallel for its attention kernels of CUDA alone."""
    mesh = init_device_mesh(me.device, (me.size,))
    parts = [torch.randn(1, 2, 16 * me.size, 8).to(me.device) for _ in range(3)]
    there = context_parallel(mesh, buffers=parts, buffer_seq_dims=[2] * 3)
    with there, pytest.raises(NotImplementedError, match="sharding strategy"):
        nn.functional.scaled_dot_product_attention(*parts, is_causal=True)


def compiled(me: Rank) -> None:
    for model in (DistributedDataParallel(_net().to(me.device)), fully_shard(_net().to(me.device))):
        counters.clear()
        _train(torch.compile(model), *_mine(me))
        assert counters["stats"]["unique_graphs"], "nothing was compiled"
        _compare(me, model.state_dict())


CHECKS: tuple[Check, ...] = (
    data_parallel,
    data_parallel_with_options,
    data_parallel_without_synchronisation,
    data_parallel_with_uneven_inputs,
    data_parallel_with_hooks,
    sharded_optimizer,
    batch_norm_over_all_ranks,
    fully_sharded,
    fully_sharded_in_bfloat16,
    fully_sharded_with_weights_on_the_host,
    fully_sharded_with_a_divide_factor,
    clipped_gradients,
    hybrid_sharding,
    the_first_form_of_full_sharding,
    tensor_parallel,
    checkpoints,
    checkpoints_beside_training,
    pipelines,
    interleaved_pipelines,
    attention_over_parts_of_a_sequence_is_refused_in_words,
    compiled,
)

if __name__ == "__main__":
    main(CHECKS)
