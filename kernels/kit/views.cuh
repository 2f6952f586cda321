// Views that stand for the pointers of a kernel's body, so that the body of an element serves vectors and tails alike.

#include "kit/rows.cuh"

namespace kit {

// Place of an element in a view: `lane` of the vector that the view has at hand, column `col` of the row.
struct Lane { int lane, col; };

// Views stand for the pointers of a kernel's body: x[lane] is an element of a vector in registers, x[col] one in memory. So a
// generic lambda over them, which is called with a Lane or an int, serves vectors and tails. A row that is read:
template <class T, int V, int CACHE = PLAIN> struct In {
    using Held = Vector<T, V>;
    const T* pointer;
    Held* held = nullptr;  // apart from the pointer, which the compiler would keep in memory with it
    __device__ __forceinline__ In(const T* pointer, Held* held = nullptr) : pointer(pointer), held(held) {}
    __device__ __forceinline__ T operator[](Lane at) const { return held->value[at.lane]; }
    __device__ __forceinline__ T operator[](int col) const { return pointer[col]; }
    template <class At> __device__ __forceinline__ void fetch(At col) const { *held = load<V, CACHE>(pointer + col); }
    template <class At> __device__ __forceinline__ void put(At) const {}
};
// One that is written: a vector is stored when the body has run for each of its elements.
template <class T, int V, int CACHE = PLAIN> struct Out {
    using Held = Vector<T, V>;
    T* pointer;
    Held* held = nullptr;
    __device__ __forceinline__ Out(T* pointer, Held* held = nullptr) : pointer(pointer), held(held) {}
    __device__ __forceinline__ T& operator[](Lane at) const { return held->value[at.lane]; }
    __device__ __forceinline__ T& operator[](int col) const { return pointer[col]; }
    template <class At> __device__ __forceinline__ void fetch(At) const {}
    template <class At> __device__ __forceinline__ void put(At col) const { store<CACHE>(pointer + col, *held); }
};
// One that is read and written.
template <class T, int V, int CACHE = PLAIN, int STORED = CACHE> struct InOut : Out<T, V, STORED> {
    using Out<T, V, STORED>::Out;
    template <class At> __device__ __forceinline__ void fetch(At col) const {
        *this->held = load<V, CACHE>(this->pointer + col);
    }
};
// One that is read from memory, element by element, as it begins elsewhere between two vectors.
template <class T> struct Elements {
    const T* pointer;
    __device__ __forceinline__ Elements(const T* pointer) : pointer(pointer) {}
    __device__ __forceinline__ T operator[](Lane at) const { return pointer[at.col]; }
    __device__ __forceinline__ T operator[](int col) const { return pointer[col]; }
};
// body(lane) for each element of the vectors that these views have at hand, and stores what is written.
template <int V, class At, class Body, class... Views>
__device__ __forceinline__ void each_lane(At col, Body body, Views... views) {
#pragma unroll
    for (int k = 0; k < V; ++k) body(views..., Lane{k, col + k});
    (views.put(col), ...);
}
// The same for the vectors at `col`, which are loaded first.
template <int V, class At, class Body, class... Views>
__device__ __forceinline__ void each_loaded(At col, Body body, Views... views) {
    [&](typename Views::Held... held) {
        (Views(views.pointer, &held).fetch(col), ...);
        each_lane<V>(col, body, Views(views.pointer, &held)...);
    }(typename Views::Held()...);
}

// body(views..., lane) and body(views..., column) for each element of a row that begins or ends between vectors.
template <int UNROLL, int THREADS, int V, class Body, class... Views>
__device__ __forceinline__ void each(const Pieces<THREADS, V>& pieces, Body body, Views... views) {
    pieces.template vectors<UNROLL>([&](int col) { each_loaded<V>(col, body, views...); });
    pieces.elements([&](int col) { body(views..., col); });
}

template <class Held, int N> struct Several { Held at[N]; };

// body(views..., lane or column) for each element of a row, by THREADS threads: in vectors, of which a thread asks for ITEMS
// of each view before it uses the first, or with `aligned` false element by element.
template <int THREADS, int V, int ITEMS = 1, class Body, class... Views>
__device__ __forceinline__ void over_row(int end, bool aligned, Body body, Views... views) {
    if (!aligned) {
#pragma unroll 1
        for (int col = threadIdx.x; col < end; col += THREADS) body(views..., col);
        return;
    }
    for (int start = 0; start < end; start += THREADS * V * ITEMS) {
        const Columns<THREADS, V, ITEMS> columns(end, start);
        [&](Several<typename Views::Held, ITEMS>... held) {
            columns.held([&](int i, Column col) { (Views(views.pointer, held.at + i).fetch(col), ...); });
            columns.held([&](int i, Column col) { each_lane<V>(col, body, Views(views.pointer, held.at + i)...); });
        }(Several<typename Views::Held, ITEMS>()...);
    }
}

}  // namespace kit
