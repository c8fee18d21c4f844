// Stands in for the one header of Catch2 2 where Catch2 3 is installed: gives what version 3 renamed
// the names that the tests use. Not on the include path otherwise.
#pragma once

#include <catch2/catch_all.hpp>
#include <string>

using Catch::Approx;

namespace Catch {

using TestEventListenerBase = EventListenerBase;

inline auto Contains(const std::string& text) { return Matchers::ContainsSubstring(text); }
inline auto StartsWith(const std::string& text) { return Matchers::StartsWith(text); }

}  // namespace Catch
