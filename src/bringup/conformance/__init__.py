"""Checks of a device against PyTorch's own test data."""
