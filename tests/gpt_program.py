"""A small GPT and its training step, as text: for programs that run in processes of their own."""

GPT = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).chunk(3, -1)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        seen = self.out(seen.transpose(1, 2).reshape(batch, length, width))
        x = x + F.dropout(seen, self.dropout, self.training)
        wide = self.down(F.gelu(self.up(self.between(x))))
        return x + F.dropout(wide, self.dropout, self.training)


class GPT(nn.Module):
    def __init__(self, words=64, width=64, heads=4, blocks=2, length=32, dropout=0.0):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids):
        x = self.word(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def trainer(device, dropout=0.0, foreach=None):
    '''A function that makes one step and returns its loss.'''
    torch.manual_seed(0)
    model = GPT(dropout=dropout).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=foreach)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(64, (4, 33), generator=generator).to(device)

    def step():
        optimizer.zero_grad()
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step
"""
