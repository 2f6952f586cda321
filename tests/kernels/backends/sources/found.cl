__kernel void found(__global uint* a, __local uint* x) {
    uint own[64];
    int t = get_local_id(0), i = get_global_id(0);
    if (a[i]) { x[t] = own[a[i] % 64] = t; }
    barrier(CLK_LOCAL_MEM_FENCE);
    a[i] = x[t];
    a[get_global_size(0) + i] = own[(a[i] + t) % 64];
}
