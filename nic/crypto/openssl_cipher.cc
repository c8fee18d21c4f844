#include <openssl/evp.h>

#include "base/check.h"
#include "nic/crypto/ciphers.h"

namespace pbox::crypto {
namespace {

struct Free {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};

unsigned char* raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

// One context serves for both sealing and opening. GMAC computes its tag in the same way for both,
// and a GCM context is told with each packet which of the two to do.
class OpenSslCipher final : public Cipher {
 public:
  explicit OpenSslCipher(Suite suite) : suite_(suite), context_(EVP_CIPHER_CTX_new()) {
    PBOX_CHECK(context_ != nullptr);
    set_keys({});
  }

  void set_keys(const Keys& keys) override {
    iv_ = pad(keys.iv.bytes);
    PBOX_CHECK(EVP_CipherInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr,
                                 raw(keys.key.bytes.data()), nullptr, 1) == 1);
  }

  wire::Tag seal(const wire::HeaderWords& header, std::span<const std::byte> payload,
                 std::byte* to) override {
    run(true, header, payload, to);
    PBOX_CHECK(finish());
    wire::Tag tag;
    PBOX_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, tag.size(), tag.data()) ==
               1);
    return tag;
  }

  bool open(const wire::HeaderWords& header, std::span<const std::byte> payload,
            const wire::Tag& tag, std::byte* to) override {
    if (suite_ == Suite::kGmac256) return wire::is_equal(seal(header, payload, nullptr), tag);
    run(false, header, payload, to);
    wire::Tag wanted = tag;
    PBOX_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, wanted.size(),
                                   wanted.data()) == 1);
    return finish();
  }

 private:
  void run(bool seals, const wire::HeaderWords& header, std::span<const std::byte> payload,
           std::byte* to) {
    const Nonce nonce = nonce_of(iv_, header);
    PBOX_CHECK(EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, raw(nonce.bytes.data()),
                                 seals ? 1 : 0) == 1);
    if (suite_ == Suite::kGmac256) authenticate(payload);
    authenticate(std::as_bytes(std::span(header)));
    if (suite_ == Suite::kGcm256) update(payload, to);
  }
  void authenticate(std::span<const std::byte> bytes) { update(bytes, nullptr); }
  void update(std::span<const std::byte> bytes, std::byte* to) {
    if (bytes.empty()) return;
    int written = 0;
    PBOX_CHECK(EVP_CipherUpdate(context_.get(), raw(to), &written, raw(bytes.data()),
                                static_cast<int>(bytes.size())) == 1);
  }
  // Returns false if the packet is being opened and its tag is wrong.
  bool finish() {
    unsigned char none[EVP_MAX_BLOCK_LENGTH];  // GCM writes nothing here
    int written = 0;
    return EVP_CipherFinal_ex(context_.get(), none, &written) == 1;
  }

  const Suite suite_;
  Nonce iv_;
  std::unique_ptr<EVP_CIPHER_CTX, Free> context_;
};

}  // namespace

std::unique_ptr<Cipher> make_openssl_cipher(Suite suite) {
  return std::make_unique<OpenSslCipher>(suite);
}

}  // namespace pbox::crypto
