// Copies of transposed tiles: in blocks that are transposed in registers.
#pragma once
#include "core.h"

namespace weft {

template <class T, int N> struct Block { Part<T, N> row[N]; };

// Exchanges the off-diagonal quarters of every 2D x 2D square, then goes on with D / 2 (Eklundh's algorithm).
template <int D, class T, int N> INLINE void transpose_steps(Block<T, N>& b) {
  typedef Part<IntLike<T>, N> I;
  I even, odd;
  UNROLL for (int i = 0; i < N; ++i) {
    even[i] = i & D ? N + i - D : i;
    odd[i] = i & D ? N + i : i + D;
  }
  UNROLL for (int i = 0; i < N; ++i) {
    if (i & D) continue;
    auto x = b.row[i], y = b.row[i + D];
    b.row[i] = shuffle(x, y, even);
    b.row[i + D] = shuffle(x, y, odd);
  }
  if constexpr (D > 1) transpose_steps<D / 2>(b);
}

// Rows and columns of a block; 0 where none is transposed in registers.
template <class T>
constexpr int transpose_size = sizeof(T) == 1 || REGISTER_BYTES < 32 ? 0 : REGISTER_BYTES / (sizeof(T) == 8 ? 8 : 4);

// One block. A function without loops around it: those would take the compiler twice as long.
template <class T, int N>
static __attribute__((noinline)) void transpose_block(T* to, int64_t to_step, const T* from, int64_t from_step) {
  Block<T, N> b;
  UNROLL for (int i = 0; i < N; ++i) b.row[i] = load_part<T, N>(from + i * from_step);
  transpose_steps<N / 2>(b);
  UNROLL for (int i = 0; i < N; ++i) store_part<T, N>(to + i * to_step, b.row[i]);
}

// to[r * to_step + c] = from[c * from_step + r] for r < rows, c < columns.
template <class T>
static __attribute__((noinline)) void transpose_tile(
    T* to, int64_t to_step, const T* from, int64_t from_step, int64_t rows, int64_t columns) {
  constexpr int N = transpose_size<T>;
  int64_t full_rows = 0, full_columns = 0;
  if constexpr (N > 0) {
    full_rows = rows / N * N;
    full_columns = columns / N * N;
    typedef Word<T> U;
    for (int64_t c = 0; c < full_columns; c += N)
      for (int64_t r = 0; r < full_rows; r += N)
        transpose_block<U, N>((U*)to + r * to_step + c, to_step, (const U*)from + c * from_step + r, from_step);
  }
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = c < full_columns ? full_rows : 0; r < rows; ++r) to[r * to_step + c] = from[c * from_step + r];
}

}  // namespace weft
