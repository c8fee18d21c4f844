// Measures how a job and a TCP flow share a cable, and how much of a cable a job uses alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pbox::sim {

struct Congestion {
  std::string name;  // "250 Mbit/s, 1 ms, 4 BDP, TCP to the box"
  double share = 0;  // payload of the job per second, divided by the rate of the cable
  double least = 0;  // the allowed range of `share`
  double most = 1;
  double tcp_share = 0;  // the same figure of the TCP flow
  // Fragments that were sent in the contested direction, divided by those that the rounds need,
  // less 1.
  double sent_again = 0;
  double first_round_ms = 0;
  double seconds = 0;          // simulated time of the job
  std::string violation = {};  // empty: none

  bool holds() const { return violation.empty() && share >= least && share <= most; }
};

// Measures the rows whose name contains `part_of_name`.
std::vector<Congestion> measure_congestion(const std::string& part_of_name);

}  // namespace pbox::sim
