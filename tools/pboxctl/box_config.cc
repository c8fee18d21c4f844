#include "tools/pboxctl/box_config.h"

namespace pboxctl {

pbox::config::ParseOutcome read_config(const std::string& file, const Words& settings) {
  Words words = settings;
  if (!file.empty()) words.push_back("--config=" + file);
  std::vector<const char*> argv = {"pboxctl"};
  for (const auto& word : words) argv.push_back(word.c_str());
  return pbox::config::parse(static_cast<int>(argv.size()), argv.data());
}

}  // namespace pboxctl
