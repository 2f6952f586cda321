#include "kit/copies.cuh"
#include "kit/fragments.cuh"

extern "C" __global__ void k(float* x) {
    alignas(16) __shared__ unsigned place[512];
    const unsigned own = kit::shared_address(place) + threadIdx.x * 16;
    unsigned a[4], b[2];
    kit::copy_later<16>(own, x, true);
    kit::copy_later<8>(own, x, false);
    kit::close_group();
    kit::wait_groups<0>();
    kit::read_own(a, own), kit::read_own(b, own), kit::write_own(own, 7);
    kit::load_a(a, own), kit::load_b(a[0], a[1], b[0], b[1], own);
    float c[4] = {};
    kit::multiply<__half>(c, a, b[0], b[1]);
    x[threadIdx.x] = c[0] + c[3];
}
