#include "nic/crypto/cipher.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "nic/crypto/ciphers.h"

namespace pbox::crypto {
namespace {

constexpr size_t kPacketNumberWord = offsetof(wire::Header, packet_number) / sizeof(uint64_t);
static_assert(offsetof(wire::Header, packet_number) % sizeof(uint64_t) == 0);
static_assert(std::endian::native == std::endian::little);

}  // namespace

Cipher::Nonce Cipher::pad(const std::array<std::byte, kIvBytes>& iv) {
  Nonce nonce;
  std::copy(iv.begin(), iv.end(), nonce.bytes.begin());
  return nonce;
}

// Xors the packet number, big endian, into bytes [4, 12).
Cipher::Nonce Cipher::nonce_of(const Nonce& iv, const wire::HeaderWords& header) {
  using Words = uint64_t __attribute__((vector_size(sizeof(Nonce))));
  static_assert(kIvBytes == 12);
  const uint64_t number = __builtin_bswap64(header[kPacketNumberWord]);
  return std::bit_cast<Nonce>(std::bit_cast<Words>(iv) ^ Words{number << 32, number >> 32});
}

Result<std::unique_ptr<Cipher>> make_cipher(Suite suite, [[maybe_unused]] SecretPages& pages,
                                            [[maybe_unused]] Library library) {
#ifdef PBOX_HAS_IPSEC_MB
  if (library == Library::kFastest && has_ipsec_mb()) return make_ipsec_mb_cipher(suite, pages);
#endif
  return make_openssl_cipher(suite);
}

const char* fastest_library() {
#ifdef PBOX_HAS_IPSEC_MB
  if (has_ipsec_mb()) return "ipsec-mb";
#endif
  return "OpenSSL";
}

}  // namespace pbox::crypto
