// A warp for each row of the matrix, four of them a block.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#endif

extern "C" __global__ void csr_spmv(const int* __restrict__ offsets, const int* __restrict__ columns,
                                    const T* __restrict__ elements, const T* __restrict__ x, T* __restrict__ out,
                                    int n, int m, int nnz) {
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= n) return;
    const int end = offsets[row + 1];
    float sum = 0.0f;
    for (int at = offsets[row] + threadIdx.x; at < end; at += 32) sum += to_float(elements[at]) * to_float(x[columns[at]]);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) out[row] = T(sum);
}
