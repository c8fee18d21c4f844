// Converts between a value and its text. Readers take the whole text or return nullopt. Private
// to config/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pbox::config {

std::optional<uint64_t> read_number(const std::string& text);  // decimal, no sign
std::optional<double> read_fraction(const std::string& text);  // finite
std::string print_fraction(double value);                      // the shortest text that reads back

std::string trim(const std::string& text);
// Splits the text at each character that `separators` contains. Parts may be empty.
std::vector<std::string> split(const std::string& text, const char* separators);
// Returns the parts between blanks, none of them empty.
std::vector<std::string> words_of(const std::string& text);

}  // namespace pbox::config
