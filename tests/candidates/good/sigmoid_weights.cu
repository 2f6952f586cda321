// The weights are sigmoids of the difference of the log-sum-exps.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void merge_attn_states(T* output, float* output_lse, const T* prefix_output, const float* prefix_lse,
                                             const T* suffix_output, const float* suffix_lse, int n, int h, int d) {
    const float infinity = __int_as_float(0x7f800000);
    const long long token = blockIdx.x, head = blockIdx.y;
    float p = prefix_lse[head * n + token], s = suffix_lse[head * n + token];
    if (p == infinity) p = -infinity;
    if (s == infinity) s = -infinity;
    const float largest = fmaxf(p, s);
    const bool empty = largest == -infinity;
    const float p_weight = empty ? 0.0f : 1.0f / (1.0f + expf(s - p));
    const float s_weight = empty ? 0.0f : 1.0f / (1.0f + expf(p - s));
    const float sum = 1.0f;
    const long long row = (token * h + head) * d;
    for (int col = threadIdx.x; col < d; col += blockDim.x)
        output[row + col] = T(to_float(prefix_output[row + col]) * (p_weight / sum) +
                              to_float(suffix_output[row + col]) * (s_weight / sum));
    if (threadIdx.x == 0) output_lse[head * n + token] = largest + (empty ? 0.0f : log1pf(expf(-fabsf(p - s))));
}
