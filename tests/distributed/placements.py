"""DTensor: values, local parts and gradients in every placement, against plain tensors on cpu."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from tests.distributed.ranks import Check, Rank, main
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement
from torch.nn import functional

Function = Callable[..., torch.Tensor]
SHAPES = ((4, 6), (5, 3), (1, 7))  # even, uneven, and less than there are ranks


def _mesh(me: Rank) -> DeviceMesh:
    return init_device_mesh(me.device, (me.size,))


def _numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _whole(x: torch.Tensor) -> torch.Tensor:
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach().cpu()


def _check(
    mesh: DeviceMesh,
    function: Function,
    plain: Sequence[torch.Tensor],
    placements: Sequence[Placement],
    *,
    expected: Placement | None = None,
) -> None:
    """Compare results and gradients of DTensors in these placements with those of plain tensors."""
    plain = [x.clone().requires_grad_() for x in plain]
    spread = [
        distribute_tensor(x.detach(), mesh, [placement]).requires_grad_()
        for x, placement in zip(plain, placements, strict=True)
    ]
    want, found = function(*plain), function(*spread)
    assert isinstance(found, DTensor)
    if expected is not None:
        assert found.placements == (expected,), (found.placements, expected, placements)
    torch.testing.assert_close(_whole(found), want.detach(), msg=f"{placements}")
    factor = _numbers(*want.shape, seed=9)
    (want * factor).sum().backward()
    (found * distribute_tensor(factor, mesh, [Replicate()])).sum().backward()
    for one, other in zip(spread, plain, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(_whole(one.grad), other.grad, msg=f"gradient, {placements}")


def redistributed_tensors(me: Rank) -> None:
    mesh = _mesh(me)
    all_placements = (Replicate(), Shard(0), Shard(1), Shard(-1))
    for shape, source, target in itertools.product(SHAPES, all_placements, all_placements):
        plain = _numbers(*shape)
        for waits in (True, False):
            x = distribute_tensor(plain, mesh, [source]).requires_grad_()
            y = x.redistribute(placements=[target], async_op=not waits)
            dim = target.dim if isinstance(target, Shard) else None
            parts = [plain] * me.size if dim is None else list(plain.chunk(me.size, dim))
            parts += [plain.narrow(dim or 0, 0, 0)] * (me.size - len(parts))
            assert torch.equal(y.to_local().detach().cpu(), parts[me.rank]), (source, target)
            y.to_local().sum().backward()
            assert x.grad is not None
            assert x.grad.placements == x.placements, (source, target)


def partial_tensors(me: Rank) -> None:
    mesh = _mesh(me)
    mine = [_numbers(4, 6, seed=rank) for rank in range(me.size)]
    stacked = torch.stack(mine)
    for kind, want in (
        ("sum", stacked.sum(0)),
        ("avg", stacked.mean(0)),
        ("max", stacked.amax(0)),
        ("min", stacked.amin(0)),
    ):
        x = DTensor.from_local(mine[me.rank].to(me.device), mesh, [Partial(kind)])
        for target in (Replicate(), Shard(0), Shard(1)):
            torch.testing.assert_close(_whole(x.redistribute(placements=[target])), want)


def tensors_on_meshes_of_two_dimensions(me: Rank) -> None:
    plain = _numbers(5, 6)
    shapes = {(1, me.size), (me.size, 1), (2, me.size // 2)}
    kinds = (Replicate(), Shard(0), Shard(1))
    for shape in sorted(shapes):
        mesh = init_device_mesh(me.device, shape, mesh_dim_names=("outer", "inner"))
        for source, target in itertools.product(itertools.product(kinds, kinds), repeat=2):
            x = distribute_tensor(plain, mesh, source).redistribute(placements=target)
            assert torch.equal(_whole(x), plain), (shape, source, target)


def products_of_matrices(me: Rank) -> None:
    mesh = _mesh(me)
    flat = (Replicate(), Shard(0), Shard(1))
    a, b, c = _numbers(6, 8), _numbers(8, 4, seed=1), _numbers(4, seed=2)
    for pair in itertools.product(flat, flat):
        _check(mesh, torch.mm, (a, b), pair)
        _check(mesh, lambda x, y: x @ y.t(), (a, b.t().contiguous()), pair)
        _check(mesh, lambda x, y, z: torch.addmm(z, x, y), (a, b, c), (*pair, Replicate()))
    assert functional.linear(
        *(distribute_tensor(x, mesh, [y]) for x, y in ((a, Replicate()), (b.t(), Shard(0))))
    ).placements == (Shard(1),)  # as tensor parallel wants it
    deep = (Replicate(), Shard(0), Shard(1), Shard(2))
    many, others = _numbers(4, 6, 8), _numbers(4, 8, 2, seed=1)
    for pair in itertools.product(deep, deep):
        _check(mesh, torch.bmm, (many, others), pair)


def reductions_and_norms(me: Rank) -> None:
    mesh = _mesh(me)
    placements = (Replicate(), Shard(0), Shard(1))
    for plain, placement in itertools.product((_numbers(4, 8), _numbers(7, 7)), placements):
        for dim in (None, 0, 1, (0, 1)):
            for function in (torch.sum, torch.mean, torch.var, torch.linalg.vector_norm):
                _check(mesh, lambda x, f=function, d=dim: f(x, dim=d), [plain], [placement])
        for dim in (0, 1):
            for function in (torch.amax, torch.softmax, torch.log_softmax, torch.cumsum):
                _check(mesh, lambda x, f=function, d=dim: f(x, d), [plain], [placement])
            x = distribute_tensor(plain, mesh, [placement])
            assert torch.equal(_whole(x.argmax(dim)), plain.argmax(dim))
        for kind in (2.0, 1.0, math.inf):
            norm = torch.linalg.vector_norm(distribute_tensor(plain, mesh, [placement]), kind)
            torch.testing.assert_close(_whole(norm), torch.linalg.vector_norm(plain, kind))
        weights = _numbers(plain.shape[1], seed=1)

        def normed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return functional.layer_norm(x, w.shape, w, w)

        _check(mesh, normed, (plain, weights), (placement, Replicate()))
    # Elementwise in whatever is there, and sums that are not yet.
    for pair in itertools.product(placements, placements):
        _check(mesh, torch.mul, (_numbers(5, 6), _numbers(5, 6, seed=1)), pair)
        _check(mesh, lambda x, y: x.sum(0) + y.sum(0), (_numbers(4, 6), _numbers(6, 6)), pair)


def views(me: Rank) -> None:
    mesh = _mesh(me)
    plain = _numbers(4, 6, 2)
    functions: tuple[tuple[Function, dict[int, int]], ...] = (
        # and which dimension a shard of this one becomes one of
        (lambda x: x.view(4, 12), {0: 0, 1: 1}),
        (lambda x: x.reshape(24, 2), {0: 0, 2: 1}),
        (lambda x: x.flatten(), {0: 0}),
        (lambda x: x.unflatten(0, (2, 2)), {0: 0, 1: 2, 2: 3}),
        (lambda x: x.transpose(0, 1), {0: 1, 1: 0, 2: 2}),
        (lambda x: x.permute(2, 0, 1), {0: 1, 1: 2, 2: 0}),
        (lambda x: x.movedim(0, -1), {0: 2, 1: 0, 2: 1}),
        (lambda x: x.unsqueeze(1), {0: 0, 1: 2, 2: 3}),
        (lambda x: x.unsqueeze(0).expand(3, 4, 6, 2), {0: 1, 1: 2, 2: 3}),
        (lambda x: x.unsqueeze(0).squeeze(0), {0: 0, 1: 1, 2: 2}),
        (lambda x: x.unsqueeze(2).repeat(1, 1, 3, 1), {0: 0, 1: 1, 2: 3}),
        (lambda x: torch.cat(x.split(3, 1)[::-1], 1), {0: 0, 2: 2}),
        (lambda x: torch.add(*x.chunk(2, 2)), {0: 0, 1: 1}),
        (lambda x: x.narrow(1, 1, 4), {0: 0, 2: 2}),
        (lambda x: x.select(1, 3), {0: 0, 2: 1}),
        (lambda x: x[1:3, :, 0], {1: 1}),
        (lambda x: torch.cat([x, x], 1), {0: 0, 2: 2}),
        (lambda x: torch.stack([x, x], 1), {0: 0, 1: 2, 2: 3}),
    )
    for function, becomes in functions:
        _check(mesh, function, [plain], [Replicate()], expected=Replicate())
        for dim in range(plain.dim()):
            expected = Shard(becomes[dim]) if dim in becomes else None
            if plain.shape[dim] >= me.size:
                _check(mesh, function, [plain], [Shard(dim)], expected=expected)


CHECKS: tuple[Check, ...] = (
    redistributed_tensors,
    partial_tensors,
    tensors_on_meshes_of_two_dimensions,
    products_of_matrices,
    reductions_and_norms,
    views,
)

if __name__ == "__main__":
    main(CHECKS)
