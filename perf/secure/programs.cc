#include "perf/secure/programs.h"

#include <sstream>
#include <stdexcept>

#include "perf/rack/rack.h"

namespace pbox::perf {
namespace {

constexpr int kStartLimitMs = 30'000;

}  // namespace

LoopbackBox start_loopback_box(const std::vector<std::string>& flags) {
  std::vector<std::string> command = {sibling_program("pboxd"), "--control.port=0",
                                      "--data.port_first=0",    "--cluster.state_directory=none",
                                      "--admin.enabled=false",  "--log.level=error"};
  command.insert(command.end(), flags.begin(), flags.end());
  LoopbackBox box{std::make_unique<Program>(command), ""};
  const std::string line = box.program->read_line(kStartLimitMs);
  std::istringstream words(line);
  const std::string key = "control=";
  for (std::string word; words >> word;) {
    if (word.rfind(key, 0) == 0) box.control = word.substr(key.size());
  }
  if (box.control.empty()) throw std::runtime_error("pboxd did not become ready: '" + line + "'");
  return box;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

}  // namespace pbox::perf
