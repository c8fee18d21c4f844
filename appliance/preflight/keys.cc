#include "appliance/preflight/keys.h"

namespace pbox::preflight {

Result<std::shared_ptr<const tls::Credentials>> load_keys(const config::Config& config) {
  const std::string& folder = config.security.keys;
  if (folder.empty()) return std::shared_ptr<const tls::Credentials>();
  auto loaded = tls::Credentials::load(folder);
  if (!loaded) return Error{loaded.error().code, "security.keys: " + loaded.error().message};
  const tls::Identity& identity = (*loaded)->identity();
  if (identity.role != tls::Role::kBox || identity.box != config.box.name) {
    return Error{ErrorCode::kInvalidArgument,
                 "security.keys = " + folder + " holds keys of " + tls::to_uri(identity) +
                     ", but this is box '" + config.box.name +
                     "'; make keys for it (`pboxctl keys box`), or set box.name"};
  }
  return std::shared_ptr<const tls::Credentials>(std::move(*loaded));
}

std::string expiry_warning(int64_t expires_unix_s, int64_t now_unix_s) {
  constexpr int64_t kWeekSeconds = 7 * 24 * 3600;
  if (expires_unix_s - now_unix_s > kWeekSeconds) return "";
  return "this box's keys expire on " + tls::utc_text(expires_unix_s) +
         ", and no peer accepts them afterwards; make new ones with `pboxctl keys box --force` and "
         "restart the box";
}

}  // namespace pbox::preflight
