"""The start of programs that train a model on a driver: they run in processes of their own."""

TRAIN = """
import copy
import sys
import torch
from bringup import devices

def train(model, x, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
"""
