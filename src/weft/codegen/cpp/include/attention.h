// softmax(Q K^T * scale + mask) V for one head dimension, block by block (FlashAttention's order: Dao et al.
// 2022): a block of queries goes over blocks of keys, keeping a running maximum and sum per query.
//
// Products are computed in registers: 8 queries x 2 vectors of keys, then 4 queries x 4 vectors of values.
#pragma once
#include "math.h"
#include "tile.h"

namespace weft {

constexpr int LANES = REGISTER_BYTES / sizeof(float);
constexpr int QUERIES = 128, KEYS = 256;  // of a block
typedef Vec<float, LANES, 1> V1;

struct Matrix {  // [batch, head, row, column], columns beside each other
  const float* data;
  int64_t batch, head, row;
  const float* at(int64_t b, int64_t h) const { return data + b * batch + h * head; }
};

struct Attention {
  Matrix q, k, v, out, mask;  // mask.data may be null
  int64_t mask_column;        // 0 or 1: the mask is the same for all keys, or not
  float* lse;                 // [batch, query, head], contiguous
  int64_t batches, heads, queries, keys;
  float scale;
  bool causal;
};

// s[i][j] = sum over d of q[i][d] * kt[d][j], for 8 rows i and 2 vectors of columns.
template <int D> INLINE void scores(float* s, const float* q, const float* kt) {
  V1 acc[8][2];
  UNROLL for (int i = 0; i < 8; ++i) UNROLL for (int c = 0; c < 2; ++c) acc[i][c] = splat_lane<LANES, 1, float>(0);
  for (int d = 0; d < D; ++d) {
    V1 b0 = load<LANES, 1>(kt + d * KEYS, Full{}), b1 = load<LANES, 1>(kt + d * KEYS + LANES, Full{});
    UNROLL for (int i = 0; i < 8; ++i) {
      V1 x = splat_lane<LANES, 1, float>(q[i * D + d]);
      acc[i][0] = fma(x, b0, acc[i][0]);
      acc[i][1] = fma(x, b1, acc[i][1]);
    }
  }
  UNROLL for (int i = 0; i < 8; ++i) UNROLL for (int c = 0; c < 2; ++c)
    store(s + i * KEYS + c * LANES, acc[i][c], Full{});
}

// o[i][d] += sum over j < n of p[i][j] * v[j][d], for 4 rows i and C vectors of d.
template <int D, int C> INLINE void weighted(float* o, const float* p, const float* v, int64_t stride, int n) {
  V1 acc[4][C];
  UNROLL for (int i = 0; i < 4; ++i) UNROLL for (int c = 0; c < C; ++c)
    acc[i][c] = load<LANES, 1>((const float*)o + i * D + c * LANES, Full{});
  for (int j = 0; j < n; ++j) {
    V1 x[C];
    UNROLL for (int c = 0; c < C; ++c) x[c] = load<LANES, 1>(v + j * stride + c * LANES, Full{});
    UNROLL for (int i = 0; i < 4; ++i) {
      V1 w = splat_lane<LANES, 1, float>(p[i * KEYS + j]);
      UNROLL for (int c = 0; c < C; ++c) acc[i][c] = fma(w, x[c], acc[i][c]);
    }
  }
  UNROLL for (int i = 0; i < 4; ++i) UNROLL for (int c = 0; c < C; ++c)
    store(o + i * D + c * LANES, acc[i][c], Full{});
}

template <int D> struct Workspace {
  alignas(64) float q[QUERIES * D], o[QUERIES * D], kt[D * KEYS], s[QUERIES * KEYS];
  float largest[QUERIES], sum[QUERIES];
};

template <int D> INLINE void begin_block(Workspace<D>& t, const Attention& a, const float* q, int rows) {
  for (int i = 0; i < QUERIES; ++i) {
    for (int d = 0; d < D; d += LANES) {
      V1 zero = splat_lane<LANES, 1, float>(0);
      V1 x = i < rows ? load<LANES, 1>(q + i * a.q.row + d, Full{}) * a.scale : zero;
      store(t.q + i * D + d, x, Full{});
      store(t.o + i * D + d, zero, Full{});
    }
    t.largest[i] = -__builtin_inff();
    t.sum[i] = 0;
  }
}

// kt[d][j] = k[j][d]; the keys that fill up the last pair of vectors are 0.
template <int D> INLINE void transpose_keys(float* kt, const float* k, int64_t stride, int n) {
  transpose_tile(kt, KEYS, k, stride, D, n);
  int end = (n + 2 * LANES - 1) / (2 * LANES) * (2 * LANES);
  for (int d = 0; d < D; ++d)
    for (int j = n; j < end; ++j) kt[d * KEYS + j] = 0;
}

// Turns a row of scores into weights; updates its running maximum and sum and rescales its output.
template <int D> INLINE void softmax_row(Workspace<D>& t, int i, int n, const float* mask, int64_t mask_column) {
  float* s = t.s + i * KEYS;
  auto top = splat_lane<LANES, 1, float>(-__builtin_inff());
  vector_loop<LANES>(0, n, [&](int64_t j, auto m) LAMBDA {
    V1 x = load<LANES, 1>((const float*)s + j, m);
    if (mask) {
      V1 y = mask_column ? load<LANES, 1>(mask + j, m) : splat_lane<LANES, 1, float>(*mask);
      x = x + y;
      store(s + j, x, m);
    }
    top = maximum(top, keep(x, splat_lane<LANES, 1, float>(-__builtin_inff()), m));
  });
  float largest = t.largest[i];
  for (int l = 0; l < LANES; ++l) {
    float x = lane(top, l);
    largest = x > largest || x != x ? x : largest;
  }
  float shift = largest == -__builtin_inff() ? 0 : largest;  // a row that is masked so far
  V1 total = splat_lane<LANES, 1, float>(0);
  vector_loop<LANES>(0, n, [&](int64_t j, auto m) LAMBDA {
    V1 x = exp(load<LANES, 1>((const float*)s + j, m) - shift);
    store(s + j, x, m);
    total = total + keep(x, splat_lane<LANES, 1, float>(0), m);
  });
  float sum = 0;
  for (int l = 0; l < LANES; ++l) sum += lane(total, l);
  float factor = value(exp(scalar(t.largest[i] - shift)));
  t.sum[i] = t.sum[i] * factor + sum;
  t.largest[i] = largest;
  if (factor != 1)
    for (int d = 0; d < D; d += LANES)
      store(t.o + i * D + d, load<LANES, 1>((const float*)t.o + i * D + d, Full{}) * factor, Full{});
}

template <int D> static __attribute__((noinline)) void key_block(
    Workspace<D>& t, const Attention& a, int64_t b, int64_t h, int64_t first_query, int rows, int64_t first_key, int n) {
  constexpr int vectors = D / LANES;  // of a row: C at a time, which must divide them
  constexpr int C = vectors % 4 == 0 ? 4 : vectors % 3 == 0 ? 3 : vectors % 2 == 0 ? 2 : 1;
  transpose_keys<D>(t.kt, a.k.at(b, h) + first_key * a.k.row, a.k.row, n);
  for (int i = 0; i < rows; i += 8)
    for (int j = 0; j < n; j += 2 * LANES) scores<D>(t.s + i * KEYS + j, t.q + i * D, t.kt + j);
  for (int i = 0; i < rows; ++i) {
    const float* mask = a.mask.data ? a.mask.at(b, h) + (first_query + i) * a.mask.row + first_key * a.mask_column : nullptr;
    int64_t seen = first_query + i + 1 - first_key;  // keys that a causal query may look at
    int known = !a.causal || seen >= n ? n : seen < 0 ? 0 : (int)seen;
    softmax_row(t, i, known, mask, a.mask_column);
    for (int j = known; j < n; ++j) t.s[i * KEYS + j] = 0;
  }
  for (int i = rows; i < (rows + 3) / 4 * 4; ++i)
    for (int j = 0; j < n; ++j) t.s[i * KEYS + j] = 0;
  const float* v = a.v.at(b, h) + first_key * a.v.row;
  for (int i = 0; i < rows; i += 4)
    for (int d = 0; d < D; d += C * LANES) weighted<D, C>(t.o + i * D + d, t.s + i * KEYS, v + d, a.v.row, n);
}

template <int D> static void attention_range(const Attention& a, int64_t begin, int64_t end) {
  Workspace<D> t;
  int64_t blocks = (a.queries + QUERIES - 1) / QUERIES;
  for (int64_t unit = begin; unit < end; ++unit) {
    int64_t first = unit % blocks * QUERIES, h = unit / blocks % a.heads, b = unit / blocks / a.heads;
    int rows = (int)weft_min(QUERIES, a.queries - first);
    begin_block(t, a, a.q.at(b, h) + first * a.q.row, rows);
    int64_t keys = a.causal ? weft_min(a.keys, first + rows) : a.keys;
    for (int64_t key = 0; key < keys; key += KEYS)
      key_block(t, a, b, h, first, rows, key, (int)weft_min(KEYS, keys - key));
    float* out = (float*)a.out.at(b, h) + first * a.out.row;
    for (int i = 0; i < rows; ++i) {
      float inverse = t.sum[i] == 0 ? 1 : 1 / t.sum[i];
      for (int d = 0; d < D; d += LANES)
        store(out + i * a.out.row + d, load<LANES, 1>((const float*)t.o + i * D + d, Full{}) * inverse, Full{});
      a.lse[(b * a.queries + first + i) * a.heads + h] =
          t.sum[i] == 0 ? 0 : t.largest[i] + value(log(scalar(t.sum[i])));
    }
  }
}

// Buffers: q, k, v, mask (any tensor where there is none), out, lse. Sizes: see runtime/attention.py.
template <int D> INLINE int attention(void* const* buffers, const int64_t* s) {
  Attention a;
  Matrix* matrices[] = {&a.q, &a.k, &a.v, &a.mask, &a.out};
  for (int i = 0; i < 5; ++i)
    *matrices[i] = {(const float*)buffers[i], s[6 + 3 * i], s[7 + 3 * i], s[8 + 3 * i]};
  a.lse = (float*)buffers[5];
  a.batches = s[0], a.heads = s[1], a.queries = s[2], a.keys = s[3];
  a.causal = s[4] & 1;
  if (!(s[4] & 2)) a.mask.data = nullptr;
  a.mask_column = s[4] >> 2 & 1;
  a.scale = bits<float>((int32_t)s[5]);
  int64_t units = a.batches * a.heads * ((a.queries + QUERIES - 1) / QUERIES);
  const int64_t threads = threads_for(units, weft_min(a.queries, QUERIES) * a.keys * D);
  if (threads <= 1) {
    attention_range<D>(a, 0, units);
    return 0;
  }
#pragma omp parallel num_threads(threads)
  {
    int64_t t = omp_get_thread_num();
    attention_range<D>(a, units * t / threads, units * (t + 1) / threads);
  }
  return 0;
}

}  // namespace weft
