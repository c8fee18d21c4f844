#include "appliance/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

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

void EventLog::write(Level level, const std::string& name, const std::string& text,
                     uint64_t now_ns) {
  Window& window = windows_[name];
  if (now_ns - window.started_ns >= kWindowNs) {
    const uint64_t suppressed = window.suppressed;
    window = {now_ns, 0, 0};
    if (suppressed > 0) {
      emit(level, name, std::to_string(suppressed) + " more of these were not written");
    }
  }
  if (window.written >= kEventsPerWindow) {
    ++window.suppressed;
    return;
  }
  ++window.written;
  emit(level, name, text);
}

}  // namespace pbox::appliance
