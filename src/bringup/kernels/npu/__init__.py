"""torch_npu's attention operators, on cpu and npu: `from bringup.kernels import npu as torch_npu`
serves code that is written for it.

Importing this module registers them with torch, in the namespaces `npu` and `atb`, and their
handlers with `bringup.graphs`: a captured graph takes other lengths by `graph.update`. Layouts BSH,
BSND, BNSD and TND, grouped heads, keys and values in pages, `query_rope` and `key_rope`, and
`sparse_mode` 0 to 4; float32, float64, bfloat16 and float16, keys and values of inference int8 with
scales. What a kernel does not support (shared prefixes, quantised results, ...) it refuses by the
name of the argument. `npu_fusion_attention_v3` has a gradient, and dropout.

Differences from torch_npu: `context_lens` of `_npu_paged_attention` may lie on the device of the
query too, which is then read when the kernel runs; a row that sees no key is zeros, its
`softmax_lse` minus infinity.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from bringup.kernels.npu import _handlers as _handlers
from bringup.kernels.npu._graph_tensors import print_npugraph_tensor, save_npugraph_tensor
from bringup.kernels.npu._operators import FUSED, PAGED_ATTENTION, NpuOperator

__all__ = [
    "NpuOperator", "_npu_fused_infer_attention_score_get_max_workspace",
    "_npu_fused_infer_attention_score_infer_output",
    "_npu_fused_infer_attention_score_v2_get_max_workspace",
    "_npu_fused_infer_attention_score_v2_infer_output",
    "_npu_fusion_attention_grad_v3_infer_output", "_npu_fusion_attention_v3_infer_output",
    "_npu_paged_attention", "_npu_paged_attention_get_workspace", "atb",
    "npu_fused_infer_attention_score",
    "npu_fused_infer_attention_score_v2", "npu_fusion_attention_grad_v3", "npu_fusion_attention_v3",
    "npu_incre_flash_attention",
    "print_npugraph_tensor", "save_npugraph_tensor",
]  # fmt: skip

_npu_paged_attention = PAGED_ATTENTION.default
_npu_paged_attention_get_workspace = torch.ops.npu._npu_paged_attention_get_workspace
npu_fused_infer_attention_score = FUSED["npu::npu_fused_infer_attention_score"]
npu_fused_infer_attention_score_v2 = FUSED["npu::npu_fused_infer_attention_score_v2"]
npu_incre_flash_attention = FUSED["npu::npu_incre_flash_attention"]
npu_fusion_attention_v3 = FUSED["npu::npu_fusion_attention_v3"]
npu_fusion_attention_grad_v3 = FUSED["npu::npu_fusion_attention_grad_v3"]
# What handlers of torch_npu call for the arguments of an `.out`.
_npu_fused_infer_attention_score_get_max_workspace = npu_fused_infer_attention_score.max_workspace
_npu_fused_infer_attention_score_v2_get_max_workspace = (
    npu_fused_infer_attention_score_v2.max_workspace
)
_npu_fused_infer_attention_score_infer_output = npu_fused_infer_attention_score.infer_output
_npu_fused_infer_attention_score_v2_infer_output = npu_fused_infer_attention_score_v2.infer_output
_npu_fusion_attention_v3_infer_output = npu_fusion_attention_v3.infer_output
_npu_fusion_attention_grad_v3_infer_output = npu_fusion_attention_grad_v3.infer_output
atb = SimpleNamespace(npu_multi_head_latent_attention=FUSED["atb::npu_multi_head_latent_attention"])
