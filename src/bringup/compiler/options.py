"""The options of `torch.compile(backend="bringup", options={...})`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from bringup import settings
from bringup.compiler.buckets import AUTO, bucket_ladder
from bringup.compiler.inner_compiler import INNER_COMPILERS
from bringup.errors import BringupError, did_you_mean
from bringup.graphs._pieces import SplitPoint, SplitPoints

MODES = ("default", "serve", "max")
_ON_CHANGE = ("raise", "refold")
_WEIGHTS = ("float32", "bfloat16", "int8", "w8a8")
_CAPTURES = 8


@dataclasses.dataclass(frozen=True)
class CompileOptions:
    """The options of `torch.compile(backend="bringup", options={...})`.

    A graph's weights are *frozen* when it is compiled with gradients disabled and their modules are
    in evaluation mode, or when `freeze` says so: constants, folded and packed once, watched at
    every call.

    Attributes:
        mode: `default` rewrites, and freezes where it may, for training too; `serve` also captures
            what can be captured, and logs why not; `max` also keeps weights in `bfloat16` where
            results stay close.
        inner: what runs the rewritten graph: `eager` (its operators one by one) or `inductor`.
        capture: whether the inference graph is captured, once a kind of call. True refuses what
            cannot be captured (training graphs, written inputs, Inductor's kernels for the cpu);
            None: as `mode` says.
        max_captures: how many captures a graph keeps, those used last. None: 8, or one a bucket.
        buckets: sizes to which the length of padded sequences is rounded up before a captured graph
            runs, where attention takes `actual_seq_lengths` (`kernels.use_lengths`): rising sizes,
            a histogram ({length: how often}: the best `max_captures` sizes), or "auto". A longer
            call runs as it is, and nothing is padded where that is not shown to be inert: the log
            says so.
        shared_memory: whether captures of all functions take turns in one memory of their device.
            None: on a driver's device. On the cpu calls of other threads wait then.
        static_outputs: results are the captured tensors, which the next call overwrites; no shared
            memory.
        split_at: which operators replays call eagerly: a list as for `graphs.capture`. Their host
            arguments are written into captures where the list names them.
        passes: names of the passes to run; None for all registered ones.
        freeze: whether the weights of an inference graph are frozen; None: where they may be.
        freeze_inference_tensors: whether weights made in inference mode, which count no versions,
            are too. Without it they stay inputs, and a warning counts them.
        on_weight_change: what a call does after a frozen weight changed: `raise`, or `refold`
            (rewrite the graph, then run; with `eager` only). None: `raise` where `freeze` is True;
            otherwise `refold`, until weights go on changing: then they are not frozen.
        weights: the dtype of packed weights: `float32`, `bfloat16`, `int8` (with a scale an output
            channel) or `w8a8` (activations rounded, too). Narrow ones are taken for a layer only if
            its output and the graph's results have a cosine of at least 0.999 and the same top-1 on
            the first call's inputs. None: as `mode` says.
        autotune: whether packed weights have the form that was measured as the fastest here.
        pass_switch: passes switched on or off by name, `ALL` for all others.
        pass_versions: by name, the version of a pass to run instead of the newest.
        verify: whether rewrites are run against what they replace; None: as `BRINGUP_PASS_VERIFY`
            says.
        dump_passes: folder for graphs before and after passes; None: as `BRINGUP_PASS_DUMP` says.
    """

    mode: str = "default"
    inner: str = "eager"
    capture: bool | None = None
    max_captures: int | None = None
    buckets: Sequence[int] | Mapping[int, int] | str | None = None
    shared_memory: bool | None = None
    static_outputs: bool = False
    split_at: Sequence[SplitPoint] = ()
    passes: Sequence[str] | None = None
    freeze: bool | None = None
    freeze_inference_tensors: bool = False
    on_weight_change: str | None = None
    weights: str | None = None
    autotune: bool = True
    pass_switch: Mapping[str, bool] | None = None
    pass_versions: Mapping[str, str] | None = None
    verify: bool | None = None
    dump_passes: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, object] | None, mode: str | None = None) -> CompileOptions:
        """Return the options by name and `mode` of `torch.compile`, checked. Raises `BringupError`
        that names an unknown option or mode, or a value it cannot take.
        """
        given = dict(options or {})
        known = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise BringupError(f"backend 'bringup' has no option {_unknown(name, known)}")
        if mode is not None:
            if mode not in MODES:
                raise BringupError(f"backend 'bringup' has no mode {_unknown(mode, MODES)}")
            given.setdefault("mode", mode)
        parsed = cls(**given)  # type: ignore[arg-type]
        parsed._check()
        return parsed

    @property
    def captures(self) -> bool:
        """Return whether inference graphs are captured (`BRINGUP_CAPTURE` may forbid it)."""
        if not settings.capture():
            return False
        return self._may_capture()

    @property
    def ladder(self) -> tuple[int, ...]:
        """Return the sizes of buckets; none where there are no buckets."""
        if self.buckets is None or not self.captures:
            return ()
        if self.buckets == "auto":
            return AUTO
        if isinstance(self.buckets, Mapping):
            return bucket_ladder(self.buckets, self.max_captures or _CAPTURES)
        return tuple(int(size) for size in self.buckets)

    @property
    def most_captures(self) -> int:
        """Return how many captures a graph keeps: all buckets of one batch size, or as asked."""
        return self.max_captures or max(_CAPTURES, len(self.ladder))

    @property
    def may_freeze(self) -> bool:
        """Return whether weights are frozen if that is right (`BRINGUP_FREEZE` may forbid it)."""
        wanted = self.inner == "eager" if self.freeze is None else self.freeze
        return wanted and settings.freeze()

    @property
    def refolds(self) -> bool:
        """Return whether a call that finds a frozen weight changed folds the new weights."""
        if self.on_weight_change is None:
            return not self.freeze
        return self.on_weight_change == "refold"

    @property
    def weight_dtype(self) -> str:
        """Return the dtype in which packed weights are kept where results allow it."""
        return self.weights or ("bfloat16" if self.mode == "max" else "float32")

    def for_passes(self) -> dict[str, object]:
        """Return what passes may read with `context.get_option_value`. Weights are packed in
        float32; which become narrower is known when there are inputs. Only packed ones can: where
        the user asks for narrow weights, other products are no choice; where the mode does, they
        must win.
        """
        may_be_narrow = self.weight_dtype != "float32"
        return {
            **dataclasses.asdict(self),
            "weights": "float32",
            "autotune": self.autotune and (not may_be_narrow or self.weights is None),
            "narrow_later": may_be_narrow,
            "stays_in_process": self.inner == "eager",
        }

    def _check(self) -> None:
        choices: dict[str, tuple[str | None, ...]] = {
            "mode": MODES,
            "inner": INNER_COMPILERS,
            "on_weight_change": (None, *_ON_CHANGE),
            "weights": (None, *_WEIGHTS),
        }
        for name, values in choices.items():
            if getattr(self, name) not in values:
                words = [value for value in values if value is not None]
                raise BringupError(
                    f"option {name!r} must be one of {words}, got "
                    f"{_unknown(getattr(self, name), words, shown=False)}"
                )
        optional = ("capture", "freeze", "shared_memory")
        for name in (*optional, "autotune", "freeze_inference_tensors", "static_outputs"):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (value is None and name in optional):
                raise BringupError(f"option {name!r} must be True or False, got {value!r}")
        most = self.max_captures
        if most is not None and (type(most) is not int or most < 1):
            raise BringupError(
                f"option 'max_captures' must be a number from 1, got {self.max_captures!r}"
            )
        self._check_buckets()
        self._check_split()
        if self.inner == "inductor":
            self._check_for_inductor()

    def _check_buckets(self) -> None:
        given = self.buckets
        if given is None:
            return
        if isinstance(given, Mapping):
            bucket_ladder(given, self.max_captures or _CAPTURES)
        elif given != "auto":
            sizes = [] if isinstance(given, str) else list(given)
            rising = all(isinstance(size, int) and size > 0 for size in sizes)
            if not sizes or not rising or sorted(set(sizes)) != sizes:
                raise BringupError(
                    "option 'buckets' must be rising sizes from 1, a histogram of lengths or "
                    f"'auto', got {given!r}"
                )
        if self.inner != "eager" or not self._may_capture():
            raise BringupError("option 'buckets' needs captures: mode='serve', or capture=True")

    def _may_capture(self) -> bool:
        return self.mode != "default" if self.capture is None else self.capture

    def _check_split(self) -> None:
        try:
            points = SplitPoints(self.split_at)
        except (TypeError, ValueError) as error:
            raise BringupError(f"option 'split_at': {error}") from error
        if points and not self._may_capture():
            raise BringupError("option 'split_at' needs captures: mode='serve', or capture=True")
        object.__setattr__(self, "split_at", points.points)

    def _check_for_inductor(self) -> None:
        if self.mode != "default":
            raise BringupError(f"option 'mode'={self.mode!r} needs inner='eager'")
        if self.on_weight_change == "refold":
            raise BringupError("option 'on_weight_change'='refold' needs inner='eager'")
        if self.freeze and self.on_weight_change is None:
            object.__setattr__(self, "on_weight_change", "raise")


def _unknown(name: object, known: Sequence[str], *, shown: bool = True) -> str:
    """Return a wrong name, the nearest known one, and all known ones unless they are shown."""
    hint = did_you_mean(name, known)
    if not shown:
        return f"{name!r}{hint}"
    return f"{name!r}{hint or '.'} Known are {', '.join(known)}"
