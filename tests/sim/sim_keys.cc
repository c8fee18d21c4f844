#include "tests/sim/sim_keys.h"

#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "base/rng.h"
#include "tests/sim/violation.h"

namespace pbox::sim {
namespace {

using crypto::Direction;
using crypto::End;

uint64_t mixed_key(uint64_t a, uint64_t b) {
  return Rng(a ^ Rng(b).next()).next();
}

// Stands for the secret that TLS exports: the same at both ends of a connection, and a different
// one for each connection.
void export_secret(uint64_t seed, ConnectionId connection, const std::string& context,
                   crypto::TrafficSecret& to) {
  crypto::TrafficSecret secret;
  Rng draws(mixed_key(seed, connection));
  for (std::byte& byte : secret.bytes) byte = static_cast<std::byte>(draws.next());
  crypto::hkdf_expand(secret.bytes, std::as_bytes(std::span(context)), to.bytes);
}

}  // namespace

// A chain of keys that records the packet numbers that it seals, and fails if one occurs twice.
class SimKeys::Witness final : public seal::KeyChain {
 public:
  Witness(std::unique_ptr<seal::KeyChain> chain, uint64_t secret, SimKeys& keys)
      : chain_(std::move(chain)), secret_(secret), keys_(keys), cipher_(*this) {}

  seal::PacketCipher& present() override { return cipher_; }
  seal::PacketCipher& before() override { return chain_->before(); }
  seal::PacketCipher& next() override { return chain_->next(); }
  void advance() override {
    chain_->advance();
    ++generation_;
    ++keys_.updates_;
  }
  void forget_before() override { chain_->forget_before(); }

 private:
  class Cipher final : public seal::PacketCipher {
   public:
    explicit Cipher(Witness& owner) : owner_(owner) {}
    wire::Tag seal(const wire::HeaderWords& words, std::span<const std::byte> payload,
                   std::byte* to) override {
      owner_.note(std::bit_cast<wire::Header>(words));
      return owner_.chain_->present().seal(words, payload, to);
    }
    bool open(const wire::HeaderWords& words, std::span<const std::byte> payload,
              const wire::Tag& tag, std::byte* to) override {
      return owner_.chain_->present().open(words, payload, tag, to);
    }

   private:
    Witness& owner_;
  };

  void note(const wire::Header& header) {
    const uint64_t key = mixed_key(secret_, generation_);
    require(keys_.used_.insert(mixed_key(key, header.packet_number)), [&] {
      return "nonce: packet number " + std::to_string(header.packet_number) +
             " was used twice with one key, for spi " + std::to_string(header.spi);
    });
  }

  std::unique_ptr<seal::KeyChain> chain_;
  uint64_t secret_;  // the first bytes of the first generation's secret
  SimKeys& keys_;
  uint64_t generation_ = 0;
  Cipher cipher_;
};

class SimKeys::OfConnection final : public seal::SessionKeys {
 public:
  OfConnection(SimKeys& keys, ConnectionId connection, End end, Watch watch)
      : keys_(keys), connection_(connection), end_(end), watch_(std::move(watch)) {}
  Result<seal::SessionSeal> make(const seal::SessionName& name,
                                 const seal::SealSpec& spec) override {
    if (watch_) watch_(name, spec);
    return keys_.make(connection_, end_, name, spec, true);
  }

 private:
  SimKeys& keys_;
  ConnectionId connection_;
  End end_;
  Watch watch_;
};

std::unique_ptr<seal::SessionKeys> SimKeys::of(ConnectionId connection, End end, Watch watch) {
  return std::make_unique<OfConnection>(*this, connection, end, std::move(watch));
}

SealMirror SimKeys::mirror(ConnectionId connection, End end, const seal::SessionName& name,
                           const seal::SealSpec& spec) {
  return SealMirror(make(connection, end, name, spec, false));
}

seal::SessionSeal SimKeys::make(ConnectionId connection, End end, const seal::SessionName& name,
                                const seal::SealSpec& spec, bool seals) {
  crypto::TrafficSecret exported;
  export_secret(seed_, connection, seal::exporter_context(name), exported);
  const auto chain = [&](Direction direction, crypto::Side side) {
    crypto::TrafficSecret first;
    crypto::derive_traffic_secret(exported, spec.pipeline, direction, spec.spi, first);
    auto made = crypto::make_key_chain(first, name.suite, side, pages_);
    require(made.ok(), "no memory for keys");
    uint64_t secret = 0;
    std::memcpy(&secret, first.bytes.data(), sizeof(secret));
    return std::pair(std::move(*made), secret);
  };
  // A mirror does not seal, so it begins no update. The packets that it opens lead it.
  const bool is_box = end == End::kBox;
  auto [sending, secret] =
      chain(is_box ? Direction::kToWorker : Direction::kToBox, crypto::Side::kSeals);
  if (seals && checks_) sending = std::make_unique<Witness>(std::move(sending), secret, *this);
  auto receiving =
      chain(is_box ? Direction::kToBox : Direction::kToWorker, crypto::Side::kOpens).first;
  return {std::move(sending), std::move(receiving), name.suite == seal::Suite::kGcm256,
          is_box && seals ? std::optional(spec.updates) : std::nullopt};
}

}  // namespace pbox::sim
