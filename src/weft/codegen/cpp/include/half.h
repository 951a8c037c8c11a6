// IEEE half precision in memory, and rounding to the half types.
#pragma once
#include "core.h"

namespace weft {

// Bits of a half as float: subnormals through a float subtraction, which normalises them.
template <int L> INLINE Part<float, L> half_to_float(Part<uint16_t, L> x) {
#if defined(WEFT_AVX512) || defined(WEFT_AVX2)
  if constexpr (L == 8 || L == 16) {
    Part<float, L> r;
    asm("vcvtph2ps %1, %0" : "=v"(r) : "v"(x));
    return r;
  }
#endif
  typedef Part<uint32_t, L> U;
  U h = convert<uint32_t, L>(x);
  U sign = (h & 0x8000) << 16, body = (h & 0x7fff) << 13, exponent = body & 0x0f800000;
  U normal = body + (112u << 23), special = body + (224u << 23);
  auto zero = 113u << 23;
  U tiny = bits<U>(bits<Part<float, L>>(body + zero) - bits<Part<float, L>>(zero - U{}));
  U r = exponent == 0x0f800000 ? special : exponent == 0 ? tiny : normal;
  return bits<Part<float, L>>(r | sign);
}

// Round to nearest even; overflow gives infinity.
template <int L> INLINE Part<uint16_t, L> float_to_half(Part<float, L> x) {
#if defined(WEFT_AVX512) || defined(WEFT_AVX2)
  if constexpr (L == 8 || L == 16) {
    Part<uint16_t, L> r;
    asm("vcvtps2ph $0, %1, %0" : "=v"(r) : "v"(x));
    return r;
  }
#endif
  typedef Part<uint32_t, L> U;
  typedef Part<float, L> F;
  U u = bits<U>(x), sign = (u & 0x80000000) >> 16, a = u & 0x7fffffff;
  // Subnormal results: adding 0.5 leaves the rounded bits at the bottom of the mantissa.
  U tiny = bits<U>(bits<F>(a) + (0.5f - F{})) - 0x3f000000;
  U normal = (a + 0xfff + ((a >> 13) & 1) - (112u << 23)) >> 13;
  U nan = 0x7e00 | ((a >> 13) & 0x3ff);
  U infinity = 0x7c00 - U{};
  U r = a > 0x7f800000 ? nan : a >= 0x477ff000 ? infinity : a < 0x38800000 ? tiny : normal;
  return convert<uint16_t, L>(r | sign);
}

template <> struct Memory<half> {
  typedef uint16_t Word;
  template <int L> static INLINE Part<float, L> decode(Part<uint16_t, L> x) { return half_to_float<L>(x); }
  template <int L> static INLINE Part<uint16_t, L> encode(Part<float, L> x) { return float_to_half<L>(x); }
};

template <class H, int L, int P> INLINE Vec<float, L, P> rounded(Vec<float, L, P> x) {
  PARTS x.p[k] = Memory<H>::template decode<L>(Memory<H>::template encode<L>(x.p[k]));
  return x;
}
template <int L, int P> INLINE Vec<float, L, P> round_bf16(Vec<float, L, P> x) { return rounded<bfloat16>(x); }
template <int L, int P> INLINE Vec<float, L, P> round_f16(Vec<float, L, P> x) { return rounded<half>(x); }

}  // namespace weft
