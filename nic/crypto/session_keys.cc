#include "nic/crypto/session_keys.h"

#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace pbox::crypto {
namespace {

// On the side that seals, the chain has one cipher, which gets the keys of one generation after the
// other. On the side that opens, it has three ciphers.
class Chain final : public seal::KeyChain {
 public:
  Chain(const TrafficSecret& first, Suite suite, std::shared_ptr<SecretPages> pages,
        std::byte* slot)
      : suite_(suite), pages_(std::move(pages)), slot_(slot), newest_(*new (slot) TrafficSecret) {
    static_assert(sizeof(TrafficSecret) <= SecretPages::kSlotBytes);
    newest_.bytes = first.bytes;
  }
  ~Chain() override { pages_->give_back(slot_); }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  Status add_ciphers(Side side, Library library) {
    constexpr size_t kNeighbours = 3;
    for (size_t left = side == Side::kSeals ? 1 : kNeighbours; left > 0; --left) {
      auto cipher = make_cipher(suite_, *pages_, library);
      if (!cipher) return cipher.error();
      ciphers_.push_back(std::move(*cipher));
    }
    give_keys(0);
    if (has_neighbours()) give_next_keys();
    return ok_status();
  }

  seal::PacketCipher& present() override { return cipher(present_); }
  seal::PacketCipher& before() override {
    PBOX_DCHECK(has_neighbours() && present_ > 0);
    return cipher(present_ - 1);
  }
  seal::PacketCipher& next() override {
    PBOX_DCHECK(has_neighbours());
    return cipher(present_ + 1);
  }
  void advance() override {
    ++present_;
    give_next_keys();
  }
  void forget_before() override {
    if (has_neighbours() && present_ > 0) cipher(present_ - 1).set_keys({});
  }

 private:
  bool has_neighbours() const { return ciphers_.size() > 1; }
  Cipher& cipher(uint64_t generation) { return *ciphers_[generation % ciphers_.size()]; }
  // Gives the generation's cipher its keys. `newest_` must be the secret of this generation.
  void give_keys(uint64_t generation) {
    Keys keys;
    derive_keys(newest_, suite_, keys);
    cipher(generation).set_keys(keys);
  }
  void give_next_keys() {
    update(newest_);
    give_keys(has_neighbours() ? present_ + 1 : present_);
  }

  const Suite suite_;
  const std::shared_ptr<SecretPages> pages_;  // outlives the ciphers
  std::byte* const slot_;
  TrafficSecret& newest_;  // in the slot: the secret of the newest generation that has keys
  uint64_t present_ = 0;
  std::vector<std::unique_ptr<Cipher>> ciphers_;
};

class ExportedKeys final : public seal::SessionKeys {
 public:
  ExportedKeys(End end, Exporter exporter, std::shared_ptr<SecretPages> pages, Library library)
      : end_(end), exporter_(std::move(exporter)), pages_(std::move(pages)), library_(library) {}

  Result<seal::SessionSeal> make(const seal::SessionName& name,
                                 const seal::SealSpec& spec) override {
    PBOX_CHECK(name.suite != Suite::kNone);
    const std::string context = seal::exporter_context(name);
    TrafficSecret exported;
    if (!exporter_(std::as_bytes(std::span(context)), exported)) {
      return Error{ErrorCode::kUnavailable,
                   "the session's control connection has ended, so no keys can be derived from it"};
    }
    const bool is_box = end_ == End::kBox;
    auto sending = chain(exported, is_box ? Direction::kToWorker : Direction::kToBox, name, spec,
                         Side::kSeals);
    if (!sending) return sending.error();
    auto receiving = chain(exported, is_box ? Direction::kToBox : Direction::kToWorker, name, spec,
                           Side::kOpens);
    if (!receiving) return receiving.error();
    return seal::SessionSeal(std::move(*sending), std::move(*receiving),
                             name.suite == Suite::kGcm256,
                             is_box ? std::optional(spec.updates) : std::nullopt);
  }

 private:
  Result<std::unique_ptr<seal::KeyChain>> chain(const TrafficSecret& exported, Direction direction,
                                                const seal::SessionName& name,
                                                const seal::SealSpec& spec, Side side) {
    TrafficSecret first;
    derive_traffic_secret(exported, spec.pipeline, direction, spec.spi, first);
    return make_key_chain(first, name.suite, side, pages_, library_);
  }

  const End end_;
  const Exporter exporter_;
  const std::shared_ptr<SecretPages> pages_;
  const Library library_;
};

}  // namespace

Result<std::unique_ptr<seal::KeyChain>> make_key_chain(const TrafficSecret& first, Suite suite,
                                                       Side side,
                                                       const std::shared_ptr<SecretPages>& pages,
                                                       Library library) {
  const auto slot = pages->take();
  if (!slot) return slot.error();
  auto chain = std::make_unique<Chain>(first, suite, pages, *slot);
  if (const Status added = chain->add_ciphers(side, library); !added) return added.error();
  return std::unique_ptr<seal::KeyChain>(std::move(chain));
}

std::unique_ptr<seal::SessionKeys> make_session_keys(End end, Exporter exporter,
                                                     std::shared_ptr<SecretPages> pages,
                                                     Library library) {
  PBOX_CHECK(exporter != nullptr && pages != nullptr);
  return std::make_unique<ExportedKeys>(end, std::move(exporter), std::move(pages), library);
}

}  // namespace pbox::crypto
