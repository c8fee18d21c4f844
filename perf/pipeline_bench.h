// A whole pipeline on one core, and the bare sum kernel, over the same gradients: W workers push
// ResNet-50's 161 tensors.
//
// The kernel stores the first worker's fragment and adds the others. The pipeline runs the
// product's loop: parse, session, tag, checks, claim, add, finish, and the headers and tags of all
// results. Its port is in memory: it receives prebuilt packets and drops the results.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "perf/pipeline_traffic.h"
#include "pipeline/loop.h"

namespace pbox::perf {

// Receives a prebuilt list of packets and drops all packets that are sent.
class MemoryPort {
 public:
  // `packets` outlives the port.
  explicit MemoryPort(const std::vector<Traffic::Packet>& packets) : packets_(&packets) {}
  void rewind() { next_ = 0; }

  size_t rx_burst(std::span<nic::RxPacket> packets);
  size_t tx_burst(std::span<const nic::TxPacket> packets) {
    sent_ += packets.size();
    return packets.size();
  }
  int event_fd() const { return -1; }
  nic::Capabilities capabilities() const { return {}; }
  const nic::PortCounters& counters() const { return counters_; }
  uint64_t sent() const { return sent_; }

 private:
  const std::vector<Traffic::Packet>* packets_;
  size_t next_ = 0;
  uint64_t sent_ = 0;
  nic::PortCounters counters_;
};

// A thread that reads the counters as a scrape does, up to a thousand times per second.
class Watcher {
 public:
  Watcher(const pipeline::Engine& engine, const pipeline::JobShard& shard);
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  std::atomic<bool> stopped_ = false;
  std::atomic<uint64_t> seen_ = 0;
  std::thread thread_;
};

// The properties in which the pipelines of a bench differ.
struct PipelineKind {
  bool has_recorder = true;  // a flight recorder, as boxes have by default
  bool is_scraped = false;   // another thread reads its counters
  wire::Numerics numerics = wire::Numerics::kFast;
  wire::Guard guard = wire::Guard::kFlag;
  seal::Suite suite = seal::Suite::kNone;
};

struct BenchShape {
  uint32_t workers = 4;
  uint32_t fragment_bytes = 0;
};

// The pipeline of one core, which has all chunks of the job.
class BenchPipeline {
 public:
  // `traffic` must outlive the pipeline. Builds it for this pipeline's shard if it is still empty.
  BenchPipeline(const BenchShape& shape, const PipelineKind& kind, Traffic& traffic);

  void run_round();
  // Throws unless every chunk finished the traffic's round, every sum is right, and every result
  // was sent.
  void check() const;
  pipeline::JobShard& shard() { return *shard_; }

 private:
  BenchShape shape_;
  const Traffic& traffic_;
  std::unique_ptr<pipeline::JobShard> shard_;
  NumaArena flight_;
  pipeline::Engine engine_;
  MemoryPort port_;
  pipeline::Mailbox mailbox_;
  pipeline::Loop<MemoryPort> loop_;
  std::optional<Watcher> watcher_;
};

class PipelineBench {
 public:
  PipelineBench(const BenchShape& shape, std::span<const PipelineKind> kinds);

  // Runs rounds until `rounds` of them count. A round runs the kernel first, then all pipelines,
  // beginning with a different one each time. The first round, which touches memory for the first
  // time, does not count. Nor do the rounds in which pipelines measure the gradients
  // (GradientSquares): their times are kept apart.
  void run(uint32_t rounds);

  // Return the seconds of this thread's CPU time in each round that counts.
  const std::vector<double>& kernel_seconds() const { return kernel_seconds_; }
  const std::vector<double>& seconds(size_t kind) const { return seconds_.at(kind); }
  // Return the same for the rounds whose gradients are measured.
  const std::vector<double>& measured_kernel_seconds() const { return measured_kernel_seconds_; }
  const std::vector<double>& measured_seconds(size_t kind) const {
    return measured_seconds_.at(kind);
  }
  double gradient_bytes() const { return plain().gradient_bytes(); }
  double packet_count() const { return static_cast<double>(plain().packets().size()); }

 private:
  static constexpr size_t kSuites = 3;
  const Traffic& plain() const { return *traffic_[0]; }
  void run_kernel();

  std::array<std::unique_ptr<Traffic>, kSuites> traffic_;  // by suite; null if no pipeline has it
  std::vector<std::unique_ptr<BenchPipeline>> pipelines_;  // by kind
  std::vector<float*> kernel_targets_;                     // by chunk: accumulator of slot 0
  std::vector<double> kernel_seconds_, measured_kernel_seconds_;
  std::vector<std::vector<double>> seconds_, measured_seconds_;
};

}  // namespace pbox::perf
