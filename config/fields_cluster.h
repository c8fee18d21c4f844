// The fields of [cluster] and [upstream]. Private to config/.
#pragma once

#include <vector>

#include "config/fields.h"

namespace pbox::config {

void add_cluster(std::vector<Field>& list);
void add_upstream(std::vector<Field>& list);

}  // namespace pbox::config
