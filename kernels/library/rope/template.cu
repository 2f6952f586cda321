// LANES threads share a set of HEADS heads of one token, for which each keeps its cosines and sines; a block takes a tile of
// ROWS such sets. A thread has a vector of both halves of each head in flight before it computes. Heads that do not all
// start on a vector in both halves are taken element by element.

#include "kit/rows.cuh"

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
                const float first = float(x[0]), second = float(x[pairs]);
                x[0] = T(first * cosine - second * sine);
                x[pairs] = T(second * cosine + first * sine);
            }
        }
        return;
    }

    int i = threadIdx.x * VEC;
    kit::Vector<T, VEC> first[HEADS], second[HEADS];
    const auto fetch_heads = [&] {
#pragma unroll
        for (int at = 0; at < HEADS; ++at) {
            if (at < heads && i < pairs) {
                first[at] = kit::load<VEC, CACHE>(head(at) + i);
                second[at] = kit::load<VEC, CACHE>(head(at) + pairs + i);
            }
        }
    };
    // The elements do not wait for the position as the angles do: asked for first, both are on their way at once.
    if (LOADS_FIRST) fetch_heads();
    const float* cosines = table + positions[token] * 2 * pairs;
    if (!LOADS_FIRST) fetch_heads();
    while (i < pairs) {
        // Other heads read them too: they may stay in every cache.
        kit::Vector<float, VEC> cosine, sine;
        kit::load_into(cosine, cosines + i);
        kit::load_into(sine, cosines + pairs + i);
#pragma unroll
        for (int at = 0; at < HEADS; ++at) {
            if (at < heads) {
                kit::Vector<T, VEC> turned_first, turned_second;
#pragma unroll
                for (int v = 0; v < VEC; ++v) {
                    const float a = float(first[at].value[v]), b = float(second[at].value[v]);
                    turned_first.value[v] = T(a * cosine.value[v] - b * sine.value[v]);
                    turned_second.value[v] = T(b * cosine.value[v] + a * sine.value[v]);
                }
                kit::store<CACHE>(head(at) + i, turned_first);
                kit::store<CACHE>(head(at) + pairs + i, turned_second);
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
    // Vectors need halves that start on one.
    const bool heads = kit::on_vectors<T, VEC>(query, key);
    const bool aligned = pairs % VEC == 0 && heads && kit::on_vectors<float, VEC>(table);
    kit::TileOfBlock<WALK> at;
    do {
        set_of_heads(positions, query, key, table, at.tile * ROWS + threadIdx.y, n, h, k, pairs, aligned);
    } while (at.next(tiles));
}
