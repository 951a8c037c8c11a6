// Division, remainder, powers, shifts and signs with Python's and eager's rules.
#pragma once
#include "library.h"

namespace weft {

// Integers: division by zero gives 0; dividing the smallest integer by -1 wraps.
template <class T> INLINE T int_truncdiv(T a, T b) { return b == 0 ? T(0) : same<T, uint8_t> ? T(a / b) : b == T(-1) ? T(-a) : T(a / b); }
template <class T> INLINE T int_fmod(T a, T b) { return b == 0 || (!same<T, uint8_t> && b == T(-1)) ? T(0) : T(a % b); }
template <class T> INLINE T int_mod(T a, T b) {
  T r = int_fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? T(r + b) : r;
}
template <class T> INLINE T int_floordiv(T a, T b) {
  T q = int_truncdiv(a, b);
  return int_fmod(a, b) != 0 && (a < 0) != (b < 0) ? T(q - 1) : q;
}
template <class T> INLINE T int_pow(T a, T b) {
  if (b < 0) return a == T(1) ? T(1) : a == T(-1) ? (b & 1 ? T(-1) : T(1)) : T(0);
  T r = 1;
  for (; b; b >>= 1, a *= a)
    if (b & 1) r *= a;
  return r;
}

// Integers by function, floating-point numbers as written.
#define WEFT_BY_KIND(NAME, FLOAT)                                                     \
  WEFT_TV INLINE Vec<T, L, P> NAME(Vec<T, L, P> a, Vec<T, L, P> b) {                  \
    if constexpr (is_float<T>) return FLOAT(a, b);                                    \
    else return map([](T x, T y) { return int_##NAME(x, y); }, a, b);                 \
  }
// Whether a remainder is to be on the divisor's side of zero and is not.
WEFT_TV INLINE Vec<bool, L, P> on_other_side(Vec<T, L, P> r, Vec<T, L, P> b) {
  auto zero = splat_lane<L, P, T>(0);
  return and_(ne(r, zero), xor_(lt(b, zero), lt(r, zero)));
}
WEFT_TV INLINE Vec<T, L, P> float_mod(Vec<T, L, P> a, Vec<T, L, P> b) {
  auto r = library_fmod(a, b);
  return where(on_other_side(r, b), add(r, b), r);
}
// The floor of the exact quotient, which rounding of a / b may have lifted to the next integer.
WEFT_TV INLINE Vec<T, L, P> float_floordiv(Vec<T, L, P> a, Vec<T, L, P> b) {
  auto zero = splat_lane<L, P, T>(0), one = splat_lane<L, P, T>(1), half = splat_lane<L, P, T>(T(0.5));
  auto r = library_fmod(a, b), q = div(sub(a, r), b);
  q = where(on_other_side(r, b), sub(q, one), q);
  auto f = floor(q), nearest = where(gt(sub(q, f), half), add(f, one), f);
  auto exact = div(a, b);
  return where(eq(b, zero), exact, where(eq(q, zero), copysign(zero, exact), nearest));
}
WEFT_BY_KIND(floordiv, float_floordiv)
WEFT_BY_KIND(mod, float_mod)
WEFT_BY_KIND(fmod, library_fmod)
WEFT_BY_KIND(pow, library_pow)
WEFT_TV INLINE Vec<T, L, P> truncdiv(Vec<T, L, P> a, Vec<T, L, P> b) {
  if constexpr (is_float<T>) return trunc(div(a, b));
  else return map([](T x, T y) { return int_truncdiv(x, y); }, a, b);
}

WEFT_TV INLINE Vec<T, L, P> sign(Vec<T, L, P> a) {
  auto zero = splat_lane<L, P, T>(0), one = splat_lane<L, P, T>(1);
  auto r = where(lt(zero, a), one, zero);
  if constexpr (same<T, uint8_t>) return r;
  else return where(lt(a, zero), neg(one), r);
}
WEFT_TV INLINE Vec<bool, L, P> signbit(Vec<T, L, P> a) {
  if constexpr (is_float<T>) {
    typedef IntLike<T> I;
    return lt(bits<Vec<I, L, P>>(a), splat_lane<L, P, I>(0));
  } else return lt(a, splat_lane<L, P, T>(0));
}
WEFT_TV INLINE Vec<bool, L, P> isinf(Vec<T, L, P> a) { return eq(abs(a), splat_lane<L, P, T>(T(__builtin_inf()))); }

template <class T> INLINE T int_shl(T a, T b) { return b < 0 || b >= T(8 * sizeof(T)) ? T(0) : T(a << b); }
template <class T> INLINE T int_shr(T a, T b) {
  return b < 0 || b >= T(8 * sizeof(T)) ? (a < 0 ? T(-1) : T(0)) : T(a >> b);
}
WEFT_TV INLINE Vec<T, L, P> shl(Vec<T, L, P> a, Vec<T, L, P> b) { return map([](T x, T y) { return int_shl(x, y); }, a, b); }
WEFT_TV INLINE Vec<T, L, P> shr(Vec<T, L, P> a, Vec<T, L, P> b) { return map([](T x, T y) { return int_shr(x, y); }, a, b); }

}  // namespace weft
