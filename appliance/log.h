// The daemon's log: spdlog to standard error, as text or as one JSON object per line. Only the
// control thread logs; the data path counts.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "config/config.h"

namespace pbox::appliance {

// Sets up the process's logger. Called again on SIGHUP.
void configure_log(const config::Log& log);

// Writes at most kEventsPerWindow events of each name in a window. Counts the rest and logs the
// count when the window ends, so that a misbehaving peer cannot fill a disk.
class EventLog {
 public:
  enum class Level { kDebug, kInfo, kWarning, kError };
  void write(Level level, const std::string& name, const std::string& text, uint64_t now_ns);

  static constexpr uint32_t kEventsPerWindow = 20;
  static constexpr uint64_t kWindowNs = 10'000'000'000;

 private:
  struct Window {
    uint64_t started_ns = 0;
    uint32_t written = 0;
    uint64_t suppressed = 0;
  };
  std::map<std::string, Window> windows_;
};

}  // namespace pbox::appliance
