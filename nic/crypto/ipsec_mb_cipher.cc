#include <intel-ipsec-mb.h>

#include <new>

#include "base/check.h"
#include "base/limits.h"
#include "nic/crypto/ciphers.h"

namespace pbox::crypto {
namespace {

// Returns the library's functions for this CPU; null if it has no AES instructions. All threads may
// share the library's manager, because it is used only as a table of functions.
const IMB_MGR* functions() {
  static const IMB_MGR* const manager = [] {
    IMB_MGR* made = alloc_mb_mgr(0);
    PBOX_CHECK(made != nullptr);
    IMB_ARCH architecture = IMB_ARCH_NONE;
    init_mb_mgr_auto(made, &architecture);
    return (made->features & IMB_FEATURE_AESNI) != 0 ? made : nullptr;
  }();
  return manager;
}

class IpsecMbCipher final : public Cipher {
 public:
  IpsecMbCipher(Suite suite, SecretPages& pages, std::byte* slot)
      : suite_(suite), pages_(pages), slot_(slot), key_(new (slot) gcm_key_data) {
    static_assert(sizeof(gcm_key_data) <= SecretPages::kSlotBytes);
    PBOX_CHECK(functions_ != nullptr);
    set_keys({});
  }
  ~IpsecMbCipher() override { pages_.give_back(slot_); }
  IpsecMbCipher(const IpsecMbCipher&) = delete;
  IpsecMbCipher& operator=(const IpsecMbCipher&) = delete;

  void set_keys(const Keys& keys) override {
    iv_ = pad(keys.iv.bytes);
    IMB_AES256_GCM_PRE(functions_, keys.key.bytes.data(), key_);
  }

  wire::Tag seal(const wire::HeaderWords& header, std::span<const std::byte> payload,
                 std::byte* to) override {
    PBOX_DCHECK(payload.size() <= limits::kFragmentBytesMax);
    if (suite_ == Suite::kGmac256) return authenticate(header, payload);
    PBOX_DCHECK(to != nullptr || payload.empty());
    const Nonce nonce = nonce_of(iv_, header);
    gcm_context_data context;
    wire::Tag tag;
    IMB_AES256_GCM_ENC(functions_, key_, &context, raw(to), raw(payload.data()), payload.size(),
                       raw(nonce.bytes.data()), raw(header.data()), sizeof(header), raw(tag.data()),
                       tag.size());
    return tag;
  }

  bool open(const wire::HeaderWords& header, std::span<const std::byte> payload,
            const wire::Tag& tag, std::byte* to) override {
    PBOX_DCHECK(payload.size() <= limits::kFragmentBytesMax);
    if (suite_ == Suite::kGmac256) return wire::is_equal(authenticate(header, payload), tag);
    PBOX_DCHECK(to != nullptr || payload.empty());
    const Nonce nonce = nonce_of(iv_, header);
    gcm_context_data context;
    wire::Tag found;
    IMB_AES256_GCM_DEC(functions_, key_, &context, raw(to), raw(payload.data()), payload.size(),
                       raw(nonce.bytes.data()), raw(header.data()), sizeof(header),
                       raw(found.data()), found.size());
    return wire::is_equal(found, tag);
  }

 private:
  static uint8_t* raw(void* bytes) { return static_cast<uint8_t*>(bytes); }
  static const uint8_t* raw(const void* bytes) { return static_cast<const uint8_t*>(bytes); }

  wire::Tag authenticate(const wire::HeaderWords& header,
                         std::span<const std::byte> payload) const {
    PBOX_DCHECK(functions_ != nullptr);
    const Nonce nonce = nonce_of(iv_, header);
    gcm_context_data context;
    wire::Tag tag;
    IMB_AES256_GMAC_INIT(functions_, key_, &context, raw(nonce.bytes.data()), kIvBytes);
    if (!payload.empty())
      IMB_AES256_GMAC_UPDATE(functions_, key_, &context, raw(payload.data()), payload.size());
    IMB_AES256_GMAC_UPDATE(functions_, key_, &context, raw(header.data()), sizeof(header));
    IMB_AES256_GMAC_FINALIZE(functions_, key_, &context, raw(tag.data()), tag.size());
    return tag;
  }

  const Suite suite_;
  Nonce iv_;
  SecretPages& pages_;
  std::byte* const slot_;
  gcm_key_data* const key_;
  const IMB_MGR* const functions_ = functions();
};

}  // namespace

bool has_ipsec_mb() {
  return functions() != nullptr;
}

Result<std::unique_ptr<Cipher>> make_ipsec_mb_cipher(Suite suite, SecretPages& pages) {
  PBOX_CHECK(has_ipsec_mb());
  const auto slot = pages.take();
  if (!slot) return slot.error();
  return std::unique_ptr<Cipher>(std::make_unique<IpsecMbCipher>(suite, pages, *slot));
}

}  // namespace pbox::crypto
