#include "appliance/preflight/keys.h"

namespace pbox::preflight {

Result<std::shared_ptr<const tls::Credentials>> load_keys(const config::Config& config) {
  const std::string& folder = config.security.keys;
  if (folder.empty()) return std::shared_ptr<const tls::Credentials>();
  auto loaded = tls::Credentials::load(folder);
  if (!loaded) return Error{loaded.error().code, "security.keys: " + loaded.error().message};
  const tls::Identity& identity = (*loaded)->identity();
  if (identity.role != tls::Role::kBox || identity.box != config.box.name) {
    return Error{
        ErrorCode::kInvalidArgument,
        "security.keys = " + folder + " holds keys of " + tls::to_uri(identity) +
            ", but this is box '" + config.box.name +
            "'; make keys for this box (`pboxctl keys box`), or set box.name to the keys' name"};
  }
  const std::string& cluster = config.cluster.name;
  if (cluster != config::Cluster{}.name && cluster != identity.cluster) {
    return Error{ErrorCode::kInvalidArgument,
                 "security.keys = " + folder + " holds keys of cluster '" + identity.cluster +
                     "', but cluster.name = " + cluster +
                     "; use keys of that cluster, or set cluster.name to the keys' cluster"};
  }
  return std::shared_ptr<const tls::Credentials>(std::move(*loaded));
}

Result<std::shared_ptr<const tls::Credentials>> reload_keys(const config::Config& config,
                                                            const tls::Credentials& present) {
  auto keys = load_keys(config);
  if (!keys || *keys == nullptr) return keys;
  const std::string& cluster = (*keys)->identity().cluster;
  if (cluster == present.identity().cluster) return keys;
  return Error{ErrorCode::kInvalidArgument,
               "security.keys = " + config.security.keys + " holds keys of cluster '" + cluster +
                   "' now, but the box runs in cluster '" + present.identity().cluster +
                   "'; restart the box to change its cluster"};
}

std::string expiry_warning(int64_t expires_unix_s, int64_t now_unix_s) {
  constexpr int64_t kWeekSeconds = 7 * 24 * 3600;
  if (expires_unix_s - now_unix_s > kWeekSeconds) return "";
  const bool is_over = expires_unix_s <= now_unix_s;
  return std::string("this box's keys ") + (is_over ? "expired on " : "expire on ") +
         tls::utc_text(expires_unix_s) +
         (is_over ? ", and no peer accepts them" : ", after which no peer accepts them") +
         "; make new ones with `pboxctl keys box --force` and reload the box";
}

}  // namespace pbox::preflight
