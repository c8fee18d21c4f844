// A rack in one thread: one box with a few pipelines, and some workers. The product's engines and
// exchanges run over an in-process network, on a clock that only the test moves. The fault plan's
// seed makes runs repeatable.
#pragma once

#include <memory>
#include <vector>

#include "nic/loopback/port.h"
#include "pipeline/engine.h"
#include "worker/protocol/exchange.h"

namespace pbox::test {

struct RackOptions {
  uint32_t workers = 2;
  uint32_t pipelines = 1;
  uint32_t fragment_bytes = limits::kFragmentBytesEthernet;
  uint32_t chunk_bytes = limits::kChunkBytesDefault;
  uint32_t window_bytes = 256 * 1024;
  pipeline::Mode mode = pipeline::Mode::kAggregate;
  bool is_collective = false;  // the tensors are slots
  pipeline::Reduction reduction = pipeline::Reduction::kSum;
  optimizer::OptimizerSpec optimizer;
  wire::SyncSpec sync;
  std::vector<worker::TensorSpec> tensors;
  nic::FaultPlan faults;
  bool takes_zeros = false;  // box and workers accept ZEROS packets
  bool payload_crc = true;   // on, so that bit flips in payloads are detected
};

class Rack {
 public:
  explicit Rack(const RackOptions& options);

  worker::Exchange& worker(uint32_t rank) { return *workers_[rank]; }
  pipeline::Engine& pipeline(uint32_t index) { return *pipelines_[index]; }
  pipeline::JobShard& shard(uint32_t index) { return *shards_[index]; }
  nic::LoopbackNetwork& network() { return network_; }
  uint64_t now_ns() const { return now_ns_; }

  // Runs one turn of the box and of each worker, then moves time to the next possible event, at
  // most to limit_ns.
  void step(uint64_t limit_ns = UINT64_MAX);
  // Steps until every started tensor of every worker is complete. Returns false after `steps_max`
  // steps.
  bool run_until_idle(uint64_t steps_max = 2'000'000);

  // Injects raw bytes at a pipeline, as an unknown sender would.
  void inject(uint32_t pipeline, std::vector<std::byte> bytes);

 private:
  void build_box(const RackOptions& options);
  void build_workers(const RackOptions& options);
  void turn_box();
  void turn_worker(uint32_t rank);

  nic::LoopbackNetwork network_;
  uint64_t now_ns_ = 1'000'000;
  std::vector<uint8_t> chunk_pipeline_;
  std::vector<pipeline::ShardSpec> specs_;
  std::vector<std::unique_ptr<pipeline::JobShard>> shards_;
  std::vector<std::unique_ptr<pipeline::Engine>> pipelines_;
  std::vector<nic::LoopbackPort> box_ports_;
  std::vector<std::unique_ptr<worker::Exchange>> workers_;
  std::vector<std::vector<nic::LoopbackPort>> worker_ports_;
};

}  // namespace pbox::test
