// perftest as a measure: what the same devices move for a program that does nothing else with them.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

namespace pbox::perf {

struct PerftestSide {
  std::string device;
  uint32_t gid_index = 0;
};

struct PerftestOptions {
  std::string program;  // ib_send_bw or ib_write_bw
  PerftestSide server;
  PerftestSide client;
  uint32_t queue_pairs = 1;
  uint32_t message_bytes = 0;
  double seconds = 1;
};

// Bytes per second in one direction while both are busy. Starts both sides on this host and waits
// for them; once more, and says so with their words, if they moved nothing. Throws
// std::runtime_error if they never do.
double perftest_rate(const PerftestOptions& options, std::ostream& report);

}  // namespace pbox::perf
