// Loads the keys that the configuration names, and checks them against the box's name.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "config/config.h"
#include "nic/tls/credentials.h"

namespace pbox::preflight {

// Returns null if security.keys is empty. Keys name a cluster. If cluster.name is set too, both
// names must be equal.
Result<std::shared_ptr<const tls::Credentials>> load_keys(const config::Config& config);

// Loads the keys again. Keys of a different cluster than that of `present` are refused, because the
// box's jobs and sessions belong to the present cluster.
Result<std::shared_ptr<const tls::Credentials>> reload_keys(const config::Config& config,
                                                            const tls::Credentials& present);

// Returns a warning if the keys expire within a week of `now_unix_s`, otherwise "".
std::string expiry_warning(int64_t expires_unix_s, int64_t now_unix_s);

}  // namespace pbox::preflight
