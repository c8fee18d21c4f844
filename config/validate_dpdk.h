// The rules of validate() that data.port = dpdk brings. Private to config/.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace pbox::config {

void check_dpdk(const Config& config, std::vector<std::string>& errors);

// Without both consents of [security]: no device that reaches a wire.
void check_dpdk_stays_on_host(const Config& config, std::vector<std::string>& errors);

}  // namespace pbox::config
