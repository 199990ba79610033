"""Where others' code meets operators: operators, Triton kernels, packages, existing models."""
