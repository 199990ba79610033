"""Operators on DTensors of several ranks, each sample against the same on cpu."""

from __future__ import annotations

import faulthandler
import functools
import warnings
from typing import Any

import torch
from tests.distributed.ranks import SECONDS, Check, Rank, main
from tests.sweeps.support import PARTS
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map_only

SAMPLES = 2
UNINITIALISED = "empty"  # in the name
LEFT_OUT = {
    "native_batch_norm": "statistics of another size, which cpu alone lets pass",
    "_native_batch_norm_legit": "likewise",
    "tensor_split": "wants its tensor of sections on cpu",
}


def _draws(operator: Any) -> bool:
    """Return whether torch seeds it for each call."""
    code = getattr(operator, "__code__", None)
    return code is not None and "wrapper_set_seed" in code.co_names


def _tensors(values: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]


def _copied(values: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda x: x.detach().clone(), values)


def _spread(mesh: Any, values: Any, *, shards: bool) -> Any:
    def one(x: torch.Tensor) -> DTensor:
        cut = shards and x.dim() > 0 and x.shape[0] >= mesh.size()
        return distribute_tensor(x.to(mesh.device_type), mesh, [Shard(0) if cut else Replicate()])

    return tree_map_only(torch.Tensor, one, values)


def _called(operator: Any, values: Any) -> Any:
    """Return what an operator gives, on cpu, or the error."""
    try:
        found = operator(values[0], *values[1], **values[2])
        whole = tree_map_only(DTensor, lambda x: x.full_tensor(), found)
        return tree_map_only(torch.Tensor, lambda x: x.cpu(), whole)
    except Exception as error:
        return error


def _check(number_of_part: int, me: Rank) -> None:
    """With gloo on cpu: what torch's own rules make of a sample is none of the device's."""
    meshes = [init_device_mesh(name, (me.size,)) for name in ("cpu", me.device)]
    computed = refused = 0
    wrong: list[str] = []
    operators = [info for info in op_db if info.supports_dtype(torch.float32, "cpu")]
    for info in operators[number_of_part::PARTS]:
        if UNINITIALISED in info.name or info.name in LEFT_OUT or _draws(info.op):
            continue
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        torch.manual_seed(0)
        for number, sample in enumerate(info.sample_inputs("cpu", torch.float32)):
            if number == SAMPLES:
                break
            values = (sample.input, sample.args, sample.kwargs)
            if any(x.layout != torch.strided for x in _tensors(values)):
                continue
            plain = [repr(_called(info.op, _copied(values))) for _ in range(2)]
            if plain[0] != plain[1]:
                continue  # it draws
            for shards in (False, True):
                want, found = (
                    _called(info.op, _spread(mesh, _copied(values), shards=shards))
                    for mesh in meshes
                )
                if isinstance(want, Exception):
                    refused += 1
                    continue
                computed += 1
                try:
                    torch.testing.assert_close(found, want, equal_nan=True, rtol=1e-4, atol=1e-4)
                except (AssertionError, TypeError) as error:
                    wrong.append(f"{info.formatted_name} {number} {shards}: {found!r:.300} {error}")
    print(f"{computed} computed, {refused} refused", flush=True)
    assert computed
    assert not wrong, "\n".join(wrong)


def _checks() -> tuple[Check, ...]:
    checks: list[Check] = []
    for number in range(PARTS):
        check = functools.partial(_check, number)
        check.__name__ = f"part_{number}"  # type: ignore[attr-defined]
        checks.append(check)
    return tuple(checks)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(_checks())
