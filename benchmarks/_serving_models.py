"""The models that the serving rows run, with random weights."""

from __future__ import annotations

import torch

__all__ = ["bert", "llama"]


def bert() -> torch.nn.Module:
    """BERT of MiniLM's shape: six layers of 384, 10.6 million weights besides the embeddings."""
    import transformers as hf

    torch.manual_seed(0)
    config = hf.BertConfig(
        hidden_size=384, intermediate_size=1536, num_attention_heads=12, num_hidden_layers=6
    )
    return _frozen(hf.BertModel(config, add_pooling_layer=False))


def llama() -> torch.nn.Module:
    """A Llama of eight layers of 512."""
    import transformers as hf

    torch.manual_seed(0)
    config = hf.LlamaConfig(
        hidden_size=512,
        intermediate_size=1376,
        num_attention_heads=8,
        num_key_value_heads=4,
        num_hidden_layers=8,
        vocab_size=8000,
        max_position_embeddings=512,
    )
    return _frozen(hf.LlamaForCausalLM(config))


def _frozen(model: torch.nn.Module) -> torch.nn.Module:
    return model.eval().requires_grad_(False)
