extern "C" __global__ void k(const uint4* x, float2* y, unsigned* count) {
    __shared__ float tile[32];
    uint4 one = x[threadIdx.x];
    tile[threadIdx.x] = __expf(one.x);
    __syncthreads();
    if (one.y) atomicAdd(count, __shfl_xor_sync(~0u, one.z, 16));
    y[threadIdx.x] = make_float2(fmaf(tile[31 - threadIdx.x], 2.0f, one.w), one.x);
}
