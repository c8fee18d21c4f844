#include "tests/support/rack.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "nic/wire/chunk_layout.h"

namespace pbox::test {
namespace {

nic::Endpoint box_endpoint(uint32_t pipeline) {
  return *nic::parse_endpoint("10.0.0.1", static_cast<uint16_t>(9542 + pipeline));
}

nic::Endpoint worker_endpoint(uint32_t rank, uint32_t pipeline) {
  return *nic::parse_endpoint("10.0.1." + std::to_string(rank + 1),
                              static_cast<uint16_t>(20000 + pipeline));
}

uint32_t spi_of(uint32_t rank, uint32_t pipeline) {
  return 0x5a000000u | pipeline << pipeline::kSpiPipelineShift | rank;
}

NumaArena arena_of(uint64_t bytes) {
  if (bytes == 0) return {};
  auto arena = NumaArena::create(bytes, kAnyNumaNode, Hugepages::kNever);
  PBOX_CHECK(arena.ok());
  return std::move(*arena);
}

}  // namespace

Rack::Rack(const RackOptions& options) : network_(options.faults) {
  build_box(options);
  build_workers(options);
}

void Rack::build_box(const RackOptions& options) {
  specs_.resize(options.pipelines);
  uint32_t chunk_id = 0;
  for (const auto& tensor : options.tensors) {
    const uint32_t element_bytes = wire::dtype_bytes(tensor.dtype);
    const uint64_t bytes = tensor.elements * element_bytes;
    const uint32_t row_bytes = tensor.row_elements * element_bytes;
    for (uint64_t offset = 0; offset < bytes; offset += options.chunk_bytes, ++chunk_id) {
      const uint32_t index = chunk_id % options.pipelines;
      chunk_pipeline_.push_back(static_cast<uint8_t>(index));
      const auto length = std::min<uint64_t>(options.chunk_bytes, bytes - offset);
      specs_[index].chunks.push_back(
          {.chunk = chunk_id,
           .elements = static_cast<uint32_t>(length / element_bytes),
           .dtype = tensor.compression == wire::Compression::kNone
                        ? tensor.dtype
                        : wire::payload_dtype(tensor.compression),
           .priority = tensor.priority,
           .lr_scale = tensor.lr_scale,
           .weight_decay = options.optimizer.weight_decay,
           .row_bytes = row_bytes,
           .row_skipped_bytes = static_cast<uint32_t>(row_bytes > 0 ? offset % row_bytes : 0)});
    }
  }
  for (uint32_t index = 0; index < options.pipelines; ++index) {
    auto& spec = specs_[index];
    spec.fragment_bytes = options.fragment_bytes;
    spec.mode = options.mode;
    spec.is_collective = options.is_collective;
    spec.reduction = options.reduction;
    spec.optimizer = options.optimizer;
    spec.sync = options.sync;
    spec.job_chunk_count = chunk_id;
    for (uint32_t rank = 0; rank < options.workers; ++rank) {
      spec.sessions.push_back({spi_of(rank, index), options.window_bytes});
      spec.sessions.back().takes_zeros = options.takes_zeros;
    }
    auto shard = pipeline::JobShard::create(spec);
    PBOX_CHECK(shard.ok());
    shards_.push_back(std::move(*shard));
    pipelines_.push_back(std::make_unique<pipeline::Engine>(
        pipeline::EngineOptions{.pipeline_index = index, .tag = {options.payload_crc}}));
    pipelines_.back()->execute(
        {.kind = pipeline::CommandKind::kInstall, .shard = shards_.back().get()});
    box_ports_.emplace_back(network_, box_endpoint(index));
  }
}

void Rack::build_workers(const RackOptions& options) {
  for (uint32_t rank = 0; rank < options.workers; ++rank) {
    worker::SessionSpec session;
    session.rank = rank;
    session.fragment_bytes = options.fragment_bytes;
    session.chunk_bytes = options.chunk_bytes;
    session.tag = {options.payload_crc};
    session.chunk_pipeline = chunk_pipeline_;
    session.jitter_seed = options.faults.seed * 1000 + rank;
    session.sync = options.sync;
    session.takes_zeros = options.takes_zeros;
    session.learning_rate = options.optimizer.learning_rate;
    if (options.reduction == pipeline::Reduction::kMean) {
      session.gradient_scale = 1.0f / static_cast<float>(options.workers);
    }
    auto& ports = worker_ports_.emplace_back();
    for (uint32_t index = 0; index < options.pipelines; ++index) {
      session.pipelines.push_back({spi_of(rank, index), options.window_bytes, box_endpoint(index)});
      ports.emplace_back(network_, worker_endpoint(rank, index), box_endpoint(index));
    }
    workers_.push_back(std::make_unique<worker::Exchange>(
        session, options.tensors, arena_of(worker::cache_bytes(session, options.tensors))));
  }
}

void Rack::turn_box() {
  std::array<nic::RxPacket, limits::kBurstPackets> burst;
  for (size_t index = 0; index < pipelines_.size(); ++index) {
    const size_t count = box_ports_[index].rx_burst(burst);
    pipelines_[index]->on_burst({burst.data(), count}, now_ns_);
    const auto packets = pipelines_[index]->to_send();
    pipelines_[index]->sent(box_ports_[index].tx_burst(packets));
  }
}

void Rack::turn_worker(uint32_t rank) {
  std::array<nic::RxPacket, limits::kBurstPackets> burst;
  worker::Exchange& exchange = *workers_[rank];
  exchange.on_timer(now_ns_);
  for (uint32_t index = 0; index < exchange.pipeline_count(); ++index) {
    nic::LoopbackPort& port = worker_ports_[rank][index];
    const size_t count = port.rx_burst(burst);
    exchange.on_burst(index, {burst.data(), count}, now_ns_);
    const auto packets = exchange.to_send(index, now_ns_);
    exchange.sent(index, port.tx_burst(packets));
  }
}

void Rack::step(uint64_t limit_ns) {
  const uint64_t sent_before = network_.counts().sent;
  network_.advance_to(now_ns_);
  turn_box();
  for (uint32_t rank = 0; rank < workers_.size(); ++rank) turn_worker(rank);
  uint64_t next_ns = now_ns_ + 10'000;
  // nothing was sent: jump to the next packet or timer
  if (network_.counts().sent == sent_before) {
    uint64_t due_ns = network_.next_due_ns();
    for (const auto& worker : workers_) due_ns = std::min(due_ns, worker->next_deadline_ns());
    if (due_ns != UINT64_MAX) next_ns = std::max(next_ns, due_ns);
  }
  now_ns_ = std::max(now_ns_, std::min(next_ns, limit_ns));
}

bool Rack::run_until_idle(uint64_t steps_max) {
  for (uint64_t count = 0; count < steps_max; ++count) {
    bool busy = false;
    for (const auto& worker : workers_) {
      for (uint32_t tensor = 0; tensor < worker->tensor_count(); ++tensor) {
        busy = busy || worker->busy(tensor);
      }
    }
    if (!busy) return true;
    step();
  }
  return false;
}

void Rack::inject(uint32_t pipeline, std::vector<std::byte> bytes) {
  const nic::RxPacket packet{bytes.data(), static_cast<uint32_t>(bytes.size()),
                             worker_endpoint(200, 0)};
  pipelines_[pipeline]->on_burst({&packet, 1}, now_ns_);
}

}  // namespace pbox::test
