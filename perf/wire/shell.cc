#include "perf/wire/shell.h"

#include <array>
#include <cstdio>
#include <memory>
#include <stdexcept>

namespace pbox::perf {

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> output(popen(command.c_str(), "r"), pclose);
  if (!output) throw std::runtime_error("cannot start a shell for " + command);
  std::string said;
  std::array<char, 4096> part;
  for (size_t count = 0; (count = fread(part.data(), 1, part.size(), output.get())) > 0;) {
    said.append(part.data(), count);
  }
  return said;
}

}  // namespace pbox::perf
