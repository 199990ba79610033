"""`kernels.register_attention`: a transformers encoder that takes lengths instead of a mask."""

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
    with pytest.raises(ValueError, match=r'"bringup" needs actual_seq_lengths: call the model wi'):
        encoders[1](input_ids=torch.zeros(1, 4, dtype=torch.long))


@torch.no_grad()
def test_mask_is_refused_instead_of_ignored(encoders: tuple[Any, Any]) -> None:
    ids = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(ValueError, match=r'"bringup" takes no mask: .*with actual_seq_lengths=.*'):
        encoders[1](input_ids=ids, attention_mask=torch.ones_like(ids), actual_seq_lengths=[4])


@torch.no_grad()
def test_compiled_encoder_is_one_graph_for_every_length(encoders: tuple[Any, Any]) -> None:
    torch._dynamo.reset()
    ours = encoders[1]
    compiled = torch.compile(ours, backend="eager", fullgraph=True)
    ids = torch.randint(0, 50, (2, 7))
    for lengths in ([7, 3], [5, 6]):
        expected = ours(input_ids=ids, actual_seq_lengths=lengths).last_hidden_state
        got = compiled(input_ids=ids, actual_seq_lengths=lengths).last_hidden_state
        torch.testing.assert_close(got, expected)


def test_keys_without_lengths_of_their_own_are_refused() -> None:
    kernels.register_attention()
    attend = transformers.AttentionInterface()["bringup"]
    q, k = torch.randn(1, 2, 1, 4), torch.randn(1, 2, 5, 4)
    with pytest.raises(ValueError, match=r'"bringup" takes as many keys as queries, got 5 for 1'):
        attend(torch.nn.Identity(), q, k, k, None, actual_seq_lengths=[1])


def test_key_heads_reach_the_operator_unrepeated() -> None:
    kernels.register_attention()
    attend = transformers.AttentionInterface()["bringup"]
    q, k = torch.randn(2, 6, 5, 4), torch.randn(2, 2, 5, 4)
    got, _ = attend(torch.nn.Identity(), q, k, k, None, scaling=0.3, actual_seq_lengths=[5, 2])
    assert torch.equal(got, kernels.attention(q, k, k, [5, 2], 0.3))
