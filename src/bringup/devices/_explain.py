"""`explain`: an operator's dispatch table, a tensor's key set, or what a call would run."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.devices._dispatch import (
    DispatchEntry,
    DispatchTable,
    call_chain,
    dispatch_table,
    key_names,
)
from bringup.errors import DeviceError, first_line

_PREFIXES = {
    "None": "", "torch.strided": "", "torch.jagged": "", "torch.sparse_coo": "Sparse",
    "torch._mkldnn": "Mkldnn",
}  # fmt: skip


@dataclass(frozen=True)
class TensorExplanation:
    """The dispatch keys of a tensor, each time that which is asked first first.

    Attributes:
        device: of the tensor.
        keys: the tensor's own.
        included: what this thread adds to every call now.
        excluded: what it leaves out, such as autocast where none is on.
        effective: what a call with this tensor alone goes by: own and included without excluded.
    """

    device: str
    keys: tuple[str, ...]
    included: tuple[str, ...]
    excluded: tuple[str, ...]
    effective: tuple[str, ...]

    def __str__(self) -> str:
        """Return the keys for people."""
        return "\n".join(
            f"{title:14}{', '.join(keys) or '(none)'}"
            for title, keys in (
                (self.device, self.keys),
                ("  included", self.included),
                ("  excluded", self.excluded),
                ("  effective", self.effective),
            )
        )


@dataclass(frozen=True)
class CallExplanation:
    """What a call would run, computed from the dispatch table; nothing is called.

    Attributes:
        operator: with its overload.
        keys: of the arguments and the thread, that which is asked first first.
        chain: the kernels that the call passes, outermost first. The last computes, calls other
            operators, raises, or hands over to Python; what an autograd or autocast kernel does
            before it calls on is its own matter.
        table: the whole dispatch table.
    """

    operator: str
    keys: tuple[str, ...]
    chain: tuple[DispatchEntry, ...]
    table: DispatchTable

    def __str__(self) -> str:
        """Return the chain for people."""
        lines = [f"{self.operator}: {', '.join(self.keys)}", "computed from the dispatch table:"]
        lines += [f"  {one.key:24}{one.kind.value:20}{one.source}" for one in self.chain]
        return "\n".join(lines)


def explain(
    what: Any, *args: Any, **kwargs: Any
) -> DispatchTable | TensorExplanation | CallExplanation:
    """Say which kernel runs, without running it.

    Args:
        what: an operator by name ("aten::add.Tensor") or as torch has it
            (`torch.ops.aten.add.Tensor`), or a tensor.
        *args, **kwargs: the operator's arguments, as for a call.

    Returns:
        For a tensor its keys; for an operator alone its dispatch table; for an operator with
        arguments what this call would run in this thread now.

    Raises:
        DeviceError: no such operator; several overloads fit; arguments that the operator does not
            take; or something that is neither an operator nor a tensor.
    """
    torch = importlib.import_module("torch")
    if isinstance(what, torch.Tensor):
        if args or kwargs:
            raise DeviceError("explain(tensor) takes nothing else: name the operator first")
        return _explain_tensor(torch, what)
    operator = _operator_name(torch, what, args, kwargs)
    table = dispatch_table(operator)
    return _explain_call(torch, table, args, kwargs) if args or kwargs else table


def _explain_tensor(torch: Any, tensor: Any) -> TensorExplanation:
    own = torch._C._dispatch_keys(tensor)
    included = torch._C._dispatch_tls_local_include_set()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    sets = (own, included, excluded, (own | included) - excluded)
    return TensorExplanation(str(tensor.device), *(key_names(one) for one in sets))


def _operator_name(torch: Any, what: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    if isinstance(what, str):
        return what
    if isinstance(what, torch._ops.OpOverload):
        return str(what.name())
    if isinstance(what, torch._ops.OpOverloadPacket):
        return _resolved(torch, what, args, kwargs)
    raise DeviceError(
        f"explain({type(what).__name__}): expected a tensor, the name of an operator such as "
        "'aten::add.Tensor', or an operator such as torch.ops.aten.add.Tensor. A Python function "
        "such as torch.add calls one or several of them: devices.dispatch_trace() shows which"
    )


def _resolved(torch: Any, packet: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the overload that torch chooses for these arguments."""
    name: str = packet._qualified_op_name
    overloads = packet.overloads()
    if len(overloads) == 1:
        return str(getattr(packet, overloads[0]).name())
    if not args and not kwargs:
        return name  # refused with the list of overloads, unless one has no name
    try:
        overload = torch._C._jit_resolve_packet(name, *args, **kwargs)
    except RuntimeError as error:
        first = first_line(error)
        raise DeviceError(f"explain({name}): no overload takes these arguments: {first}") from None
    return f"{name}.{overload}" if overload not in ("", "default") else name


def _explain_call(
    torch: Any, table: DispatchTable, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> CallExplanation:
    given = _bound(torch, table, args, kwargs)
    keys = torch._C._dispatch_tls_local_include_set()
    for value, is_tensor in given.values():
        for one in _key_sets(torch, value, is_tensor):
            keys |= one
    keys -= torch._C._dispatch_tls_local_exclude_set()
    values = {name: value for name, (value, _) in given.items()}
    chain = call_chain(table, keys, _factory_key(torch, values))
    return CallExplanation(table.operator, key_names(keys), chain, table)


def _bound(
    torch: Any, table: DispatchTable, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, tuple[Any, bool]]:
    """Return the arguments by name, each with whether the schema wants tensors there."""
    if not table.schema:
        raise DeviceError(
            f"explain({table.operator}): the operator has no schema, so arguments mean nothing"
        )
    wanted = torch._C.parse_schema(table.schema).arguments
    positional = [one for one in wanted if not one.kwarg_only]
    known = {one.name: "Tensor" in str(one.type) for one in wanted}
    problem = ""
    if len(args) > len(positional):
        problem = f"at most {len(positional)} positional arguments, got {len(args)}"
    by_name = {one.name: value for one, value in zip(positional, args, strict=False)}
    for name in kwargs:
        if name not in known or name in by_name:
            problem = f"no further argument {name!r}"
    by_name |= kwargs
    missing = [
        one.name for one in wanted if one.name not in by_name and not one.has_default_value()
    ]
    if missing:
        problem = problem or f"also {', '.join(missing)}"
    if problem:
        raise DeviceError(f"explain({table.operator}): expected {problem}: {table.schema}")
    return {name: (value, known[name]) for name, value in by_name.items()}


def _key_sets(torch: Any, value: Any, is_tensor: bool) -> Iterator[Any]:
    """Yield the key sets of tensors (in lists too), generators, and numbers in their place."""
    if isinstance(value, torch.Tensor):
        yield torch._C._dispatch_keys(value)
    elif isinstance(value, torch.Generator):
        key = torch._C._dispatch_key_for_device(value.device.type)
        yield torch._C.DispatchKeySet(torch._C._dispatch_key_parse(key))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _key_sets(torch, one, is_tensor)
    elif is_tensor and isinstance(value, (bool, int, float, complex)):
        yield torch._C._dispatch_keys(torch.tensor(value))


def _factory_key(torch: Any, given: Mapping[str, Any]) -> str:
    """Return the key of a call's device and layout, as BackendSelect computes it."""
    device = given.get("device")
    kind = "cpu" if device is None else torch.device(device).type
    base: str = torch._C._dispatch_key_for_device(kind)
    prefix = _PREFIXES.get(str(given.get("layout")), "SparseCsr")
    if not prefix and str(given.get("dtype")).startswith("torch.q"):
        prefix = "Quantized"
    return f"{prefix}{base}"
