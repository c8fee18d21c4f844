// The keys of the data path. Both ends of a control connection derive them from a secret that TLS
// exports (RFC 8446, section 7.5), so that no key is sent. Every pipeline and direction of a
// connection has keys of its own, which only one core uses, so no pair of key and packet number
// occurs twice.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nic/crypto/secret_pages.h"
#include "nic/seal/session_keys.h"

namespace pbox::crypto {

using seal::Suite;

enum class Direction : uint8_t { kToBox = 0, kToWorker = 1 };

// Bytes that are erased when they are no longer needed. Not copyable.
template <size_t kBytes>
struct Secret {
  std::array<std::byte, kBytes> bytes{};

  Secret() = default;
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret() { erase(bytes); }
};

inline constexpr size_t kSecretBytes = 48;  // an output of SHA-384
inline constexpr size_t kKeyBytes = 32;
inline constexpr size_t kIvBytes = 12;

using TrafficSecret = Secret<kSecretBytes>;

struct Keys {
  Secret<kKeyBytes> key;
  Secret<kIvBytes> iv;
};

// Computes HKDF-Expand with SHA-384 (RFC 5869, section 2.3) and fills `to`, which has at most
// 255 x 48 bytes.
void hkdf_expand(std::span<const std::byte> secret, std::span<const std::byte> info,
                 std::span<std::byte> to);

// Sets the first traffic secret of one direction of the session `spi` on one pipeline.
void derive_traffic_secret(const TrafficSecret& exported, uint32_t pipeline, Direction direction,
                           uint32_t spi, TrafficSecret& to);
// Sets the keys that belong to a traffic secret.
void derive_keys(const TrafficSecret& secret, Suite suite, Keys& to);
// Replaces a traffic secret by its successor, from which the replaced secret cannot be computed.
void update(TrafficSecret& secret);

}  // namespace pbox::crypto
