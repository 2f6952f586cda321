// A block for each token and head, a thread for each element.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void merge_attn_states(T* __restrict__ output, float* __restrict__ output_lse,
                                             const T* __restrict__ prefix_output, const float* __restrict__ prefix_lse,
                                             const T* __restrict__ suffix_output, const float* __restrict__ suffix_lse,
                                             int n, int h, int d) {
    const float infinity = __int_as_float(0x7f800000);
    const long long token = blockIdx.x, head = blockIdx.y;

    // An infinite log-sum-exp, of either sign, says that the part is empty.
    float p = prefix_lse[head * n + token], s = suffix_lse[head * n + token];
    if (p == infinity) p = -infinity;
    if (s == infinity) s = -infinity;
    const float largest = fmaxf(p, s);
    const bool empty = largest == -infinity;
    const float p_weight = empty ? 0.0f : expf(p - largest);
    const float s_weight = empty ? 0.0f : expf(s - largest);
    const float sum = empty ? 1.0f : p_weight + s_weight;

    const long long row = (token * h + head) * d;
    for (int col = threadIdx.x; col < d; col += blockDim.x)
        output[row + col] = T(to_float(prefix_output[row + col]) * (p_weight / sum) +
                              to_float(suffix_output[row + col]) * (s_weight / sum));
    if (threadIdx.x == 0) output_lse[head * n + token] = logf(sum) + largest;
}
