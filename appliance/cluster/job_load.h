// Measures how long the rounds of jobs take on this box, as its workers see it. The leader asks for
// the result. Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "appliance/control/pipeline_moves.h"
#include "nic/wire/control.pb.h"

namespace pbox::cluster {

// The load of the parts of one job that a box owns, over the newest rounds that all its ranks have
// finished.
struct JobLoad {
  int64_t map_revision = 0;  // revision of the part map that the box follows
  // Rounds that the slowest rank has finished since the job began; 0: not measured.
  uint64_t rounds = 0;
  double bytes = 0;         // per round
  double busy_seconds = 0;  // per round: how long the rank that waits least waits for the box
  double iteration_seconds = 0;
  double pause_seconds = 0;  // cost of changing to this part map; 0: unknown
  bool operator==(const JobLoad&) const = default;
};
using JobLoads = std::map<std::string, JobLoad>;  // by job name

// Convert loads to messages and back. loads_of() skips entries with negative or non-finite numbers.
std::vector<proto::JobLoad> to_messages(const JobLoads& loads);
JobLoads loads_of(const proto::BoxReport& report);

// Turns the progress of ranks into loads. A load belongs to one part map; the time between two part
// maps counts as pause.
class LoadMeter {
 public:
  // This box's assignment under a job's part map.
  struct Assignment {
    int64_t map_revision = 0;
    size_t parts = 0;
  };
  using AssignmentOf = std::function<std::optional<Assignment>(const std::string& job)>;

  // `parts`: progress of all parts that run on this box, one entry per job and part. A job is
  // measured only while the box runs as many of its parts as the map assigns. A load stays until
  // there is a newer one, or the map has changed.
  const JobLoads& measure(const std::vector<control::PartProgress>& parts,
                          const AssignmentOf& assignment_of);

 private:
  using Part = std::vector<control::RankProgress>;
  struct Job {
    std::map<uint32_t, Part> parts;  // progress at the last measurement
    bool is_measured = false;        // the last measurement was under this part map
    double usual_seconds = 0;        // duration of an iteration before this part map
    // Time from the last measurement under the old map to the first under this one.
    double transition_seconds = 0;
    double transition_rounds = 0;  // rounds finished in that time
  };

  void measure(Job& job, JobLoad& load, const std::map<uint32_t, Part>& parts, double bytes) const;

  std::map<std::string, Job> jobs_;
  JobLoads loads_;
};

}  // namespace pbox::cluster
