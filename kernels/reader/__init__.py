"""Reads kernels of CUDA C++ and OpenCL C as a compiler does, and drafts tasks from them."""
