// A work-item computes TM rows of TN vectors of VEC columns in registers, a work-group GROUP_Y by GROUP_X of such pieces.
// With LOCAL its work-items first copy tiles of A and B, BK deep, to local memory; without it they read the matrices
// themselves, through the caches. OpenCL's vector loads need no alignment beyond an element's.

#if VEC == 1
#define VLOCAL_LOAD(from) (*(from))
#define VLOCAL_STORE(x, to) (*(to) = (x))
#else
#define VLOCAL_LOAD(from) VLOAD(0, from)
#define VLOCAL_STORE(x, to) VSTORE(x, 0, to)
#endif
#define ROWS (GROUP_Y * TM)
#define COLS (GROUP_X * TN * VEC)

// Element e of a vector.
float pick1(float x, int e) { return x; }
float pick2(float2 x, int e) { return e == 0 ? x.lo : x.hi; }
float pick4(float4 x, int e) { return pick2(e < 2 ? x.lo : x.hi, e & 1); }
float pick8(float8 x, int e) { return pick4(e < 4 ? x.lo : x.hi, e & 3); }
float pick16(float16 x, int e) { return pick8(e < 8 ? x.lo : x.hi, e & 7); }

__kernel __attribute__((reqd_work_group_size(GROUP_X, GROUP_Y, 1)))
void gemm(__global const T* restrict a, __global const T* restrict b, __global T* restrict c, int m, int n, int k) {
    const int x = get_local_id(0), y = get_local_id(1);
    const int row0 = get_group_id(1) * ROWS, col0 = get_group_id(0) * COLS;
    const int row = row0 + y * TM;

    FLOATS sum[TM][TN];
    for (int r = 0; r < TM; ++r)
        for (int s = 0; s < TN; ++s) sum[r][s] = (FLOATS)0.0f;

#if LOCAL
    __local float tile_a[BK][ROWS];
    __local float tile_b[BK][COLS];
    const int me = y * GROUP_X + x;
    for (int start = 0; start < k; start += BK) {
        for (int i = me; i < ROWS * BK; i += GROUP_X * GROUP_Y) {
            const int r = i / BK, d = i % BK;
            tile_a[d][r] = row0 + r < m && start + d < k ? load(a + (size_t)(row0 + r) * k + start + d) : 0.0f;
        }
        for (int i = me; i < BK * COLS / VEC; i += GROUP_X * GROUP_Y) {
            const int d = i / (COLS / VEC), col = i % (COLS / VEC) * VEC;
            __global const T* from = b + (size_t)(start + d) * n + col0 + col;
            if (start + d < k && col0 + col + VEC <= n) {
                VLOCAL_STORE(loads(from), &tile_b[d][col]);
            } else {
                for (int e = 0; e < VEC; ++e)
                    tile_b[d][col + e] = start + d < k && col0 + col + e < n ? load(from + e) : 0.0f;
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int d = 0; d < BK; ++d) {
            for (int s = 0; s < TN; ++s) {
                const FLOATS factor = VLOCAL_LOAD(&tile_b[d][(s * GROUP_X + x) * VEC]);
                for (int r = 0; r < TM; ++r) sum[r][s] += tile_a[d][y * TM + r] * factor;
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#else
    if (row + TM <= m && col0 + COLS <= n) {
        // The whole piece lies inside, so that nothing needs a test.
        for (int d = 0; d < k; ++d) {
            for (int s = 0; s < TN; ++s) {
                const FLOATS factor = loads(b + (size_t)d * n + col0 + (s * GROUP_X + x) * VEC);
                for (int r = 0; r < TM; ++r) sum[r][s] += load(a + (size_t)(row + r) * k + d) * factor;
            }
        }
    } else {
        // At the edge, one result after the other.
        for (int r = 0; r < TM && row + r < m; ++r) {
            for (int s = 0; s < TN; ++s) {
                const int col = col0 + (s * GROUP_X + x) * VEC;
                for (int i = col; i < min(col + VEC, n); ++i) {
                    float result = 0.0f;
                    for (int d = 0; d < k; ++d) result += load(a + (size_t)(row + r) * k + d) * load(b + (size_t)d * n + i);
                    store(c + (size_t)(row + r) * n + i, result);
                }
            }
        }
        return;
    }
#endif

    for (int r = 0; r < TM && row + r < m; ++r) {
        for (int s = 0; s < TN; ++s) {
            const int col = col0 + (s * GROUP_X + x) * VEC;
            __global T* to = c + (size_t)(row + r) * n + col;
            if (col + VEC <= n) {
                stores(to, sum[r][s]);
            } else {
                for (int e = 0; col + e < n; ++e) store(to + e, JOIN(pick, VEC)(sum[r][s], e));
            }
        }
    }
}
