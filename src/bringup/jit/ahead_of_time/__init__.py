"""Kernels built (`prebuild`), carried (`entry_transfer`, `use_bundle`) and measured (`autotune`,
`tuning_results`) before they are needed.
"""
