__kernel void roll(__global const float* x, __global float* out, int shift, int n) {
    const int i = get_global_id(0);
    if (i >= n) return;
    const int from = (i + shift) % n;
    out[i] = x[from < 0 ? from + n : from];
}
