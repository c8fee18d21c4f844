#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <catch2/catch.hpp>
#include <memory>
#include <sstream>

#include "appliance/log.h"

namespace pbox::appliance {

TEST_CASE("an event is one line of the log, whatever a peer calls itself or its tensors") {
  std::ostringstream written;
  const auto before = spdlog::default_logger();
  auto logger = std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(written));
  logger->set_pattern("%v");
  spdlog::set_default_logger(logger);
  EventLog events;
  events.write(EventLog::Level::kWarning, "join_refused", "tensor 'a\nb\x1b[2J\u00e9'", 0);
  spdlog::set_default_logger(before);
  CHECK(written.str() == "join_refused: tensor 'a?b?[2J\u00e9'\n");
}

}  // namespace pbox::appliance
