// Views of jobs for the admin side: plain values, made on the control thread on request.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace pbox::control {

// A histogram of durations, in the buckets of pipeline::DurationHistogram.
struct HistogramView {
  std::vector<uint64_t> counts;  // by bucket, not cumulative; empty if nothing is counted
  double sum_s = 0;
};

// A tensor and one of its rounds.
struct PlaceView {
  std::string tensor;
  uint64_t round = 0;  // round of the tensor's chunks, counted from 0
};

// The newest fragment of a rank that contained an unsound value (wire::GuardSpec).
struct NonfiniteView {
  PlaceView place;
  double age_s = 0;
};

struct WorkerView {
  uint32_t rank = 0;
  std::string peer;   // address of its control connection; empty if it has not joined
  std::string state;  // "absent", "joined", "lost", "left", "excluded"
  uint64_t bytes_received = 0;
  uint64_t fragments_received = 0;
  uint64_t duplicates = 0;
  uint64_t last_arrivals = 0;     // chunk rounds in which this rank was the last to push
  double last_packet_age_s = -1;  // -1 before the first packet
  double late_s = 0;              // time behind the rank before it, summed over its last arrivals
  double awaited_s = 0;           // time that the others wait for it now; 0 if they do not
  // For model drop only: fragments that came too late to count, and rounds of chunks that closed
  // before the rank's push was complete.
  std::optional<uint64_t> dropped_fragments = {}, missed_rounds = {};
  uint64_t nonfinite_fragments = 0;  // fragments with an unsound value
  std::optional<NonfiniteView> newest_nonfinite = {};
  // Sum of the squares of the newest gradient that was measured, over the chunks on this box.
  std::optional<double> gradient_squares = {};
};

// The choices of the controller of a part with adaptive tensors, and its reasons.
struct SyncControlView {
  uint32_t part = 0;
  std::string rule;  // as wire::sync_text() returns it
  uint32_t staleness = 0;
  float probability = 1;
  uint64_t decisions = 0;
  // In the last window: the share of the ranks' time that they waited, the share of the reads that
  // waited, and the readers' mean lead.
  double waited_share = 0, delayed_share = 0, lead_rounds = 0;
  struct Decision {
    double age_s = 0;
    std::string rule;
    std::string why;
  };
  std::vector<Decision> newest;  // oldest first
};

// The consistency models in force.
struct SyncView {
  // The model of the tensors that have none of their own, as wire::sync_text() returns it. The
  // fields from `model` to `counts_late` say the same.
  std::string text = {};
  std::map<std::string, std::string> by_tensor = {};  // texts of tensors with another model
  std::string model;  // "bsp", "asp", "ssp", "essp", "pssp", "dpssp", "drop"
  uint32_t staleness = 0;
  float probability = 1;
  std::string release;  // "soft", "lazy"
  std::string reads;    // "fresh", "cached", "answered"
  uint32_t quorum = 0;
  uint32_t grace_ms = 0;  // wire::kGraceAuto: see GraceView
  bool counts_late = false;
  std::vector<SyncControlView> control = {};  // by part; empty if no tensor is adaptive
};

// Reads of chunks, for models whose pushes are applied on arrival.
struct PullView {
  uint64_t pulls = 0;
  uint64_t delayed = 0;
  double parked_s = 0;       // over all reads that were parked and have been answered
  uint64_t lead_rounds = 0;  // largest lead of a rank over the slowest one
};

// Rounds of model `drop`.
struct GraceView {
  double grace_s = 0;         // how long a round waits after its quorum; the longest of all shards
  bool is_unbounded = false;  // grace `auto`: some shard has no estimate yet and waits for all
  uint64_t rounds_cut = 0;    // rounds of chunks that were closed because their grace ended
};

// A job whose sums this box forwards to an upstream box.
struct RelayView {
  std::string box;     // name of the upstream box
  uint32_t rank = 0;   // rank of this box there, in [0, racks)
  uint32_t racks = 0;  // number of racks
  bool is_joined = false;
  uint32_t workers = 0;  // workers of all racks; valid if is_joined
  uint64_t chunks_relayed = 0;
  uint32_t chunks_in_flight = 0;
};

// Backup copies of the parts on this box, for a job with replicas = 1.
struct BackupView {
  std::set<std::string> boxes;  // boxes that have copies
  uint32_t parts_without = 0;   // parts that have no copy now
  uint64_t chunks_copied = 0;   // chunk states, each acknowledged before its result left
  uint32_t chunks_in_flight = 0;
};

struct JobView {
  std::string name;
  uint32_t part_count = 1;
  std::vector<uint32_t> parts;  // on this box; the fields below cover these parts
  std::string state;            // "gathering", "recovering", "running"
  std::string mode;             // as mode_name() returns it
  bool is_backup = false;       // a backup copy of another box's part
  std::string reduction;        // "sum", "mean", "weighted mean"
  std::string optimizer;        // "" in aggregate mode
  std::string priority_policy;  // "explicit", "forward-order", "fifo"
  std::string priority_source;  // "registered", "learned", "set", "none"
  std::string delivery;         // "broadcast", "pull"
  std::string numerics;         // "fast", "ordered"
  std::string guard;            // "flag", "reject", "zero"
  float guard_max_abs = 0;
  uint32_t min_world_size = 0;  // elastic: the ranks with which it begins; else 0
  uint32_t world_size = 0;
  uint64_t tensor_count = 0;
  uint64_t element_count = 0;
  uint64_t chunk_count = 0;
  uint32_t chunk_bytes = 0;
  uint32_t fragment_bytes = 0;
  uint64_t memory_bytes = 0;
  uint64_t chunk_rounds = 0;  // chunk rounds finished, over all chunks
  double age_s = 0;
  SyncView sync;
  std::optional<PullView> pulls;
  std::optional<GraceView> grace;     // model `drop` only
  std::optional<RelayView> upstream;  // absent while ranks gather, or if sums stay here
  std::optional<BackupView> backup;   // absent unless replicas = 1
  // Number of tensor reads by how many rounds the data was behind: 0, 1, ... The last entry counts
  // all larger values. Reported by workers; empty before the first report.
  std::vector<uint64_t> reads_by_rounds_behind;
  HistogramView arrival_skew;  // seconds from the first rank's push of a chunk round to the last's
  HistogramView round_times;   // seconds from the first push of a round to its last, by pipeline
  std::vector<WorkerView> workers;  // by rank
};

// Adds the counters of another part of the same job, which never fall, but nothing of its state.
// Reads by rounds behind are left out, because workers count them from the beginning of the job.
void add_counts(JobView& job, const JobView& part);
// Adds another part of the same job on this box. Counts are summed. If some part does not run, or a
// rank has not joined some part, the state in that part is shown.
void add_part(JobView& job, const JobView& part);

}  // namespace pbox::control
