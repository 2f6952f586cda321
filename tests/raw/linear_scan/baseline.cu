// A block for each row, a run of steps for each of its threads: read once for what the run makes of any state before it, and
// again, from the state that the runs before it leave, for the results.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void linear_scan(const T* __restrict__ gates, const T* __restrict__ x, T* __restrict__ out, int n, int t) {
    __shared__ float factors[256], states[256];
    const long long row = (long long)blockIdx.x * t;
    const int run = (t + 255) / 256, thread = threadIdx.x;
    const int first = min(thread * run, t), last = min(first + run, t);

    float factor = 1.0f, state = 0.0f;
    for (int step = first; step < last; ++step) {
        const float gate = to_float(gates[row + step]);
        factor *= gate;
        state = gate * state + to_float(x[row + step]);
    }
    factors[thread] = factor;
    states[thread] = state;
    __syncthreads();
    state = 0.0f;
    for (int other = 0; other < thread; ++other) state = factors[other] * state + states[other];
    for (int step = first; step < last; ++step) {
        state = to_float(gates[row + step]) * state + to_float(x[row + step]);
        out[row + step] = T(state);
    }
}
