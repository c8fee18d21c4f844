// The rules of validate() for data.port = dpdk. Private to config/.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace pbox::config {

void check_dpdk(const Config& config, std::vector<std::string>& errors);

// Refuses devices that reach a wire. Called if there are no keys and one of the two consents of
// [security] is missing.
void check_dpdk_stays_on_host(const Config& config, std::vector<std::string>& errors);

}  // namespace pbox::config
