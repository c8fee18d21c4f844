// The rules of validate() for data.port = rdma. Private to config/.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace pbox::config {

void check_rdma(const Config& config, std::vector<std::string>& errors);

// Refuses RDMA devices, whatever box.listen is. Called if there are no keys and one of the two
// consents of [security] is missing.
void check_rdma_is_allowed(const Config& config, std::vector<std::string>& errors);

}  // namespace pbox::config
