#include "perf/python.h"

#include <stdexcept>

#include "perf/peers/program.h"

namespace pbox::perf {
namespace {

constexpr int kImportLimitMs = 60'000;

}  // namespace

std::string find_python(const std::string& modules) {
  const std::string question =
      "import importlib.util as util\n"
      "names = '" +
      modules +
      "'.split(', ')\n"
      "print('found' if all(map(util.find_spec, names)) else 'missing')";
  for (const char* python : {"python3", "/usr/bin/python3"}) {
    try {
      Program probe({python, "-c", question});
      if (probe.read_line(kImportLimitMs) == "found") return python;
    } catch (const std::runtime_error&) {
      continue;  // try the next one
    }
  }
  throw std::runtime_error("no Python on this machine can import " + modules +
                           ": install the group 'perf' of tools/packages");
}

void add_python_option(po::options_description& options) {
  options.add_options()("python", po::value<std::string>(),
                        "the Python to use; default: the first that has torch");
}

std::string python_of(const po::variables_map& options) {
  return options.count("python") != 0 ? options["python"].as<std::string>() : find_python("torch");
}

}  // namespace pbox::perf
