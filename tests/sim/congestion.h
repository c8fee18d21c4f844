// Measures how a job and a TCP flow share a cable, and how much of a cable a job uses alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pbox::sim {

struct Congestion {
  std::string name;  // "250 Mbit/s, 1 ms, 4 BDP, TCP to the box"
  // Payload of the job per second, without what was sent again, divided by the rate of the cable.
  double share = 0;
  double least = 0;  // the goal for `share`, and for `tcp_share` if there is a TCP flow
  double most = 1;
  bool has_tcp = false;
  double tcp_share = 0;  // payload of the TCP flow per second, divided by the rate of the cable
  // Fragments that were sent in the contested direction, divided by those that the rounds need,
  // minus 1.
  double sent_again = 0;
  double first_round_ms = 0;
  double seconds = 0;          // simulated time of the job
  std::string violation = {};  // empty if there is none

  bool holds() const {
    const auto is_allowed = [this](double part) { return part >= least && part <= most; };
    return violation.empty() && is_allowed(share) && (!has_tcp || is_allowed(tcp_share));
  }
};

// Measures the rows whose name contains `part_of_name`.
std::vector<Congestion> measure_congestion(const std::string& part_of_name);

}  // namespace pbox::sim
