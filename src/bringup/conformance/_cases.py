"""The cases of a conformance run: what each is called, and what running one gives."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bringup import devices
from bringup.conformance._deviation import leaf_deviations
from bringup.conformance._modules import module_cases, module_failures
from bringup.conformance._operators import computes
from bringup.conformance._opinfo import DTYPES, Failure, Watch, operators, sweep
from bringup.conformance._optimizers import optimizer_cases, optimizer_difference
from bringup.conformance._runtime_cases import POINTS, Skipped
from bringup.conformance._samples import described, tensors
from bringup.conformance._use_cases import LEVELS, join

USES = {name: case for cases in LEVELS.values() for name, case in cases.items()}


@dataclass(frozen=True)
class CaseResult:
    """What came out of one case.

    Attributes:
        id: stable between runs: "op/add/float32", "runtime/stream_keeps_its_order".
        outcome: "pass", "failed", "refused" (the device says that it cannot), "crashed" (the
            process ended), "timeout", "skipped" (there is nothing to compare).
        native: whether it passed and nothing ran on the host for it.
        reason: of what is no pass, in words.
        samples: how many inputs were tried.
        calls: of operators on the device, as far as they compute.
        calls_on_host: how many of them ran on the host instead, or with its help.
        seconds: of the operators on the device, as far as they compute, until all have ended; of a
            driver's function, of levels 3 and 4, and of what did not end, the whole case.
        seconds_on_host: of those that ran on the host, or with its help.
        error: the largest of results that agree, relative to the largest value; by dtype.
    """

    id: str
    outcome: str
    native: bool = False
    reason: str = ""
    samples: int = 0
    calls: int = 0
    calls_on_host: int = 0
    seconds: float = 0.0
    seconds_on_host: float = 0.0
    error: float = 0.0

    @property
    def kind(self) -> str:
        """Return the first part of its name: "driver", "runtime", "op", "ddp", "train"..."""
        return self.id.partition("/")[0]

    @property
    def subject(self) -> str:
        """Return the second part: the operator, without its dtype."""
        return self.id.split("/")[1]

    @property
    def dtype(self) -> str:
        """Of an operator's samples, or ""."""
        return self.id.split("/")[2] if self.kind == "op" else ""


def case_ids(level: int) -> list[str]:
    """Return the cases of a level: 1, runtime; 2, torch's samples; 3, uses; 4, training."""
    if level == 1:
        return [f"runtime/{name}" for name in POINTS]
    if level in LEVELS:
        return [*LEVELS[level]]
    ids = [f"op/{_name(op)}/{dtype}" for dtype in DTYPES for op in operators(_dtype(dtype))]
    ids += [f"module/{name}" for name, *_ in module_cases()]
    names = Counter[str]()
    for name, *_ in optimizer_cases():
        ids.append(f"optimizer/{name}" + (f"#{names[name]}" if names[name] else ""))
        names[name] += 1
    return list(dict.fromkeys(ids))


def run_case(
    case: str, device: str, samples: int, rank: tuple[int, str] | None = None
) -> CaseResult:
    """Run one case in this process, of at most so many samples, as this rank (number, folder)."""
    watch = _Counting(device)
    devices.fallback_report(reset=True)
    start = time.perf_counter()
    try:
        if rank is not None:
            join(*rank)
        result = _run(case, device, samples, watch)
    except Skipped as skipped:
        return CaseResult(case, "skipped", reason=str(skipped))
    except Exception as error:
        result = CaseResult(case, _kind_of(described(error)), reason=described(error))
    whole = case in USES  # a mode that counts would keep torch from compiling
    if whole or case.startswith("runtime/"):  # all of it is the device's part
        fell = devices.fallback_report()
        watch.fell_back = fell.calls > 0
    return replace(
        result,
        native=result.outcome == "pass" and not watch.fell_back,
        calls=watch.mode.calls,
        calls_on_host=watch.mode.calls_on_host,
        seconds=time.perf_counter() - start if whole else watch.seconds,
        seconds_on_host=watch.mode.seconds_on_host,
        error=watch.error,
    )


def _run(case: str, device: str, samples: int, watch: _Counting) -> CaseResult:
    kind, _, rest = case.partition("/")
    if case in USES:
        USES[case](device)
        return CaseResult(case, "pass", samples=1)
    if kind == "runtime":
        with watch.calls():
            POINTS[rest](device)
        return CaseResult(case, "pass", samples=1)
    counts: Counter[str] = Counter()
    if kind == "op":
        name, dtype = rest.split("/")
        (op,) = [op for op in operators(_dtype(dtype)) if _name(op) == name]
        found = list(sweep(op, _dtype(dtype), counts, device, samples=samples, watch=watch))
        return _of_failures(case, found, counts)
    if kind == "module":
        (given,) = [found for found in module_cases() if found[0] == rest]
        words = list(module_failures(given[1], given[2], counts, device, watch))
        return _of_words(case, words, counts["calls"])
    name, _, number = rest.partition("#")
    chosen = [found for found in optimizer_cases() if found[0] == name][int(number or 0)]
    difference = optimizer_difference(*chosen[1:], device, watch)
    return _of_words(case, [difference] if difference else [], 1)


def _of_failures(case: str, failures: list[Failure], counts: Counter[str]) -> CaseResult:
    wrong = [failure for failure in failures if not failure.is_torchs_own]
    tried = counts["samples"] - (len(failures) - len(wrong))
    words = [f"sample {one.sample}, {one.phase}: {one.words}" for one in wrong]
    if failures and not tried:
        return CaseResult(case, "skipped", reason=f"of torch itself: {failures[0].words}")
    return _of_words(case, words, tried, [one.words for one in wrong])


def _of_words(
    case: str, words: list[str], samples: int, differences: list[str] | None = None
) -> CaseResult:
    if not words:
        if not samples:
            return CaseResult(case, "skipped", reason="torch has no sample that can be compared")
        return CaseResult(case, "pass", samples=samples)
    kinds = [_kind_of(one) for one in (words if differences is None else differences)]
    # A wrong number outranks a refusal.
    worst = kinds.index("failed") if "failed" in kinds else 0
    more = f" (and {len(words) - 1} more)" if len(words) > 1 else ""
    return CaseResult(case, kinds[worst], reason=words[worst] + more, samples=samples)


def _kind_of(words: str) -> str:
    # What has no kernel and cannot run on the host inside a graph is a CaptureError.
    is_refusal = "NotImplementedError: " in words or "CaptureError: " in words
    return "refused" if is_refusal else "failed"


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found


def _name(op: Any) -> str:
    return str(op.full_name).replace("/", "_")


class _CountCalls(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Count and time operators on a device, and those of them that used the host."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = torch.device(device).type
        self.calls = 0
        self.calls_on_host = 0
        self.seconds = 0.0
        self.seconds_on_host = 0.0

    @property
    def native_calls(self) -> int:
        """Return those that did not use the host."""
        return self.calls - self.calls_on_host

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not computes(func):
            return func(*args, **(kwargs or {}))
        before = devices.fallback_report().calls
        result = None
        start = time.perf_counter()
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            took = time.perf_counter() - start
            if any(t.device.type == self._device for t in tensors((args, kwargs, result))):
                on_host = devices.fallback_report().calls > before
                self.calls += 1
                self.calls_on_host += on_host
                self.seconds += took
                self.seconds_on_host += took * on_host
        return result


class _Counting(Watch):
    """What the device's part of a case called, took, and was off by."""

    counts_calls = True

    def __init__(self, device: str) -> None:
        self.mode = _CountCalls(device)
        self.waited = 0.0
        self.fell_back = False
        self.error = 0.0
        self._device = device

    @property
    def seconds(self) -> float:
        """Of the operators that compute, with the wait for those that were only queued."""
        return self.mode.seconds + self.waited

    @contextmanager
    def run(self) -> Iterator[None]:
        """Count what falls back in the block."""
        before = devices.fallback_report().calls
        try:
            yield
        finally:
            self.fell_back |= devices.fallback_report().calls > before

    @contextmanager
    def calls(self) -> Iterator[None]:
        """Count what is called on the device in a `with` block."""
        with self.run(), self.mode:
            queued = self.mode.native_calls
            yield
            if self.mode.native_calls > queued:
                start = time.perf_counter()
                torch.get_device_module(self._device).synchronize()
                self.waited += time.perf_counter() - start

    def results(self, got: object, expected: object) -> None:
        """Keep the largest error."""
        pair = list(tensors(got)), list(tensors(expected))
        errors = [found.error for found in leaf_deviations(*pair) if found.kind != "exact"]
        self.error = max([self.error, *(error for error in errors if error < float("inf"))])
