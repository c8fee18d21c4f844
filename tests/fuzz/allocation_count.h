// Counts the calls of operator new in this process. The data path must make none.
#pragma once

#include <cstddef>

namespace pbox::fuzz {

size_t allocation_count();

}  // namespace pbox::fuzz
