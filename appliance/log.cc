#include "appliance/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace pbox::appliance {
namespace {

bool json_lines = false;

spdlog::level::level_enum level_of(config::LogLevel level) {
  switch (level) {
    case config::LogLevel::kDebug: return spdlog::level::debug;
    case config::LogLevel::kInfo: return spdlog::level::info;
    case config::LogLevel::kWarn: return spdlog::level::warn;
    case config::LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::level::level_enum level_of(EventLog::Level level) {
  switch (level) {
    case EventLog::Level::kDebug: return spdlog::level::debug;
    case EventLog::Level::kInfo: return spdlog::level::info;
    case EventLog::Level::kWarning: return spdlog::level::warn;
    case EventLog::Level::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

// Events contain names that peers choose, so control characters are replaced: no name can forge a
// log line.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](unsigned char character) { return character < ' ' || character == 0x7f; }, '?');
  return text;
}

void emit(EventLog::Level level, const std::string& name, const std::string& text) {
  const auto severity = level_of(level);
  if (json_lines) {
    // The pattern adds time and level; name and text are escaped here.
    spdlog::log(
        severity, "\"event\":{},\"text\":{}", nlohmann::json(name).dump(),
        nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    spdlog::log(severity, "{}: {}", name, one_line(text));
  }
}

}  // namespace

void EventLog::write_now(Level level, const std::string& name, const std::string& text) {
  emit(level, name, text);
}

void configure_log(const config::Log& log) {
  auto logger = spdlog::get("pboxd");
  if (!logger) logger = spdlog::stderr_color_mt("pboxd");
  spdlog::set_default_logger(logger);
  spdlog::set_level(level_of(log.level));
  json_lines = log.format == config::LogFormat::kJson;
  spdlog::set_pattern(json_lines ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})"
                                 : "%Y-%m-%dT%H:%M:%S.%e%z %^%l%$ %v");
  spdlog::flush_on(spdlog::level::info);
}

void EventLog::write(Level level, const std::string& name, const std::string& text, uint64_t now_ns,
                     const std::string& job) {
  if (!spdlog::should_log(level_of(level))) return;
  if (now_ns - jobs_.started_ns >= kWindowNs) jobs_ = {.started_ns = now_ns};
  const bool counts_for_job = !job.empty() && jobs_.written < kJobEventsPerWindow;
  if (counts_for_job) ++jobs_.written;
  const Subject subject{name, counts_for_job ? job : ""};
  auto [found, is_new] = windows_.try_emplace(subject, Window{.started_ns = now_ns});
  Window& window = found->second;
  if (now_ns - window.started_ns >= kWindowNs) {
    tell(subject, window);
    window = {.started_ns = now_ns};
  }
  if (window.written >= kEventsPerWindow) {
    ++window.left_out;
    window.level = level;
    return;
  }
  ++window.written;
  emit(level, name, text);
}

void EventLog::end_windows(uint64_t now_ns) {
  std::erase_if(windows_, [now_ns](const auto& entry) {
    const bool is_over = now_ns - entry.second.started_ns >= kWindowNs;
    if (is_over) tell(entry.first, entry.second);
    return is_over;
  });
}

void EventLog::finish() {
  for (const auto& [subject, window] : windows_) tell(subject, window);
  windows_.clear();
}

void EventLog::tell(const Subject& subject, const Window& window) {
  if (window.left_out == 0) return;
  PBOX_CHECK(window.written == kEventsPerWindow);
  const auto& [name, job] = subject;
  emit(window.level, name,
       (job.empty() ? "" : "job '" + job + "': ") + std::to_string(window.left_out) +
           " more events of this name were left out");
}

}  // namespace pbox::appliance
