// Division, remainder, powers, shifts and signs with Python's and eager's rules.
#pragma once
#include "math.h"

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

INLINE float c_fmod(float a, float b) { return __builtin_fmodf(a, b); }
INLINE double c_fmod(double a, double b) { return __builtin_fmod(a, b); }
INLINE float c_floor(float a) { return __builtin_floorf(a); }
INLINE double c_floor(double a) { return __builtin_floor(a); }
INLINE float c_copysign(float a, float b) { return __builtin_copysignf(a, b); }
INLINE double c_copysign(double a, double b) { return __builtin_copysign(a, b); }
INLINE float c_pow(float a, float b) { return __builtin_powf(a, b); }
INLINE double c_pow(double a, double b) { return __builtin_pow(a, b); }

template <class T> INLINE T float_mod(T a, T b) {
  T r = c_fmod(a, b);
  return r != 0 && (b < 0) != (r < 0) ? r + b : r;
}
// The floor of the exact quotient, which rounding of a / b may have lifted to the next integer.
template <class T> INLINE T float_floordiv(T a, T b) {
  if (b == 0) return a / b;
  T r = c_fmod(a, b), q = (a - r) / b;
  if (r != 0 && (b < 0) != (r < 0)) q -= 1;
  if (q == 0) return c_copysign(T(0), a / b);
  T f = c_floor(q);
  return q - f > T(0.5) ? f + 1 : f;
}

#define WEFT_BY_KIND(NAME, FLOAT, INT)                                             \
  WEFT_TV INLINE Vec<T, L, P> NAME(Vec<T, L, P> a, Vec<T, L, P> b) {               \
    if constexpr (is_float<T>) return map([](T x, T y) -> T { return FLOAT; }, a, b); \
    else return map([](T x, T y) -> T { return INT; }, a, b);                      \
  }
WEFT_BY_KIND(floordiv, float_floordiv(x, y), int_floordiv(x, y))
WEFT_BY_KIND(mod, float_mod(x, y), int_mod(x, y))
WEFT_BY_KIND(fmod, c_fmod(x, y), int_fmod(x, y))
WEFT_BY_KIND(pow, c_pow(x, y), int_pow(x, y))
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
