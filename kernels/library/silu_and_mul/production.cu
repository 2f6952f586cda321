// The algorithm of vLLM's act_and_mul_kernel (csrc/activation_kernels.cu) in our own words: a block for each row, whose
// threads take vectors of 16 bytes where the halves of a row begin at multiples of that, else single elements. The gated
// value is rounded to T before the product, as in production.

__device__ __forceinline__ T gated(T gate, T up) {
    const float x = to_float(gate);
    T silu, result;
    from_float(silu, x / (1.0f + expf(-x)));
    from_float(result, to_float(silu) * to_float(up));
    return result;
}

extern "C" __global__ void silu_and_mul(const T* __restrict__ input, T* __restrict__ out, int n, int d) {
    const long long row = blockIdx.x;
    const T* gate = input + row * 2 * d;
    const T* up = gate + d;
    T* to = out + row * d;
    if (d % WIDTH == 0 && aligned(input) && aligned(out)) {
        for (int i = threadIdx.x; i < d / WIDTH; i += blockDim.x) {
            const Vector x = reinterpret_cast<const Vector*>(gate)[i];
            const Vector y = reinterpret_cast<const Vector*>(up)[i];
            Vector result;
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) result.at[k] = gated(x.at[k], y.at[k]);
            reinterpret_cast<Vector*>(to)[i] = result;
        }
    } else {
        for (int i = threadIdx.x; i < d; i += blockDim.x) to[i] = gated(gate[i], up[i]);
    }
}
