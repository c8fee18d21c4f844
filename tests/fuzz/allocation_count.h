// Calls of operator new by this process: the data path must make none.
#pragma once

#include <cstddef>

namespace pbox::fuzz {

size_t allocation_count();

}  // namespace pbox::fuzz
