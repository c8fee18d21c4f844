// The keys that the configuration names: loaded, and checked against the box's name. Reads files.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "config/config.h"
#include "nic/tls/credentials.h"

namespace pbox::preflight {

// Returns null if security.keys is empty.
Result<std::shared_ptr<const tls::Credentials>> load_keys(const config::Config& config);

// Returns a warning if the keys expire within a week of `now_unix_s`, otherwise "".
std::string expiry_warning(int64_t expires_unix_s, int64_t now_unix_s);

}  // namespace pbox::preflight
