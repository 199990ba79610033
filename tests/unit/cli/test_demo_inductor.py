"""The whole demo on cpu with both Inductor peers, on a model that Inductor compiles quickly."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console

from bringup import passes
from bringup.cli.demo import model
from bringup.cli.demo.run import DemoOptions, DemoResult, run_demo
from bringup.cli.trial.inductor import InductorError

WORDS = ["the", "cat", "sleeps", "on", "a", "warm", "stove", "while", "rain", "falls"]


def save_tiny_model(folder: Path) -> None:
    """A BERT of one layer with random weights, and a tokenizer of ten words."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=2048,  # token 2024 stands behind a sentence where padding is checked
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
    )
    transformers.BertModel(config).save_pretrained(folder)
    vocabulary = {word: number for number, word in enumerate(["?", *WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture
def tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    save_tiny_model(tmp_path)
    monkeypatch.setattr(model, "model_dir", lambda: tmp_path)
    monkeypatch.setenv("BRINGUP_PASS_PATH", "")
    yield
    passes.unload_pass_plugins()
    torch.compiler.reset()


@pytest.mark.slow
def test_demo_compares_with_inductor_as_it_comes_and_frozen(
    tiny_model: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[bool] = []

    def within(seconds: float, target: str, *, frozen: bool = True, **_: object) -> None:
        assert (seconds, target) == (600.0, "bringup.cli.demo.model:example")
        compiled.append(frozen)

    monkeypatch.setattr("bringup.cli.demo.run.compile_within", within)
    text = "\n".join((" ".join(WORDS), "the cat", " ".join(WORDS * 5)))
    options = DemoOptions(
        text=text, freezing=True, full=True, acts=False, threads=1, devices=("cpu",)
    )
    result: DemoResult = run_demo(options, Console(file=io.StringIO()))
    assert result.failures == []
    assert compiled == [False, True]
    rows = {(row.mode, row.bucket): row for row in result.rows}
    modes = ("eager", "inductor", "inductor+frozen", "fused", "fused+captured")
    assert set(rows) == {(mode, bucket) for mode in modes for bucket in ("short", "long")}
    for (mode, bucket), row in rows.items():
        assert row.min_cosine > 0.9999
        assert row.speedup_vs_inductor is not None
        assert row.speedup_vs_inductor.rounds == 15
        assert (row.speedup_vs_inductor.median == 1.0) == (mode == "inductor"), bucket
    assert rows["inductor", "short"].host_ops < rows["eager", "short"].host_ops
    notes = " ".join(result.notes)
    assert "fused+captured on cpu is faster than inductor for" in notes
    assert "fused+captured on cpu is faster than inductor+frozen for" in notes


def test_inductor_that_is_given_up_leaves_the_other_rows_and_a_note(
    tiny_model: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def within(seconds: float, target: str, **_: object) -> None:
        raise InductorError("given up")

    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    monkeypatch.setattr("bringup.cli.demo.run.compile_within", within)
    options = DemoOptions(text="the cat", seconds=0, acts=False, threads=1, devices=("cpu",))
    result = run_demo(options, Console(file=io.StringIO()))
    assert [row.mode for row in result.rows] == ["eager", "fused", "fused+captured"]
    assert "No rows of Inductor: given up" in result.notes
