"""A run's winners in the forms that other programs take: PyTorch, CuPy, C++, Hugging Face kernels, OpenCL."""
