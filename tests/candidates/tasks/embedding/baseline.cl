__kernel void embedding(__global const int* ids, __global const float* table, __global float* out, int n, int v, int d) {
    const size_t token = get_group_id(0);
    __global const float* from = table + (size_t)ids[token] * d;
    for (int col = get_local_id(0); col < d; col += get_local_size(0)) out[token * d + col] = from[col];
}
