// The keys that the configuration names: loaded, and checked against the box's name. Reads files.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "config/config.h"
#include "nic/tls/credentials.h"

namespace pbox::preflight {

// Returns null if security.keys is empty. Keys state a cluster: if cluster.name is set too, both
// must be the same.
Result<std::shared_ptr<const tls::Credentials>> load_keys(const config::Config& config);

// Loads the keys again. Those of another cluster than `present` are refused: the box's jobs and
// sessions are of the present one.
Result<std::shared_ptr<const tls::Credentials>> reload_keys(const config::Config& config,
                                                            const tls::Credentials& present);

// Returns a warning if the keys expire within a week of `now_unix_s`, otherwise "".
std::string expiry_warning(int64_t expires_unix_s, int64_t now_unix_s);

}  // namespace pbox::preflight
