"""A binary becomes a kernel of this process: `binary`, `prebuilt` libraries, `cuda_kernel`."""
