"""What a trial comes down to, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.cli.trial.run import Line, Trial
from bringup.compiler.options import MODES
from bringup.report import Judgement, Ratio

_MEANINGFUL = 1.5  # an interval whose ends are further apart is no figure


def spread(ratio: Ratio) -> str:
    """Return a ratio with its interval, the sure end of a wide one, or why there is none."""
    if ratio.high == float("inf"):
        return f"too few rounds to say ({ratio.rounds})"
    is_wide = ratio.high > _MEANINGFUL * ratio.low
    interval = f"({ratio.low:.2f} to {ratio.high:.2f})"
    if ratio.judgement is Judgement.TOO_NOISY:
        return "too noisy to say" if is_wide else f"too noisy to say {interval}"
    if is_wide:
        bound, end = ("least", ratio.low) if ratio.low > 1 else ("most", ratio.high)
        return f"at {bound} {end:.2f}x"
    return f"{ratio.median:.2f}x {interval}"


def recommended_code(trial: Trial) -> str:
    """Return the line to paste, "" where nothing is recommended."""
    wrong, timed = _judged(trial)
    faster = [] if wrong else _faster(timed)
    if not faster:
        return ""
    return f'torch.compile(model, backend="bringup", mode="{_fastest(faster).mode}")'


def verdict(trial: Trial) -> str:
    """Return the sentence: what to use, or why nothing helps, or that the machine is too noisy."""
    wrong, timed = _judged(trial)
    if wrong:
        return f"Do not use {' and '.join(map(_wrong, wrong))}."
    if not timed:
        if trial.is_interrupted:
            return "It was interrupted before anything could be compared."
        ours = (line for line in trial.lines if line.mode in MODES)
        reasons = "; ".join(f"{line.mode}: {line.reason}" for line in ours)
        return f"bringup does nothing for this model: {reasons}."
    if faster := _faster(timed):
        return _recommended(_fastest(faster))
    noisy = [line.mode for line in timed if _judgement(line) is Judgement.TOO_NOISY]
    if noisy:
        return (
            f"Too noisy to say of {' and '.join(noisy)}: give it more time with --seconds, or less "
            "load."
        )
    split = f"; Dynamo split it in {len(trial.breaks) + 1} parts" if trial.breaks else ""
    return f"bringup does not make this model faster than eager: {_each(timed)}{split}."


def _judged(trial: Trial) -> tuple[list[Line], list[Line]]:
    """Return the backend's modes whose outputs are wrong, and those that were timed."""
    ours = [line for line in trial.lines if line.mode in MODES]
    wrong = [line for line in ours if _is_wrong(line, trial.tolerance_of(line.mode))]
    return wrong, [line for line in ours if line.speedup is not None]


def _faster(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if _judgement(line) is Judgement.MORE]


def _fastest(lines: Sequence[Line]) -> Line:
    """Return the fastest; rounded weights only where they are faster than all else beyond doubt."""
    exact = [line for line in lines if line.mode != "max"]
    fastest = max(lines, key=lambda line: _median(line.speedup))
    if fastest in exact or not exact:
        return fastest
    second = max(exact, key=lambda line: _median(line.speedup))
    assert fastest.speedup is not None
    assert second.speedup is not None
    return fastest if fastest.speedup.low > second.speedup.high else second


def _is_wrong(line: Line, tolerance: float) -> bool:
    if line.max_abs_diff is None:
        return False
    return not line.max_abs_diff <= tolerance  # NaN too


def _wrong(line: Line) -> str:
    return f"{line.mode}: {line.reason or f'its output is {line.max_abs_diff:.1e} from eager'}"


def _recommended(line: Line) -> str:
    assert line.speedup is not None
    gap = "" if line.max_abs_diff is None else f"; outputs agree within {line.max_abs_diff:.1e}"
    return f"{line.mode} is {spread(line.speedup)} as fast as eager{_against_peer(line)}{gap}."


def _against_peer(line: Line) -> str:
    ratio = line.speedup_vs_inductor
    if ratio is None:
        return ""
    if ratio.judgement is Judgement.TOO_NOISY:
        return f", {spread(ratio)} against Inductor"
    if ratio.judgement is Judgement.ALIKE:
        return ", and as fast as Inductor"
    return f", and {spread(ratio)} as fast as Inductor"


def _judgement(line: Line) -> Judgement:
    assert line.speedup is not None
    return line.speedup.judgement


def _median(ratio: Ratio | None) -> float:
    return 0.0 if ratio is None else ratio.median


def _each(lines: Sequence[Line]) -> str:
    return ", ".join(f"{line.mode} {spread(line.speedup)}" for line in lines if line.speedup)
