"""MiniLM, one sentence at a time: fused and captured against eager and Inductor, by length.

Inductor comes twice: as it is, which has a budget, and with its `freezing` option, which packs
weights as ours does and has none.
"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks._harness import Row, interleave, row
from bringup import compiler, kernels
from bringup.cli.demo import model, modes, texts

_LENGTHS = (6, 18, 90)


def run(quick: bool) -> list[Row]:
    """Rows for sentences of about 6, 18 and 90 tokens. Quick: eager is the only peer."""
    folder = model.model_dir()
    lines = texts.read_texts(None, None)
    sentences = texts.encode(lines, model.load_tokenizer(folder), 512)
    chosen = [min(sentences, key=lambda s: abs(s.tokens - length)) for length in _LENGTHS]
    with torch.no_grad():
        masked = model.MaskedEmbedder(model.load_model(folder, "sdpa"))
        peers = {"eager": modes.eager(masked, "cpu")}
        if not quick:
            peers["Inductor"] = modes.inductor(masked, "cpu")
            extremes = (chosen[0], chosen[-1])
            peers["Inductor, frozen"] = modes.frozen_inductor(masked, "cpu", extremes)
        prepared = kernels.use_lengths(model.load_model(folder, "sdpa"))
        ladder = compiler.bucket_ladder((s.tokens for s in sentences), 16)
        ours = modes.captured(model.ServedEmbedder(prepared).eval(), "cpu", ladder)
        rows = []
        for sentence in chosen:
            candidates = {"ours": ours, **peers}
            calls = {
                name: partial(candidate.call, candidate.prepare(sentence))
                for name, candidate in candidates.items()
            }
            samples = interleave(calls, rounds=7 if quick else 31, calls=1)
            rows += [
                row(
                    f"MiniLM, {sentence.tokens} tokens, fused and captured",
                    peer,
                    samples["ours"],
                    samples[peer],
                    budget=None if peer == "Inductor, frozen" else 1.0,
                )
                for peer in peers
            ]
    return rows
