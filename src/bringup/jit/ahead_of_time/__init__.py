"""Kernels built, carried (`entry_transfer`, `use_bundle`) and tuned before they are needed."""
