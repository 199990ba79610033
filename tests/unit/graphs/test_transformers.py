"""Models of transformers are captured as they are: their masks are told that a capture is under
way, and read no values on the host.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from bringup import graphs

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}


def bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(**SMALL))


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, num_key_value_heads=1))


def mixtral() -> nn.Module:
    config = transformers.MixtralConfig(
        **SMALL, num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2
    )
    return transformers.MixtralForCausalLM(config)


MODELS = {"bert": bert, "gpt2": gpt2, "llama": llama, "mixtral": mixtral}


def batch(seed: int, masked: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    given: dict[str, Any] = {"input_ids": torch.randint(0, 64, (2, 8), generator=generator)}
    if masked:
        given["attention_mask"] = torch.ones(2, 8, dtype=torch.int64)
        given["attention_mask"][1, : 2 + seed % 4] = 0
    return given


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_model_is_captured_directly_and_runs_exactly(
    name: str, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    model.config.use_cache = False
    graph, given = graphs.CapturedGraph(), batch(0, masked)
    with graphs.capture(graph):
        model(**given)
    # eager looks at the mask's values and may leave it out: make it take the path of a capture
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for seed in (1, 2):
        given = batch(seed, masked)
        result, expected = graph.run(**given), model(**given)
        assert type(result) is type(expected)
        for key, value in expected.items():
            assert torch.equal(result[key], value)
