// LANES threads share a set of HEADS heads of one token, for which each keeps its cosines and sines; a block takes a tile of
// ROWS such sets. A thread has a vector of both halves of each head in flight before it computes. Heads that do not all
// start on a vector in both halves are taken element by element.

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
                                             int h, int k, int pairs, bool aligned) {
    const unsigned sets = (h + k + HEADS - 1) / HEADS, token = set / sets;
    if (token >= (unsigned)n) return;
    const int first_head = (set - token * sets) * HEADS, heads = min(h + k - first_head, HEADS);
    T* const of_query = query + (long long)token * h * 2 * pairs;
    T* const of_key = key + (long long)token * k * 2 * pairs;
    const auto head = [&](int at) {
        at += first_head;
        return at < h ? of_query + (long long)at * 2 * pairs : of_key + (long long)(at - h) * 2 * pairs;
    };
    if (!aligned) {
        const float* cosines = table + positions[token] * 2 * pairs;
#pragma unroll 4
        for (int i = threadIdx.x; i < pairs; i += LANES) {
            const float cosine = cosines[i], sine = cosines[pairs + i];
#pragma unroll 1  // few shapes need this: it must not decide how many registers the kernel takes
            for (int at = 0; at < heads; ++at) {
                T* x = head(at) + i;
                const float first = to_float(x[0]), second = to_float(x[pairs]);
                from_float(x[0], first * cosine - second * sine);
                from_float(x[pairs], second * cosine + first * sine);
            }
        }
        return;
    }

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

extern "C" __global__ void __launch_bounds__(LANES * ROWS)
rope(const long long* __restrict__ positions, T* __restrict__ query, T* __restrict__ key, const float* __restrict__ table,
     int n, int h, int k, int pairs) {
    const unsigned sets = (unsigned)n * ((h + k + HEADS - 1) / HEADS), tiles = (sets + ROWS - 1) / ROWS;
    // The same answer in every thread: vectors need halves that start on one.
    const Address addresses = reinterpret_cast<Address>(query) | reinterpret_cast<Address>(key);
    const bool aligned = pairs % VEC == 0 && addresses % Pack<VEC>::PIECE == 0 &&
                         reinterpret_cast<Address>(table) % (VEC < 4 ? VEC * 4 : 16) == 0;

    unsigned tile = blockIdx.x;
    do {
        set_of_heads(positions, query, key, table, tile * ROWS + threadIdx.y, n, h, k, pairs, aligned);
        tile += gridDim.x;
    } while (WALK && tile < tiles);  // otherwise the grid has a block for every tile
}
