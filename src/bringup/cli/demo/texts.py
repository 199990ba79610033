"""The sentences, shipped or a user's, as token ids, sorted into length classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

LONGEST = 512  # tokens; the model has no positions behind
_SHORT = 10
_MIDDLE = 40


class LengthClass(Enum):
    """How the table groups sentences, by tokens with [CLS] and [SEP]."""

    SHORT = "short"
    MIDDLE = "middle"
    LONG = "long"

    @property
    def range_text(self) -> str:
        """Return the class's range of tokens, for people."""
        return {
            LengthClass.SHORT: f"up to {_SHORT} tokens",
            LengthClass.MIDDLE: f"{_SHORT + 1} to {_MIDDLE} tokens",
            LengthClass.LONG: f"more than {_MIDDLE} tokens",
        }[self]


@dataclass(frozen=True)
class Sentence:
    """A sentence and its token ids; `cut` when it was too long and the ids are not all of it."""

    text: str
    ids: tuple[int, ...]
    cut: bool = False

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def length_class(self) -> LengthClass:
        if self.tokens <= _SHORT:
            return LengthClass.SHORT
        return LengthClass.MIDDLE if self.tokens <= _MIDDLE else LengthClass.LONG


def examples_dir() -> Path:
    """Return the shipped examples, beside the package or `src`. Raises `FileNotFoundError`."""
    package = Path(__file__).resolve().parents[2]
    candidates = (package / "examples", package.parent.parent / "examples")
    for folder in candidates:
        if (folder / "data" / "sentences.txt").is_file():
            return folder
    raise FileNotFoundError(
        f"the demo's examples are in none of {[str(folder) for folder in candidates]}: "
        "reinstall with `pip install --no-build-isolation .`"
    )


def read_texts(file: Path | None, text: str | None) -> list[str]:
    """Return the non-empty lines of `file`, `text` or the shipped sentences. Raises `ValueError`
    when nothing is left, `OSError` when the file cannot be read.
    """
    if text is not None:
        lines: Iterable[str] = text.splitlines()
    else:
        path = file if file is not None else examples_dir() / "data" / "sentences.txt"
        lines = path.read_text(encoding="utf-8").splitlines()
    texts = [line.strip() for line in lines if line.strip()]
    if not texts:
        raise ValueError(
            f"no sentence in {file if file is not None else 'the text'}: expected one per line"
        )
    return texts


def encode(texts: Sequence[str], tokenizer: Any, longest: int) -> list[Sentence]:
    """Return the texts as token ids, cut to `longest` tokens."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    encodings = [(text, tokenizer.encode(text)) for text in texts]
    return [Sentence(text, tuple(found.ids), bool(found.overflowing)) for text, found in encodings]


def spread(sentences: Sequence[Sentence], count: int) -> list[int]:
    """Return the numbers of at most `count` sentences, evenly spread over the lengths."""
    ordered = sorted(range(len(sentences)), key=lambda s: sentences[s].tokens)
    if len(ordered) <= count:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (count - 1))] for i in range(count)]


def spread_by_class(sentences: Sequence[Sentence], count: int) -> dict[LengthClass, list[int]]:
    """Return the same of every length class that has a sentence."""
    chosen = {}
    for length_class in LengthClass:
        members = [s for s, one in enumerate(sentences) if one.length_class is length_class]
        if members:
            picked = spread([sentences[s] for s in members], count)
            chosen[length_class] = [members[number] for number in picked]
    return chosen
