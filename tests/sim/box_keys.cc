// The keys of a box's sessions.
#include "tests/sim/box.h"

namespace pbox::sim {

// The keys of one connection. The checker gets the same, so that it can open what either end sends.
class Box::KeysOf final : public seal::SessionKeys {
 public:
  KeysOf(Box& box, ConnectionId connection)
      : box_(box),
        connection_(connection),
        keys_(box.rack_.keys.of(connection, crypto::End::kBox)) {}

  Result<seal::SessionSeal> make(const seal::SessionName& name,
                                 const seal::SealSpec& spec) override {
    const auto mirror = [&](crypto::End end) {
      return box_.rack_.keys.mirror(connection_, end, name, spec);
    };
    box_.checker_->sealed(spec.spi, mirror(crypto::End::kBox), mirror(crypto::End::kWorker));
    return keys_->make(name, spec);
  }

 private:
  Box& box_;
  ConnectionId connection_;
  std::unique_ptr<seal::SessionKeys> keys_;
};

seal::SessionKeys* Box::of(ConnectionId connection) {
  const auto found = session_keys_.find(connection);
  return found == session_keys_.end() ? nullptr : found->second.get();
}

void Box::open_keys(ConnectionId connection) {
  session_keys_[connection] = std::make_unique<KeysOf>(*this, connection);
}

}  // namespace pbox::sim
