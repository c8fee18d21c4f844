// The rules of validate() for [cluster] and [upstream]. Private to config/.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace pbox::config {

void check_upstream(const Config& config, std::vector<std::string>& errors);
void check_cluster(const Config& config, std::vector<std::string>& errors);

// Refuses etcd off loopback without TLS, and, for a box with keys, without a login. Not called if
// [security] consents to that.
void check_etcd_is_private(const Config& config, std::vector<std::string>& errors);

}  // namespace pbox::config
