// Between the text of a value and the value. Each reads the whole text or answers nothing. Private
// to config/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pbox::config {

std::optional<uint64_t> read_number(const std::string& text);  // decimal, no sign
std::optional<double> read_fraction(const std::string& text);  // finite
std::string print_fraction(double value);                      // the shortest that reads back

// CPU lists as the kernel writes them: "2-5,8" <-> {2, 3, 4, 5, 8}; "" <-> {}. Sorts; refuses a cpu
// that is named twice and cpus from kCpuIndexMax on.
inline constexpr int kCpuIndexMax = 4096;
std::optional<std::vector<int>> read_cpu_list(const std::string& text);
std::string print_cpu_list(const std::vector<int>& cpus);  // ascending

std::string trim(const std::string& text);

}  // namespace pbox::config
