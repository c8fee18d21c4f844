// The rules of validate() that [cluster] brings. Private to config/.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace pbox::config {

void check_upstream(const Config& config, std::vector<std::string>& errors);
void check_cluster(const Config& config, std::vector<std::string>& errors);

// Without both consents of [security]: etcd off loopback only by TLS.
void check_etcd_is_private(const Config& config, std::vector<std::string>& errors);

}  // namespace pbox::config
