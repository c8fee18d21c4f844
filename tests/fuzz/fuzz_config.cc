// Parses any text as a configuration file. The outcome must be either a configuration that prints
// and reads back the same, or a list of errors, and never a crash.
#include <string>

#include "base/check.h"
#include "config/parse.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pbox;
  static const config::Config running = *config::parse_text("").config;

  const std::string text(reinterpret_cast<const char*>(data), size);
  const config::ParseOutcome outcome = config::parse_text(text);
  PBOX_CHECK(outcome.config.has_value() == outcome.errors.empty());
  for (const std::string& error : outcome.errors) PBOX_CHECK(!error.empty());

  const config::ReloadOutcome reloaded = config::reload(running, outcome);
  PBOX_CHECK(reloaded.config.has_value() == reloaded.errors.empty());
  if (!outcome.config) {
    PBOX_CHECK(!reloaded.config);
    return 0;
  }
  PBOX_CHECK(config::validate(*outcome.config).empty());
  const config::ParseOutcome again = config::parse_text(config::print(*outcome.config));
  PBOX_CHECK(again.errors.empty());
  PBOX_CHECK(*again.config == *outcome.config);
  return 0;
}
