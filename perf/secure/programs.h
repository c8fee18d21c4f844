// Starts boxes on loopback as processes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "perf/peers/program.h"
#include "perf/secure/key_folders.h"

namespace pbox::perf {

// A pboxd on free ports of loopback.
struct LoopbackBox {
  std::unique_ptr<Program> program;
  std::string control;  // HOST:PORT
};

// Returns when the box is ready. Throws std::runtime_error if it does not start.
LoopbackBox start_loopback_box(const std::vector<std::string>& flags);

// Returns the words with blanks between them.
std::string joined(const std::vector<std::string>& words);

}  // namespace pbox::perf
