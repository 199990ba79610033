"""`register_attention`: operators of any signature in transformers' models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from bringup import ops

transformers = pytest.importorskip("transformers")


def decoder(**options: Any) -> Any:
    """A small random Llama: causal, two query heads for each key head."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
        **options,
    )
    return transformers.LlamaModel(config).eval()


def encoder() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=32,
        max_position_embeddings=40,
    )
    return transformers.BertModel(config, add_pooling_layer=False).eval()


def additive(query: Any, key: Any, value: Any, attention_mask: Any, scaling: float) -> Any:
    assert attention_mask is None or attention_mask.is_floating_point()
    return scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling)


def boolean(q: Any, k: Any, v: Any, *, mask: Any, scale: float) -> Any:
    assert mask is None or mask.dtype is torch.bool
    return scaled_dot_product_attention(q, k, v, mask, scale=scale)


def with_flag(query: Any, key: Any, value: Any, attn_mask: Any, causal: bool, scale: float) -> Any:
    return scaled_dot_product_attention(query, key, value, attn_mask, is_causal=causal, scale=scale)


def flag_only(query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
    return scaled_dot_product_attention(query, key, value, is_causal=is_causal)


def grouped(query: Any, key: Any, value: Any, is_causal: bool, enable_gqa: bool) -> Any:
    assert key.shape[1] == 2
    return scaled_dot_product_attention(
        query, key, value, is_causal=is_causal, enable_gqa=enable_gqa
    )


def plain(query: Any, key: Any, value: Any) -> Any:
    return scaled_dot_product_attention(query, key, value)


def transposed(query: Any, key: Any, value: Any, is_causal: bool) -> Any:
    return flag_only(query, key, value, is_causal).transpose(1, 2)


@torch.no_grad()
@pytest.mark.parametrize(
    ("op", "options"),
    [
        (additive, {}),
        (boolean, {"mask": "bool"}),
        (with_flag, {}),
        (with_flag, {"mask": "bool"}),
        (flag_only, {}),
        (grouped, {}),
        (transposed, {"returns": "blhd"}),
    ],
)
def test_decoder_gives_what_eager_attention_gives(op: Any, options: Any) -> None:
    model, ids = decoder(), torch.randint(0, 50, (2, 9))
    expected = model(input_ids=ids).last_hidden_state
    model.set_attn_implementation(ops.register_attention("test_decoder", op, **options))
    torch.testing.assert_close(model(input_ids=ids).last_hidden_state, expected)


@torch.no_grad()
@pytest.mark.parametrize(("op", "mask"), [(additive, "additive"), (boolean, "bool")])
def test_padding_reaches_the_operator_as_a_mask(op: Any, mask: Any) -> None:
    model, ids = decoder(), torch.randint(0, 50, (2, 9))
    padding = torch.ones_like(ids)
    padding[1, :4] = 0
    expected = model(input_ids=ids, attention_mask=padding).last_hidden_state
    model.set_attn_implementation(ops.register_attention("test_padding", op, mask=mask))
    got = model(input_ids=ids, attention_mask=padding).last_hidden_state
    torch.testing.assert_close(got[0], expected[0])
    torch.testing.assert_close(got[1, 4:], expected[1, 4:])


@torch.no_grad()
@pytest.mark.parametrize(
    ("op", "cache"),
    # Steps with a static cache need a mask over its unused places.
    [(additive, "dynamic"), (additive, "static"), (flag_only, "dynamic"), (with_flag, "static")],
)
def test_generated_tokens_are_those_of_eager_attention(op: Any, cache: str) -> None:
    """Prefill, then steps of one token with a cache."""
    torch.manual_seed(0)
    config = decoder().config
    model = transformers.LlamaForCausalLM(config).eval()
    options = {"max_new_tokens": 5, "do_sample": False, "cache_implementation": cache}
    ids = torch.randint(1, 50, (1, 6))
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)
    model.set_attn_implementation(ops.register_attention("test_generate", op))
    got = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)
    assert torch.equal(got, expected)


@torch.no_grad()
def test_kernel_operator_is_called_by_its_schema() -> None:
    """The second way in: an operator's own names, mapped where they are its own."""
    library = torch.library.Library("bringup_test_attention", "DEF")
    library.define("f(Tensor queries, Tensor k, Tensor v, float scale, bool causal) -> Tensor")
    library.impl(
        "f",
        lambda q, k, v, s, c: scaled_dot_product_attention(q, k, v, is_causal=c, scale=s),
        "CPU",
    )
    model, ids = decoder(), torch.randint(0, 50, (2, 9))
    expected = model(input_ids=ids).last_hidden_state
    for op in (
        torch.ops.bringup_test_attention.f,
        torch.ops.bringup_test_attention.f.default,
    ):
        name = ops.register_attention("test_operator", op, names={"queries": "query"})
        model.set_attn_implementation(name)
        torch.testing.assert_close(model(input_ids=ids).last_hidden_state, expected)


@torch.no_grad()
def test_model_compiles_into_one_graph() -> None:
    torch._dynamo.reset()
    model, ids = decoder(), torch.randint(0, 50, (2, 9))
    model.set_attn_implementation(ops.register_attention("test_compile", flag_only))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(
        compiled(input_ids=ids).last_hidden_state, model(input_ids=ids).last_hidden_state
    )


def test_gradients_flow_through_the_operator() -> None:
    model, ids = decoder(), torch.randint(0, 50, (2, 9))
    model(input_ids=ids).last_hidden_state.sum().backward()
    weight = model.layers[0].self_attn.q_proj.weight
    expected, weight.grad = weight.grad, None
    model.set_attn_implementation(ops.register_attention("test_gradient", flag_only))
    model(input_ids=ids).last_hidden_state.sum().backward()
    torch.testing.assert_close(weight.grad, expected)


@torch.no_grad()
def test_causal_model_is_refused_by_an_operator_without_causality() -> None:
    model = decoder()
    model.set_attn_implementation(ops.register_attention("test_plain", plain))
    with pytest.raises(ValueError, match=r'"test_plain" is not for causal attention: its operator'):
        model(input_ids=torch.zeros(1, 4, dtype=torch.long))


@torch.no_grad()
def test_padding_is_refused_by_an_operator_without_mask() -> None:
    ids = torch.zeros(1, 4, dtype=torch.long)
    padding = torch.tensor([[0, 1, 1, 1]])
    for make, op in ((encoder, plain), (decoder, flag_only)):
        model = make()
        model.set_attn_implementation(ops.register_attention("test_no_mask", op))
        model(input_ids=ids)
        with pytest.raises(ValueError, match=r"takes no mask: leave attention_mask out"):
            model(input_ids=ids, attention_mask=padding)


def call(op: Any, *, returns: Any = "bhld", **options: Any) -> Any:
    from transformers import AttentionInterface

    name = ops.register_attention("test_call", op, returns=returns)
    query = torch.randn(1, 2, 3, 4)
    module = torch.nn.Module()
    return AttentionInterface()[name](module, query, query, query, None, **options)


@pytest.mark.parametrize(
    "option", ["sliding_window", "softcap", "position_bias", "s_aux", "output_attentions"]
)
def test_option_that_the_operator_does_not_declare_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f'"test_call" does not support {option}, got 3'):
        call(plain, **{option: 3})
    call(plain, **{option: None})


def test_bias_that_the_operator_does_not_declare_is_refused_by_its_shape() -> None:
    with pytest.raises(ValueError, match=r"does not support position_bias, got a tensor \[2, 3\]"):
        call(plain, position_bias=torch.zeros(2, 3))


def test_option_that_the_operator_declares_is_passed() -> None:
    seen = []

    def op(query: Any, key: Any, value: Any, softcap: float, sliding_window: int = 0) -> Any:
        seen.append((softcap, sliding_window))
        return query

    call(op, softcap=2.5)
    call(op, softcap=1.5, sliding_window=7)
    assert seen == [(2.5, 0), (1.5, 7)]


def test_missing_argument_of_the_operator_is_named() -> None:
    def op(query: Any, key: Any, value: Any, lengths: list[int]) -> Any:
        return query

    with pytest.raises(ValueError, match=r"needs lengths: call the model with lengths=\.\.\."):
        call(op)


def test_result_in_another_layout_than_declared_is_refused() -> None:
    """The model would go on with heads taken for positions: as many numbers, other ones."""
    text = r"returned \[1, 3, 2, 4\], expected \[1, 2, 3, 4\]; .*returns='blhd': \[1, 3, 2, 4\]"
    with pytest.raises(ValueError, match=text):
        call(transposed, is_causal=True)
    with pytest.raises(ValueError, match=r"returned \[1, 2, 3, 4\], expected \[1, 3, 2, 4\]"):
        call(plain, returns="blhd")


def test_dropout_is_refused_by_an_operator_without() -> None:
    with pytest.raises(ValueError, match=r"has no dropout, got 0.1: call model.eval\(\)"):
        call(plain, dropout=0.1)


@pytest.mark.parametrize(
    ("op", "options", "kind", "message"),
    [
        (lambda x: x, {}, TypeError, r"declares no query, key, value; it has \['x'\]"),
        (lambda *x: x, {}, TypeError, r"parameter \*x of .* has no name of its own"),
        (scaled_dot_product_attention, {}, TypeError, "what .* takes cannot be found out"),
        (plain, {"names": {"z": "query"}}, TypeError, r"names= has \['z'\], which the operator"),
        (plain, {"returns": "lbhd"}, ValueError, "returns='lbhd'; expected one of"),
        (plain, {"mask": "int"}, ValueError, "mask='int'; expected one of"),
    ],
)
def test_wrong_registration_is_refused(op: Any, options: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        ops.register_attention("test_wrong", op, **options)
    from transformers import AttentionInterface

    assert "test_wrong" not in AttentionInterface()
