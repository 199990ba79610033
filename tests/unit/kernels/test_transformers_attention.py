"""`register_attention`: a transformers encoder that takes lengths instead of a mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bringup import kernels

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def encoders() -> tuple[Any, Any]:
    """The same small random BERT with eager attention and with ours."""

    def encoder() -> Any:
        config = transformers.BertConfig(
            vocab_size=50,
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=32,
            max_position_embeddings=40,
        )
        return transformers.BertModel(config, add_pooling_layer=False).eval()

    torch.manual_seed(0)
    reference, ours = encoder(), encoder()
    ours.load_state_dict(reference.state_dict())
    ours.set_attn_implementation(kernels.register_attention())
    return reference, ours


@torch.no_grad()
def test_lengths_give_what_a_mask_gives(encoders: tuple[Any, Any]) -> None:
    reference, ours = encoders
    ids = torch.randint(0, 50, (3, 11))
    lengths = [11, 1, 6]
    mask = (torch.arange(11) < torch.tensor(lengths).unsqueeze(1)).long()
    expected = reference(input_ids=ids, attention_mask=mask).last_hidden_state
    got = ours(input_ids=ids, actual_seq_lengths=lengths).last_hidden_state
    for b, n in enumerate(lengths):
        torch.testing.assert_close(got[b, :n], expected[b, :n], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_call_without_lengths_says_how_to_give_them(encoders: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match=r"needs the lengths.*actual_seq_lengths=\[n, ...\]"):
        encoders[1](input_ids=torch.zeros(1, 4, dtype=torch.long))


@torch.no_grad()
def test_mask_is_refused_instead_of_ignored(encoders: tuple[Any, Any]) -> None:
    ids = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="takes no mask"):
        encoders[1](input_ids=ids, attention_mask=torch.ones_like(ids), actual_seq_lengths=[4])


def attend(**options: Any) -> Any:
    from bringup.kernels._transformers import _attention

    q = torch.randn(1, 2, 3, 4)
    module = options.pop("module", torch.nn.Module())
    return _attention(module, q, q, q, None, actual_seq_lengths=[3], **options)


def test_causal_module_is_refused() -> None:
    causal = torch.nn.Module()
    causal.is_causal = True
    with pytest.raises(ValueError, match="for encoders: this module asks for causal attention"):
        attend(module=causal)


@pytest.mark.parametrize("option", ["sliding_window", "softcap", "is_causal"])
def test_unsupported_option_is_refused_by_name(option: str) -> None:
    with pytest.raises(ValueError, match=f"does not support {option}, got 3"):
        attend(**{option: 3})


def test_dropout_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has no dropout, got 0.1: call model.eval\(\)"):
        attend(dropout=0.1)
