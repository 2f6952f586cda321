__kernel void gather(__global const float* table, __global const int* index, __global float* out, int n, int d) {
    int i = get_global_id(0);
    if (i < n * d) out[i] = table[index[i / d] * d + i % d];
}
