#include "perf/pipeline_bench.h"

#include <algorithm>
#include <cfloat>
#include <chrono>
#include <ctime>
#include <functional>
#include <stdexcept>
#include <string>

#include "base/clock.h"
#include "config/config.h"
#include "perf/models.h"
#include "pipeline/observe/flight_image.h"
#include "pipeline/reduce/reduce.h"

namespace pbox::perf {
namespace {

// Returns the memory of a flight recorder of the default size.
NumaArena flight_memory() {
  const uint64_t capacity = config::Recorder().records;
  auto arena = NumaArena::create(pipeline::flight_image_bytes(capacity), kAnyNumaNode);
  if (!arena) throw std::runtime_error(arena.error().message);
  pipeline::make_flight_head({.capacity = capacity}, arena->data());
  return std::move(*arena);
}

pipeline::ShardSpec shard_spec(const BenchShape& shape, const PipelineKind& kind) {
  pipeline::ShardSpec spec;
  spec.guard.policy = kind.guard;
  spec.numerics = kind.numerics;
  spec.fragment_bytes = shape.fragment_bytes;
  for (const ModelTensor& tensor : tensors_of(resnet50_layers())) {
    for (uint64_t first = 0; first < tensor.elements; first += limits::kChunkBytesDefault / 4) {
      pipeline::ChunkSpec chunk;
      chunk.chunk = static_cast<uint32_t>(spec.chunks.size());
      chunk.elements = static_cast<uint32_t>(
          std::min<uint64_t>(limits::kChunkBytesDefault / 4, tensor.elements - first));
      spec.chunks.push_back(chunk);
    }
  }
  spec.job_chunk_count = static_cast<uint32_t>(spec.chunks.size());
  for (uint32_t rank = 0; rank < shape.workers; ++rank) spec.sessions.push_back({rank, 1u << 20});
  return spec;
}

double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Returns the CPU time of `work`, which leaves out the time in which other programs have the core.
double seconds_of(const std::function<void()>& work) {
  const double start = thread_cpu_seconds();
  work();
  return thread_cpu_seconds() - start;
}

}  // namespace

size_t MemoryPort::rx_burst(std::span<nic::RxPacket> packets) {
  const size_t count = std::min(packets.size(), packets_->size() - next_);
  for (size_t index = 0; index < count; ++index, ++next_) {
    packets[index].data = (*packets_)[next_].data;
    packets[index].bytes = (*packets_)[next_].bytes;
  }
  return count;
}

Watcher::Watcher(const pipeline::Engine& engine, const pipeline::JobShard& shard)
    : thread_([this, &engine, &shard] {
        while (!stopped_) {
          uint64_t sum = 0;
          for (size_t index = 0; index < std::size(pipeline::kCounterTable); ++index) {
            sum += engine.counters().get(static_cast<pipeline::Counter>(index));
          }
          for (const pipeline::Session& session : shard.sessions()) {
            sum += session.bytes_received.get() + session.late_ns.get() +
                   session.last_packet_ns.get() + session.nonfinite.get();
          }
          seen_ = sum;
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      }) {}

Watcher::~Watcher() {
  stopped_ = true;
  thread_.join();
}

BenchPipeline::BenchPipeline(const BenchShape& shape, const PipelineKind& kind, Traffic& traffic)
    : shape_(shape),
      traffic_(traffic),
      shard_(std::move(*pipeline::JobShard::create(shard_spec(shape, kind)))),
      flight_(kind.has_recorder ? flight_memory() : NumaArena()),
      engine_({.pipeline_index = 0, .tag = {}, .flight = {flight_.data(), flight_.size()}}),
      port_(traffic.packets()),
      loop_(engine_, port_, mailbox_, pipeline::PollPolicy{.busy = true}) {
  if (traffic.packets().empty()) traffic.build(*shard_);
  engine_.execute({.kind = pipeline::CommandKind::kInstall, .shard = shard_.get()});
  if (kind.is_scraped) watcher_.emplace(engine_, *shard_);
}

void BenchPipeline::run_round() {
  port_.rewind();
  while (loop_.turn(monotonic_ns())) {
  }
}

void BenchPipeline::check() const {
  const uint32_t round = traffic_.round();
  for (const auto& chunk : shard_->chunks()) {
    const float* sums = chunk.accumulator[round & 1];
    for (uint32_t i = 0; i < chunk.elements; ++i) {
      const float expected = static_cast<float>(shape_.workers) *
                             Traffic::value_of(chunk.id, i % (shape_.fragment_bytes / 4));
      if (chunk.open_round() != round + 1 || sums[i] != expected) {
        throw std::runtime_error(
            "the pipeline's sum is wrong or its round is not finished at chunk " +
            std::to_string(chunk.id));
      }
    }
  }
  if (port_.sent() != uint64_t{round + 1} * traffic_.packets().size()) {
    throw std::runtime_error("the pipeline did not send every result to every worker");
  }
}

PipelineBench::PipelineBench(const BenchShape& shape, std::span<const PipelineKind> kinds)
    : seconds_(kinds.size()), measured_seconds_(kinds.size()) {
  for (const PipelineKind& kind : kinds) {
    auto& traffic = traffic_.at(static_cast<size_t>(kind.suite));
    if (traffic == nullptr) {
      traffic = std::make_unique<Traffic>(shape.workers, shape.fragment_bytes, kind.suite);
    } else if (kind.suite != seal::Suite::kNone) {
      throw std::logic_error("a packet with keys opens once, in one pipeline");
    }
    pipelines_.push_back(std::make_unique<BenchPipeline>(shape, kind, *traffic));
  }
  if (traffic_[0] == nullptr) throw std::logic_error("the kernel needs packets without keys");
  for (const auto& chunk : pipelines_[0]->shard().chunks()) {
    kernel_targets_.push_back(chunk.accumulator[0]);
  }
}

void PipelineBench::run(uint32_t rounds) {
  for (uint32_t round = 0; kernel_seconds_.size() < rounds; ++round) {
    if (round > 0) {
      for (auto& traffic : traffic_) {
        if (traffic != nullptr) traffic->next_round();
      }
    }
    const bool measures = pipeline::GradientSquares::measures(round);
    const double kernel = seconds_of([&] { run_kernel(); });
    if (round > 0) (measures ? measured_kernel_seconds_ : kernel_seconds_).push_back(kernel);
    for (size_t turn = 0; turn < pipelines_.size(); ++turn) {
      const size_t kind = (round + turn) % pipelines_.size();
      const double pipeline = seconds_of([&] { pipelines_[kind]->run_round(); });
      if (round > 0) (measures ? measured_seconds_ : seconds_)[kind].push_back(pipeline);
    }
    for (const auto& pipeline : pipelines_) pipeline->check();
  }
}

void PipelineBench::run_kernel() {
  const auto& kernels = reduce::kernels();
  const auto store = kernels.store[0];
  const auto add = kernels.add[0];
  for (const Traffic::Packet& packet : plain().packets()) {
    const auto function = packet.rank == 0 ? store : add;
    function(kernel_targets_[packet.chunk] + packet.offset_elements,
             packet.data + limits::kHeaderBytes, packet.elements, FLT_MAX);
  }
}

}  // namespace pbox::perf
