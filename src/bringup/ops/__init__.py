"""Kernels become torch operators."""
