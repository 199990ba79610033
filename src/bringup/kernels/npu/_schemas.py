"""The signatures of torch_npu's attention operators, and what the kernels call their arguments."""

from __future__ import annotations

from dataclasses import dataclass

_ALL = 2147483647  # tokens: every one


@dataclass(frozen=True)
class Signature:
    """One operator."""

    name: str  # with its namespace
    arguments: str  # as in a schema, without workspace and results
    # The names of what it computes, which are its `.out` form's last arguments.
    results: tuple[str, ...]
    source: str  # of `csrc/`
    roles: dict[str, str]  # what the kernel calls an argument -> its name here
    # Arguments without a role that may be given and change nothing. Others that may be None have to
    # be that.
    ignored: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()  # numbers that only their default is supported of


_INFER_ROLES = {
    "QUERY": "query", "KEY": "key", "VALUE": "value", "QUERY_ROPE": "query_rope",
    "KEY_ROPE": "key_rope", "MASK": "atten_mask", "BLOCK_TABLE": "block_table",
    "KV_HEADS": "num_key_value_heads", "BEFORE": "pre_tokens", "AFTER": "next_tokens",
    "LAYOUT": "input_layout", "SPARSE_MODE": "sparse_mode", "BLOCK_SIZE": "block_size",
    "OUT": "attention_out", "LSE": "softmax_lse",
}  # fmt: skip

INFER = Signature(
    "npu::npu_fused_infer_attention_score",
    "Tensor query, Tensor key, Tensor value, *, Tensor? pse_shift=None, Tensor? atten_mask=None, "
    "int[]? actual_seq_lengths=None, int[]? actual_seq_lengths_kv=None, "
    "Tensor? dequant_scale1=None, Tensor? quant_scale1=None, Tensor? dequant_scale2=None, "
    "Tensor? quant_scale2=None, Tensor? quant_offset2=None, Tensor? antiquant_scale=None, "
    "Tensor? antiquant_offset=None, Tensor? block_table=None, Tensor? query_padding_size=None, "
    "Tensor? kv_padding_size=None, Tensor? key_antiquant_scale=None, "
    "Tensor? key_antiquant_offset=None, Tensor? value_antiquant_scale=None, "
    "Tensor? value_antiquant_offset=None, Tensor? key_shared_prefix=None, "
    "Tensor? value_shared_prefix=None, int[]? actual_shared_prefix_len=None, "
    "Tensor? query_rope=None, Tensor? key_rope=None, Tensor? key_rope_antiquant_scale=None, "
    f"int num_heads=1, float scale=1.0, int pre_tokens={_ALL}, int next_tokens={_ALL}, "
    'str input_layout="BSH", int num_key_value_heads=0, int sparse_mode=0, int inner_precise=0, '
    "int block_size=0, int antiquant_mode=0, bool softmax_lse_flag=False, "
    "int key_antiquant_mode=0, int value_antiquant_mode=0", ("attention_out", "softmax_lse"),
    "fused_attention",
    {
        **_INFER_ROLES, "Q_LENGTHS": "actual_seq_lengths", "KV_LENGTHS": "actual_seq_lengths_kv",
        "HEADS": "num_heads", "SCALE": "scale", "LSE_FLAG": "softmax_lse_flag",
        "SCALES": "antiquant_scale", "OFFSETS": "antiquant_offset",
        "SCALES_MODE": "antiquant_mode", "KEY_SCALE": "key_antiquant_scale",
        "KEY_OFFSET": "key_antiquant_offset", "KEY_MODE": "key_antiquant_mode",
        "VALUE_SCALE": "value_antiquant_scale", "VALUE_OFFSET": "value_antiquant_offset",
        "VALUE_MODE": "value_antiquant_mode",
    },
)  # fmt: skip

INFER_V2 = Signature(
    "npu::npu_fused_infer_attention_score_v2",
    "Tensor query, Tensor key, Tensor value, *, Tensor? query_rope=None, Tensor? key_rope=None, "
    "Tensor? pse_shift=None, Tensor? atten_mask=None, int[]? actual_seq_qlen=None, "
    "int[]? actual_seq_kvlen=None, Tensor? block_table=None, Tensor? dequant_scale_query=None, "
    "Tensor? dequant_scale_key=None, Tensor? dequant_offset_key=None, "
    "Tensor? dequant_scale_value=None, Tensor? dequant_offset_value=None, "
    "Tensor? dequant_scale_key_rope=None, Tensor? quant_scale_out=None, "
    "Tensor? quant_offset_out=None, Tensor? learnable_sink=None, int num_query_heads=1, "
    f"int num_key_value_heads=0, float softmax_scale=1.0, int pre_tokens={_ALL}, "
    f'int next_tokens={_ALL}, str input_layout="BSH", int sparse_mode=0, int block_size=0, '
    "int query_quant_mode=0, int key_quant_mode=0, int value_quant_mode=0, int inner_precise=0, "
    "bool return_softmax_lse=False, int? query_dtype=None, int? key_dtype=None, "
    "int? value_dtype=None, int? query_rope_dtype=None, int? key_rope_dtype=None",
    ("attention_out", "softmax_lse"), "fused_attention",
    {
        **_INFER_ROLES, "Q_LENGTHS": "actual_seq_qlen", "KV_LENGTHS": "actual_seq_kvlen",
        "HEADS": "num_query_heads", "SCALE": "softmax_scale", "LSE_FLAG": "return_softmax_lse",
        "KEY_SCALE": "dequant_scale_key", "KEY_OFFSET": "dequant_offset_key",
        "KEY_MODE": "key_quant_mode", "VALUE_SCALE": "dequant_scale_value",
        "VALUE_OFFSET": "dequant_offset_value", "VALUE_MODE": "value_quant_mode",
    },
    zero=("query_quant_mode",),
)  # fmt: skip

INCRE = Signature(
    "npu::npu_incre_flash_attention",
    "Tensor query, Tensor key, Tensor value, *, Tensor? padding_mask=None, "
    "Tensor? atten_mask=None, Tensor? pse_shift=None, int[]? actual_seq_lengths=None, "
    "Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, Tensor? block_table=None, "
    "Tensor? dequant_scale1=None, Tensor? quant_scale1=None, Tensor? dequant_scale2=None, "
    "Tensor? quant_scale2=None, Tensor? quant_offset2=None, Tensor? kv_padding_size=None, "
    'int num_heads=1, float scale_value=1.0, str input_layout="BSH", int num_key_value_heads=0, '
    "int block_size=0, int inner_precise=1", ("attention_out",), "fused_attention",
    {
        "QUERY": "query", "KEY": "key", "VALUE": "value", "MASK": "atten_mask",
        "BLOCK_TABLE": "block_table", "KV_HEADS": "num_key_value_heads", "LAYOUT": "input_layout",
        "BLOCK_SIZE": "block_size", "OUT": "attention_out", "KV_LENGTHS": "actual_seq_lengths",
        "HEADS": "num_heads", "SCALE": "scale_value", "SCALES": "antiquant_scale",
        "OFFSETS": "antiquant_offset",
    },
)  # fmt: skip

_FLASH_ROLES = {
    "QUERY": "query", "KEY": "key", "VALUE": "value", "MASK": "atten_mask",
    "Q_LENGTHS": "actual_seq_qlen", "KV_LENGTHS": "actual_seq_kvlen", "HEADS": "head_num",
    "BEFORE": "pre_tockens", "AFTER": "next_tockens", "LAYOUT": "input_layout",
    "SPARSE_MODE": "sparse_mode", "SOFTMAX_LAYOUT": "softmax_layout", "KEEP_PROB": "keep_prob",
    "MOST": "softmax_max", "TOTAL": "softmax_sum",
}  # fmt: skip
_FLASH_END = (
    "int[]? prefix=None, int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, "
    "int sparse_mode=0, bool gen_mask_parallel=True, bool sync=False, "
    'str softmax_layout="", Tensor? sink=None'
)

FLASH = Signature(
    "npu::npu_fusion_attention_v3",
    "Tensor query, Tensor key, Tensor value, int head_num, str input_layout, Tensor? pse=None, "
    "Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1.0, float keep_prob=1.0, "
    f"int pre_tockens={_ALL}, int next_tockens={_ALL}, int inner_precise=0, {_FLASH_END}",
    ("attention_score", "softmax_max", "softmax_sum", "softmax_out", "seed", "offset"),
    "fused_attention",
    {
        **_FLASH_ROLES, "SCALE": "scale", "OUT": "attention_score", "SOFTMAX_OUT": "softmax_out",
        "SEED": "seed", "OFFSET": "offset",
    },
)  # fmt: skip

FLASH_GRAD = Signature(
    "npu::npu_fusion_attention_grad_v3",
    "Tensor query, Tensor key, Tensor value, Tensor dy, int head_num, str input_layout, *, "
    "Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, "
    "Tensor? softmax_max=None, Tensor? softmax_sum=None, Tensor? softmax_in=None, "
    "Tensor? attention_in=None, float scale_value=1.0, float keep_prob=1.0, "
    f"int pre_tockens={_ALL}, int next_tockens={_ALL}, int inner_precise=0, Tensor? seed=None, "
    f"Tensor? offset=None, {_FLASH_END}", ("dq", "dk", "dv", "dpse", "dsink"),
    "fused_attention_grad",
    {
        **_FLASH_ROLES, "SCALE": "scale_value", "DY": "dy", "RESULT": "attention_in", "DQ": "dq",
        "DK": "dk", "DV": "dv", "SEED": "seed",
    },
    ignored=("softmax_in", "offset"),
)  # fmt: skip

# One operator for its users, in two forms: where the lengths lie with the query, and elsewhere.
PAGED = "npu::_npu_paged_attention"
PAGED_ARGUMENTS = (
    "Tensor query, Tensor key_cache, Tensor value_cache, int num_kv_heads, int num_heads, "
    "float scale_value, Tensor block_table, Tensor context_lens, Tensor(a!) out, *, "
    "Tensor(z!)? workspace=None"
)
PAGED_ON_DEVICE = Signature(
    f"{PAGED}.tensor", PAGED_ARGUMENTS, (), "fused_attention",
    {
        "QUERY": "query", "KEY": "key_cache", "VALUE": "value_cache", "HEADS": "num_heads",
        "KV_HEADS": "num_kv_heads", "SCALE": "scale_value", "BLOCK_TABLE": "block_table",
        "KV_LENGTHS_TENSOR": "context_lens", "OUT": "out",
    },
)  # fmt: skip
PAGED_ON_HOST = Signature(
    f"{PAGED}.lengths",
    PAGED_ARGUMENTS.replace("Tensor context_lens", "int[] context_lens"), (), "fused_attention",
    {
        **{k: v for k, v in PAGED_ON_DEVICE.roles.items() if k != "KV_LENGTHS_TENSOR"},
        "KV_LENGTHS": "context_lens",
    },
)  # fmt: skip

LATENT = Signature(
    "atb::npu_multi_head_latent_attention",
    "Tensor q_nope, Tensor q_rope, Tensor ctkv, Tensor k_rope, Tensor block_tables, "
    "int[] context_lens, int q_headnum, float qk_scale, int kv_headnum, *, Tensor? mask=None, "
    "int[]? qseqlen=None, Tensor? qk_descale=None, Tensor? pv_descale=None, "
    "str? mask_type=None, str? calc_type=None, str? cache_mode=None", ("output",),
    "fused_attention",
    {
        "QUERY": "q_nope", "KEY": "ctkv", "VALUE": "ctkv", "QUERY_ROPE": "q_rope",
        "KEY_ROPE": "k_rope", "HEADS": "q_headnum", "KV_HEADS": "kv_headnum", "SCALE": "qk_scale",
        "BLOCK_TABLE": "block_tables", "KV_LENGTHS": "context_lens", "CACHE_MODE": "cache_mode",
        "OUT": "output",
    },
)  # fmt: skip
