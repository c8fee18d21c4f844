#include "nic/crypto/cipher.h"

#include <bit>
#include <cstddef>
#include <cstring>

#include "nic/crypto/ciphers.h"

namespace pbox::crypto {
namespace {

constexpr size_t kPacketNumberWord = offsetof(wire::Header, packet_number) / sizeof(uint64_t);
static_assert(offsetof(wire::Header, packet_number) % sizeof(uint64_t) == 0);
static_assert(std::endian::native == std::endian::little);

}  // namespace

Cipher::Nonce Cipher::nonce_of(const std::array<std::byte, kIvBytes>& iv,
                               const wire::HeaderWords& header) {
  constexpr size_t kOffset = kIvBytes - sizeof(uint64_t);
  Nonce nonce = iv;
  uint64_t low = 0;
  std::memcpy(&low, nonce.data() + kOffset, sizeof(low));
  low ^= __builtin_bswap64(header[kPacketNumberWord]);
  std::memcpy(nonce.data() + kOffset, &low, sizeof(low));
  return nonce;
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
