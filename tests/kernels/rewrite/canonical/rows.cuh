// The sum of a block's threads in each thread of its first warp, by a value for each warp.
__device__ float of_warp(float v) {
    for (int by = 16; by > 0; by /= 2) v += __shfl_xor_sync(0xffffffffu, v, by);
    return v;
}
__device__ float of_block(float v) {
    const int count = 1;
    __shared__ float warps[count][32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    v = of_warp(v);
    if (lane == 0) warps[0][warp] = v;
    __syncthreads();
    v = threadIdx.x < WARPS ? warps[0][lane] : 0.0f;
    return of_warp(v);
}
