// Vectorised elementary functions in eager's accuracy (about 1 to 2 ulp) with IEEE special values.
//
// Polynomials fitted for this file (minimax on the interval named beside each), evaluated with fma: those of float and
// of double stand beside each other, as type_of<T>(float's, double's) or as overloads.
// Arc tangent and error function of double, and rarer functions of both types: see library.h.
#pragma once
#include "core.h"

namespace weft {

// ---- notation for this file ---------------------------------------------------------------------

#define WEFT_TV template <class T, int L, int P>
#define WEFT_FV template <int L, int P>
template <int L, int P> using F32 = Vec<float, L, P>;
template <int L, int P> using F64 = Vec<double, L, P>;

WEFT_TV INLINE Vec<T, L, P> operator+(Vec<T, L, P> a, Vec<T, L, P> b) { return add(a, b); }
WEFT_TV INLINE Vec<T, L, P> operator-(Vec<T, L, P> a, Vec<T, L, P> b) { return sub(a, b); }
WEFT_TV INLINE Vec<T, L, P> operator*(Vec<T, L, P> a, Vec<T, L, P> b) { return mul(a, b); }
WEFT_TV INLINE Vec<T, L, P> operator/(Vec<T, L, P> a, Vec<T, L, P> b) { return div(a, b); }
WEFT_TV INLINE Vec<T, L, P> all(Vec<T, L, P>, Lane<T> c) { return splat_lane<L, P, T>(c); }
WEFT_TV INLINE Vec<T, L, P> operator+(Vec<T, L, P> a, Lane<T> b) { return a + all(a, b); }
WEFT_TV INLINE Vec<T, L, P> operator-(Vec<T, L, P> a, Lane<T> b) { return a - all(a, b); }
WEFT_TV INLINE Vec<T, L, P> operator*(Vec<T, L, P> a, Lane<T> b) { return a * all(a, b); }
WEFT_TV INLINE Vec<T, L, P> operator&(Vec<T, L, P> a, Lane<T> b) { return and_(a, all(a, b)); }
WEFT_TV INLINE Vec<T, L, P> fma(Vec<T, L, P> a, Lane<T> b, Vec<T, L, P> c) { return fma(a, all(a, b), c); }
WEFT_TV INLINE Vec<T, L, P> fma(Vec<T, L, P> a, Vec<T, L, P> b, Lane<T> c) { return fma(a, b, all(a, c)); }

// A constant, rounded for float and for double in ways of their own.
template <class T> constexpr T type_of(float a, double b) {
  if constexpr (same<T, float>) return a;
  else return b;
}

// c0 + c1 x + c2 x^2 + ...
WEFT_TV INLINE Vec<T, L, P> poly(Vec<T, L, P> x, Lane<T> c0) { return all(x, c0); }
template <class T, int L, int P, class... C> INLINE Vec<T, L, P> poly(Vec<T, L, P> x, Lane<T> c0, C... c) {
  return fma(x, poly(x, c...), c0);
}

template <class T> constexpr int DIGITS = type_of<T>(23, 52);  // of the mantissa
template <class T> constexpr T SIGN = T(UIntLike<T>(1) << (8 * sizeof(T) - 1));
WEFT_TV INLINE Vec<IntLike<T>, L, P> as_int(Vec<T, L, P> x) { return bits<Vec<IntLike<T>, L, P>>(x); }
template <class T, class I, int L, int P> INLINE Vec<T, L, P> as_float(Vec<I, L, P> x) { return bits<Vec<T, L, P>>(x); }
WEFT_TV INLINE Vec<T, L, P> shift_left(Vec<T, L, P> a, int n) {
  PARTS a.p[k] = a.p[k] << n;
  return a;
}
WEFT_TV INLINE Vec<T, L, P> shift_right(Vec<T, L, P> a, int n) {  // of bits
  typedef Part<UIntLike<T>, L> U;
  PARTS a.p[k] = bits<Part<T, L>>(bits<U>(a.p[k]) >> n);
  return a;
}
WEFT_TV INLINE Vec<T, L, P> copysign(Vec<T, L, P> a, Vec<T, L, P> b) {
  constexpr IntLike<T> sign = SIGN<IntLike<T>>;
  return as_float<T>(or_(as_int(a) & (IntLike<T>)~sign, as_int(b) & sign));
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

// 2^n for integral n whose power is a normal number: n is added to a number whose last bits then hold the exponent.
WEFT_TV INLINE Vec<T, L, P> power_of_two(Vec<T, L, P> n) {
  constexpr T start = type_of<T>(12582912.0f + 127.0f, 6755399441055744.0 + 1023.0);
  return as_float<T>(shift_left(as_int(n + start), DIGITS<T>));
}
// x * 2^n for integral n, |n| at most twice the greatest exponent; one rounding where the result is subnormal.
WEFT_TV INLINE Vec<T, L, P> scale(Vec<T, L, P> x, Vec<T, L, P> n) {
#ifdef WEFT_AVX512
  if constexpr (sizeof(x.p[0]) >= 16) {
    PARTS {
      auto y = x.p[k];
      if constexpr (same<T, float>) asm("vscalefps %2, %1, %0" : "=v"(x.p[k]) : "v"(y), "v"(n.p[k]));
      else asm("vscalefpd %2, %1, %0" : "=v"(x.p[k]) : "v"(y), "v"(n.p[k]));
    }
    return x;
  }
#endif
  auto half = round(n * T(0.5));
  return x * power_of_two(half) * power_of_two(n - half);
}
// Limits x to [lo, hi]; NaN passes.
WEFT_TV INLINE Vec<T, L, P> limit(Vec<T, L, P> x, Lane<T> lo, Lane<T> hi) {
  PARTS {
    auto a = lo - Part<T, L>{}, b = hi - Part<T, L>{};
    auto y = a > x.p[k] ? a : x.p[k];
    x.p[k] = b < y ? b : y;
  }
  return x;
}
WEFT_TV INLINE Vec<T, L, P> at_most(Vec<T, L, P> x, Lane<T> hi) {
  PARTS {
    auto b = hi - Part<T, L>{};
    x.p[k] = b < x.p[k] ? b : x.p[k];
  }
  return x;
}
template <class T, int L, int P> struct Reduced { Vec<T, L, P> n, r; };
// x = n ln 2 + r, |r| <= ln 2 / 2.
WEFT_TV INLINE Reduced<T, L, P> reduce_exp(Vec<T, L, P> x) {
  auto n = round(x * type_of<T>(1.44269504f, 1.4426950408889634));
  auto r = fma(n, type_of<T>(-0.693145752f, -0.693147180559663), x);
  return {n, fma(n, type_of<T>(-1.42860677e-6f, -2.8235290563031577e-13), r)};
}
// (e^r - 1 - r) / r^2 for |r| <= 0.35
WEFT_FV INLINE F32<L, P> exp_tail(F32<L, P> r) {
  return poly(r, 0.5000000083f, 0.1666666687f, 0.04166625376f, 0.008333262638f, 0.001394722492f, 0.000199193799f);
}
WEFT_FV INLINE F64<L, P> exp_tail(F64<L, P> r) {
  return poly(r, 0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326084, 0.0013888888888883711,
              0.0001984126987500228, 2.480158732567746e-05, 2.755725517000089e-06, 2.755727347871858e-07,
              2.5105312729622103e-08, 2.09147553258932e-09);
}
// Powers that are zero (masked scores) are chosen, not computed: a result below the normal numbers costs some 100 times
// as much as another.
WEFT_TV INLINE Vec<T, L, P> exp(Vec<T, L, P> x) {
  auto zero = all(x, 0);
  auto vanishes = lt(x, all(x, type_of<T>(-104.0f, -746.0)));
  auto [n, r] = reduce_exp(at_most(where(vanishes, zero, x), type_of<T>(89.0f, 710.0)));
  return where(vanishes, zero, scale(fma(r * r, exp_tail(r), r) + T(1), n));
}
WEFT_TV INLINE Vec<T, L, P> exp2(Vec<T, L, P> x) {
  auto zero = all(x, 0);
  auto vanishes = lt(x, all(x, type_of<T>(-151.0f, -1076.0)));
  auto y = at_most(where(vanishes, zero, x), type_of<T>(129.0f, 1025.0));
  auto n = round(y);
  auto r = (y - n) * type_of<T>(0.693147181f, 0.6931471805599453);
  return where(vanishes, zero, scale(fma(r * r, exp_tail(r), r) + T(1), n));
}
WEFT_TV INLINE Vec<T, L, P> expm1(Vec<T, L, P> x) {
  auto [n, r] = reduce_exp(limit(x, type_of<T>(-20.0f, -40.0), type_of<T>(89.0f, 710.0)));
  auto e = fma(r * r, exp_tail(r), r);
  auto half_power = scale(all(x, T(0.5)), n);  // 2^(n-1): 2^128 would overflow
  auto y = fma(half_power, e, half_power - T(0.5));
  return where(lt(abs(x), all(x, type_of<T>(1e-7f, 1e-16))), x, y + y);
}
WEFT_TV INLINE Vec<T, L, P> sigmoid(Vec<T, L, P> x) { return reciprocal(exp(neg(x)) + T(1)); }

WEFT_FV INLINE F32<L, P> tanh(F32<L, P> x) {
  auto a = abs(x), z = x * x;
  // |x| < 0.625: x + x^3 p(x^2)
  auto p = poly(z, -0.3333333091f, 0.1333320976f, -0.05394720427f, 0.02170296711f, -0.008182673861f, 0.002147536864f);
  auto small = fma(x * z, p, x);
  auto large = all(x, 1.0f) - all(x, 2.0f) / (exp(a + a) + 1.0f);
  return copysign(where(lt(a, all(x, 0.625f)), small, large), x);  // also for -0
}
WEFT_FV INLINE F64<L, P> tanh(F64<L, P> x) {
  auto y = expm1(at_most(abs(x + x), 40.0));
  return copysign(y / (y + 2.0), x);
}

// ---- logarithms ---------------------------------------------------------------------------------

template <class T, int L, int P> struct Split { Vec<T, L, P> e, f, y; };  // x = 2^e (1 + f);  log(1 + f) = f + y
// y for sqrt(1/2) - 1 <= f <= sqrt(2) - 1
WEFT_FV INLINE F32<L, P> log_tail(F32<L, P> f) {
  auto p = poly(f, 0.333333126f, -0.250000096f, 0.2000211875f, -0.1666799562f, 0.1421955056f, -0.1240559201f,
                0.1188817757f, -0.116756388f, 0.06746591932f);
  auto z = f * f;
  return fma(z, all(f, -0.5f), z * f * p);
}
WEFT_FV INLINE F64<L, P> log_tail(F64<L, P> f) {  // with s = f / (2 + f): log(1 + f) = 2 s + s^3 p(s^2)
  auto s = f / (f + 2.0), z = s * s, half_square = f * f * 0.5;
  auto p = poly(z, 0.6666666666666666, 0.40000000000000885, 0.2857142857079935, 0.22222222392678806,
                0.18181795537085654, 0.15386245304628174, 0.13268623200325125, 0.13088193319166916);
  return fma(s, fma(z, p, half_square), neg(half_square));
}
WEFT_TV INLINE Split<T, L, P> split_log(Vec<T, L, P> x) {
  typedef IntLike<T> I;
  constexpr int digits = DIGITS<T>, bias = sizeof(T) == 4 ? 127 : 1023;
  constexpr I one = (I)bias << digits, root = sizeof(T) == 4 ? (I)0x3f3504f3 : (I)0x3fe6a09e667f3bcd;
  constexpr T power = T((I)1 << digits);
  auto tiny = lt(x, all(x, type_of<T>(1.17549435e-38f, 2.2250738585072014e-308)));
  auto u = as_int(where(tiny, x * power, x));
  // Exponent such that the mantissa lies in [sqrt(1/2), sqrt(2)).
  auto i = shift_right(u + (I)(one - root), digits);
  auto f = as_float<T>(u - shift_left(i, digits) + one) - T(1);
  auto e = as_float<T>(or_(i, as_int(all(x, power)))) - where(tiny, all(x, power + T(bias + digits)), all(x, power + T(bias)));
  return {e, f, log_tail(f)};
}
// log of 0, negative numbers, infinity and NaN; y where x is none of these.
WEFT_TV INLINE Vec<T, L, P> log_special(Vec<T, L, P> x, Vec<T, L, P> y) {
  auto infinity = all(x, T(__builtin_inf()));
  y = where(lt(x, infinity), y, x);                        // +inf, NaN
  y = where(eq(x, all(x, 0)), neg(infinity), y);
  return where(lt(x, all(x, 0)), all(x, T(__builtin_nan(""))), y);
}
WEFT_TV INLINE Vec<T, L, P> log_finite(Vec<T, L, P> x) {
  auto [e, f, y] = split_log(x);
  constexpr T high = type_of<T>(0.693359375f, 0.693147180559663), low = type_of<T>(-2.12194440e-4f, 2.8235290563031577e-13);
  return fma(e, high, f + fma(e, low, y));
}
WEFT_TV INLINE Vec<T, L, P> log(Vec<T, L, P> x) { return log_special(x, log_finite(x)); }
WEFT_TV INLINE Vec<T, L, P> log2(Vec<T, L, P> x) {
  auto [e, f, y] = split_log(x);
  // (f + y) log2(e), with log2(e) = 1 + 0.4427
  auto t = fma(f + y, type_of<T>(0.44269504f, 0.44269504088896343), y);
  return log_special(x, e + (f + t));
}
WEFT_TV INLINE Vec<T, L, P> log10(Vec<T, L, P> x) {
  auto [e, f, y] = split_log(x);
  auto t = fma(e, type_of<T>(4.60503898e-6f, 3.694239077158931e-13), (f + y) * type_of<T>(0.434294482f, 0.4342944819032518));
  return log_special(x, fma(e, type_of<T>(0.301025391f, 0.30102999566361177), t));
}
WEFT_TV INLINE Vec<T, L, P> log1p(Vec<T, L, P> x) {
  auto one = all(x, 1), u = x + one;
  // What rounding u lost, relative to u.
  auto lost = where(gt(x, one), one - (u - x), x - (u - one));
  auto y = log_finite(u) + lost / u;
  y = where(eq(u, one), x, y);
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

template <class T, int L, int P> struct Quadrant { Vec<IntLike<T>, L, P> q; Vec<T, L, P> sine, cosine; };
// pi/2 in three parts: n times the first two must be exact where there is no fused multiply-add.
#if defined(WEFT_AVX512) || defined(WEFT_AVX2)
constexpr float HALF_PI[3] = {1.57079637f, -4.37113883e-8f, -1.71512489e-15f}, QUADRANT_LIMIT = 1e5f;
#else
constexpr float HALF_PI[3] = {1.5703125f, 4.83751297e-4f, 7.54978995e-8f}, QUADRANT_LIMIT = 4096.0f;
#endif
constexpr double HALF_PI_OF_DOUBLE[3] = {1.5707963267341256, 6.07710049817245e-11, 8.333742918520879e-20};
// (sin(r) - r) / r^3 and (cos(r) - 1 + r^2 / 2) / r^4 for z = r^2, |r| <= pi/4
WEFT_FV INLINE F32<L, P> sine_tail(F32<L, P> z) {
  return poly(z, -0.1666666664f, 0.008333329144f, -0.0001983925663f, 2.717564411e-6f);
}
WEFT_FV INLINE F32<L, P> cosine_tail(F32<L, P> z) {
  return poly(z, 0.04166666662f, -0.001388888344f, 2.47994364e-5f, -2.720330326e-7f);
}
WEFT_FV INLINE F64<L, P> sine_tail(F64<L, P> z) {
  return poly(z, -0.16666666666666666, 0.008333333333333331, -0.00019841269841265017, 2.755731921930192e-06,
              -2.5052106219521895e-08, 1.6058529572267877e-10, -7.586576588171073e-13);
}
WEFT_FV INLINE F64<L, P> cosine_tail(F64<L, P> z) {
  return poly(z, 0.041666666666666664, -0.0013888888888887382, 2.480158729874307e-05, -2.7557317260008837e-07,
              2.0876143827993133e-09, -1.1382456778061306e-11);
}
// x = q pi/2 + r; sine and cosine of r, for |x| < QUADRANT_LIMIT. The last bits of q are in those of n + start.
WEFT_TV INLINE Quadrant<T, L, P> quadrant(Vec<T, L, P> x) {
  auto n = round(x * type_of<T>(0.636619772f, 0.6366197723675814));
  auto r = fma(n, -type_of<T>(HALF_PI[0], HALF_PI_OF_DOUBLE[0]), x);
  r = fma(n, -type_of<T>(HALF_PI[1], HALF_PI_OF_DOUBLE[1]), r);
  r = fma(n, -type_of<T>(HALF_PI[2], HALF_PI_OF_DOUBLE[2]), r);
  auto z = r * r;
  constexpr T start = type_of<T>(12582912.0f, 6755399441055744.0);
  return {as_int(n + start), fma(r * z, sine_tail(z), r), fma(z * z, cosine_tail(z), fma(z, T(-0.5), all(x, 1)))};
}
WEFT_TV INLINE bool any_large(Vec<T, L, P> x) { return any_lane(not_(lt(abs(x), all(x, QUADRANT_LIMIT)))); }
WEFT_TV INLINE Vec<T, L, P> pick(Quadrant<T, L, P> a, Vec<IntLike<T>, L, P> q) {  // sin(r + q pi/2)
  auto y = where(eq(q & 1, all(q, 0)), a.sine, a.cosine);
  return as_float<T>(xor_(as_int(y), shift_left(q & 2, 8 * sizeof(T) - 2)));
}
WEFT_TV INLINE Vec<T, L, P> sin(Vec<T, L, P> x) {
  if (__builtin_expect(any_large(x), 0))
    return map([](T y) { return same<T, float> ? (T)__builtin_sinf(y) : (T)__builtin_sin(y); }, x);
  auto a = quadrant(x);
  // The polynomial yields +0 for -0: keep the sign of tiny arguments.
  return where(eq(x, all(x, 0)), x, pick(a, a.q));
}
WEFT_TV INLINE Vec<T, L, P> cos(Vec<T, L, P> x) {
  if (__builtin_expect(any_large(x), 0))
    return map([](T y) { return same<T, float> ? (T)__builtin_cosf(y) : (T)__builtin_cos(y); }, x);
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
