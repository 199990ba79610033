"""`python -m bringup_example_rms_norm.build_kernels`: compiles every variant into `kernels.bundle`,
which the wheel carries to machines without a compiler.
"""

from __future__ import annotations

from pathlib import Path

import torch

from bringup import jit
from bringup_example_rms_norm import rms_norm, rms_norm_backward

BUNDLE = Path(__file__).with_name("kernels.bundle")


def main() -> None:
    wanted = []
    for dtype in (torch.float32, torch.float64):
        x, weight = torch.empty(1, 1, dtype=dtype), torch.empty(1, dtype=dtype)
        wanted += [rms_norm.params(x, weight), rms_norm_backward.params(x, x, weight)]
    report = jit.prebuild(wanted).check()
    keys = [outcome.key for outcome in report.outcomes]
    jit.cache().export_bundle(BUNDLE, keys=keys)
    print(f"{BUNDLE}: {len(keys)} kernels")


if __name__ == "__main__":
    main()
