"""The pass library over models of transformers: matches, operators that are left, the error."""

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks._architectures import Size
from benchmarks._zoo import compile_model, subject
from tests.unit.passes.support import empty_registry

__all__ = ["empty_registry"]

LAYERS = 2
ERROR = 5e-6
FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"

# Per model: matches of the pattern passes, and operators of the rewritten graph, by layers.
ENCODER = (
    {
        "AddLayerNorm": 2 * LAYERS,
        "MergeProjections": LAYERS,
        "PackLinear": 4 * LAYERS,
        "BiasGelu": 0,  # the activation is the packed product's
    },
    {
        "bringup.packed_linear.default": 4 * LAYERS,
        "aten.gelu.default": 0,
        "aten.addmm.default": 0,
    },
)
DECODER = (
    {
        "AddRmsNorm": 2 * LAYERS,
        "Rotary": 2 * LAYERS,
        "SwiGlu": LAYERS,
        "GroupedHeads": LAYERS,
        "CausalMask": LAYERS,
        "MergeProjections": 2 * LAYERS,
        "PackLinear": 4 * LAYERS,
    },
    {
        "bringup.packed_linear.default": 4 * LAYERS,
        "aten.mm.default": 0,
        "aten.addmm.default": 0,
        "bringup.add_rms_norm.default": 2 * LAYERS,
        "bringup.rotary.default": 2 * LAYERS,
        "bringup.silu_mul.default": LAYERS,
        "aten.rsqrt.default": 0,
        "aten.expand.default": 0,  # repeated heads
        "aten.where.self": 0,  # the causal mask
        "aten.split_with_sizes.default": 2 * LAYERS,  # query, key, value; gate, up
    },
)
EXPECTED = {
    "bert": (ENCODER[0], ENCODER[1] | {"bringup.add_layer_norm.default": 2 * LAYERS}),
    "vit": (ENCODER[0], ENCODER[1] | {"aten.split_with_sizes.default": LAYERS}),
    "gpt2": (
        {
            "AddLayerNorm": 2 * LAYERS,
            "TanhGelu": LAYERS,
            "CausalMask": LAYERS,
            "PackLinear": 4 * LAYERS,
        },
        {"aten.gelu.default": 0, "aten.tanh.default": 0, "aten.where.self": 0},
    ),
    "llama": (DECODER[0] | {"RmsNorm": 2 * LAYERS + 1}, DECODER[1]),
    "qwen2": (DECODER[0] | {"RmsNorm": 2 * LAYERS + 1}, DECODER[1]),
    "qwen3": (DECODER[0] | {"RmsNorm": 4 * LAYERS + 1}, DECODER[1]),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "attention"),
    [*((name, "sdpa") for name in EXPECTED), *((name, "eager") for name in ("bert", "llama"))],
)
def test_model_is_rewritten_everywhere_and_computes_the_same(name, attention):
    matches, operators = EXPECTED[name]
    trial = compile_model(subject(name, Size(layers=LAYERS), attention))
    found = trial.report.matches
    assert {key: found[f"Library{key}"] for key in matches} == matches
    assert found["LibraryAttention"] == (LAYERS if attention == "eager" else 0)
    assert {key: trial.after[key] for key in operators} == operators
    assert trial.after[FLASH] == LAYERS
    assert trial.after["aten._softmax.default"] == 0
    assert trial.after["aten.clone.default"] == 0 or attention == "eager"
    assert trial.after.total() < 0.7 * trial.before.total()
    assert trial.error < ERROR


@pytest.mark.slow
def test_captured_model_computes_the_same_for_other_tokens():
    item = subject("llama", Size(layers=LAYERS))
    trial = compile_model(item, capture=True)
    assert trial.error < ERROR
    with torch.no_grad():
        item.keywords["input_ids"] = (item.keywords["input_ids"] + 7) % 100
        torch.testing.assert_close(item.run(trial.compiled), item.run(item.model))


@pytest.mark.slow
def test_model_without_frozen_weights_keeps_its_projections_apart():
    trial = compile_model(subject("llama", Size(layers=1)), freeze=False)
    assert trial.report.matches["LibraryRmsNorm"] == 3
    assert trial.after["aten.mm.default"] == 7
    assert trial.error < ERROR
