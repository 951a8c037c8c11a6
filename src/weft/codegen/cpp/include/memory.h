// Loads and stores of vectors: whole ones, the tail of a row, gathered lanes.
//
//     auto x = load<16, 1>(in0 + i, n);            // n: Full{}, or how many lanes are inside (the tail)
//     store(out0 + i, add(x, splat<16, 1>(one)), n);
#pragma once
#include "vectors.h"

namespace weft {

INLINE int lanes_of(int n, int k, int L) {  // lanes inside part k of a tail of n points
  int m = n - k * L;
  return m < 0 ? 0 : m > L ? L : m;
}

template <class T, int L> INLINE Part<T, L> load_part(const T* p) {
  Part<T, L> r;
  __builtin_memcpy(&r, p, sizeof(r));
  return r;
}

#ifdef WEFT_AVX512
template <class T, int L> constexpr bool has_masks = sizeof(T) * L >= 16 && sizeof(T) * L <= 64;
// The elements whose bits are set in `lanes`, zeros for the others, which are not read.
template <class T, int L> INLINE Part<T, L> load_lanes(const T* p, uint64_t lanes) {
  typedef Part<T, L> V __attribute__((aligned(1), may_alias));
  const V& from = *(const V*)p;
  Part<T, L> r;
  if constexpr (sizeof(T) == 8) asm("vmovdqu64 %1, %0%{%2%}%{z%}" : "=v"(r) : "m"(from), "Yk"((uint8_t)lanes));
  else if constexpr (sizeof(T) == 4) asm("vmovdqu32 %1, %0%{%2%}%{z%}" : "=v"(r) : "m"(from), "Yk"((uint16_t)lanes));
  else if constexpr (sizeof(T) == 2) asm("vmovdqu16 %1, %0%{%2%}%{z%}" : "=v"(r) : "m"(from), "Yk"((uint32_t)lanes));
  else asm("vmovdqu8 %1, %0%{%2%}%{z%}" : "=v"(r) : "m"(from), "Yk"((uint32_t)lanes));
  return r;
}
#endif

template <class T, int L> INLINE Part<T, L> load_part(const T* p, int m) {
  if (__builtin_constant_p(m == L) && m == L) return load_part<T, L>(p);  // a row of known length
#ifdef WEFT_AVX512
  if constexpr (has_masks<T, L>) return load_lanes<T, L>(p, (1ull << m) - 1);
#endif
  T t[L] = {};
  for (int i = 0; i < m; ++i) t[i] = p[i];
  return load_part<T, L>(t);
}

template <class T, int L> INLINE void store_part(T* p, Part<T, L> x) { __builtin_memcpy(p, &x, sizeof(x)); }

template <class T, int L> INLINE void store_part(T* p, Part<T, L> x, int m) {
  if (__builtin_constant_p(m == L) && m == L) return store_part<T, L>(p, x);
#ifdef WEFT_AVX512
  if constexpr (has_masks<T, L>) {
    typedef Part<T, L> V __attribute__((aligned(1), may_alias));
    V& to = *(V*)p;
    if constexpr (sizeof(T) == 8) {
      asm volatile("vmovdqu64 %1, %0%{%2%}" : "+m"(to) : "v"(x), "Yk"((uint8_t)((1u << m) - 1)));
    } else if constexpr (sizeof(T) == 4) {
      asm volatile("vmovdqu32 %1, %0%{%2%}" : "+m"(to) : "v"(x), "Yk"((uint16_t)((1u << m) - 1)));
    } else if constexpr (sizeof(T) == 2) {
      asm volatile("vmovdqu16 %1, %0%{%2%}" : "+m"(to) : "v"(x), "Yk"((uint32_t)((1ull << m) - 1)));
    } else {
      asm volatile("vmovdqu8 %1, %0%{%2%}" : "+m"(to) : "v"(x), "Yk"((uint32_t)((1ull << m) - 1)));
    }
    return;
  }
#endif
  T t[L];
  store_part<T, L>(t, x);
  for (int i = 0; i < m; ++i) p[i] = t[i];
}

// Between the memory form of a part and its compute form. half: see half.h.
template <class T> struct Memory {
  typedef T Word;
  template <int L> static INLINE Part<T, L> decode(Part<T, L> x) { return x; }
  template <int L> static INLINE Part<T, L> encode(Part<T, L> x) { return x; }
};
template <> struct Memory<bool> {
  typedef uint8_t Word;
  template <int L> static INLINE Mask<L> decode(Part<uint8_t, L> x) { return -convert<MaskLane<L>, L>(x); }
  template <int L> static INLINE Part<uint8_t, L> encode(Mask<L> x) { return convert<uint8_t, L>(-x); }
};
template <> struct Memory<bfloat16> {
  typedef uint16_t Word;
  template <int L> static INLINE Part<float, L> decode(Part<uint16_t, L> x) {
    return bits<Part<float, L>>(convert<uint32_t, L>(x) << 16);
  }
  // Round to nearest even: add half of the last kept bit's weight (less one for even results).
  template <int L> static INLINE Part<uint16_t, L> encode(Part<float, L> x) {
#ifdef WEFT_AVX512
    if constexpr (sizeof(x) >= 16) {  // NaN becomes the one that the carry of rounding leaves a NaN
      asm("vfixupimmps $0, %1, %0, %0" : "+v"(x) : "v"(0x33 - Part<int32_t, L>{}));
      auto u = bits<Part<uint32_t, L>>(x);
      return convert<uint16_t, L>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
    }
#endif
    return convert<uint16_t, L>(rounded<L>(x));
  }
  template <int L> static INLINE Part<uint32_t, L> rounded(Part<float, L> x) {
    auto u = bits<Part<uint32_t, L>>(x);
    auto rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    auto nan = (u >> 16) | 0x40;  // the carry of rounding could turn a NaN into infinity
    return x == x ? rounded : nan;
  }
#ifdef WEFT_AVX2
  static INLINE Part<uint16_t, 16> encode_two(Part<float, 8> x, Part<float, 8> y) {
    Part<int64_t, 4> r;  // of each half of x, then of y
    asm("vpackusdw %2, %1, %0" : "=x"(r) : "x"(rounded<8>(x)), "x"(rounded<8>(y)));
    return bits<Part<uint16_t, 16>>(shuffle(r, r, Part<int64_t, 4>{0, 2, 1, 3}));
  }
#endif
};

template <class T> using Word = typename Memory<T>::Word;

template <int L, int P, class T> INLINE Vec<Compute<T>, L, P> load(const T* p, Full) {
  Vec<Compute<T>, L, P> r;
  PARTS r.p[k] = Memory<T>::template decode<L>(load_part<Word<T>, L>((const Word<T>*)p + k * L));
  return r;
}
template <int L, int P, class T> INLINE Vec<Compute<T>, L, P> load(const T* p, int n) {
  Vec<Compute<T>, L, P> r;
  PARTS {
    int m = lanes_of(n, k, L);
    r.p[k] = Memory<T>::template decode<L>(load_part<Word<T>, L>((const Word<T>*)p + k * L, m));
  }
  return r;
}
template <class T> INLINE Scalar<Compute<T>> load1(const T* p) {
  Scalar<Compute<T>> r;
  r.p[0] = Memory<T>::template decode<1>(*(const Word<T>*)p);
  return r;
}

template <class T, int L, int P> INLINE void store(T* p, Vec<Compute<T>, L, P> x, Full) {
#ifdef WEFT_AVX2
  if constexpr (same<T, bfloat16> && L == 8 && P % 2 == 0) {  // two parts fill a register
    UNROLL for (int k = 0; k < P; k += 2)
      store_part<uint16_t, 16>((uint16_t*)p + k * L, Memory<T>::encode_two(x.p[k], x.p[k + 1]));
    return;
  }
#endif
  PARTS store_part<Word<T>, L>((Word<T>*)p + k * L, Memory<T>::template encode<L>(x.p[k]));
}
template <class T, int L, int P> INLINE void store(T* p, Vec<Compute<T>, L, P> x, int n) {
  PARTS {
    int m = lanes_of(n, k, L);
    store_part<Word<T>, L>((Word<T>*)p + k * L, Memory<T>::template encode<L>(x.p[k]), m);
  }
}
template <class T> INLINE void store1(T* p, Scalar<Compute<T>> x) {
  *(Word<T>*)p = Memory<T>::template encode<1>(x.p[0]);
}

INLINE int inside_count(Full, int lanes) { return lanes; }
INLINE int inside_count(int n, int) { return n; }

// Loads and stores of lanes that do not lie beside each other: `at(i)` is the address of lane i.
template <int L, int P, class T, class N, class F> INLINE Vec<Compute<T>, L, P> gather(F at, N n) {
  Word<T> t[L * P] = {};
  for (int i = 0; i < inside_count(n, L * P); ++i) t[i] = *(const Word<T>*)at(i);
  return load<L, P>((const T*)t, Full{});
}
template <class T, int L, int P, class N, class F> INLINE void scatter(F at, Vec<Compute<T>, L, P> x, N n) {
  Word<T> t[L * P];
  store<T>((T*)t, x, Full{});
  for (int i = 0; i < inside_count(n, L * P); ++i) *(Word<T>*)at(i) = t[i];
}
template <class N, class F, class C, class T, int L, int P>
INLINE void accumulate(F at, Vec<T, L, P> x, N n, C combine) {
  T t[L * P];
  store<T>(t, x, Full{});
  for (int i = 0; i < inside_count(n, L * P); ++i) {
    auto p = at(i);
    store1(p, combine(load1(p), load1(t + i)));
  }
}
// The same where lanes outside `mask` are not read and give `other`.
template <int L, int P, class T, class N, class F>
INLINE Vec<Compute<T>, L, P> gather_masked(F at, N n, Vec<bool, L, P> mask, Compute<T> other) {
  Word<T> t[L * P] = {};
  for (int i = 0; i < inside_count(n, L * P); ++i)
    if (lane(mask, i)) t[i] = *(const Word<T>*)at(i);
  auto r = load<L, P>((const T*)t, Full{});
  return where(mask, r, splat<L, P>(scalar(other)));
}

// The elements p[at[i]] by the machine's own gather; the same where lanes outside `mask` are not read and give `other`.
// Elements of less than 4 bytes are cut out of the aligned words that they are in: these are on the same page.
template <class T, class I, int L> constexpr bool has_gather =
#if defined(WEFT_AVX512)
    sizeof(T) * L <= 64 && sizeof(I) * L <= 64 && L >= 8;
#elif defined(WEFT_AVX2)
    sizeof(T) >= 4 && sizeof(T) * L <= 32 && sizeof(I) * L <= 32 && L >= 4;
#else
    false;
#endif
#if defined(WEFT_AVX512) || defined(WEFT_AVX2)
template <class T, class I, int L> INLINE Part<T, L> gather_part(const T* p, Part<I, L> at, Mask<L> mask, Part<T, L> x) {
  typedef T Aliasing __attribute__((may_alias));
#ifdef WEFT_AVX512
  typename IntOf<L / 8>::utype m;
  asm("vpmovd2m %1, %0" : "=Yk"(m) : "v"(mask));
#define WEFT_GATHER(NAME) \
  asm(NAME " (%2,%3,%c4), %0%{%1%}" : "+&v"(x), "+Yk"(m) : "r"(p), "v"(at), "i"(sizeof(T)), "m"(*(const Aliasing(*)[])p))
#else
  auto m = convert<IntLike<T>, L>(mask);
#define WEFT_GATHER(NAME) \
  asm(NAME " %1, (%2,%3,%c4), %0" : "+&x"(x), "+&x"(m) : "r"(p), "x"(at), "i"(sizeof(T)), "m"(*(const Aliasing(*)[])p))
#endif
  if constexpr (sizeof(T) == 4 && sizeof(I) == 4) WEFT_GATHER("vgatherdps");
  else if constexpr (sizeof(T) == 4) WEFT_GATHER("vgatherqps");
  else if constexpr (sizeof(I) == 4) WEFT_GATHER("vgatherdpd");
  else WEFT_GATHER("vgatherqpd");
#undef WEFT_GATHER
  return x;
}
#endif
#ifdef WEFT_AVX512
template <class T, class I, int L> INLINE Part<T, L> gather_small_part(const T* p, Part<I, L> at, Mask<L> mask) {
  constexpr int each = 4 / sizeof(T), shift = sizeof(T) == 1 ? 2 : 1;  // elements of a word
  const auto address = (uint64_t)p;
  at += (I)(address / sizeof(T) % each);
  const auto words = gather_part<uint32_t, I, L>((const uint32_t*)(address / 4 * 4), at >> shift, mask, Part<uint32_t, L>{});
  return convert<T, L>(words >> convert<uint32_t, L>((at & (each - 1)) * (8 * sizeof(T))));
}
#endif
template <int L, int P, class T, class I, class N>
INLINE Vec<Compute<T>, L, P> gather_at(const T* p, Vec<I, L, P> at, N n, Vec<bool, L, P> mask, Compute<T> other) {
#if defined(WEFT_AVX512) || defined(WEFT_AVX2)
  if constexpr (has_gather<T, I, L>) {
    mask = keep(mask, splat_lane<L, P, bool>(0), n);
    const auto rest = splat<L, P>(scalar(other));
    Vec<Compute<T>, L, P> r;
    if constexpr (sizeof(T) >= 4) {
      PARTS r.p[k] = gather_part<T, I, L>(p, at.p[k], mask.p[k], rest.p[k]);
      return r;
    }
#ifdef WEFT_AVX512
    PARTS r.p[k] = Memory<T>::template decode<L>(gather_small_part<Word<T>, I, L>((const Word<T>*)p, at.p[k], mask.p[k]));
    return where(mask, r, rest);
#endif
  }
#endif
  return gather_masked<L, P, T>([&](int i) { return p + lane(at, i); }, n, mask, other);
}
template <int L, int P, class T, class I, class N> INLINE Vec<Compute<T>, L, P> gather_at(const T* p, Vec<I, L, P> at, N n) {
  if constexpr (has_gather<T, I, L>) return gather_at(p, at, n, splat_lane<L, P, bool>(-1), Compute<T>());
  I places[L * P];
  __builtin_memcpy(places, &at, sizeof(at));
  return gather<L, P, T>([&](int i) { return p + places[i]; }, n);
}
template <int L, int P, class T, class N>
INLINE Vec<Compute<T>, L, P> load_masked(const T* p, N n, Vec<bool, L, P> mask, Compute<T> other) {
#ifdef WEFT_AVX512
  if constexpr (has_masks<T, L> && has_masks<int32_t, L>) {
    mask = keep(mask, splat_lane<L, P, bool>(0), n);
    Vec<Compute<T>, L, P> r;
    PARTS {
      typename IntOf<(L > 8 ? 2 : 1)>::utype lanes;
      asm("vpmovd2m %1, %0" : "=Yk"(lanes) : "v"(mask.p[k]));
      r.p[k] = Memory<T>::template decode<L>(load_lanes<Word<T>, L>((const Word<T>*)p + k * L, lanes));
    }
    return where(mask, r, splat<L, P>(scalar(other)));
  }
#endif
  return gather_masked<L, P, T>([=](int i) { return p + i; }, n, mask, other);
}

}  // namespace weft
