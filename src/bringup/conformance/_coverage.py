"""What a model needs of a device: operators that are native, on the host, or impossible."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from bringup import devices
from bringup.conformance._module_paths import operator_name
from bringup.conformance._operators import computes, run
from bringup.conformance._samples import Mover, described, outcome, tensors, weighted
from bringup.errors import ModelError

ATEN = torch.ops.aten
# torch's counter knows these under the name that CUDA has for them.
_COUNTED_AS = {
    ATEN._scaled_dot_product_flash_attention_for_cpu: ATEN._scaled_dot_product_flash_attention,
    ATEN._scaled_dot_product_flash_attention_for_cpu_backward: (
        ATEN._scaled_dot_product_flash_attention_backward
    ),
}


class Support(Enum):
    """Where an operator runs."""

    NATIVE = "native"
    FALLBACK = "fallback"
    IMPOSSIBLE = "impossible"


@dataclass
class Need:
    """An operator that a model calls with arguments of one kind.

    Attributes:
        operator: with its overload, "aten::add.Tensor".
        phase: "forward", "backward" or "optimizer".
        dtypes: of the tensors among its arguments, each once.
        shapes: of the tensors among its arguments, in order.
        calls: how often.
        flops: of all calls together, by torch.utils.flop_counter: 0 where that has no formula.
        bytes: of the tensors that it reads and writes, of all calls together.
        support: where it runs.
        on_host: the operators that ran on the host for it.
        reason: why it cannot run, or "".
    """

    operator: str
    phase: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    calls: int = 0
    flops: int = 0
    bytes: int = 0
    support: Support = Support.NATIVE
    on_host: set[str] = field(default_factory=set)
    reason: str = ""


@dataclass
class Coverage:
    """What a model needs of a device.

    Attributes:
        device: which.
        needs: what costs most first: by FLOPs, then by bytes.
        phases: what was run.
        notes: what a reader should know.
        eager_nodes: how many nodes of the compiled model's graphs stay eager operators, by operator
            and reason; None where it was not compiled.
    """

    device: str
    needs: list[Need]
    phases: tuple[str, ...]
    notes: list[str]
    eager_nodes: dict[str, int] | None = None

    def of(self, support: Support) -> list[Need]:
        """Return the needs that are met this way, by `support`."""
        return [need for need in self.needs if need.support is support]

    def share(self, support: Support, what: str) -> float:
        """Return the part of all that is met this way; 0 where there is nothing.

        Args:
            support: which.
            what: "calls", "flops", "bytes", or "operators", which counts each name once and calls
                it native only if all its calls are.
        """
        if what == "operators":
            return self._share_of_operators(support)
        total = sum(getattr(need, what) for need in self.needs)
        return sum(getattr(need, what) for need in self.of(support)) / total if total else 0.0

    def _share_of_operators(self, support: Support) -> float:
        order = list(Support)
        worst: dict[str, Support] = {}
        for need in self.needs:
            former = worst.get(need.operator, Support.NATIVE)
            worst[need.operator] = max(former, need.support, key=order.index)
        return list(worst.values()).count(support) / len(worst) if worst else 0.0


def coverage(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    device: str = "npu",
    backward: bool = True,
    optimizer: str | None = None,
    compiled: bool = False,
) -> Coverage:
    """Run a model once on a device, and return which operators it calls.

    What the device refuses (the fallback policy forbids it, a dtype is missing) is computed on the
    host, so that the list goes on; where the run cannot go on in that way, the model runs on the
    host, and each of its operators is tried on the device.

    Args:
        model: copied, and left as it was. Its mode (`train`, `eval`) is kept.
        args: positional arguments, on any device.
        kwargs: keyword arguments.
        device: a device that torch has.
        backward: whether gradients are computed, if anything wants one.
        optimizer: the name of a class in `torch.optim`, e.g. "AdamW": one step of it is run, too.
        compiled: whether the model is compiled with Inductor too, to count what stays eager there.

    Raises:
        ModelError: the model fails on the host as well, or there is no such optimizer.
    """
    given = tuple(args), dict(kwargs or {})
    make = _optimizer(optimizer)
    where = torch.device(device)
    watcher: _Watcher = _OnDevice()
    _, failed = outcome(lambda: _run(watcher, model, given, where, backward, make))
    notes = []
    if failed is not None:
        watcher, cpu = _OnHost(where), torch.device("cpu")
        _, wrong = outcome(lambda: _run(watcher, model, given, cpu, backward, make))
        if wrong is not None:
            raise ModelError(f"the model fails on cpu as well: {described(wrong)}") from wrong
        notes.append(
            f"The model cannot run on {device} ({described(failed)}): these are the operators "
            f"that it calls on cpu, each tried on {device}."
        )
    by_cost = sorted(
        watcher.needs.values(), key=lambda n: (-n.flops, -n.bytes, n.operator, n.phase)
    )
    nodes = _eager_nodes(model, given, where, backward) if compiled else None
    return Coverage(device, by_cost, watcher.phases, notes, nodes)


def _eager_nodes(
    model: nn.Module, given: Any, device: torch.device, backward: bool
) -> dict[str, int]:
    from torch._dynamo.utils import counters
    from torch._inductor import config

    torch._dynamo.reset()
    counted, before = counters["bringup_eager_nodes"], dict(counters["bringup_eager_nodes"])
    inner = copy.deepcopy(model).to(device)
    args, kwargs = Mover(device)(given)
    with config.patch(force_disable_caches=True):  # what they know is not looked through again
        outputs, weights = weighted(torch.compile(inner)(*args, **kwargs))
        if backward and outputs:
            torch.autograd.backward(outputs, weights)
    return {name: n for name, calls in counted.items() if (n := calls - before.get(name, 0))}


def _optimizer(name: str | None) -> Callable[..., Any] | None:
    if name is None:
        return None
    found = getattr(torch.optim, name, None)
    if not isinstance(found, type) or not issubclass(found, torch.optim.Optimizer):
        raise ModelError(f"torch.optim has no optimizer {name!r}: expected one like 'AdamW'")
    return found


def _run(
    watcher: _Watcher,
    model: nn.Module,
    given: Any,
    device: torch.device,
    backward: bool,
    make: Callable[..., Any] | None,
) -> None:
    inner = copy.deepcopy(model).to(device)
    args, kwargs = Mover(device)(given)
    parameters = [p for p in inner.parameters() if p.requires_grad]
    with watcher.phase("forward"):
        result = inner(*args, **kwargs)
    outputs, weights = weighted(result)
    if not backward or not outputs:
        return
    with watcher.phase("backward"):
        torch.autograd.backward(outputs, weights)
    if make is not None and parameters:
        stepping = make(parameters)
        with watcher.phase("optimizer"):
            stepping.step()


class _Watcher(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Counts the operators of a run by the kind of their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.needs: dict[Any, Need] = {}
        self.phases: tuple[str, ...] = ()

    def phase(self, name: str) -> _Watcher:
        """Name the part of the run that the block is."""
        self.phases += (name,)
        return self

    def need(self, func: OpOverload, args: Any, named: Any) -> Need:
        """Return what this call is one of."""
        given = list(tensors((args, named)))
        dtypes = tuple(sorted({str(t.dtype).removeprefix("torch.") for t in given}))
        shapes = tuple(tuple(t.shape) for t in given)
        key = operator_name(func), self.phases[-1], dtypes, shapes
        return self.needs.setdefault(key, Need(*key))

    def call(self, need: Need, func: OpOverload, args: Any, named: Any) -> Any:
        """Return the operator's result; says of `need` what the device refuses."""
        raise NotImplementedError

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if not computes(func):
            return func(*args, **named)
        need = self.need(func, args, named)
        before = _fallbacks()
        result = self.call(need, func, args, named)
        need.calls += 1
        need.flops += _flops(func, args, named, result)
        need.bytes += sum(t.numel() * t.element_size() for t in tensors((args, named, result)))
        after = _fallbacks()
        need.on_host |= {name for name, calls in after.items() if calls != before.get(name, 0)}
        if need.on_host and need.support is Support.NATIVE:
            need.support = Support.FALLBACK
        return result


class _OnDevice(_Watcher):
    """Watches a run on the device, and computes on the host what that refuses."""

    def call(self, need: Need, func: OpOverload, args: Any, named: Any) -> Any:
        result, failed = outcome(lambda: func(*args, **named))
        if failed is not None:
            result = _rescued(func, args, named, failed)
            need.support, need.reason = Support.IMPOSSIBLE, described(failed)
        return result


class _OnHost(_Watcher):
    """Watches a run on the host, and tries each kind of call once on the device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def call(self, need: Need, func: OpOverload, args: Any, named: Any) -> Any:
        if not need.calls:
            _, failed = outcome(lambda: run(func, *Mover(self._device)((args, named))))
            if failed is not None:
                need.support, need.reason = Support.IMPOSSIBLE, described(failed)
        return func(*args, **named)


def _fallbacks() -> dict[str, int]:
    return {row.operator: row.calls for row in devices.fallback_report().rows}


def _flops(func: OpOverload, args: Any, named: Any, result: Any) -> int:
    packet = _COUNTED_AS.get(func._overloadpacket, func._overloadpacket)
    formula = flop_registry.get(packet)
    if formula is None:
        return 0
    counted, failed = outcome(lambda: formula(*args, **named, out_val=result))
    return 0 if failed is not None else int(counted)


def _rescued(func: OpOverload, args: Any, named: Any, failed: Exception) -> Any:
    """Return the host's result on the device; raises the device's error where that fails."""
    move = Mover("cpu")
    there_args, there_named = move((args, named))
    results, wrong = outcome(lambda: func(*there_args, **there_named))
    if wrong is not None:
        raise failed
    given = list(tensors((args, named)))
    there = list(tensors((there_args, there_named)))
    device = next((t.device for t in given if t.device.type != "cpu"), named.get("device"))
    written = {id(two): one for one, two in zip(given, there, strict=True)}

    def back(leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        return written[id(leaf)] if id(leaf) in written else leaf.to(device)

    if func._schema.is_mutable:
        for one, two in zip(given, there, strict=True):
            one.copy_(two)
    moved, wrong = outcome(lambda: _pytree.tree_map(back, results))
    if wrong is not None:
        raise failed
    return moved
