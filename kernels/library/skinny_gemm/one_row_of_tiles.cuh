// gemm's warpgroups for few rows: tiles of C lie in one row, or in two.
enum { GROUP = 1 };
