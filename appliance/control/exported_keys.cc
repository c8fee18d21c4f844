#include "appliance/control/exported_keys.h"

#include "base/check.h"

namespace pbox::control {

seal::SessionKeys* ExportedKeys::of(ConnectionId connection) {
  PBOX_CHECK(source_ != nullptr);
  if (connection == 0) return nullptr;
  const auto exporter = [this, connection](std::span<const std::byte> context,
                                           crypto::TrafficSecret& secret) {
    return source_->export_secret(connection, context, secret.bytes);
  };
  at_hand_ = crypto::make_session_keys(crypto::End::kBox, exporter, pages_);
  return at_hand_.get();
}

}  // namespace pbox::control
