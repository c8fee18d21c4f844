// Boxes and jobs of two ranks or more on loopback, as programs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "perf/peers/peer.h"
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

// The job of a box: ranks that exchange a model's gradients when they are told to.
class ExchangingJob {
 public:
  // Joins. Throws std::runtime_error if that fails.
  explicit ExchangingJob(const PeerOptions& options);

  // Runs one exchange and records it. Throws if a sum is wrong. Returns milliseconds.
  double exchange();
  const std::vector<double>& milliseconds() const { return milliseconds_; }
  // User and system time of all ranks. It includes the box's if the job has started it.
  const std::vector<double>& cpu_seconds() const { return cpu_seconds_; }

 private:
  std::unique_ptr<Program> program_;
  std::vector<double> milliseconds_, cpu_seconds_;
};

// Returns the words with blanks between them.
std::string joined(const std::vector<std::string>& words);

}  // namespace pbox::perf
