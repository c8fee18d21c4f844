// The subcommands of pboxctl. Each gets the words after its own name and returns the exit status:
// 0 done, 1 not done, 2 asked wrongly. To add one: declare it here, list it in main.cc.
#pragma once

#include <string>
#include <vector>

namespace pboxctl {

using Words = std::vector<std::string>;

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;

int boxes(const Words& words);
int doctor(const Words& words);
int plan(const Words& words);
int stragglers(const Words& words);

}  // namespace pboxctl
