"""Triton: kernels that are Python functions, compiled without a device, and launched as any cubin."""
