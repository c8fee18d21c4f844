// Keys of the data path. The expected bytes come from another implementation of HKDF: Python's
// hmac and hashlib.
#include <catch2/catch.hpp>
#include <cstring>
#include <set>

#include "nic/crypto/keys.h"
#include "tests/support/hexadecimal.h"

namespace pbox::test {
namespace {

using crypto::Direction;
using crypto::Suite;
using crypto::TrafficSecret;

void fill(TrafficSecret& secret) {
  for (size_t index = 0; index < secret.bytes.size(); ++index) {
    secret.bytes[index] = std::byte(index);
  }
}

std::string keys_of(const TrafficSecret& secret, Suite suite) {
  crypto::Keys keys;
  crypto::derive_keys(secret, suite, keys);
  return text_of(keys.key.bytes) + text_of(keys.iv.bytes);
}

}  // namespace

TEST_CASE("secrets are expanded as RFC 5869 says, with SHA-384") {
  TrafficSecret secret;
  fill(secret);
  std::array<std::byte, 100> bytes;
  crypto::hkdf_expand(secret.bytes, std::as_bytes(std::span("info", 4)), bytes);
  CHECK(text_of(bytes) ==
        from_hexadecimal("ef1be6da9fde779499afc872e55e6739e74d30bdca39e14a68b4b0c16602ee75869f1f9d"
                         "c364d19f6490d97cf398e043dae8f810ce7003dc6f1a59a9da1c1741ce96e3c305247339"
                         "66a3141ab9654ba3a1ce5ef25bd344f855984ad16dce37e6ce441dc0"));
}

TEST_CASE("keys follow from the exported secret as nic/crypto/README.md says") {
  TrafficSecret exported, secret;
  fill(exported);
  crypto::derive_traffic_secret(exported, 3, Direction::kToWorker, 0x81020304, secret);
  CHECK(text_of(secret.bytes) ==
        from_hexadecimal("232e032ed5c44ee9f214bffe6f5b43e884738b967afa47784e4fee2f46bcd49e46992585"
                         "2db67c889d301373c1cc605f"));
  CHECK(keys_of(secret, Suite::kGmac256) ==
        from_hexadecimal("61cf45f1b3a14739f4111b559a555362b160d1e2b43bdfa4670455b58f9c0df611f11533"
                         "84ed1832d4c486e1"));
  CHECK(keys_of(secret, Suite::kGcm256) ==
        from_hexadecimal("7d2534cf34c05fe8090d1af2765f2471ecff8cfa298a1201b69c645f87ecd1f3c86e5092"
                         "1c2cab766327d3ae"));
  crypto::update(secret);
  CHECK(text_of(secret.bytes) ==
        from_hexadecimal("07f79e0a5c9dcf5cb622e088fc8d4dd4e25862728616e7a326f4d0212e8bb488f1c05780"
                         "53c0f98131c2a48b9019fc81"));
}

TEST_CASE("no two pipelines, directions, sessions or updates have the same keys") {
  TrafficSecret exported;
  fill(exported);
  std::set<std::string> keys;
  size_t count = 0;
  for (const uint32_t pipeline : {0u, 1u, 256u}) {
    for (const Direction direction : {Direction::kToBox, Direction::kToWorker}) {
      for (const uint32_t spi : {1u, 2u, 0x01000000u}) {
        TrafficSecret secret;
        crypto::derive_traffic_secret(exported, pipeline, direction, spi, secret);
        for (int update = 0; update < 3; ++update) {
          for (const Suite suite : {Suite::kGmac256, Suite::kGcm256}) {
            keys.insert(keys_of(secret, suite));
            ++count;
          }
          crypto::update(secret);
        }
      }
    }
  }
  CHECK(keys.size() == count);
}

}  // namespace pbox::test
