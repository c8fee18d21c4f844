// What the admin side shows of jobs: plain values, made on the control thread when asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pbox::appliance {

struct WorkerView {
  uint32_t rank = 0;
  std::string peer;   // address of its control connection; empty if it has not joined
  std::string state;  // "absent", "joined", "lost", "left", "excluded"
  uint64_t bytes_received = 0;
  uint64_t fragments_received = 0;
  uint64_t duplicates = 0;
  uint64_t last_arrivals = 0;     // chunk rounds that this rank completed: who is late
  double last_packet_age_s = -1;  // -1: none yet
};

struct JobView {
  std::string name;
  std::string state;            // "gathering", "recovering", "running"
  std::string mode;             // "aggregate", "optimize"
  std::string reduction;        // "sum", "mean"
  std::string optimizer;        // "" in aggregate mode
  std::string priority_policy;  // "explicit", "forward-order", "fifo"
  std::string priority_source;  // of what holds now: "registered", "learned", "set", "none"
  std::string delivery;         // "broadcast", "pull"
  uint32_t world_size = 0;
  uint64_t tensor_count = 0;
  uint64_t element_count = 0;
  uint64_t chunk_count = 0;
  uint32_t chunk_bytes = 0;
  uint32_t fragment_bytes = 0;
  uint64_t memory_bytes = 0;
  uint64_t chunk_rounds = 0;  // finished, over all chunks
  double age_s = 0;
  std::vector<WorkerView> workers;  // by rank
};

}  // namespace pbox::appliance
