// Classifies literal addresses. Pure; any thread.
#pragma once

#include <string>

namespace pbox::config {

bool is_address(const std::string& text);           // an IPv4 or IPv6 literal
bool is_loopback_address(const std::string& text);  // 127.0.0.0/8, ::1
bool is_wildcard_address(const std::string& text);  // 0.0.0.0, ::

}  // namespace pbox::config
