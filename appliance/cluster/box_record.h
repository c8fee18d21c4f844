// The description of a box that the other boxes read: the value of its key boxes/NAME. Pure; any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pbox::cluster {

struct BoxRecord {
  std::string name = {};
  std::string control = {};            // HOST:PORT of its control port
  std::vector<std::string> data = {};  // HOST:PORT of each pipeline's data port
  uint64_t capacity_bytes_per_s = 0;   // sum over all its NICs; 0: unknown
  uint64_t job_memory_bytes = 0;       // memory available to jobs
  std::string version = {};            // software version
  // The newest and the oldest control protocol that the box speaks; 0: unknown.
  uint32_t protocol_version = 0;
  uint32_t protocol_version_min = 0;
  std::string incarnation = {};  // unique to each start of each box
  bool operator==(const BoxRecord&) const = default;

  // Returns whether this release and the box have a control protocol in common, and the box speaks
  // `version` or a newer one. True if the protocols of the box are unknown.
  bool can_serve(uint32_t version) const;
};

// Says whether a box takes parts of jobs. A box with any duty but kTakesParts also loses the parts
// that it has.
enum class Duty : uint8_t {
  kTakesParts,
  kDrains,   // until an operator undoes it
  kStandby,  // until the cluster needs it
};

const char* to_string(Duty duty);

// A box's assignment under the part maps of all jobs.
struct BoxDuty {
  size_t parts = 0;  // parts it owns, over all jobs
  Duty duty = Duty::kTakesParts;
  std::string drain_obstacle = {};  // why parts stay on it although it drains; empty: none stay
};

struct Leader {
  std::string name = {};      // name of the box that leads
  uint64_t since_unix_s = 0;  // by that box's clock; for display only
};

// Convert a record to one line of JSON and back. In from_text() a field that is missing or has the
// wrong type keeps its default, because a box of another release may write fewer or more fields.
std::string to_text(const BoxRecord& record);
BoxRecord from_text(const std::string& name, const std::string& text);

}  // namespace pbox::cluster
