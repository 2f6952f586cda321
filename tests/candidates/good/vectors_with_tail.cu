// Vectors of eight where they fit, single elements for the rest of a row.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void silu_and_mul(const T* __restrict__ input, T* __restrict__ out, int n, int d) {
    const T* gate = input + blockIdx.x * 2ll * d;
    T* to = out + (long long)blockIdx.x * d;
    struct alignas(4 * sizeof(T)) Four { T of[4]; };
    const int whole = d % 4 == 0 ? d : 0;
    for (int col = 4 * threadIdx.x; col < whole; col += 4 * blockDim.x) {
        const Four a = *reinterpret_cast<const Four*>(gate + col), b = *reinterpret_cast<const Four*>(gate + d + col);
        Four c;
        for (int i = 0; i < 4; ++i) {
            const float x = to_float(a.of[i]);
            c.of[i] = T(x / (1.0f + expf(-x)) * to_float(b.of[i]));
        }
        *reinterpret_cast<Four*>(to + col) = c;
    }
    for (int col = whole + threadIdx.x; col < d; col += blockDim.x) {
        const float x = to_float(gate[col]);
        to[col] = T(x / (1.0f + expf(-x)) * to_float(gate[d + col]));
    }
}
