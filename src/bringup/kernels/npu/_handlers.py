"""What captured graphs let one update in these operators: lengths, and keyword-only arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from bringup.graphs import GraphOpHandler, register_graph_handler
from bringup.graphs._capture import values_on_host
from bringup.kernels.npu._operators import FUSED, PAGED_ATTENTION, NpuOperator


class FusedAttentionHandler(GraphOpHandler):
    """Captures the `.out` form, with results and a workspace for any lengths."""

    @classmethod
    def should_handle(cls, func: Any, args: Any, kwargs: Any) -> bool:
        """Not where autograd records the call: `.out` forms have no gradient."""
        given = (*args, *kwargs.values())
        return func._overloadname == "out" or not (
            torch.is_grad_enabled()
            and any(isinstance(x, torch.Tensor) and x.requires_grad for x in given)
        )

    @classmethod
    def prepare_capture(cls, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the `.out` form for the one that allocates."""
        if func._overloadname == "out":
            return func, args, kwargs
        operator = FUSED[func._schema.name]
        workspace = operator.max_workspace(*args, **kwargs)
        results = operator.results(args, kwargs)
        return operator.out_overload, args, {**kwargs, "workspace": workspace, **results}


def _register(operator: NpuOperator) -> None:
    """Make the lengths of an operator's sequences updatable."""
    roles, schema = operator.signature.roles, operator.default._schema
    lengths = [roles[role] for role in ("Q_LENGTHS", "KV_LENGTHS") if role in roles]
    places = {argument.name: place for place, argument in enumerate(schema.arguments)}
    specs = [("arg", places[key], key) for key in lengths]
    names = [f"{operator.__name__}{overload}" for overload in ("", ".default", ".out")]

    @register_graph_handler(names)
    class Handler(FusedAttentionHandler):
        UPDATE_SPECS: ClassVar = dict.fromkeys(names, specs)
        VARIABLE_LENGTH: ClassVar = frozenset(lengths if "LAYOUT" in roles else ())

    Handler.__name__ = Handler.__qualname__ = f"{operator.__name__}_handler"


for _operator in FUSED.values():
    _register(_operator)


_PAGED = "_npu_paged_attention"


@register_graph_handler([f"{_PAGED}.default", f"{_PAGED}.lengths"])
class PagedAttentionHandler(GraphOpHandler):
    """Attention over pages; lengths on the host are values of the captured call."""

    UPDATE_SPECS: ClassVar = {
        f"{_PAGED}.{overload}": [("arg", 7, "context_lens")] for overload in ("default", "lengths")
    }

    @classmethod
    def prepare_capture(cls, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the form whose lengths are values, or are read where the query is."""
        if func is not PAGED_ATTENTION.default:
            return func, args, kwargs
        overload, args = PAGED_ATTENTION.form(args, values_on_host)
        return overload, args, kwargs


@register_graph_handler(f"{_PAGED}.tensor")
class PagedAttentionOnDeviceHandler(GraphOpHandler):
    """The same; lengths that are a list, or a tensor elsewhere, go to the device."""

    UPDATE_SPECS: ClassVar = {f"{_PAGED}.tensor": [("arg", 7, "context_lens")]}

    @classmethod
    def update_args(cls, dispatch_record: Any, update_input: Mapping[str, Any]) -> None:
        """Other lengths, on the device and of the dtype that the captured ones have."""
        if "context_lens" in update_input:
            has = dispatch_record.args[7]
            given = torch.as_tensor(update_input["context_lens"])
            dispatch_record.args[7] = given.to(device=has.device, dtype=has.dtype)
