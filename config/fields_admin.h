// The keys of [admin]. Private to config/.
#pragma once

#include <vector>

#include "config/fields.h"

namespace pbox::config {

void add_admin(std::vector<Field>& list);

}  // namespace pbox::config
