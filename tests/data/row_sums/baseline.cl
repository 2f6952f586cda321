__kernel void rows(__global const float* x, __global const float* w, __global float* y, int m, int n) {
    int r = get_global_id(0);
    if (r >= m) return;
    float sum = 0, even = 0;
    for (int k = 0; k < n; ++k) sum += x[r * n + k] * w[k];
    y[r] = sum + even;
}
