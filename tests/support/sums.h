// A job of many rounds whose results are all known in advance: the workers' gradients, the expected
// sums, and the worker processes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/worker_process.h"

namespace pbox::test {

struct SumsOptions {
  std::string box = {};
  std::string job = "sums";
  uint32_t workers = 2;
  // For sums over several racks: the number of this rack's first rank among all ranks, and the
  // number of all ranks; 0 stands for `workers`.
  uint32_t first_rank = 0;
  uint32_t all_workers = 0;
  pbox_dtype dtype = PBOX_F32;
  pbox_reduction reduction = PBOX_SUM;
  std::vector<uint64_t> elements = {1, 2, 353, 8192, 8193, 20001, 100003};
  uint32_t rounds = 12;
  uint32_t chunk_bytes = 0;
  uint32_t window_bytes = 0;
  pbox_priority_policy priority_policy = PBOX_PRIORITY_EXPLICIT;
  pbox_delivery delivery = PBOX_DELIVERY_BROADCAST;
  std::string port = port_under_test();
  bool as_nobody = false;          // ranks run as the user nobody
  bool waits = false;              // ranks say "joined" after joining and wait for go()
  uint32_t registered_rounds = 0;  // in this many rounds, the first ones, buffers are registered
};

struct SumsOutcome {
  std::string failure;  // one line per failed rank; empty if none failed
  // True if all ranks' results have the same digest.
  bool identical = false;
  uint64_t retransmitted_fragments = 0;
  uint64_t packets_direct = 0, packets_staged = 0, packets_staged_refused = 0;
  uint32_t fragment_bytes = 0;
  uint32_t pipeline_count = 0;
};

// Returns a small multiple of 1/4. Such values are exact in every dtype, and so are sums over 4
// workers and their means.
float sums_value(uint32_t rank, uint32_t round, uint32_t tensor, uint64_t index);
std::vector<unsigned char> encode(pbox_dtype dtype, const std::vector<float>& values);

// Runs one rank in this process. Says one line with the digest of its results and its statistics.
void run_sums_rank(const SumsOptions& options, uint32_t rank, Line& line);
std::vector<WorkerProcess> start_sums(const SumsOptions& options);
// For jobs with `waits`: returns once all ranks have joined; throws if one has not.
void await_joined(std::vector<WorkerProcess>& workers);
// Runs every rank in a process of its own.
SumsOutcome run_sums(const SumsOptions& options);
SumsOutcome collect(std::vector<WorkerProcess>& workers);

}  // namespace pbox::test
