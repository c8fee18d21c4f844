// The fields of [rdma]. Private to config/.
#pragma once

#include <vector>

#include "config/fields.h"

namespace pbox::config {

void add_rdma(std::vector<Field>& list);

}  // namespace pbox::config
