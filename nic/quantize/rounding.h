// The random numbers of stochastic rounding. They depend only on the identity of what is rounded:
// job, rank, tensor and round. So values that are encoded again, after a loss or on another box,
// get the same bits, and no state has to be kept.
#pragma once

#include <cstdint>
#include <string_view>

namespace pbox::quantize {

struct RoundingKey {
  uint32_t low = 0;
  uint32_t high = 0;
};

// Identifies the values that are encoded.
struct RoundingSource {
  uint64_t seed = 0;    // hash of the job's name (hash_of)
  uint64_t tensor = 0;  // hash of the tensor's name, or the number of the chunk or slot
  uint64_t first_element = 0;
  uint32_t rank = 0;
  uint32_t round = 0;
};
// Used as the rank when a box encodes a sum.
inline constexpr uint32_t kBoxRank = UINT32_MAX;

// Returns a hash of the text: FNV-1a (Fowler, Noll, Vo).
constexpr uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char character : text) {
    hash = (hash ^ static_cast<uint8_t>(character)) * 0x100000001b3u;
  }
  return hash;
}

constexpr uint64_t mixed(uint64_t state, uint64_t next) {  // the finalizer of SplitMix64
  uint64_t z = (state ^ next) + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

constexpr RoundingKey key_of(const RoundingSource& source) {
  uint64_t key = mixed(source.seed, source.tensor);
  key = mixed(key, source.first_element);
  key = mixed(key, uint64_t{source.rank} << 32 | source.round);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

// Returns 32 random bits, which serve two elements (reference.h). They are a hash of the counter,
// with the steps and constants of lowbias32 (Wellons, "Prospecting for Hash Functions", 2018). Half
// of the key is added before the steps, and half between them.
constexpr uint32_t random_bits(RoundingKey key, uint32_t counter) {
  uint32_t bits = counter * 0x9e3779b1u + key.low;
  bits ^= bits >> 16;
  bits *= 0x7feb352du;
  bits ^= bits >> 15;
  bits += key.high;
  bits *= 0x846ca68bu;
  return bits ^ bits >> 16;
}

}  // namespace pbox::quantize
