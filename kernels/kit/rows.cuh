// Rows of a matrix by blocks, warps or lanes: which rows a block takes, which columns a thread, and rows that begin between two
// vectors.

#include "kit/vectors.cuh"

namespace kit {

// The row of this thread: blockIdx.x * ROWS + threadIdx.y and, where the blocks WALK, every gridDim.x * ROWS rows on, as in
// do { ... at.row ... } while (at.next(n)). The last rows of a block may lie beyond n: they take part in barriers.
template <int ROWS, bool WALK> struct RowOfBlock {
    long long row = (long long)blockIdx.x * ROWS + threadIdx.y;
    unsigned round = 0;
    __device__ __forceinline__ bool next(int n) {
        ++round;
        row += (long long)gridDim.x * ROWS;
        return WALK && row - threadIdx.y < n;  // the same answer in every thread of the block
    }
};

// The tile of this block: blockIdx.x and, where the blocks WALK, every gridDim.x tiles on; used as RowOfBlock is. A grid that
// does not walk has a block for each tile.
template <bool WALK> struct TileOfBlock {
    unsigned tile = blockIdx.x;
    __device__ __forceinline__ bool next(unsigned tiles) {
        tile += gridDim.x;
        return WALK && tile < tiles;
    }
};

// A column as a thread's first one and a constant, which becomes part of an access where a pointer is added to it.
struct Column {
    int first, offset;
    __device__ __forceinline__ operator int() const { return first + offset; }
};
template <class T> __device__ __forceinline__ T* operator+(T* row, Column at) { return row + at.first + at.offset; }

// A row whose `end` columns divide into vectors of V, shared by THREADS threads. Of a thread's vectors, THREADS * V columns
// apart, the first ITEMS (or none) may be held; `more` are those behind. Make it before the loop over rows, and set `end`
// there.
template <int THREADS, int V, int ITEMS = 1> struct Columns {
    enum { STEP = THREADS * V };
    const int first;
    int end;
    __device__ __forceinline__ Columns(int end = 0, int start = 0) : first(start + threadIdx.x * V), end(end) {}
    // body(item, column) for each held vector, with a Column or an int; body(column) for each one behind.
    template <class Body> __device__ __forceinline__ void held(Body body) const {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (first + i * STEP < end) body(i, Column{first, i * STEP});
    }
    template <class Body> __device__ __forceinline__ void more(Body body) const {
        for (int col = first + ITEMS * STEP; col < end; col += STEP) body(col);
    }
    // body(item, k) for each element of the held vectors.
    template <class Body> __device__ __forceinline__ void each_held(Body body) const {
        held([&](int i, int) {
#pragma unroll
            for (int k = 0; k < V; ++k) body(i, k);
        });
    }
    // Loads the held vectors of a row before the first is used.
    template <int CACHE, class T, int N> __device__ __forceinline__ void fetch(Vector<T, V> (&to)[N], const T* row) const {
        held([&](int i, Column col) { to[i] = load<V, CACHE>(row + col); });
    }
    // The same of two rows, side by side.
    template <int CACHE, class T, class U, int N> __device__ __forceinline__
    void fetch(Vector<T, V> (&to)[N], const T* row, Vector<U, V> (&to2)[N], const U* row2) const {
        held([&](int i, Column col) { to[i] = load<V, CACHE>(row + col), to2[i] = load<V, CACHE>(row2 + col); });
    }
    // body(column, vector) for each vector of a row behind the held ones; the next one is asked for before the body runs
    // (prefetch), in registers of its own.
    template <int CACHE, class T, class Body> __device__ __forceinline__ void ahead(const T* row, Body body) const {
        Vector<T, V> next;
        int col = first + ITEMS * STEP;
        if (col < end) next = load<V, CACHE>(row + col);
        while (col < end) {
            const Vector<T, V> now = next;
            const int at = col;
            if ((col += STEP) < end) next = load<V, CACHE>(row + col);
            body(at, now);
        }
    }
    // Keeps a row in shared memory, of `end` elements, aligned to a vector: the thread that kept an element reads it again
    // without a barrier, others after one.
    template <int CACHE, class T> __device__ __forceinline__ void keep(T* shared, const T* row) const {
        for (int col = first; col < end; col += STEP) store(shared + col, load<V, CACHE>(row + col));
    }
};

// A row of `end` columns that begins or ends between vectors of V, shared by THREADS threads: vectors, and the elements before
// the first and behind the last, one by one. in_step: whether all arrays begin at the same place between two vectors; if
// not, there are only elements. The loops stay loops, as few rows need them: they should not decide a kernel's registers.
template <int THREADS, int V> struct Pieces {
    int head, last, edges;
    template <class T> __device__ __forceinline__ Pieces(const T* row, int end, bool in_step)
        : head(in_step ? min(end, elements_to_vector<V>(row)) : end),
          last(head + (end - head) / V * V), edges(head + end - last) {}
    // body(column)
    template <int UNROLL, class Body> __device__ __forceinline__ void vectors(Body body) const {
#pragma unroll UNROLL
        for (int col = head + threadIdx.x * V; col < last; col += THREADS * V) body(col);
    }
    template <class Body> __device__ __forceinline__ void elements(Body body) const {
#pragma unroll 1
        for (int i = threadIdx.x; i < edges; i += THREADS) body(i < head ? i : i - head + last);
    }
};

}  // namespace kit
