"""Whether padding is inert in a model: found by running it with a mask and with lengths."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from bringup._differences import gap, magnitude
from bringup.errors import BringupError
from bringup.kernels._transformers import LENGTHS, register_lengths

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
_BATCH, _LENGTH = 3, 24
_NAME = f"{LENGTHS}_checked"

Tensors = dict[str, torch.Tensor]


def check(
    model: Any, example_inputs: Mapping[str, torch.Tensor] | None, tolerance: float, kind: str
) -> None:
    """Raise `BringupError` with the cause where `model` does not take lengths."""
    inputs = dict(example_inputs) if example_inputs is not None else _random_inputs(model)
    _Check(model, inputs, tolerance, kind).run()


def _random_inputs(model: Any) -> Tensors:
    config = model.config.get_text_config()
    vocabulary = getattr(config, "vocab_size", None)
    if model.main_input_name != "input_ids" or not isinstance(vocabulary, int):
        raise BringupError(
            f"use_lengths: {type(model).__name__} takes {model.main_input_name}, not token ids: "
            "give example_inputs"
        )
    most = getattr(config, "max_position_embeddings", None)
    length = min(_LENGTH, most) if isinstance(most, int) and most > 8 else _LENGTH
    return {"input_ids": _token_ids(model, (_BATCH, length), seed=0)}


def _token_ids(model: Any, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Return random ids without padding and special tokens, where those are known."""
    config = model.config.get_text_config()
    special = {
        value
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id")
        if isinstance(value := getattr(config, name, None), int)
    }
    known = torch.tensor([i for i in range(config.vocab_size) if i not in special] or [0])
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(known), shape, generator=generator)
    return known[chosen].to(model.device)


@dataclass
class _Patterns:
    """What every attention of one run sees, each held against the mask that transformers would
    build: the mask interface gives on a function of positions as a tensor.
    """

    functions: dict[int, tuple[torch.Tensor, Callable[..., Any], int]] = field(default_factory=dict)
    calls: int = 0

    def make_mask(self, **options: Any) -> torch.Tensor:
        shape = (options["batch_size"], 1, options["q_length"], options["kv_length"])
        token = torch.ones(shape, dtype=torch.bool, device=options.get("device"))
        size = options.get("local_size") or 0
        self.functions[id(token)] = (token, options["mask_function"], size)
        return token

    def compare(self, module: Any, token: Any, options: Mapping[str, Any]) -> None:
        """Raise when attention with these options sees other keys than its mask says."""
        self.calls += 1
        if token is None:
            return
        known = self.functions.get(id(token))
        if known is None:
            raise BringupError(
                f"{type(module).__name__} is given a mask that is not made by transformers' "
                "AttentionMaskInterface"
            )
        _, function, size = known
        is_causal = options.get("is_causal")
        if is_causal is None:
            is_causal = getattr(module, "is_causal", False)
        window = options.get("sliding_window") or 0
        points = _points(size, window)
        rows, keys = points.unsqueeze(1), points.unsqueeze(0)
        seen = torch.ones(len(points), len(points), dtype=torch.bool)
        if is_causal:
            seen &= keys <= rows
        if window:
            seen &= (rows - keys).abs() < window
        try:
            wanted = torch.as_tensor(function(0, 0, rows, keys)).expand_as(seen)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise BringupError(
                f"{type(module).__name__} has a mask that depends on more than positions ({error})"
            ) from error
        if not torch.equal(wanted.cpu(), seen):
            row, key = (int(points[i]) for i in (wanted.cpu() != seen).nonzero()[0])
            said = "causal" if is_causal else "not causal"
            said += f", a window of {window}" if window else ""
            raise BringupError(
                f"{type(module).__name__} says of its attention: {said}; its mask differs from "
                f"that (row {row}, key {key}): blocks, chunks or prefixes cannot be said in lengths"
            )


def _points(*sizes: int) -> torch.Tensor:
    """Return positions at which masks of these local sizes differ."""
    near = {0, 1, 2, 3, 7, 20, 1000}
    for size, factor, step in itertools.product(sizes, (1, 2, 3), (-1, 0, 1)):
        near.add(max(0, size * factor + step))
    return torch.tensor(sorted(near))


class _Check:
    """The runs of one model."""

    def __init__(self, model: Any, inputs: Tensors, tolerance: float, kind: str) -> None:
        self._model = model
        self._inputs = inputs
        self._kind = kind
        self._name = type(model).__name__
        self._tolerance = tolerance or _TOLERANCE.get(model.dtype, 1e-4)
        shapes = {tuple(value.shape[:2]) for value in inputs.values()}
        if len(shapes) != 1 or min(next(iter(shapes), (0,))) < 2 or "attention_mask" in inputs:
            raise BringupError(
                "use_lengths: example_inputs must be tensors [B, S, ...] of one B and S of at "
                f"least 2, without a mask, got { ({k: list(v.shape) for k, v in inputs.items()}) }"
            )
        self._batch, self._length = next(iter(shapes))
        self._lengths = [
            max(1, self._length * (i + 1) // (self._batch + 1)) for i in range(self._batch)
        ]
        self._lengths[-1] = self._length - 1
        self._patterns = _Patterns()

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is Any to mypy
    def run(self) -> None:
        _register_checked(self._patterns)
        masked = self._masked()
        plain = self._with_lengths(self._inputs)
        if not self._patterns.calls:
            self._refuse("its attention does not go through transformers' AttentionInterface")
        other = self._changed(lambda b, i: i >= self._lengths[b])
        longer = {name: _padded(value) for name, value in self._inputs.items()}
        changed = self._changed(lambda b, _: b == 0)
        for inputs, when, first in (
            (other, "when what stands in the padding changes", 0),
            (longer, "when the padding gets longer", 0),
            (changed, "when another sequence changes", 1),
        ):
            run = functools.partial(self._with_lengths, inputs)
            self._require_same(run(), plain, when, run, first)
        self._require_same(masked, plain, "from the model with a mask", self._masked)

    def _masked(self) -> Tensors:
        positions = torch.arange(self._length, device=self._model.device)
        lengths = torch.tensor(self._lengths, device=self._model.device).unsqueeze(1)
        mask = (positions < lengths).long()
        self._model.set_attn_implementation(self._kind)
        result = _tensors(self._call(**self._inputs, attention_mask=mask))
        self._model.set_attn_implementation(_NAME)
        return result

    def _with_lengths(self, inputs: Tensors) -> Tensors:
        try:
            return _tensors(self._call(**inputs, actual_seq_lengths=self._lengths))
        except (BringupError, TypeError, ValueError, RuntimeError) as error:
            self._refuse(f"{error}", error)

    def _call(self, **arguments: Any) -> Any:
        if "use_cache" in inspect.signature(self._model.forward).parameters:
            arguments["use_cache"] = False
        return self._model.forward(**arguments)

    def _changed(self, where: Callable[[int, int], bool]) -> Tensors:
        """Return the inputs with others at some places."""
        places = torch.tensor(
            [[where(b, i) for i in range(self._length)] for b in range(self._batch)],
            device=self._model.device,
        )
        changed = {}
        for name, value in self._inputs.items():
            if name == "input_ids":
                other = _token_ids(self._model, tuple(value.shape), seed=1)
            else:
                other = value.flip(0, 1)
            shape = (*places.shape, *(1,) * (value.dim() - 2))
            changed[name] = torch.where(places.view(shape), other, value)
        return changed

    def _require_same(
        self, got: Tensors, expected: Tensors, when: str, run: Callable[[], Tensors], first: int = 0
    ) -> None:
        """Require `got` of `run` to equal `expected` of the inputs and their lengths."""
        if got.keys() != expected.keys():
            self._refuse(f"its outputs are {sorted(expected)}, and {sorted(got)} {when}")
        for name, reference in expected.items():
            error = self._difference(got[name], reference, first)
            if error > self._tolerance:
                cause = self._first_module(run, first)
                self._refuse(
                    f"its output {name!r} differs by {error:.2g} of its largest value {when}{cause}"
                )

    def _difference(self, got: torch.Tensor, expected: torch.Tensor, first: int = 0) -> float:
        """Over the rows that count, relative to the largest value."""
        errors = [0.0]
        for b in range(first, self._batch):
            ours, theirs = got[b], expected[b]
            if expected.dim() > 2 and expected.shape[1] == self._length:
                ours, theirs = ours[: self._lengths[b]], theirs[: self._lengths[b]]
            if ours.shape != theirs.shape:
                return math.inf
            apart, largest = gap(ours, theirs, nonfinite_equal=False), magnitude(theirs)
            assert apart is not None, "outputs are tensors"
            errors.append(apart / largest if largest else math.inf if apart else 0.0)
        return math.inf if any(map(math.isnan, errors)) else max(errors)

    def _first_module(self, run: Callable[[], Tensors], first: int) -> str:
        """Return the innermost module whose rows that count differ first."""
        former = self._outputs_of_modules(lambda: self._with_lengths(self._inputs))
        now = self._outputs_of_modules(run)
        for (name, ours), (_, theirs) in zip(now, former, strict=False):
            if theirs.dim() < 2 or theirs.shape[0] != self._batch:
                continue
            if self._difference(ours, theirs, first) > self._tolerance:
                kind = type(self._model.get_submodule(name)).__name__
                return f"; the first module that does is {name} ({kind})"
        return ""

    def _outputs_of_modules(self, run: Callable[[], Tensors]) -> list[tuple[str, torch.Tensor]]:
        outputs: list[tuple[str, torch.Tensor]] = []

        def keep(name: str) -> Callable[..., None]:
            def hook(_module: Any, _args: Any, result: Any) -> None:
                if isinstance(result, torch.Tensor) and result.is_floating_point():
                    outputs.append((name, result))

            return hook

        handles = [
            module.register_forward_hook(keep(name))
            for name, module in self._model.named_modules()
            if name and not any(module.children())
        ]
        try:
            run()
        finally:
            for handle in handles:
                handle.remove()
        return outputs

    def _refuse(self, reason: str, error: Exception | None = None) -> NoReturn:
        raise BringupError(
            f"use_lengths: {self._name} cannot take lengths instead of a mask: {reason}"
        ) from error


def _register_checked(patterns: _Patterns) -> None:
    """Register attention under another name, with every call compared."""
    from transformers import AttentionInterface, AttentionMaskInterface

    register_lengths()
    attend = AttentionInterface()[LENGTHS]

    def checked(module: Any, q: Any, k: Any, v: Any, mask: Any, **options: Any) -> Any:
        patterns.compare(module, mask, options)
        return attend(module, q, k, v, None, **options)

    AttentionInterface.register(_NAME, checked)
    AttentionMaskInterface.register(_NAME, patterns.make_mask)


def _tensors(result: Any) -> Tensors:
    """Return the outputs that are numbers, by name."""
    named = result.items() if hasattr(result, "items") else enumerate(result)
    return {
        str(name): value
        for name, value in named
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 0
    }


def _padded(value: torch.Tensor) -> torch.Tensor:
    """Five rows more on the right."""
    return torch.cat([value, value[:, :1].expand(-1, 5, *value.shape[2:])], 1)
