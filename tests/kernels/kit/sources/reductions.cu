#include "kit/reduce.cuh"

extern "C" __global__ void k(float* x, float* y) {
    const int me = threadIdx.y * 64 + threadIdx.x;
    __shared__ float sums[2][2];
    __shared__ unsigned int most[2][2];
    __shared__ kit::Exponentials exponentials[2][2];
    __shared__ kit::Moments moments[2][2];
    y[me] = kit::fold_row<64>(x[me], sums[threadIdx.y], kit::Sum{});
    y[128 + me] = float(kit::fold_row<64>((unsigned int)x[me], most[threadIdx.y], kit::Largest{}));
    const kit::JoinExponentials<false> join;
    const auto all = kit::fold_row<64>(kit::Exponentials{x[me], 1.0f}, exponentials[threadIdx.y], join);
    y[256 + me] = kit::exponential<false>(x[me] - all.largest) / all.sum;
    const auto both = kit::fold_row<64>(kit::Moments{1.0f, x[me], 0.0f}, moments[threadIdx.y], kit::JoinMoments{});
    y[384 + me] = both.squares / both.count;
    y[512 + me] = kit::fold_lanes<8>(x[me], kit::Largest{});
}
