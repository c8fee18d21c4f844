// The page at /: page/live.html, which asks the JSON API once a second. It needs nothing from
// outside the box, and changes nothing.
#pragma once

#include <string_view>

namespace pbox::appliance {

extern const std::string_view kLivePage;

}  // namespace pbox::appliance
