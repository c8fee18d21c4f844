#include "tools/pboxctl/commands.h"

#include <boost/program_options.hpp>
#include <iostream>

namespace pboxctl {

namespace options = boost::program_options;

std::span<const Command* const> commands() {
  static constexpr const Command* kCommands[] = {
      &kBoxes,      &kDoctor,   &kDrain,  &kJobs,    &kKeys,     &kMetrics,
      &kPlan,       &kRecorder, &kReplay, &kRestore, &kSnapshot, &kSnapshots,
      &kStragglers, &kSync,     &kTop,    &kTrace,   &kVersion,  &kWorkers};
  return kCommands;
}

void add_output_option(options::options_description& description) {
  description.add_options()(
      "output,o", options::value<std::string>()->default_value("text")->value_name("FORMAT"),
      "text, or json for scripts");
}

bool wants_json(const options::variables_map& given) {
  const auto& format = given["output"].as<std::string>();
  if (format != "text" && format != "json") {
    throw options::error("--output is text or json, not '" + format + "'");
  }
  return format == "json";
}

int complain(const char* name, const std::string& what) {
  std::cerr << "pboxctl " << name << ": " << what << "; `pboxctl " << name
            << " --help` lists all options\n";
  return kUsage;
}

}  // namespace pboxctl
