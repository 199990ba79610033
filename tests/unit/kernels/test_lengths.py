"""`kernels.use_lengths`: which models take lengths instead of a mask, and what the others say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bringup import kernels
from bringup.errors import BringupError

transformers = pytest.importorskip("transformers")

BASE = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
GROUPED = BASE | {"num_key_value_heads": 2}
GROUPED_8 = GROUPED | {"head_dim": 8}
GPT2 = {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
DISTILBERT = {"vocab_size": 60, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
OPT = {"ffn_dim": 48, "word_embed_proj_dim": 32}
T5 = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
NOT_THROUGH_INTERFACE = "its attention does not go through transformers' AttentionInterface"

ACCEPTED: dict[str, dict[str, Any]] = {
    "BertModel": BASE,
    "BertForSequenceClassification": BASE,
    "RobertaModel": BASE,
    "XLMRobertaModel": BASE,
    "CamembertModel": BASE,
    "ErnieModel": BASE,
    "DistilBertModel": DISTILBERT,
    "ElectraModel": BASE | {"embedding_size": 32},
    "AlbertModel": BASE | {"embedding_size": 16},
    "ModernBertModel": BASE
    | {"local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0},
    "EsmModel": BASE | {"pad_token_id": 1, "position_embedding_type": "rotary"},
    "NomicBertModel": BASE,
    "CLIPTextModel": BASE,
    "GPT2Model": GPT2,
    "OPTModel": BASE | OPT,
    "GPTNeoXModel": BASE,
    "LlamaModel": GROUPED,
    "LlamaForCausalLM": GROUPED,
    "Qwen2Model": GROUPED,
    "Qwen3Model": GROUPED_8,
    "MistralModel": GROUPED | {"sliding_window": 5},
    "MixtralModel": GROUPED | {"num_local_experts": 2},
    "GemmaModel": GROUPED_8,
    "Gemma3TextModel": GROUPED_8 | {"sliding_window": 6},
    "PhiModel": GROUPED,
    "Phi3Model": GROUPED | {"pad_token_id": 0},
    "SmolLM3Model": GROUPED | {"pad_token_id": 0},
    "OlmoModel": GROUPED,
    "GraniteModel": GROUPED,
    "CohereModel": GROUPED,
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "DebertaModel": (BASE, NOT_THROUGH_INTERFACE),
    "DebertaV2Model": (BASE, NOT_THROUGH_INTERFACE),
    "MPNetModel": (BASE, NOT_THROUGH_INTERFACE),
    "ConvBertModel": (BASE | {"embedding_size": 32}, NOT_THROUGH_INTERFACE),
    "RoFormerModel": (BASE, NOT_THROUGH_INTERFACE),
    "BloomModel": (
        {"vocab_size": 60, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        NOT_THROUGH_INTERFACE,
    ),
    "XLNetModel": (
        {"vocab_size": 60, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
        NOT_THROUGH_INTERFACE,
    ),
    "MambaModel": (
        {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        NOT_THROUGH_INTERFACE,
    ),
    "T5EncoderModel": (T5, "does not support position_bias"),
    "Gemma2Model": (GROUPED_8, "does not support softcap"),
    "GptOssModel": (
        GROUPED_8 | {"num_local_experts": 2, "num_experts_per_tok": 2},
        "does not support s_aux",
    ),
    "Llama4TextModel": (
        GROUPED_8
        | {
            "attention_chunk_size": 8,
            "num_local_experts": 2,
            "intermediate_size_mlp": 48,
            "pad_token_id": 0,
        },
        r"its mask differs from that \(row 8, key 0\): blocks, chunks or prefixes",
    ),
    "StableLmModel": (GROUPED, "needs actual_seq_lengths"),
    "GPT2ForSequenceClassification": (
        GPT2 | {"pad_token_id": 0},
        "its output 'logits' differs by .* when what stands in the padding changes",
    ),
    "BartModel": (
        {
            "vocab_size": 60,
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
        },
        "cross-attention has keys of other lengths",
    ),
    "FNetModel": (BASE, "takes no attention_mask"),
    "ViTModel": (
        {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "image_size": 16,
            "patch_size": 4,
        },
        "takes no attention_mask|takes pixel_values",
    ),
    "Wav2Vec2Model": (
        {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "conv_dim": (32, 32),
            "conv_stride": (5, 2),
            "conv_kernel": (10, 3),
            "num_feat_extract_layers": 2,
        },
        "takes input_values, not token ids",
    ),
}


def build(name: str, options: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    return kind(kind.config_class(**options)).eval()


def numbers(output: Any) -> torch.Tensor:
    result: torch.Tensor = output[0]
    return result


@pytest.mark.parametrize("name", ACCEPTED)
@torch.no_grad()
def test_accepted_model_gives_with_lengths_what_it_gives_with_a_mask(name: str) -> None:
    masked, ours = build(name, ACCEPTED[name]), build(name, ACCEPTED[name])
    assert kernels.use_lengths(ours) is ours
    ids, lengths = torch.randint(5, 60, (4, 40)), [40, 7, 23, 1]
    mask = (torch.arange(40) < torch.tensor(lengths).unsqueeze(1)).long()
    expected = numbers(masked(ids, attention_mask=mask))
    got = numbers(ours(ids, actual_seq_lengths=kernels.lengths_of(mask)))
    rows = lengths if expected.dim() == 3 else [len(expected)] * 4
    for b, n in enumerate(rows):
        torch.testing.assert_close(got[b, :n], expected[b, :n], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_model_names_the_cause_and_stays_as_it_was(name: str) -> None:
    options, reason = REFUSED[name]
    model = build(name, options)
    kind = model.config._attn_implementation
    with pytest.raises(BringupError, match=f"use_lengths: {name} .*({reason})"):
        kernels.use_lengths(model)
    assert model.config._attn_implementation == kind
    assert not model._forward_pre_hooks


class _Mixing(torch.nn.Module):
    """A module that lets tokens see their neighbours, as a convolution does."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Conv1d(32, 32, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.dense(x.transpose(1, 2)).transpose(1, 2)
        return result


def test_a_convolution_over_tokens_is_found_by_name() -> None:
    model = build("BertModel", BASE)
    model.encoder.layer[0].attention.output.dense = _Mixing()
    with pytest.raises(BringupError, match=r"with a mask; the first module .*dense \(Conv1d\)"):
        kernels.use_lengths(model)


def test_a_model_in_which_sequences_see_one_another_is_refused() -> None:
    class Mean(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - x[:, :1].mean(0, keepdim=True)

    model = build("BertModel", BASE)
    model.encoder.layer[0].output.dropout = Mean()
    with pytest.raises(BringupError, match=r"sequence changes; the first .*dropout \(Mean\)"):
        kernels.use_lengths(model)


def test_a_head_that_pools_over_the_mask_is_refused() -> None:
    class Pooling(transformers.BertModel):  # type: ignore[misc, name-defined]
        def forward(self, input_ids: Any, attention_mask: Any = None, **options: Any) -> Any:
            hidden = super().forward(input_ids, attention_mask, **options)[0]
            count = (
                hidden.shape[1] if attention_mask is None else attention_mask.sum(1, keepdim=True)
            )
            return (hidden[:, 0] / count,)

    model = Pooling(transformers.BertConfig(**BASE)).eval()
    with pytest.raises(BringupError, match=r"output '0' differs by .* when the padding gets long"):
        kernels.use_lengths(model)


def test_a_mask_of_the_models_own_is_refused() -> None:
    class Masked(transformers.BertModel):  # type: ignore[misc, name-defined]
        def _create_attention_masks(self, *args: Any, **options: Any) -> Any:
            return torch.zeros(1, 1, 1, 1), None

    model = Masked(transformers.BertConfig(**BASE)).eval()
    with pytest.raises(BringupError, match="mask that is not made by transformers'"):
        kernels.use_lengths(model)


def test_training_models_and_modules_of_others_are_refused() -> None:
    with pytest.raises(BringupError, match=r"training mode; call model\.eval\(\) first"):
        kernels.use_lengths(build("BertModel", BASE).train())
    with pytest.raises(BringupError, match="takes a model of transformers, got Linear"):
        kernels.use_lengths(torch.nn.Linear(2, 2))


def test_example_inputs_are_what_the_check_runs() -> None:
    model = build("BertModel", BASE)
    embeds = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(1))
    assert kernels.use_lengths(model, {"inputs_embeds": embeds}) is model
    for wrong in ({}, {"input_ids": torch.zeros(1, 9)}, {"a": embeds, "b": embeds[:, :3]}):
        with pytest.raises(BringupError, match="example_inputs must be tensors"):
            kernels.use_lengths(model, wrong)


def test_the_check_leaves_random_numbers_alone() -> None:
    model = build("BertModel", BASE)
    state = torch.random.get_rng_state()
    kernels.use_lengths(model)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_checked_by_their_own_tolerance(dtype: torch.dtype) -> None:
    kernels.use_lengths(build("LlamaModel", GROUPED).to(dtype))


@torch.no_grad()
def test_what_does_not_go_with_lengths_is_refused_at_the_call() -> None:
    model = kernels.use_lengths(build("LlamaModel", GROUPED))
    ids = torch.randint(5, 60, (2, 6))
    with pytest.raises(ValueError, match="call it with actual_seq_lengths"):
        model(ids)
    for name, value in (
        ("attention_mask", torch.ones(2, 6)),
        ("position_ids", torch.tensor([[0, 1, 2, 0, 1, 2]])),
        ("past_key_values", transformers.DynamicCache()),
    ):
        with pytest.raises(ValueError, match=f"leave {name} out"):
            model(ids, actual_seq_lengths=[6, 2], **{name: value})
    with pytest.raises(ValueError, match="leave attention_mask out"):
        model(ids, torch.ones(2, 6), actual_seq_lengths=[6, 2])
    assert model(ids, actual_seq_lengths=[6, 2]).past_key_values is None


@torch.no_grad()
def test_preparing_twice_is_preparing_once() -> None:
    model = kernels.use_lengths(kernels.use_lengths(build("BertModel", BASE)))
    assert len(model._forward_pre_hooks) == 1
    model(torch.randint(5, 60, (2, 6)), actual_seq_lengths=[6, 2])


@pytest.mark.parametrize("name", ["BertModel", "MistralModel"])
@torch.no_grad()
def test_compiled_model_is_one_graph_for_every_length(name: str) -> None:
    model = kernels.use_lengths(build(name, ACCEPTED[name]))
    graphs = 0

    def counting(graph: Any, _: object) -> Any:
        nonlocal graphs
        graphs += 1
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=counting, fullgraph=True, dynamic=True)
    for length, lengths in ((9, [9, 3]), (9, [4, 8]), (17, [2, 17])):
        ids = torch.randint(5, 60, (2, length))
        expected = numbers(model(ids, actual_seq_lengths=lengths))
        got = numbers(compiled(ids, actual_seq_lengths=lengths))
        torch.testing.assert_close(got, expected)
    assert graphs == 1


def test_lengths_of_a_mask_need_padding_on_the_right() -> None:
    assert kernels.lengths_of(torch.tensor([[1, 1, 0], [0, 0, 0], [1, 1, 1]])) == [2, 0, 3]
    assert kernels.lengths_of(torch.tensor([[True, False]])) == [1]
    for wrong in ([[1, 1, 1], [0, 1, 1]], [[1, 1, 0], [1, 0, 1]]):
        with pytest.raises(BringupError, match="sequence 1 is not padded on the right alone"):
            kernels.lengths_of(torch.tensor(wrong))
    with pytest.raises(BringupError, match=r"expected a mask \[batch, length\], got \[1, 1, 2\]"):
        kernels.lengths_of(torch.ones(1, 1, 2))


def test_the_page_names_every_architecture_of_these_tests() -> None:
    text = (Path(__file__).parents[3] / "docs" / "lengths.md").read_text()
    assert [name for name in (*ACCEPTED, *REFUSED) if f"`{name}`" not in text] == []
