// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): counter-based.
#pragma once
#include "math.h"

namespace weft {

struct Philox { uint32_t word[4]; };

INLINE Philox philox_words(int64_t seed, int64_t counter) {
  uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)((uint64_t)counter >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)((uint64_t)seed >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)b;
    c3 = (uint32_t)a;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}
INLINE float unit_interval(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }

template <int L, int P> INLINE Vec<float, L, P> philox(Vec<int64_t, L, P> seed, Vec<int64_t, L, P> counter) {
  float t[L * P];
  for (int i = 0; i < L * P; ++i) t[i] = unit_interval(philox_words(lane(seed, i), lane(counter, i)).word[0]);
  return load<L, P>((const float*)t, Full{});
}
// Box and Muller's transform of the first two words.
template <int L, int P> INLINE Vec<float, L, P> philox_normal(Vec<int64_t, L, P> seed, Vec<int64_t, L, P> counter) {
  float u[L * P], v[L * P];
  for (int i = 0; i < L * P; ++i) {
    Philox p = philox_words(lane(seed, i), lane(counter, i));
    u[i] = 1.0f - unit_interval(p.word[0]);  // (0, 1]
    v[i] = unit_interval(p.word[1]);
  }
  auto radius = sqrt(log(load<L, P>((const float*)u, Full{})) * -2.0f);
  return radius * cos(load<L, P>((const float*)v, Full{}) * 6.28318531f);
}

}  // namespace weft
