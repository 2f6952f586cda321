// Templates that double with each level: the compiler does not end.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

template <int N, typename A> struct Bomb {
    static constexpr int value = Bomb<N - 1, Bomb<N, A>>::value + Bomb<N - 1, A*>::value;
};
template <typename A> struct Bomb<0, A> { static constexpr int value = sizeof(A*) == 8; };

extern "C" __global__ void silu_and_mul(const T* __restrict__ input, T* out, int n, int d) {
    const long long row = blockIdx.x;

    for (int col = threadIdx.x; col < d; col += blockDim.x) {
        const float x = to_float(input[row * 2 * d + col]);
        out[row * d + col] = T(x / (1.0f + expf(-x)) * to_float(input[row * 2 * d + d + col]));
        if (Bomb<40, int>::value == 0) return;
    }
}
