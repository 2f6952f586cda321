// The textbook kernel: a work-group computes a tile of 16 x 16 results, one a work-item, from tiles in local memory.

#define TILE 16

#if T_IS_FLOAT16
float load(__global const T* from, size_t i) { return vload_half(i, from); }
void store(__global T* to, size_t i, float x) { vstore_half_rte(x, i, to); }
#elif T_IS_BFLOAT16
// bfloat16 is the upper half of a float; a store rounds to nearest even.
float load(__global const T* from, size_t i) { return as_float((uint)from[i] << 16); }
void store(__global T* to, size_t i, float x) {
    const uint bits = as_uint(x);
    to[i] = isnan(x) ? (ushort)0x7fc0 : (ushort)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
#else
float load(__global const T* from, size_t i) { return from[i]; }
void store(__global T* to, size_t i, float x) { to[i] = x; }
#endif

__kernel __attribute__((reqd_work_group_size(TILE, TILE, 1)))
void gemm(__global const T* a, __global const T* b, __global T* c, int m, int n, int k) {
    __local float tile_a[TILE][TILE];
    __local float tile_b[TILE][TILE];
    const int x = get_local_id(0), y = get_local_id(1);
    const long row = get_global_id(1), col = get_global_id(0);

    float sum = 0.0f;
    for (int start = 0; start < k; start += TILE) {
        tile_a[y][x] = row < m && start + x < k ? load(a, row * k + start + x) : 0.0f;
        tile_b[y][x] = col < n && start + y < k ? load(b, (long)(start + y) * n + col) : 0.0f;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = 0; i < TILE; ++i) sum += tile_a[y][i] * tile_b[i][x];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (row < m && col < n) store(c, row * n + col, sum);
}
