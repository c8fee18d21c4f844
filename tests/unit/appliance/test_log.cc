#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <sstream>

#include "appliance/log.h"

namespace pbox::appliance {
namespace {

using Level = EventLog::Level;

constexpr uint64_t kSecond = 1'000'000'000;

// The process's log as text while this lives.
class Written {
 public:
  Written() : before_(spdlog::default_logger()) {
    auto logger = std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(stream_));
    logger->set_pattern("%v");
    spdlog::set_default_logger(logger);
  }
  ~Written() { spdlog::set_default_logger(before_); }
  Written(const Written&) = delete;
  Written& operator=(const Written&) = delete;

  std::string text() const { return stream_.str(); }
  auto lines() const {
    const std::string all = text();
    return std::count(all.begin(), all.end(), '\n');
  }

 private:
  std::ostringstream stream_;
  std::shared_ptr<spdlog::logger> before_;
};

}  // namespace

TEST_CASE("an event is one line of the log, whatever a peer calls itself or its tensors") {
  const Written written;
  EventLog events;
  events.write(Level::kWarning, "join_refused", "tensor 'a\nb\x1b[2J\u00e9'", 0);
  CHECK(written.text() == "join_refused: tensor 'a?b?[2J\u00e9'\n");
}

TEST_CASE("the starts and ends of a thousand jobs are all written") {
  const Written written;
  EventLog events;
  for (int index = 0; index < 1000; ++index) {
    const std::string job = std::to_string(index);
    const uint64_t now_ns = static_cast<uint64_t>(index) * 5 * kSecond / 1000;
    events.write(Level::kInfo, "job_started", "job '" + job + "'", now_ns, job);
    events.write(Level::kInfo, "job_finished", "job '" + job + "'", now_ns, job);
  }
  CHECK(written.lines() == 2000);
  events.finish();
  CHECK(written.lines() == 2000);
}

TEST_CASE("events that are left out are counted by job, and told when their window ends") {
  const Written written;
  EventLog events;
  for (uint32_t index = 0; index < EventLog::kEventsPerWindow + 7; ++index) {
    events.write(Level::kInfo, "worker_lost", "a rank", 0, "bert");
  }
  events.write(Level::kInfo, "worker_lost", "a rank", 0, "gpt");
  CHECK(written.lines() == EventLog::kEventsPerWindow + 1);
  events.end_windows(EventLog::kWindowNs - 1);
  CHECK(written.lines() == EventLog::kEventsPerWindow + 1);
  events.end_windows(EventLog::kWindowNs);  // no further event of this name is needed
  CHECK(written.lines() == EventLog::kEventsPerWindow + 2);
  CHECK(written.text().ends_with(
      "worker_lost: job 'bert': 7 more events of this name were left out\n"));
  events.end_windows(2 * EventLog::kWindowNs);
  events.finish();
  CHECK(written.lines() == EventLog::kEventsPerWindow + 2);
}

TEST_CASE("events that were left out are told at the end of the program") {
  const Written written;
  EventLog events;
  for (uint32_t index = 0; index < EventLog::kEventsPerWindow + 3; ++index) {
    events.write(Level::kWarning, "join_refused", "no", 0);
  }
  events.finish();
  CHECK(written.text().ends_with("join_refused: 3 more events of this name were left out\n"));
}

TEST_CASE("a peer that makes jobs without end cannot fill the disk") {
  const Written written;
  EventLog events;
  constexpr uint32_t kJobs = EventLog::kJobEventsPerWindow + 500;
  for (uint32_t index = 0; index < kJobs; ++index) {
    events.write(Level::kInfo, "job_started", "a job", 0, std::to_string(index));
  }
  constexpr uint32_t kWritten = EventLog::kJobEventsPerWindow + EventLog::kEventsPerWindow;
  CHECK(written.lines() == kWritten);
  events.end_windows(EventLog::kWindowNs);
  CHECK(written.text().ends_with("job_started: " + std::to_string(kJobs - kWritten) +
                                 " more events of this name were left out\n"));
}

}  // namespace pbox::appliance
