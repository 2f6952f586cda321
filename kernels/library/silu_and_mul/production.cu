// The algorithm of vLLM's act_and_mul_kernel (csrc/activation_kernels.cu) in our own words: a block for each row, whose
// threads take vectors of 16 bytes where the halves of a row begin at multiples of that, else single elements. The gated
// value is rounded to T before the product, as in production.

#include "kit/vectors.cuh"

enum { WIDTH = 16 / sizeof(T) };
using Vector = kit::Vector<T, WIDTH>;

__device__ __forceinline__ T gated(T gate, T up) {
    const float x = float(gate);
    T silu, result;
    silu = T(x / (1.0f + expf(-x)));
    result = T(float(silu) * float(up));
    return result;
}

extern "C" __global__ void silu_and_mul(const T* __restrict__ input, T* __restrict__ out, int n, int d) {
    const long long row = blockIdx.x;
    const T* gate = input + row * 2 * d;
    const T* up = gate + d;
    T* to = out + row * d;
    if (d % WIDTH == 0 && kit::on_vectors<T, WIDTH>(input) && kit::on_vectors<T, WIDTH>(out)) {
        for (int i = threadIdx.x; i < d / WIDTH; i += blockDim.x) {
            const Vector x = reinterpret_cast<const Vector*>(gate)[i];
            const Vector y = reinterpret_cast<const Vector*>(up)[i];
            Vector result;
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) result.value[k] = gated(x.value[k], y.value[k]);
            reinterpret_cast<Vector*>(to)[i] = result;
        }
    } else {
        for (int i = threadIdx.x; i < d; i += blockDim.x) to[i] = gated(gate[i], up[i]);
    }
}
