// What a box says of itself to the others: the value of its key boxes/NAME. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pbox::cluster {

struct BoxRecord {
  std::string name = {};
  std::string control = {};            // HOST:PORT, as the box listens
  std::vector<std::string> data = {};  // HOST:PORT of each pipeline
  uint64_t capacity_bytes_per_s = 0;   // of its NICs together; 0: not known
  uint64_t job_memory_bytes = 0;       // what its jobs may take
  std::string version = {};            // of its software
  uint32_t protocol_version = 0;       // of its control connections
  std::string incarnation = {};        // unlike that of any other start of any box
  bool operator==(const BoxRecord&) const = default;
};

// What the plans of all jobs want of a box.
struct BoxDuty {
  size_t parts = 0;       // of jobs, that it has
  bool draining = false;  // it is to have none, and gets none
};

struct Leader {
  std::string name = {};      // of a box
  uint64_t since_unix_s = 0;  // by that box's clock; for people
};

// JSON in one line. from_text() leaves what is missing, or not of its kind, as it is by default: a
// box of another release may say less, or more.
std::string to_text(const BoxRecord& record);
BoxRecord from_text(const std::string& name, const std::string& text);

}  // namespace pbox::cluster
