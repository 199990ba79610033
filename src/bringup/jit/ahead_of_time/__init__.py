"""Kernels built and tuned before they are needed."""
