// Loads and stores of elements that lie S apart (x[..., ::2], pairs, quaternions), and of flipped rows: whole vectors
// and shuffles.
#pragma once
#include "core.h"

namespace weft {

// p[0], p[S], ..., p[(L - 1) * S] of vectors that begin `start(j)` behind p, `part(start)` apart.
template <int S, class T, int L, class Start, class F> INLINE Part<T, L> every_of(Start start_of, F part) {
  typedef Part<IntLike<T>, L> I;
  Part<T, L> r = part(0);
  UNROLL for (int j = 1; j < S; ++j) {
    const int start = start_of(j);
    I at;  // lanes that lie in this vector come from it, and those before them stay
    UNROLL for (int i = 0; i < L; ++i) at[i] = i * S < j * L ? (j == 1 ? i * S : i) : L + i * S - start;
    UNROLL for (int i = 0; i < L; ++i) if (at[i] >= 2 * L) at[i] = i;  // comes from a later vector
    r = shuffle(r, part(start), at);
  }
  return r;
}
// Nothing behind the last element is read.
template <int S, class T, int L> INLINE Part<T, L> load_part_every(const T* p) {
  return every_of<S, T, L>([](int j) LAMBDA { return j < S - 1 ? j * L : S * (L - 1) + 1 - L; },
                           [=](int start) LAMBDA { return load_part<T, L>(p + start); });
}
template <int S, class T, int L> INLINE Part<T, L> load_part_every(const T* p, int m) {
  const int count = m == 0 ? 0 : (m - 1) * S + 1;
  return every_of<S, T, L>([](int j) LAMBDA { return j * L; },
                           [=](int start) LAMBDA { return load_part<T, L>(p + start, lanes_of(count - start, 0, L)); });
}

template <int S, int L, int P, class T> INLINE Vec<Compute<T>, L, P> load_every(const T* p, Full) {
  Vec<Compute<T>, L, P> r;
  PARTS r.p[k] = Memory<T>::template decode<L>(load_part_every<S, Word<T>, L>((const Word<T>*)p + k * L * S));
  return r;
}
template <int S, int L, int P, class T> INLINE Vec<Compute<T>, L, P> load_every(const T* p, int n) {
  Vec<Compute<T>, L, P> r;
  PARTS {
    const auto at = (const Word<T>*)p + k * L * S;
    r.p[k] = Memory<T>::template decode<L>(load_part_every<S, Word<T>, L>(at, lanes_of(n, k, L)));
  }
  return r;
}

// p[0], p[-1], ...
template <class T, int L> INLINE Part<T, L> load_part_backwards(const T* p, int m) {
  const auto forwards = load_part<T, L>(p - (m - 1), m);
  return shuffle(forwards, forwards, (IntLike<T>)(m - 1) - iota<IntLike<T>, L, 1>().p[0]);
}
template <int L, int P, class T, class N> INLINE Vec<Compute<T>, L, P> load_backwards(const T* p, N n) {
  Vec<Compute<T>, L, P> r;
  PARTS {
    const int m = lanes_of(inside_count(n, L * P), k, L);
    r.p[k] = Memory<T>::template decode<L>(load_part_backwards<Word<T>, L>((const Word<T>*)p - k * L, m));
  }
  return r;
}

// p[i * S + j] = x_j[i]
template <int S, class T, int L> INLINE void store_parts_interleaved(T* p, const Part<T, L>* x) {
  typedef Part<IntLike<T>, L> I;
  UNROLL for (int j = 0; j < S; ++j) {
    Part<T, L> r = x[0];
    UNROLL for (int s = 1; s < S; ++s) {
      I at;
      UNROLL for (int i = 0; i < L; ++i) {
        const int from = (j * L + i) / S, owner = (j * L + i) % S;
        at[i] = owner == s ? L + from : owner < s && s == 1 ? from : i;
      }
      r = shuffle(r, x[s], at);
    }
    store_part<T, L>(p + j * L, r);
  }
}
template <class T, int L, int P, class... V> INLINE void store_interleaved(T* p, Full, Vec<Compute<T>, L, P> x, V... more) {
  constexpr int S = 1 + sizeof...(V);
  const Vec<Compute<T>, L, P> all[S] = {x, more...};
  PARTS {
    Part<Word<T>, L> words[S];
    UNROLL for (int s = 0; s < S; ++s) words[s] = Memory<T>::template encode<L>(all[s].p[k]);
    store_parts_interleaved<S, Word<T>, L>((Word<T>*)p + k * L * S, words);
  }
}
template <class T, int L, int P, class... V> INLINE void store_interleaved(T* p, int n, Vec<Compute<T>, L, P> x, V... more) {
  constexpr int S = 1 + sizeof...(V);
  const Vec<Compute<T>, L, P> all[S] = {x, more...};
  UNROLL for (int s = 0; s < S; ++s) scatter<T>([=](int i) { return p + i * S + s; }, all[s], n);
}

}  // namespace weft
