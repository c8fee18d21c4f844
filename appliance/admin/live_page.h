// The page at /: page/live.html, which reads the JSON API once a second. It loads nothing from
// outside the box and changes nothing.
#pragma once

#include <string_view>

namespace pbox::admin {

extern const std::string_view kLivePage;

}  // namespace pbox::admin
