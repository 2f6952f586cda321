__kernel void axpy(__global const float* x, __global float* y, float alpha, int n) {
    const int i = get_global_id(0);
    if (i < n) y[i] = alpha * x[i] + y[i];
}
