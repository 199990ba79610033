"""What a captured graph lets one update in these operators: lengths of sequences, and every
keyword-only argument by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from bringup.graphs import GraphOpHandler, register_graph_handler
from bringup.kernels.npu._operators import FUSED


def _names(bare: str) -> list[str]:
    return [bare, f"{bare}.default", f"{bare}.out"]


def _specs(bare: str, **places: int) -> dict[str, list[tuple[str, int, str]]]:
    return {name: [("arg", place, key) for key, place in places.items()] for name in _names(bare)}


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


@register_graph_handler(_names("npu_fused_infer_attention_score"))
class InferAttentionHandler(FusedAttentionHandler):
    """Fused attention for inference."""

    UPDATE_SPECS: ClassVar = _specs(
        "npu_fused_infer_attention_score", actual_seq_lengths=5, actual_seq_lengths_kv=6
    )
    VARIABLE_LENGTH: ClassVar = frozenset({"actual_seq_lengths", "actual_seq_lengths_kv"})


@register_graph_handler(_names("npu_fused_infer_attention_score_v2"))
class InferAttentionV2Handler(FusedAttentionHandler):
    """The same in its second version."""

    UPDATE_SPECS: ClassVar = _specs(
        "npu_fused_infer_attention_score_v2", actual_seq_qlen=7, actual_seq_kvlen=8
    )
    VARIABLE_LENGTH: ClassVar = frozenset({"actual_seq_qlen", "actual_seq_kvlen"})


@register_graph_handler(_names("npu_fusion_attention_v3"))
class FlashAttentionHandler(FusedAttentionHandler):
    """Flash attention for training."""

    UPDATE_SPECS: ClassVar = _specs(
        "npu_fusion_attention_v3", actual_seq_qlen=14, actual_seq_kvlen=15
    )
    VARIABLE_LENGTH: ClassVar = frozenset({"actual_seq_qlen", "actual_seq_kvlen"})


@register_graph_handler(_names("npu_fusion_attention_grad_v3"))
class FlashAttentionGradHandler(FusedAttentionHandler):
    """Its backward."""

    UPDATE_SPECS: ClassVar = _specs(
        "npu_fusion_attention_grad_v3", actual_seq_qlen=21, actual_seq_kvlen=22
    )
    VARIABLE_LENGTH: ClassVar = frozenset({"actual_seq_qlen", "actual_seq_kvlen"})


@register_graph_handler(_names("npu_multi_head_latent_attention"))
class LatentAttentionHandler(FusedAttentionHandler):
    """Attention over compressed keys and values in pages."""

    UPDATE_SPECS: ClassVar = _specs("npu_multi_head_latent_attention", context_lens=5)


@register_graph_handler("_npu_paged_attention.default")
class PagedAttentionHandler(GraphOpHandler):
    """Attention over pages. Lengths that are a list, or a tensor elsewhere, go to the device."""

    UPDATE_SPECS: ClassVar = {"_npu_paged_attention.default": [("arg", 7, "context_lens")]}

    @classmethod
    def update_args(cls, dispatch_record: Any, update_input: Mapping[str, Any]) -> None:
        """Other lengths, on the device and of the dtype that the captured ones have."""
        if "context_lens" in update_input:
            has = dispatch_record.args[7]
            given = torch.as_tensor(update_input["context_lens"])
            dispatch_record.args[7] = given.to(device=has.device, dtype=has.dtype)
