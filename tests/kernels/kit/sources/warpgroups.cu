#include "kit/copies.cuh"
#include "kit/clusters.cuh"
#include "kit/warpgroups.cuh"

extern "C" __global__ void k(float* x) {
    alignas(16) __shared__ unsigned place[512];
    const unsigned own = kit::shared_address(place) + threadIdx.x * 16;
    float d[32] = {};
    kit::start_barrier(own, 1), kit::expect(own, 16), kit::arrive(own), kit::wait_for(own, 0);
    kit::begin_products();
    kit::multiply<__half>(d, kit::described(own, 16, 1024), kit::described(own, 16, 1024));
    kit::close_products(), kit::wait_products<0>();
    kit::cluster_arrive(), kit::cluster_wait(), kit::give(own, 0, d[0], d[1]), kit::meet_cluster();
    x[threadIdx.x] += kit::read_from<float2>(own, 0).x + float(kit::packed<__half>(d[0], d[1]));
}
