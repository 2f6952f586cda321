// The algorithm of vLLM's fused_add_rms_norm_kernel (csrc/layernorm_kernels.cu) in our own words: a block for each row
// adds, keeps the rounded sum and sums the squares, then reads the sum again and scales it. 16-bit types go by vectors
// of 16 bytes where the row and all pointers allow it; float32 goes element by element, as in production. Sum, norm and
// weighted norm are each rounded to T.

#include "kit/vectors.cuh"

enum { WIDTH = 16 / sizeof(T) };
using Vector = kit::Vector<T, WIDTH>;

__device__ __forceinline__ T add(T x, T y) {
    T sum;
    sum = T(float(x) + float(y));
    return sum;
}

__device__ __forceinline__ T weighted(T x, float scale, T weight) {
    T norm, result;
    norm = T(float(x) * scale);
    result = T(float(norm) * float(weight));
    return result;
}

// The sum over the block, for its first thread.
__device__ __forceinline__ float block_sum(float sum, float* partial) {
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lane);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x >= 32) return 0.0f;
    sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0.0f;
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lane);
    return sum;
}

extern "C" __global__ void fused_add_rmsnorm(T* __restrict__ input, T* __restrict__ residual,
                                             const T* __restrict__ weight, float eps, int n, int d) {
    __shared__ float partial[32];
    __shared__ float scale;
    const bool vectors = sizeof(T) == 2 && d % WIDTH == 0 && kit::on_vectors<T, WIDTH>(input) &&
                         kit::on_vectors<T, WIDTH>(residual) && kit::on_vectors<T, WIDTH>(weight);
    T* in = input + (long long)blockIdx.x * d;
    T* res = residual + (long long)blockIdx.x * d;

    float sum = 0.0f;
    if (vectors) {
        for (int i = threadIdx.x; i < d / WIDTH; i += blockDim.x) {
            Vector x = reinterpret_cast<Vector*>(in)[i];
            const Vector y = reinterpret_cast<Vector*>(res)[i];
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) {
                x.value[k] = add(x.value[k], y.value[k]);
                sum += float(x.value[k]) * float(x.value[k]);
            }
            reinterpret_cast<Vector*>(res)[i] = x;
        }
    } else {
        for (int i = threadIdx.x; i < d; i += blockDim.x) {
            const T x = add(in[i], res[i]);
            sum += float(x) * float(x);
            res[i] = x;
        }
    }

    sum = block_sum(sum, partial);
    if (threadIdx.x == 0) scale = rsqrtf(sum / d + eps);
    __syncthreads();

    if (vectors) {
        for (int i = threadIdx.x; i < d / WIDTH; i += blockDim.x) {
            Vector x = reinterpret_cast<Vector*>(res)[i];
            const Vector w = reinterpret_cast<const Vector*>(weight)[i];
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) x.value[k] = weighted(x.value[k], scale, w.value[k]);
            reinterpret_cast<Vector*>(in)[i] = x;
        }
    } else {
        for (int i = threadIdx.x; i < d; i += blockDim.x) in[i] = weighted(res[i], scale, weight[i]);
    }
}
