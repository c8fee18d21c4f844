#include <boost/program_options.hpp>
#include <fstream>
#include <iostream>

#include "tools/pboxctl/admin_client.h"

namespace pboxctl {
namespace {

namespace options = boost::program_options;

options::options_description recorder_options() {
  options::options_description description("Options");
  add_admin_option(description);
  description.add_options()("output,o", options::value<std::string>()->value_name("FILE"),
                            "file for the records");
  description.add_options()("help,h", "print this text");
  return description;
}

int recorder(const options::variables_map& given, const Words& /*more*/) {
  if (!given.contains("output")) return complain("recorder", "name a file with --output");
  const auto images = ask(given, "/api/v1/recorder");
  if (!images) {
    std::cerr << "pboxctl: " << images.error().message << '\n';
    return kFailed;
  }
  const auto& file = given["output"].as<std::string>();
  std::ofstream out(file, std::ios::binary);
  out << *images;
  out.close();
  if (out) return kDone;
  std::cerr << "pboxctl: cannot write '" << file << "'\n";
  return kFailed;
}

}  // namespace

const Command kRecorder = {
    "recorder",
    "-o FILE [options]",
    "copy a box's flight recorder to a file",
    "Copies a box's flight recorder. It holds the headers of the newest packets of each pipeline, "
    "with\ntime and verdict, and the changes of its jobs. `pboxctl replay FILE` explains them. A "
    "box writes such\nfiles by itself when a round is late, and after a crash; see "
    "recorder.directory.",
    recorder_options,
    recorder};

}  // namespace pboxctl
