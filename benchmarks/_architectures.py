"""25 architectures of transformers at their published sizes, with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isqrt
from typing import Any

import torch
from torch import Tensor

__all__ = ["ARCHITECTURES", "Architecture", "Size"]

_PATCH = 16
_TOKENS = 2000
_NARROW = 256


@dataclass(frozen=True)
class Size:
    """How big a model is.

    Attributes:
        heads: of queries.
        key_heads: where a model groups heads; None: half of `heads`.
        head_dim: where a model takes it; None: `hidden / heads`.
        length: tokens of a sentence, patches of an image, or half of the frames of a sound.
    """

    layers: int = 2
    hidden: int = 64
    inner: int = 128
    heads: int = 4
    batch: int = 2
    length: int = 12
    key_heads: int | None = None
    head_dim: int | None = None


@dataclass(frozen=True)
class Names:
    """What a configuration calls the numbers of a `Size`; None where it has none."""

    layers: str = "num_hidden_layers"
    hidden: str = "hidden_size"
    inner: str | None = "intermediate_size"
    heads: str = "num_attention_heads"
    key_heads: str | None = None
    head_dim: str | None = None
    positions: str | None = "max_position_embeddings"

    def values(self, size: Size) -> dict[str, Any]:
        """The part of a configuration that says the size."""
        numbers = {
            self.layers: size.layers,
            self.hidden: size.hidden,
            self.inner: size.inner,
            self.heads: size.heads,
            self.key_heads: size.key_heads or size.heads // 2,
            self.head_dim: size.head_dim or size.hidden // size.heads,
        }
        return {name: value for name, value in numbers.items() if name is not None}


@dataclass(frozen=True)
class Architecture:
    """A model class of transformers, and the size of a model of it that was published.

    Attributes:
        source: whose size it is; layers are fewer than published where there are more than six, or
            where a layer has more than 40 million weights.
        takes: `tokens`, `pixels` or `sound`.
        has_cache: whether a call has to say that it wants no cache.
        has_pooler: whether the class makes a pooler on top, unless it is told not to: here it is.
        fixed: what the configuration has besides, whatever the size.
        layer_kinds: where a configuration counts its layers by kind: its word, and kinds in turn.
    """

    model: str
    config: str
    source: str
    published: Size
    names: Names = Names()
    takes: str = "tokens"
    has_cache: bool = False
    has_pooler: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    layer_kinds: tuple[str, tuple[str, ...]] | None = None

    def build(self, size: Size) -> Any:
        """A model in evaluation mode, with random weights that are the same each time: also biases
        and the weights of norms, which transformers would leave zero and one.
        """
        import transformers

        torch.manual_seed(0)
        kind = getattr(transformers, self.config)
        no_pooler = {"add_pooling_layer": False} if self.has_pooler else {}
        model = getattr(transformers, self.model)(kind(**self._values(size)), **no_pooler)
        if self.takes == "sound":
            model = model.encoder
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() == 1:
                    weight += 0.1 * torch.randn_like(weight)
        return model.eval()

    def _values(self, size: Size) -> dict[str, Any]:
        values = {**self.names.values(size), **self.fixed}
        if size.hidden < _NARROW:  # by transformers' weights its projections give next to nothing
            values |= dict.fromkeys(("initializer_range", "init_std"), size.hidden**-0.5)
        if self.layer_kinds is not None:
            name, kinds = self.layer_kinds
            values[name] = [[list(kinds), size.layers // len(kinds)]]
        if self.takes == "tokens":
            values["vocab_size"] = _TOKENS
            # some models count positions from the padding token's number on
            values |= {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
            if self.names.positions:
                values.setdefault(self.names.positions, 512)
        elif self.takes == "pixels":
            values |= {"patch_size": _PATCH, "image_size": _PATCH * isqrt(size.length)}
        else:
            values["max_source_positions"] = size.length
        return values

    def inputs(self, size: Size, *, padded: bool = False) -> dict[str, Any]:
        """What to call a model of this size with: of sentences also a mask, in which all tokens
        count, or all but a few at the end of the odd ones.
        """
        generator = torch.Generator().manual_seed(size.batch * 1000 + size.length)
        if self.takes == "pixels":
            side = _PATCH * isqrt(size.length)
            return {"pixel_values": torch.randn(size.batch, 3, side, side, generator=generator)}
        if self.takes == "sound":
            shape = size.batch, 80, 2 * size.length
            return {"input_features": torch.randn(*shape, generator=generator)}
        ids = torch.randint(5, _TOKENS, (size.batch, size.length), generator=generator)
        mask: Tensor = torch.ones_like(ids)
        if padded:
            mask[1::2, -(size.length // 3) :] = 0
        no_cache = {"use_cache": False} if self.has_cache else {}
        return {"input_ids": ids, "attention_mask": mask, **no_cache}


_GROUPED = Names(key_heads="num_key_value_heads")
_GROUPED_DEPTH = Names(key_heads="num_key_value_heads", head_dim="head_dim")
_BASE = Size(6, 768, 3072, 12)

ARCHITECTURES: dict[str, Architecture] = {
    "bert": Architecture("BertModel", "BertConfig", "bert-base", _BASE, has_pooler=True),
    "roberta": Architecture("RobertaModel", "RobertaConfig", "roberta-base", _BASE),
    "distilbert": Architecture(
        "DistilBertModel",
        "DistilBertConfig",
        "distilbert-base",
        _BASE,
        Names("n_layers", "dim", "hidden_dim", "n_heads"),
    ),
    "electra": Architecture(
        "ElectraModel",
        "ElectraConfig",
        "electra-small",
        Size(6, 256, 1024, 4),
        fixed={"embedding_size": 128},
    ),
    "albert": Architecture(
        "AlbertModel", "AlbertConfig", "albert-base-v2", _BASE, fixed={"embedding_size": 128}
    ),
    "deberta_v2": Architecture(
        "DebertaV2Model",
        "DebertaV2Config",
        "deberta-v3-small",
        _BASE,
        fixed={
            "relative_attention": True,
            "position_buckets": 256,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
        },
    ),
    "mpnet": Architecture("MPNetModel", "MPNetConfig", "mpnet-base", _BASE),
    "modernbert": Architecture(
        "ModernBertModel",
        "ModernBertConfig",
        "ModernBERT-base",
        Size(6, 768, 1152, 12),
        fixed={"cls_token_id": 3, "sep_token_id": 4},
    ),
    "gpt2": Architecture(
        "GPT2Model",
        "GPT2Config",
        "gpt2",
        _BASE,
        Names("n_layer", "n_embd", "n_inner", "n_head", positions="n_positions"),
        has_cache=True,
    ),
    "gpt_neo": Architecture(
        "GPTNeoModel",
        "GPTNeoConfig",
        "gpt-neo-125m",
        _BASE,
        Names("num_layers", heads="num_heads"),
        has_cache=True,
        fixed={"window_size": 32},
        layer_kinds=("attention_types", ("global", "local")),
    ),
    "gpt_neox": Architecture("GPTNeoXModel", "GPTNeoXConfig", "pythia-160m", _BASE, has_cache=True),
    "opt": Architecture(
        "OPTModel", "OPTConfig", "opt-125m", _BASE, Names(inner="ffn_dim"), has_cache=True
    ),
    "bloom": Architecture(
        "BloomModel",
        "BloomConfig",
        "bloom-560m",
        Size(6, 1024, 4096, 16),
        Names("n_layer", inner=None, heads="n_head", positions=None),
        has_cache=True,
    ),
    "llama": Architecture(
        "LlamaModel",
        "LlamaConfig",
        "Llama-3.2-1B",
        Size(2, 2048, 8192, 32, key_heads=8),
        _GROUPED,
        has_cache=True,
    ),
    "qwen2": Architecture(
        "Qwen2Model",
        "Qwen2Config",
        "Qwen2-0.5B",
        Size(6, 896, 4864, 14, key_heads=2),
        _GROUPED,
        has_cache=True,
    ),
    "qwen3": Architecture(
        "Qwen3Model",
        "Qwen3Config",
        "Qwen3-0.6B",
        Size(6, 1024, 3072, 16, key_heads=8, head_dim=128),
        _GROUPED_DEPTH,
        has_cache=True,
    ),
    "gemma2": Architecture(
        "Gemma2Model",
        "Gemma2Config",
        "gemma-2-2b",
        Size(2, 2304, 9216, 8, key_heads=4, head_dim=256),
        _GROUPED_DEPTH,
        has_cache=True,
        fixed={"query_pre_attn_scalar": 256, "sliding_window": 32},
    ),
    "phi": Architecture(
        "PhiModel", "PhiConfig", "phi-1_5", Size(2, 2048, 8192, 32), has_cache=True
    ),
    "falcon": Architecture(
        "FalconModel",
        "FalconConfig",
        "falcon-7b",
        Size(1, 4544, 18176, 71),
        Names(inner="ffn_hidden_size"),
        has_cache=True,
    ),
    "olmo": Architecture(
        "OlmoModel", "OlmoConfig", "OLMo-1B", Size(2, 2048, 8192, 16), has_cache=True
    ),
    "granite_moe": Architecture(
        "GraniteMoeModel",
        "GraniteMoeConfig",
        "granite-3.0-1b-a400m",
        Size(4, 1024, 512, 16, key_heads=8),
        _GROUPED,
        has_cache=True,
        fixed={"num_local_experts": 32, "num_experts_per_tok": 8},
    ),
    "t5": Architecture(
        "T5EncoderModel",
        "T5Config",
        "t5-small",
        Size(6, 512, 2048, 8, head_dim=64),
        Names("num_layers", "d_model", "d_ff", "num_heads", head_dim="d_kv", positions=None),
    ),
    "vit": Architecture(
        "ViTModel", "ViTConfig", "vit-base", _BASE, takes="pixels", has_pooler=True
    ),
    "clip_text": Architecture(
        "CLIPTextModel",
        "CLIPTextConfig",
        "clip-vit-base-patch32",
        Size(6, 512, 2048, 8),
        fixed={"max_position_embeddings": 77},
    ),
    "whisper": Architecture(
        "WhisperModel",
        "WhisperConfig",
        "whisper-base",
        Size(6, 512, 2048, 8),
        Names("encoder_layers", "d_model", "encoder_ffn_dim", "encoder_attention_heads"),
        takes="sound",
        fixed={"decoder_layers": 1, "decoder_attention_heads": 1, "decoder_ffn_dim": 8},
    ),
}
