#include "nic/crypto/keys.h"

#include <openssl/core_names.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"

namespace pbox::crypto {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

const char* label_of(Suite suite) {
  PBOX_CHECK(suite == Suite::kGmac256 || suite == Suite::kGcm256);
  return suite == Suite::kGmac256 ? "gmac256" : "gcm256";
}

void append_little_endian(std::string& text, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) text += static_cast<char>(value >> shift & 0xff);
}

}  // namespace

void hkdf_expand(std::span<const std::byte> secret, std::span<const std::byte> info,
                 std::span<std::byte> to) {
  struct Free {
    void operator()(EVP_KDF* kdf) const { EVP_KDF_free(kdf); }
    void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
  };
  static const std::unique_ptr<EVP_KDF, Free> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  PBOX_CHECK(kdf != nullptr);
  const std::unique_ptr<EVP_KDF_CTX, Free> context(EVP_KDF_CTX_new(kdf.get()));
  PBOX_CHECK(context != nullptr);
  int mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY;
  char digest[] = "SHA384";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, const_cast<std::byte*>(secret.data()),
                                        secret.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, const_cast<std::byte*>(info.data()),
                                        info.size()),
      OSSL_PARAM_construct_end()};
  PBOX_CHECK(EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(to.data()), to.size(),
                            parameters) == 1);
}

void derive_traffic_secret(const TrafficSecret& exported, uint32_t pipeline, Direction direction,
                           uint32_t spi, TrafficSecret& to) {
  std::string info = "pbox v2";
  append_little_endian(info, pipeline);
  info += static_cast<char>(direction);
  append_little_endian(info, spi);
  hkdf_expand(exported.bytes, bytes_of(info), to.bytes);
}

void derive_keys(const TrafficSecret& secret, Suite suite, Keys& to) {
  Secret<kKeyBytes + kIvBytes> both;
  hkdf_expand(secret.bytes, bytes_of(label_of(suite)), both.bytes);
  std::memcpy(to.key.bytes.data(), both.bytes.data(), kKeyBytes);
  std::memcpy(to.iv.bytes.data(), both.bytes.data() + kKeyBytes, kIvBytes);
}

void update(TrafficSecret& secret) {
  TrafficSecret next;
  hkdf_expand(secret.bytes, bytes_of("ku"), next.bytes);
  secret.bytes = next.bytes;
}

}  // namespace pbox::crypto
