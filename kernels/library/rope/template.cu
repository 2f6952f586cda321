// LANES threads share a set of HEADS heads of one token, for which each keeps its cosines and sines; a block takes a tile of
// ROWS such sets. A thread has a vector of both halves of each head in flight before it computes. Heads that do not all
// start on a vector in both halves are taken element by element, for which the launch has blocks of its own number.

using Address = unsigned long long;

// Floats of the table, which other heads read too: they may stay in every cache.
__device__ __forceinline__ void kept(float (&to)[VEC], const float* from) {
    enum { PIECE = VEC < 4 ? VEC * 4 : 16 };
    using Piece = typename Raw<PIECE>::type;
#pragma unroll
    for (int i = 0; i < VEC * 4 / PIECE; ++i)
        reinterpret_cast<Piece*>(to)[i] = reinterpret_cast<const Piece*>(from)[i];
}

__device__ __forceinline__ void set_of_heads(const long long* __restrict__ positions, T* __restrict__ query,
                                             T* __restrict__ key, const float* __restrict__ table, unsigned set, int n,
                                             int h, int k, int pairs) {
    const unsigned sets = (h + k + HEADS - 1) / HEADS, token = set / sets;
    if (token >= (unsigned)n) return;
    const int first_head = (set - token * sets) * HEADS, heads = min(h + k - first_head, HEADS);
    T* const of_query = query + (long long)token * h * 2 * pairs;
    T* const of_key = key + (long long)token * k * 2 * pairs;
    const auto head = [&](int at) {
        at += first_head;
        return at < h ? of_query + (long long)at * 2 * pairs : of_key + (long long)(at - h) * 2 * pairs;
    };
    int i = threadIdx.x * VEC;
    Pack<VEC> first[HEADS], second[HEADS];
    const auto fetch_heads = [&] {
#pragma unroll
        for (int at = 0; at < HEADS; ++at) {
            if (at < heads && i < pairs) {
                first[at] = load<VEC>(head(at) + i);
                second[at] = load<VEC>(head(at) + pairs + i);
            }
        }
    };
    // The elements do not wait for the position as the angles do: asked for first, both are on their way at once.
    if (LOADS_FIRST) fetch_heads();
    const float* cosines = table + positions[token] * 2 * pairs;
    if (!LOADS_FIRST) fetch_heads();
    while (i < pairs) {
        alignas(16) float cosine[VEC], sine[VEC];
        kept(cosine, cosines + i);
        kept(sine, cosines + pairs + i);
#pragma unroll
        for (int at = 0; at < HEADS; ++at) {
            if (at < heads) {
                Pack<VEC> turned_first, turned_second;
#pragma unroll
                for (int v = 0; v < VEC; ++v) {
                    const float a = to_float(first[at].value[v]), b = to_float(second[at].value[v]);
                    from_float(turned_first.value[v], a * cosine[v] - b * sine[v]);
                    from_float(turned_second.value[v], b * cosine[v] + a * sine[v]);
                }
                store<VEC>(head(at) + i, turned_first);
                store<VEC>(head(at) + pairs + i, turned_second);
            }
        }
        i += LANES * VEC;
        fetch_heads();
    }
}

// Heads wherever they start, as one row of all their elements: neighbouring threads have neighbouring elements. Several are
// asked for before the first is written, as a store holds up all loads behind it that it might change.
__device__ __forceinline__ void elements(const long long* __restrict__ positions, T* __restrict__ query, T* __restrict__ key,
                                         const float* __restrict__ table, int n, int h, int k, int pairs) {
    enum { THREADS = LANES * ROWS, SEVERAL = 2 };  // the launch counts on two
    using Count = unsigned long long;
    const Count all = (Count)n * (h + k) * pairs;
    for (Count begin = (Count)blockIdx.x * SEVERAL * THREADS; begin < all; begin += (Count)gridDim.x * SEVERAL * THREADS) {
        // One long division for a block's elements; from there on they are few.
        const unsigned first_head = begin / pairs, offset = begin % pairs;
        const unsigned last = min((Count)SEVERAL * THREADS, all - begin) - 1;
        T* x[SEVERAL];
        T first[SEVERAL], second[SEVERAL];
        float cosine[SEVERAL], sine[SEVERAL];
#pragma unroll
        for (int s = 0; s < SEVERAL; ++s) {
            const unsigned at = offset + min(s * THREADS + threadIdx.y * LANES + threadIdx.x, last);
            const unsigned head = first_head + at / pairs, i = at % pairs, token = head / (h + k), within = head % (h + k);
            x[s] = (within < (unsigned)h ? query + ((long long)token * h + within) * 2 * pairs
                                         : key + ((long long)token * k + within - h) * 2 * pairs) + i;
            const float* const cosines = table + positions[token] * 2 * pairs + i;
            first[s] = x[s][0];
            second[s] = x[s][pairs];
            cosine[s] = cosines[0];
            sine[s] = cosines[pairs];
        }
#pragma unroll
        for (int s = 0; s < SEVERAL; ++s) {
            if (s * THREADS + threadIdx.y * LANES + threadIdx.x <= last) {
                const float a = to_float(first[s]), b = to_float(second[s]);
                from_float(x[s][0], a * cosine[s] - b * sine[s]);
                from_float(x[s][pairs], b * cosine[s] + a * sine[s]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(LANES * ROWS)
rope(const long long* __restrict__ positions, T* __restrict__ query, T* __restrict__ key, const float* __restrict__ table,
     int n, int h, int k, int pairs) {
    const unsigned sets = (unsigned)n * ((h + k + HEADS - 1) / HEADS), tiles = (sets + ROWS - 1) / ROWS;
    // The same answer in every thread: vectors need halves that start on one.
    const Address addresses = reinterpret_cast<Address>(query) | reinterpret_cast<Address>(key);
    const bool aligned = pairs % VEC == 0 && addresses % Pack<VEC>::PIECE == 0 &&
                         reinterpret_cast<Address>(table) % (VEC < 4 ? VEC * 4 : 16) == 0;

    if (!aligned) return elements(positions, query, key, table, n, h, k, pairs);
    unsigned tile = blockIdx.x;
    do {
        set_of_heads(positions, query, key, table, tile * ROWS + threadIdx.y, n, h, k, pairs);
        tile += gridDim.x;
    } while (WALK && tile < tiles);  // otherwise the grid has a block for every tile
}
