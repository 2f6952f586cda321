__kernel void row_sum(__global const int* input, __global int* out, int n, int d) {
    const int row = get_global_id(0);
    if (row >= n) return;
    int sum = 0;
    for (int col = 0; col < d; ++col) sum += input[(size_t)row * d + col];
    out[row] = sum;
}
