// Index arithmetic: of one point, of all lanes of a vector, and of indices read from memory.
#pragma once
#include "memory.h"

namespace weft {

INLINE int64_t weft_floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
INLINE int64_t weft_floor_mod(int64_t a, int64_t b) {
  int64_t r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
INLINE int64_t weft_min(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t weft_max(int64_t a, int64_t b) { return a > b ? a : b; }

// The same index expression in every lane: 32-bit integers, which all operands of its divisions, minima and maxima
// fit. Divisors are the same in all lanes. Quotients are products with reciprocals, floored: (a + 1/2) / d is at least
// 1/(2d) from the next integer, which is more than F's rounding of it for |a|, d < 2^22 (float) or 2^31 (double).
template <class F, int L, int P> struct Places { Vec<int32_t, L, P> at; };

template <class F, int L, int P> INLINE Places<F, L, P> places(int64_t first) {
  return {steps<L, P>(scalar<int32_t>((int32_t)first), 1)};
}
template <class F, int L, int P> INLINE Places<F, L, P> same_places(int64_t x) { return {splat_lane<L, P, int32_t>((int32_t)x)}; }
#define WEFT_PLACES(NAME, FUNCTION)                                                                              \
  template <class F, int L, int P> INLINE Places<F, L, P> NAME(Places<F, L, P> a, Places<F, L, P> b) {           \
    return {FUNCTION(a.at, b.at)};                                                                               \
  }                                                                                                              \
  template <class F, int L, int P> INLINE Places<F, L, P> NAME(Places<F, L, P> a, int64_t b) {                   \
    return NAME(a, same_places<F, L, P>(b));                                                                     \
  }                                                                                                              \
  template <class F, int L, int P> INLINE Places<F, L, P> NAME(int64_t a, Places<F, L, P> b) {                   \
    return NAME(same_places<F, L, P>(a), b);                                                                     \
  }
WEFT_PLACES(operator+, add)
WEFT_PLACES(operator-, sub)
WEFT_PLACES(operator*, mul)
WEFT_PLACES(weft_min, minimum)
WEFT_PLACES(weft_max, maximum)
#undef WEFT_PLACES
template <class F, int L, int P> INLINE Places<F, L, P> operator-(Places<F, L, P> a) { return {neg(a.at)}; }

template <class F, int L> INLINE Part<int32_t, L> floored_quotient(Part<int32_t, L> a, F reciprocal) {
  constexpr int C = L == 16 ? 64 / sizeof(F) : L;
  int32_t r[L];
  __builtin_memcpy(r, &a, sizeof(a));
  UNROLL for (int i = 0; i < L; i += C) {
    const auto x = (convert<F, C>(load_part<int32_t, C>(r + i)) + F(0.5)) * reciprocal;
    const auto q = convert<int32_t, C>(x);
    store_part<int32_t, C>(r + i, q + convert<int32_t, C>(x < convert<F, C>(q)));
  }
  return load_part<int32_t, L>(r);
}
template <class F, int L, int P> INLINE Places<F, L, P> weft_floor_div(Places<F, L, P> a, int64_t d) {
  PARTS a.at.p[k] = floored_quotient<F, L>(a.at.p[k], F(1) / F(d));
  return a;
}
template <class F, int L, int P> INLINE Places<F, L, P> weft_floor_mod(Places<F, L, P> a, int64_t d) {
  return a - weft_floor_div(a, d) * d;
}
template <class F, int L, int P> INLINE Places<F, L, P> operator/(Places<F, L, P> a, int64_t d) { return weft_floor_div(a, d); }
template <class F, int L, int P> INLINE Places<F, L, P> operator%(Places<F, L, P> a, int64_t d) { return weft_floor_mod(a, d); }

// The values of an Indirect, lane by lane.
template <int S> struct Indices { int64_t at[S]; };

// Fills `to` from loaded indices; false if one that is used lies outside [0, size).
template <bool Wrap, bool Check, class T, int L, int P, class N>
INLINE bool resolve(Indices<L * P>& to, Vec<T, L, P> from, int64_t size, Vec<bool, L, P> used, N n) {
  auto x = cast<int64_t>(from);
  const auto zero = splat_lane<L, P, int64_t>(0), count = splat_lane<L, P, int64_t>(size);
  if (Wrap) x = where(lt(x, zero), add(x, count), x);
  bool good = true;
  if (Check) {
    const auto outside = or_(lt(x, zero), ge(x, count));
    good = !any_lane(keep(and_(outside, used), splat_lane<L, P, bool>(0), n));
    x = where(outside, zero, x);
  }
  __builtin_memcpy(to.at, &x, sizeof(x));
  return good;
}

// The same where all lanes are used.
template <bool Wrap, bool Check, class T, int L, int P>
INLINE bool resolve(Indices<L * P>& to, Vec<T, L, P> from, int64_t size, int n) {
  return resolve<Wrap, Check>(to, from, size, splat_lane<L, P, bool>(-1), n);
}
template <bool Wrap, bool Check, class T, int L, int P>
INLINE bool resolve(Indices<L * P>& to, Vec<T, L, P> from, int64_t size, Full) {
  const auto x = cast<int64_t>(from);
  Part<int64_t, L> outside{};
  PARTS {
    auto part = x.p[k];
    if (Wrap) part += (part >> 63) & size;
    if (Check) outside |= part | (size - 1 - part);  // either is negative
    __builtin_memcpy(to.at + k * L, &part, sizeof(part));
  }
  if constexpr (!Check) return true;
  else if constexpr (L == 1) return outside >= 0;
#ifdef WEFT_AVX2
  else if constexpr (L == 4) return !__builtin_ia32_movmskpd256(bits<Part<double, 4>>(outside));
#endif
  else return !any_lane(Vec<bool, L, 1>{convert<MaskLane<L>, L>(outside >> 63)});
}

}  // namespace weft
