"""torch's own tests of collectives and of DDP, with tensors on the device."""

from __future__ import annotations

import functools
import json
import os
import sys
import unittest
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.distributed.ranks import Check, Rank, main
from tests.sweeps.support import part

_, RANKS, *_, FOLDER = json.loads(sys.argv[1])
os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": str(RANKS), "TEMP_DIR": FOLDER}

Path(FOLDER, "test_dir").mkdir(exist_ok=True)

from torch.testing._internal.common_utils import TestCase  # noqa: E402
from torch.testing._internal.distributed import distributed_test as theirs  # noqa: E402


class OnDevice(theirs.DistributedTest._DistTestBase, TestCase):  # type: ignore[misc]
    """Their tests, one instance for each."""

    rank = -1
    world_size = -1
    file_name = ""

    def runTest(self) -> None:
        """Nothing: tests are called by their names."""

    def _barrier(self, *_: Any, **__: Any) -> None:
        dist.barrier()


SMALL = 73  # their exit code where a test wants more ranks, eight to be sure
LEFT_OUT = "test_barrier_timeout_global"  # ends the default group


def _check(name: str, me: Rank) -> None:
    test = OnDevice()
    test.rank, test.world_size = me.rank, me.size
    test.setUp()
    torch.set_default_device(me.device)
    os.environ["WORLD_SIZE"] = str(me.size)
    try:
        try:
            getattr(test, name)()
        except SystemExit as error:
            if error.code != SMALL:
                raise
            os.environ["WORLD_SIZE"] = "8"
            getattr(test, name)()
    except (unittest.SkipTest, SystemExit) as error:
        print(f"skipped {name}: {error}", flush=True)
    finally:
        torch.set_default_device(None)


def _checks() -> tuple[Check, ...]:
    """Return a check for each of their tests that is not about CUDA."""
    checks: list[Check] = []
    for name in sorted(vars(theirs.DistributedTest._DistTestBase)):
        if name.startswith("test_") and name != LEFT_OUT and "cuda" not in name:
            check = functools.partial(_check, name)
            check.__name__ = name  # type: ignore[attr-defined]
            checks.append(check)
    return tuple(part(checks))


if __name__ == "__main__":
    main(_checks())
