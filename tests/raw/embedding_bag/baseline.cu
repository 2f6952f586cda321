// A block for each bag; neighbouring threads take neighbouring columns.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#endif

extern "C" __global__ void embedding_bag(const T* __restrict__ table, const int* __restrict__ rows, T* __restrict__ out,
                                         int n, int k, int d) {
    const int* of_bag = rows + (long long)blockIdx.x * k;
    for (int col = threadIdx.x; col < d; col += blockDim.x) {
        float sum = 0.0f;
        for (int j = 0; j < k; ++j) sum += to_float(table[(long long)of_bag[j] * d + col]);
        out[(long long)blockIdx.x * d + col] = T(sum);
    }
}
