"""Train a small GPT on several devices: sharded, compiled, saved, and resumed on any number.

    torchrun --nproc-per-node 2 examples/distributed/train_gpt.py --folder run --steps 20
    torchrun --nproc-per-node 3 examples/distributed/train_gpt.py --folder run --steps 40

The second line goes on where the first one ended. Without a device of its own a machine has the
simulated NPU; `BRINGUP_DRIVER` names another driver. Under torchrun with `--max-restarts` a worker
that is killed costs the steps since the last checkpoint.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from bringup import devices

WORDS, WIDTH, LENGTH, BATCH = 64, 32, 16, 12


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.before(x)).chunk(3, -1)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class GPT(nn.Module):
    """Predicts the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.word(words) + self.place(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch(step: int, rank: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's part of a step's batch: words and the next words."""
    generator = torch.Generator().manual_seed(step % 4)
    words = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=generator)
    part = words[rank * BATCH // ranks : (rank + 1) * BATCH // ranks]
    return part[:, :-1], part[:, 1:]


def main() -> None:
    """Train until `--steps` are done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where checkpoints lie")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    asked = parser.parse_args()

    name = devices.load_driver(os.environ.get("BRINGUP_DRIVER", "sim")).device_name
    device = torch.device(name, int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count())
    torch.accelerator.set_device_index(device.index)
    dist.init_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if BATCH % ranks:
        raise SystemExit(f"a batch of {BATCH} cannot be cut into {ranks} equal parts")

    torch.manual_seed(0)
    model = GPT().to(device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    compiled = torch.compile(model)

    begin = 0
    saved = sorted(asked.folder.glob("step-*/.metadata"))  # written last
    if saved:
        begin = int(saved[-1].parent.name.removeprefix("step-"))
        weights, state = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=saved[-1].parent)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    for step in range(begin, asked.steps):
        words, following = (part.to(device) for part in batch(step, rank, ranks))
        loss = functional.cross_entropy(compiled(words).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if rank == 0:
            print(f"step {step + 1}: {mean.item():.6f}", flush=True)
        if (step + 1) % asked.every == 0 or step + 1 == asked.steps:
            folder = asked.folder / f"step-{step + 1:06d}"
            if rank == 0:
                shutil.rmtree(folder, ignore_errors=True)
            dist.barrier()
            weights, state = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
