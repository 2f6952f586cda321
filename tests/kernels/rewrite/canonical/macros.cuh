#define KERNEL_LOOP(i, n) \
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; /* of the grid */ \
         i < (n); i += blockDim.x * gridDim.x)
#define TID threadIdx.x
#define INDEX (blockIdx.x * blockDim.x + TID)
#define LIMIT(i, n, what) if ((i) >= (n)) { what; return; }
#define NAMED(name) int name##_at = blockIdx.x * blockDim.x + threadIdx.x
constexpr int THREADS = 64;
const unsigned int SHIFT = 6;
