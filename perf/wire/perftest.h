// Runs perftest, which measures the bandwidth of RDMA devices for a program that only moves bytes.
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

// Returns the bytes per second in one direction while both directions are busy. Starts both sides
// on this host and waits for them. If they report no bandwidth, writes their output to `report` and
// tries again. Throws std::runtime_error after the last attempt.
double perftest_rate(const PerftestOptions& options, std::ostream& report);

}  // namespace pbox::perf
