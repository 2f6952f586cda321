#include "kit/tiles.cuh"

extern "C" __global__ void k(int* places, int* tiles, int* out, __half* c) {
    __shared__ kit::Padded<int, 8, 8, 1> padded;
    for (int i = threadIdx.x; i < 64; i += 32) {
        padded(i / 8, i % 8) = i;
        places[i] = kit::swizzled<8>(i / 8, i % 8) / 16;
        places[64 + i] = kit::swizzled<4>(i / 4, i % 4) / 16;
    }
    if (threadIdx.x < 12) {
        const int2 first = kit::tile_of<4, 8, 2>(threadIdx.x, 11, 25);
        tiles[threadIdx.x] = first.x * 100 + first.y;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 64; i += 32) out[i] = padded(i % 8, i / 8);
    if (threadIdx.x < 3) kit::write_pair(c, 1, threadIdx.x * 2, 2, 5, 1.0f + threadIdx.x, 2.0f);
}
