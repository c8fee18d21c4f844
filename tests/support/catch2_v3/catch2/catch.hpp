// Replaces the single header of Catch2 2 where Catch2 3 is installed. Declares what version 3 has
// renamed, under the names that the tests use. With Catch2 2 it is not on the include path.
#pragma once

#include <catch2/catch_all.hpp>
#include <string>

using Catch::Approx;

namespace Catch {

using TestEventListenerBase = EventListenerBase;

inline auto Contains(const std::string& text) { return Matchers::ContainsSubstring(text); }
inline auto StartsWith(const std::string& text) { return Matchers::StartsWith(text); }

}  // namespace Catch
