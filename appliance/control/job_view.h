// What the admin side shows of jobs: plain values, made on the control thread when asked.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace pbox::appliance {

// Of durations, in the buckets of pipeline::DurationHistogram.
struct HistogramView {
  std::vector<uint64_t> counts;  // by bucket, not summed up; empty: nothing is counted
  double sum_s = 0;
};

// A place in the job's work.
struct PlaceView {
  std::string tensor;
  uint64_t round = 0;  // of the tensor's chunks, counted from 0
};

// The newest fragment of a rank that had an infinity or a NaN in it.
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
  uint64_t last_arrivals = 0;     // chunk rounds that this rank completed: who is late
  double last_packet_age_s = -1;  // -1: none yet
  double late_s = 0;              // in chunk rounds that it ended: behind the rank before it
  double awaited_s = 0;           // how long the others have waited for it now; 0: they do not
  std::optional<uint64_t> dropped_fragments = {};  // model drop
  uint64_t nonfinite_fragments = 0;                // with an infinity or a NaN in them
  std::optional<NonfiniteView> newest_nonfinite = {};
};

// The consistency model, as the job asked for it.
struct SyncView {
  std::string model;  // "bsp", "asp", "ssp", "essp", "pssp", "dpssp", "drop"
  uint32_t staleness = 0;
  float probability = 1;
  std::string release;  // "soft", "lazy"
  std::string reads;    // "fresh", "cached"
  uint32_t quorum = 0;
};

// Of models whose pushes are applied as they come: reads of chunks, and how they went.
struct PullView {
  uint64_t pulls = 0;
  uint64_t delayed = 0;
  double parked_s = 0;       // over all reads that waited and have been answered
  uint64_t lead_rounds = 0;  // the most that a rank was ahead of the slowest
};

// A job whose sums go on to another box.
struct RelayView {
  std::string box;     // the other one
  uint32_t rank = 0;   // that this box has there, of
  uint32_t racks = 0;  // so many
  bool is_joined = false;
  uint32_t workers = 0;  // of all racks, once it is joined
  uint64_t chunks_relayed = 0;
  uint32_t chunks_in_flight = 0;
};

// A job that wants a copy on other boxes; of its parts here.
struct BackupView {
  std::set<std::string> boxes;  // that have copies
  uint32_t parts_without = 0;   // that have no copy, or none yet
  uint64_t chunks_copied = 0;   // states of chunks, each before its result was given out
  uint32_t chunks_in_flight = 0;
};

struct JobView {
  std::string name;
  uint32_t part_count = 1;
  std::vector<uint32_t> parts;  // on this box; what follows is of these
  std::string state;            // "gathering", "recovering", "running"
  std::string mode;             // "aggregate", "optimize"
  bool is_backup = false;       // the copy of a part that another box has
  std::string reduction;        // "sum", "mean"
  std::string optimizer;        // "" in aggregate mode
  std::string priority_policy;  // "explicit", "forward-order", "fifo"
  std::string priority_source;  // of what holds now: "registered", "learned", "set", "none"
  std::string delivery;         // "broadcast", "pull"
  std::string numerics;         // "fast", "ordered"
  uint32_t world_size = 0;
  uint64_t tensor_count = 0;
  uint64_t element_count = 0;
  uint64_t chunk_count = 0;
  uint32_t chunk_bytes = 0;
  uint32_t fragment_bytes = 0;
  uint64_t memory_bytes = 0;
  uint64_t chunk_rounds = 0;  // finished, over all chunks
  double age_s = 0;
  SyncView sync;
  std::optional<PullView> pulls;
  std::optional<RelayView> upstream;  // absent while ranks gather, and where sums stay here
  std::optional<BackupView> backup;   // absent where none is wanted
  // Reads of tensors by how many rounds the data lacked, 0, 1, ..., as workers say; the last is of
  // all that lacked more. Empty until one has said so.
  std::vector<uint64_t> reads_by_rounds_behind;
  HistogramView arrival_skew;  // of chunk rounds: from the first rank's push to the last one's
  HistogramView round_times;   // of a pipeline's part of rounds: from the first push to the last
  std::vector<WorkerView> workers;  // by rank
};

// Another part of the same job that is on this box: counts are sums, and what differs between the
// parts is shown of the one that is furthest from running.
void add_part(JobView& job, const JobView& part);

}  // namespace pbox::appliance
