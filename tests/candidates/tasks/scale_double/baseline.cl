#pragma OPENCL EXTENSION cl_khr_fp64 : enable
__kernel void scale_double(__global const double* a, __global const double* b, __global double* out, int n) {
    const int i = get_global_id(0);
    if (i < n) out[i] = a[i] * b[i];
}
