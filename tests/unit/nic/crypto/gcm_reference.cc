#include "tests/unit/nic/crypto/gcm_reference.h"

#include <openssl/evp.h>

#include <array>
#include <cstdint>
#include <memory>

#include "base/check.h"

namespace pbox::test {
namespace {

using Block = std::array<uint8_t, 16>;

Block aes(const std::string& key, const Block& block) {
  struct Free {
    void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
  };
  const std::unique_ptr<EVP_CIPHER_CTX, Free> context(EVP_CIPHER_CTX_new());
  const auto* bytes = reinterpret_cast<const uint8_t*>(key.data());
  Block result{};
  int length = 0;
  PBOX_CHECK(EVP_EncryptInit_ex(context.get(), EVP_aes_256_ecb(), nullptr, bytes, nullptr) == 1);
  PBOX_CHECK(EVP_EncryptUpdate(context.get(), result.data(), &length, block.data(), 16) == 1);
  PBOX_CHECK(length == 16);
  return result;
}

void add(Block& to, const Block& other) {
  for (size_t index = 0; index < to.size(); ++index) to[index] ^= other[index];
}

// Algorithm 1: the product of two blocks.
Block product(const Block& x, const Block& y) {
  Block z{}, v = y;
  for (size_t bit = 0; bit < 128; ++bit) {
    if ((x[bit / 8] >> (7 - bit % 8) & 1) != 0) add(z, v);
    const bool is_odd = (v[15] & 1) != 0;
    for (size_t index = 15; index > 0; --index) {
      v[index] = static_cast<uint8_t>(v[index] >> 1 | v[index - 1] << 7);
    }
    v[0] = static_cast<uint8_t>(v[0] >> 1);
    if (is_odd) v[0] ^= 0xe1;
  }
  return z;
}

// Algorithm 2, over text that is padded to whole blocks.
void hash(Block& y, const Block& h, const std::string& text) {
  for (size_t at = 0; at < text.size(); at += 16) {
    Block block{};
    for (size_t index = 0; index < 16 && at + index < text.size(); ++index) {
      block[index] = static_cast<uint8_t>(text[at + index]);
    }
    add(y, block);
    y = product(y, h);
  }
}

Block counter_block(const std::string& nonce, uint32_t count) {
  Block block{};
  std::copy(nonce.begin(), nonce.end(), block.begin());
  for (size_t index = 0; index < 4; ++index) {
    block[12 + index] = static_cast<uint8_t>(count >> (24 - 8 * index));
  }
  return block;
}

}  // namespace

Sealed gcm_reference(const std::string& key, const std::string& nonce, const std::string& aad,
                     const std::string& plain) {
  PBOX_CHECK(key.size() == 32 && nonce.size() == 12);
  Sealed sealed{.text = plain, .tag = {}};
  for (size_t at = 0; at < plain.size(); ++at) {
    const Block stream = aes(key, counter_block(nonce, static_cast<uint32_t>(2 + at / 16)));
    sealed.text[at] = static_cast<char>(static_cast<uint8_t>(plain[at]) ^ stream[at % 16]);
  }
  const Block h = aes(key, Block{});
  Block s{};
  hash(s, h, aad);
  hash(s, h, sealed.text);
  Block lengths{};
  for (size_t index = 0; index < 8; ++index) {
    lengths[index] = static_cast<uint8_t>(uint64_t{aad.size()} * 8 >> (56 - 8 * index));
    lengths[8 + index] = static_cast<uint8_t>(uint64_t{plain.size()} * 8 >> (56 - 8 * index));
  }
  hash(s, h, std::string(lengths.begin(), lengths.end()));
  add(s, aes(key, counter_block(nonce, 1)));
  sealed.tag.assign(s.begin(), s.end());
  return sealed;
}

}  // namespace pbox::test
