__kernel void spmv(__global const int* starts, __global const int* column, __global const float* value,
                   __global const float* x, __global float* y, int n) {
    int r = get_global_id(0);
    if (r >= n) return;
    float sum = 0;
    for (int k = starts[r]; k < starts[r + 1]; ++k) sum += value[k] * x[column[k]];
    y[r] = sum;
}
