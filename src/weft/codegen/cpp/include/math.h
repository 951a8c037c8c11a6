// Vectorised elementary functions in eager's accuracy (about 1 to 2 ulp) with IEEE special values.
//
// float: polynomials fitted for this file (minimax on the interval named beside each), evaluated with fma.
// double, and rarer functions of both types: see library.h.
#pragma once
#include "core.h"

namespace weft {

// ---- notation for this file ---------------------------------------------------------------------

#define WEFT_TV template <class T, int L, int P>
#define WEFT_FV template <int L, int P>
template <int L, int P> using F32 = Vec<float, L, P>;

WEFT_TV INLINE Vec<T, L, P> operator+(Vec<T, L, P> a, Vec<T, L, P> b) { return add(a, b); }
WEFT_TV INLINE Vec<T, L, P> operator-(Vec<T, L, P> a, Vec<T, L, P> b) { return sub(a, b); }
WEFT_TV INLINE Vec<T, L, P> operator*(Vec<T, L, P> a, Vec<T, L, P> b) { return mul(a, b); }
WEFT_TV INLINE Vec<T, L, P> operator/(Vec<T, L, P> a, Vec<T, L, P> b) { return div(a, b); }
WEFT_TV INLINE Vec<T, L, P> all(Vec<T, L, P>, Lane<T> c) { return splat_lane<L, P, T>(c); }
template <int L, int P> INLINE F32<L, P> operator+(F32<L, P> a, float b) { return a + all(a, b); }
template <int L, int P> INLINE F32<L, P> operator-(F32<L, P> a, float b) { return a - all(a, b); }
template <int L, int P> INLINE F32<L, P> operator*(F32<L, P> a, float b) { return a * all(a, b); }
template <int L, int P> INLINE F32<L, P> fma(F32<L, P> a, float b, F32<L, P> c) { return fma(a, all(a, b), c); }
template <int L, int P> INLINE F32<L, P> fma(F32<L, P> a, F32<L, P> b, float c) { return fma(a, b, all(a, c)); }

// c0 + c1 x + c2 x^2 + ...
template <int L, int P> INLINE F32<L, P> poly(F32<L, P> x, float c0) { return all(x, c0); }
template <int L, int P, class... C> INLINE F32<L, P> poly(F32<L, P> x, float c0, C... c) {
  return fma(x, poly(x, c...), c0);
}

WEFT_FV INLINE Vec<int32_t, L, P> as_int(F32<L, P> x) { return bits<Vec<int32_t, L, P>>(x); }
WEFT_FV INLINE F32<L, P> as_float(Vec<int32_t, L, P> x) { return bits<F32<L, P>>(x); }
WEFT_FV INLINE Vec<int32_t, L, P> operator&(Vec<int32_t, L, P> a, int32_t b) { return and_(a, all(a, b)); }
WEFT_FV INLINE Vec<int32_t, L, P> operator|(Vec<int32_t, L, P> a, int32_t b) { return or_(a, all(a, b)); }
WEFT_FV INLINE Vec<int32_t, L, P> operator+(Vec<int32_t, L, P> a, int32_t b) { return a + all(a, b); }
WEFT_FV INLINE Vec<int32_t, L, P> shift_left(Vec<int32_t, L, P> a, int n) {
  PARTS a.p[k] = a.p[k] << n;
  return a;
}
WEFT_FV INLINE Vec<int32_t, L, P> shift_right(Vec<int32_t, L, P> a, int n) {
  PARTS a.p[k] = a.p[k] >> n;
  return a;
}
// The magnitude of a with the sign bit of b flipped in.
WEFT_FV INLINE F32<L, P> flip_sign(F32<L, P> a, F32<L, P> b) {
  return as_float(xor_(as_int(a), as_int(b) & (int32_t)0x80000000));
}
WEFT_FV INLINE F32<L, P> copysign(F32<L, P> a, F32<L, P> b) {
  return as_float(or_(as_int(a) & 0x7fffffff, as_int(b) & (int32_t)0x80000000));
}

// ---- rounding and roots -------------------------------------------------------------------------

#if defined(WEFT_AVX512) || defined(WEFT_AVX2)
#ifdef WEFT_AVX512
#define WEFT_ROUND_PS "vrndscaleps"
#define WEFT_ROUND_PD "vrndscalepd"
#else
#define WEFT_ROUND_PS "vroundps"
#define WEFT_ROUND_PD "vroundpd"
#endif
#define WEFT_ROUND(NAME, MODE, FN32, FN64)                                                    \
  WEFT_TV INLINE Vec<T, L, P> NAME(Vec<T, L, P> a) {                                          \
    PARTS {                                                                                   \
      auto x = a.p[k];                                                                        \
      if constexpr (sizeof(x) < 16) {                                                         \
        if constexpr (L > 1) return map([](T y) { return same<T, float> ? (T)FN32(y) : (T)FN64(y); }, a); \
        else if constexpr (same<T, float>) a.p[k] = FN32(x);                                  \
        else a.p[k] = FN64(x);                                                                \
      } else if constexpr (same<T, float>) asm(WEFT_ROUND_PS " $" #MODE ", %1, %0" : "=v"(a.p[k]) : "v"(x)); \
      else asm(WEFT_ROUND_PD " $" #MODE ", %1, %0" : "=v"(a.p[k]) : "v"(x));                  \
    }                                                                                         \
    return a;                                                                                 \
  }
#else
#define WEFT_ROUND(NAME, MODE, FN32, FN64)                                                    \
  WEFT_TV INLINE Vec<T, L, P> NAME(Vec<T, L, P> a) {                                          \
    return map([](T y) { return same<T, float> ? (T)FN32(y) : (T)FN64(y); }, a);              \
  }
#endif
WEFT_ROUND(round, 8, __builtin_rintf, __builtin_rint)
WEFT_ROUND(floor, 9, __builtin_floorf, __builtin_floor)
WEFT_ROUND(ceil, 10, __builtin_ceilf, __builtin_ceil)
WEFT_ROUND(trunc, 11, __builtin_truncf, __builtin_trunc)

WEFT_TV INLINE Vec<T, L, P> sqrt(Vec<T, L, P> a) {
#if defined(WEFT_AVX512) || defined(WEFT_AVX2)
  if constexpr (sizeof(a.p[0]) >= 16) {
    PARTS {
      auto x = a.p[k];
      if constexpr (same<T, float>) asm("vsqrtps %1, %0" : "=v"(a.p[k]) : "v"(x));
      else asm("vsqrtpd %1, %0" : "=v"(a.p[k]) : "v"(x));
    }
    return a;
  }
#endif
  return map([](T y) { return same<T, float> ? (T)__builtin_sqrtf(y) : (T)__builtin_sqrt(y); }, a);
}
WEFT_TV INLINE Vec<T, L, P> rsqrt(Vec<T, L, P> a) { return reciprocal(sqrt(a)); }

// ---- exponentials -------------------------------------------------------------------------------

// x * 2^n for integral n in [-252, 254]; one rounding where the result is subnormal.
WEFT_FV INLINE F32<L, P> scale(F32<L, P> x, F32<L, P> n) {
#ifdef WEFT_AVX512
  if constexpr (L >= 4) {
    PARTS { auto y = x.p[k]; asm("vscalefps %2, %1, %0" : "=v"(x.p[k]) : "v"(y), "v"(n.p[k])); }
    return x;
  }
#endif
  auto i = cast<int32_t>(n);
  auto half = shift_right(i, 1);
  return x * as_float(shift_left(half + 127, 23)) * as_float(shift_left(i - half + 127, 23));
}
// Limits x to [lo, hi]; NaN passes.
WEFT_FV INLINE F32<L, P> limit(F32<L, P> x, float lo, float hi) {
  PARTS {
    auto a = lo - Part<float, L>{}, b = hi - Part<float, L>{};
    auto y = a > x.p[k] ? a : x.p[k];
    x.p[k] = b < y ? b : y;
  }
  return x;
}
WEFT_FV INLINE F32<L, P> at_most(F32<L, P> x, float hi) {
  PARTS {
    auto b = hi - Part<float, L>{};
    x.p[k] = b < x.p[k] ? b : x.p[k];
  }
  return x;
}
template <int L, int P> struct Reduced { F32<L, P> n, r; };
// x = n ln 2 + r, |r| <= ln 2 / 2.
WEFT_FV INLINE Reduced<L, P> reduce_exp(F32<L, P> x) {
  auto n = round(x * 1.44269504f);
  auto r = fma(n, -0.693145752f, x);
  return {n, fma(n, -1.42860677e-6f, r)};
}
WEFT_FV INLINE F32<L, P> exp_tail(F32<L, P> r) {  // (e^r - 1 - r) / r^2 for |r| <= 0.35
  return poly(r, 0.5000000083f, 0.1666666687f, 0.04166625376f, 0.008333262638f, 0.001394722492f, 0.000199193799f);
}
// Powers that are zero (masked scores) are chosen, not computed: a result below the normal numbers costs some 100 times
// as much as another.
WEFT_FV INLINE F32<L, P> exp(F32<L, P> x) {
  auto zero = all(x, 0.0f);
  auto vanishes = lt(x, all(x, -104.0f));
  auto [n, r] = reduce_exp(at_most(where(vanishes, zero, x), 89.0f));
  return where(vanishes, zero, scale(fma(r * r, exp_tail(r), r) + 1.0f, n));
}
WEFT_FV INLINE F32<L, P> exp2(F32<L, P> x) {
  auto zero = all(x, 0.0f);
  auto vanishes = lt(x, all(x, -151.0f));
  auto y = at_most(where(vanishes, zero, x), 129.0f);
  auto n = round(y);
  auto r = (y - n) * 0.693147181f;
  return where(vanishes, zero, scale(fma(r * r, exp_tail(r), r) + 1.0f, n));
}
WEFT_FV INLINE F32<L, P> expm1(F32<L, P> x) {
  auto [n, r] = reduce_exp(limit(x, -20.0f, 89.0f));
  auto e = fma(r * r, exp_tail(r), r);
  auto half_power = scale(all(x, 0.5f), n);  // 2^(n-1): 2^128 would overflow
  auto y = fma(half_power, e, half_power - 0.5f);
  return where(lt(abs(x), all(x, 1e-7f)), x, y + y);
}
WEFT_FV INLINE F32<L, P> sigmoid(F32<L, P> x) { return reciprocal(exp(neg(x)) + 1.0f); }

WEFT_FV INLINE F32<L, P> tanh(F32<L, P> x) {
  auto a = abs(x), z = x * x;
  // |x| < 0.625: x + x^3 p(x^2)
  auto p = poly(z, -0.3333333091f, 0.1333320976f, -0.05394720427f, 0.02170296711f, -0.008182673861f, 0.002147536864f);
  auto small = fma(x * z, p, x);
  auto large = all(x, 1.0f) - all(x, 2.0f) / (exp(a + a) + 1.0f);
  return copysign(where(lt(a, all(x, 0.625f)), small, large), x);  // also for -0
}

// ---- logarithms ---------------------------------------------------------------------------------

template <int L, int P> struct Split { F32<L, P> e, f, y; };  // x = 2^e (1 + f);  log(1 + f) = f + y
WEFT_FV INLINE Split<L, P> split_log(F32<L, P> x) {
  auto tiny = lt(x, all(x, 1.17549435e-38f));
  auto u = as_int(where(tiny, x * 8388608.0f, x));
  // Exponent such that the mantissa lies in [sqrt(1/2), sqrt(2)).
  auto i = shift_right(u + (0x3f800000 - 0x3f3504f3), 23) + (-127);
  auto m = as_float(u - shift_left(i, 23));
  auto e = cast<float>(i) - where(tiny, all(x, 23.0f), all(x, 0.0f));
  auto f = m - 1.0f;
  auto p = poly(f, 0.333333126f, -0.250000096f, 0.2000211875f, -0.1666799562f, 0.1421955056f, -0.1240559201f,
                0.1188817757f, -0.116756388f, 0.06746591932f);
  auto z = f * f;
  return {e, f, fma(z, all(x, -0.5f), z * f * p)};
}
// log of 0, negative numbers, infinity and NaN; y where x is none of these.
WEFT_FV INLINE F32<L, P> log_special(F32<L, P> x, F32<L, P> y) {
  auto infinity = all(x, __builtin_inff());
  y = where(lt(x, infinity), y, x);                        // +inf, NaN
  y = where(eq(x, all(x, 0.0f)), neg(infinity), y);
  return where(lt(x, all(x, 0.0f)), all(x, __builtin_nanf("")), y);
}
WEFT_FV INLINE F32<L, P> log_finite(F32<L, P> x) {
  auto [e, f, y] = split_log(x);
  return fma(e, 0.693359375f, f + fma(e, -2.12194440e-4f, y));
}
WEFT_FV INLINE F32<L, P> log(F32<L, P> x) { return log_special(x, log_finite(x)); }
WEFT_FV INLINE F32<L, P> log2(F32<L, P> x) {
  auto [e, f, y] = split_log(x);
  // (f + y) log2(e), with log2(e) = 1 + 0.4427
  auto t = fma(f + y, 0.44269504f, y);
  return log_special(x, e + (f + t));
}
WEFT_FV INLINE F32<L, P> log10(F32<L, P> x) {
  auto [e, f, y] = split_log(x);
  auto t = fma(e, 4.60503898e-6f, (f + y) * 0.434294482f);
  return log_special(x, fma(e, 0.301025391f, t));
}
WEFT_FV INLINE F32<L, P> log1p(F32<L, P> x) {
  auto u = x + 1.0f;
  // What rounding u lost, relative to u.
  auto lost = where(gt(x, all(x, 1.0f)), all(x, 1.0f) - (u - x), x - (u - 1.0f));
  auto y = log_finite(u) + lost / u;
  y = where(eq(u, all(x, 1.0f)), x, y);
  return log_special(u, y);
}

// ---- error function -----------------------------------------------------------------------------

WEFT_FV INLINE F32<L, P> erf(F32<L, P> x) {
  auto a = abs(x), z = x * x;
  // |x| <= 1: x + x p(x^2)
  auto p = poly(z, 0.128379167f, -0.3761263843f, 0.1128378197f, -0.02686540004f, 0.005220945432f, -0.0008482828833f,
                0.0001125694783f, -9.641515887e-6f);
  auto small = fma(x, p, x);
  auto b = limit(a, 0.0f, 3.95f);
  auto q = poly(b, 0.0003415132967f, 1.127089231f, 0.6381447634f, 0.1031068166f, -0.02183809455f, 0.002947666159f,
                -0.0001863800157f);  // -log(1 - erf(b)), 1 <= b <= 3.95
  auto large = all(x, 1.0f) - exp(neg(q));
  return where(lt(a, all(x, 1.0f)), small, copysign(large, x));
}

// ---- sine and cosine ----------------------------------------------------------------------------

template <int L, int P> struct Quadrant { Vec<int32_t, L, P> q; F32<L, P> sine, cosine; };
// pi/2 in three parts: n times the first two must be exact where there is no fused multiply-add.
#if defined(WEFT_AVX512) || defined(WEFT_AVX2)
constexpr float HALF_PI[3] = {1.57079637f, -4.37113883e-8f, -1.71512489e-15f}, QUADRANT_LIMIT = 1e5f;
#else
constexpr float HALF_PI[3] = {1.5703125f, 4.83751297e-4f, 7.54978995e-8f}, QUADRANT_LIMIT = 4096.0f;
#endif
// x = q pi/2 + r; sine and cosine of r, for |x| < QUADRANT_LIMIT.
WEFT_FV INLINE Quadrant<L, P> quadrant(F32<L, P> x) {
  auto n = round(x * 0.636619772f);
  auto r = fma(n, -HALF_PI[2], fma(n, -HALF_PI[1], fma(n, -HALF_PI[0], x)));
  auto z = r * r;
  auto s = fma(r * z, poly(z, -0.1666666664f, 0.008333329144f, -0.0001983925663f, 2.717564411e-6f), r);
  auto c = poly(z, 0.04166666662f, -0.001388888344f, 2.47994364e-5f, -2.720330326e-7f);
  return {cast<int32_t>(n), s, fma(z * z, c, fma(z, -0.5f, all(x, 1.0f)))};
}
WEFT_FV INLINE bool any_large(F32<L, P> x) { return any_lane(not_(lt(abs(x), all(x, QUADRANT_LIMIT)))); }
WEFT_FV INLINE F32<L, P> pick(Quadrant<L, P> a, Vec<int32_t, L, P> q) {  // sin(r + q pi/2)
  auto y = where(eq(q & 1, all(q, 0)), a.sine, a.cosine);
  return as_float(xor_(as_int(y), shift_left(q & 2, 30)));
}
WEFT_FV INLINE F32<L, P> sin(F32<L, P> x) {
  if (__builtin_expect(any_large(x), 0)) return map([](float y) { return __builtin_sinf(y); }, x);
  auto a = quadrant(x);
  // The polynomial yields +0 for -0: keep the sign of tiny arguments.
  return where(eq(x, all(x, 0.0f)), x, pick(a, a.q));
}
WEFT_FV INLINE F32<L, P> cos(F32<L, P> x) {
  if (__builtin_expect(any_large(x), 0)) return map([](float y) { return __builtin_cosf(y); }, x);
  auto a = quadrant(x);
  return pick(a, a.q + 1);
}

// ---- arc tangent --------------------------------------------------------------------------------

WEFT_FV INLINE F32<L, P> atan(F32<L, P> x) {
  auto a = abs(x);
  auto steep = gt(a, all(x, 2.41421356f)), middle = gt(a, all(x, 0.414213562f));
  auto t = where(steep, neg(reciprocal(a)), where(middle, (a - 1.0f) / (a + 1.0f), a));
  auto base = where(steep, all(x, 1.57079633f), where(middle, all(x, 0.785398163f), all(x, 0.0f)));
  auto z = t * t;
  auto p = poly(z, -0.3333333251f, 0.1999990433f, -0.1428201597f, 0.1104475287f, -0.08476409446f, 0.04743960073f);
  return copysign(base + fma(t * z, p, t), x);
}

}  // namespace weft
