// "did you mean": the known key nearest to one that was mistyped. Private to config/.
#pragma once

#include <string>

namespace pbox::config {

// Returns an empty text if no key is near.
std::string nearest_key(const std::string& mistyped);

}  // namespace pbox::config
