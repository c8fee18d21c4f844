// The rules of validate() that data.port = rdma brings. Private to config/.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace pbox::config {

void check_rdma(const Config& config, std::vector<std::string>& errors);

// Without both consents of [security]: no RDMA device, whatever box.listen is.
void check_rdma_is_allowed(const Config& config, std::vector<std::string>& errors);

}  // namespace pbox::config
