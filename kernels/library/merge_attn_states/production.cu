// The algorithm of vLLM's merge_attn_states_kernel (csrc/attention/merge_attn_states.cu; section 2.2 of
// https://arxiv.org/abs/2501.01005) in our own words: a thread for each vector of 16 bytes, blocks of 128 threads over
// all tokens and heads, each thread working the weights out anew. Widths that no vector divides, and pointers between
// two vectors, which the published kernel refuses, go element by element; both parts empty gives zeros, not NaN.

#include "kit/vectors.cuh"

enum { WIDTH = 16 / sizeof(T) };
using Vector = kit::Vector<T, WIDTH>;

extern "C" __global__ void merge_attn_states(T* __restrict__ output, float* __restrict__ output_lse,
                                             const T* __restrict__ prefix_output, const float* __restrict__ prefix_lse,
                                             const T* __restrict__ suffix_output, const float* __restrict__ suffix_lse,
                                             int n, int h, int d) {
    const float infinity = __int_as_float(0x7f800000);
    const int width = d % WIDTH == 0 ? WIDTH : 1;
    const unsigned int of_head = d / width, index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (unsigned int)n * h * of_head) return;
    const unsigned int row = index / of_head, part = index % of_head;
    const unsigned int token = row / h, head = row % h;

    float p = prefix_lse[head * n + token], s = suffix_lse[head * n + token];
    if (p == infinity) p = -infinity;
    if (s == infinity) s = -infinity;
    const float largest = fmaxf(p, s);
    const bool empty = largest == -infinity;
    const float p_weight = empty ? 0.0f : expf(p - largest), s_weight = empty ? 0.0f : expf(s - largest);
    const float sum = p_weight + s_weight;
    const float p_share = empty ? 0.0f : p_weight / sum, s_share = empty ? 0.0f : s_weight / sum;

    const long long first = (long long)row * d + part * width;
    if (width == WIDTH && kit::on_vectors<T, WIDTH>(output) && kit::on_vectors<T, WIDTH>(prefix_output) &&
        kit::on_vectors<T, WIDTH>(suffix_output)) {
        const Vector x = *reinterpret_cast<const Vector*>(prefix_output + first);
        const Vector y = *reinterpret_cast<const Vector*>(suffix_output + first);
        Vector result;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k)
            result.value[k] = T(float(x.value[k]) * p_share + float(y.value[k]) * s_share);
        *reinterpret_cast<Vector*>(output + first) = result;
    } else {
        for (long long at = first; at < first + width; ++at)
            output[at] = T(float(prefix_output[at]) * p_share + float(suffix_output[at]) * s_share);
    }
    if (part == 0) output_lse[head * n + token] = logf(sum) + largest;
}
