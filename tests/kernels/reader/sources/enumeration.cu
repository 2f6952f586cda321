// A value of an enumeration, as the source launches it.
enum Way { ONCE, TWICE };
template <Way W> __global__ void k(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = W == TWICE ? 2 * x[i] : x[i];
}
void host(const float* x, float* y, int n) { k<TWICE><<<n / 256, 256>>>(x, y, n); }
