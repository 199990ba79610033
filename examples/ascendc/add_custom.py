"""An AscendC kernel as a torch operator: built, launched, differentiated, on the simulated NPU.

Run it: python examples/ascendc/add_custom.py
"""

from __future__ import annotations

import torch
from torch import Tensor

from bringup import devices, ops

devices.load_driver("sim")
kernels = ops.ascendc_load("examples", "add_custom.cpp")


@ops.ascendc_op("examples::vector_add")
def vector_add(x: Tensor, y: Tensor) -> Tensor:
    z = ops.alloc_like(x)
    args = [x.contiguous(), y.contiguous(), z, ops.u32(x.numel())]
    kernels.launch("add_custom", block_dim=8, args=args)
    return z


vector_add.register_autograd(lambda ctx, grad: (grad, grad))


def main() -> None:
    for length in (1024, 8192):
        x = torch.randn(length, device="npu").half().requires_grad_()
        y = torch.randn(length, device="npu").half().requires_grad_()
        z = vector_add(x, y)
        torch.testing.assert_close(z, x + y, atol=1e-3, rtol=0)
        z.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.ones_like(x))
        print(f"{length} elements in 8 blocks: z = x + y, and both gradients are ones")


if __name__ == "__main__":
    main()
