__kernel void mix_integers(__global const int* a, __global const int* b, __global int* out, int n) {
    const int i = get_global_id(0);
    if (i < n) out[i] = (a[i] ^ (a[i] >> 1)) ^ (b[i] & 15);
}
