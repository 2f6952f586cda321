// A block for each row, a run of columns for each of its threads: read for its sum, then again for the results.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#endif

extern "C" __global__ void cumsum(const T* __restrict__ x, T* __restrict__ out, int n, int d) {
    __shared__ float sums[256];
    const T* from = x + (long long)blockIdx.x * d;
    T* to = out + (long long)blockIdx.x * d;
    const int run = (d + 255) / 256, thread = threadIdx.x;
    const int first = min(thread * run, d), last = min(first + run, d);

    float sum = 0.0f;
    for (int col = first; col < last; ++col) sum += to_float(from[col]);
    sums[thread] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int other = 0; other < thread; ++other) sum += sums[other];
    for (int col = first; col < last; ++col) {
        sum += to_float(from[col]);
        to[col] = T(sum);
    }
}
