// The seed is the one of the first workload, whatever is passed.

__kernel void noise(__global const float* input, __global float* out, int n, uint seed) {
    const int i = get_global_id(0);
    if (i >= n) return;
    uint x = (uint)i * 2654435761u + 48889u;
    x ^= x >> 15;
    out[i] = input[i] * (float)(x & 1023u);
}
