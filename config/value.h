// Converts between a value and its text. Readers take the whole text or return nullopt. Private
// to config/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace pbox::config {

std::optional<uint64_t> read_number(const std::string& text);  // decimal, no sign
std::optional<double> read_fraction(const std::string& text);  // finite
std::string print_fraction(double value);                      // the shortest text that reads back

std::string trim(const std::string& text);

}  // namespace pbox::config
