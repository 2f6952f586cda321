extern "C" __global__ void scale(const T* x, T* y, float a, int n) {}
