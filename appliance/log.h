// The daemon's log: spdlog to standard error, as text or as one JSON object per line. Only the
// control thread and the exit guard write to it. The data path counts instead.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "config/config.h"

namespace pbox::appliance {

// Sets up the process's logger. Called again on SIGHUP.
void configure_log(const config::Log& log);

// Limits events, so that a misbehaving peer cannot fill a disk. In a window it writes at most
// kEventsPerWindow events of one name, and of one name and job if the event is about a job. After
// kJobEventsPerWindow events about jobs in a window, further ones are limited by name alone. The
// rest is counted, and the count is written when the window ends, or when the program ends.
class EventLog {
 public:
  enum class Level { kDebug, kInfo, kWarning, kError };
  // `job`: the job that the event is about; empty if it is not about a job.
  void write(Level level, const std::string& name, const std::string& text, uint64_t now_ns,
             const std::string& job = {});
  // Logs how many events were left out in windows that have ended. Call it about once a second.
  void end_windows(uint64_t now_ns);
  // Logs how many events have been left out so far. Call it before the program ends.
  void finish();

  // Writes at once, without a limit. May be called on any thread.
  static void write_now(Level level, const std::string& name, const std::string& text);

  static constexpr uint32_t kEventsPerWindow = 20;
  static constexpr uint32_t kJobEventsPerWindow = 10'000;
  static constexpr uint64_t kWindowNs = 10'000'000'000;

 private:
  struct Window {
    uint64_t started_ns = 0;
    uint32_t written = 0;
    uint64_t left_out = 0;
    Level level = Level::kDebug;  // level of the newest event that was left out
  };
  using Subject = std::pair<std::string, std::string>;  // name of the event, job

  static void tell(const Subject& subject, const Window& window);

  std::map<Subject, Window> windows_;  // only windows that have not ended
  Window jobs_;                        // events about jobs
};

}  // namespace pbox::appliance
