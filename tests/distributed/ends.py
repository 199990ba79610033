"""A process that ends while a collective of its is pending."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from tests.distributed.ranks import Check, Rank, main

LIMIT = 40.0


def a_process_ends_before_the_time_limit_of_what_is_pending(me: Rank) -> None:
    """Is the last check: the first rank is not there any more."""
    group = dist.new_group(timeout=timedelta(seconds=LIMIT))
    x = torch.ones(3, device=me.device)
    dist.all_reduce(x, group=group)
    torch.accelerator.synchronize()
    process = [os.getpid()]
    dist.broadcast_object_list(process, 0)
    if me.rank == 0:
        dist.all_reduce(x, group=group, async_op=True)
        sys.exit(0)
    begin = time.monotonic()
    while Path(f"/proc/{process[0]}").exists():
        assert time.monotonic() - begin < LIMIT - 10, "it waits for its peer"
        time.sleep(0.01)
    print("it ended in time", flush=True)
    os._exit(0)


CHECKS: tuple[Check, ...] = (a_process_ends_before_the_time_limit_of_what_is_pending,)

if __name__ == "__main__":
    main(CHECKS)
