// One pipeline core without port, clock or worker: tests hand it packets and read what it sends.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "pipeline/engine.h"
#include "pipeline/observe/flight_image.h"

namespace pbox::test {

constexpr uint32_t kPipeline = 3;

// The spi of a job's worker on kPipeline, with a drawn part that differs per job.
constexpr uint32_t spi_of(uint32_t job, uint32_t rank) {
  return (0x5au + job) << 24 | kPipeline << pipeline::kSpiPipelineShift | job * 64 | rank;
}

nic::Endpoint address_of(uint32_t job, uint32_t rank);

struct JobOptions {
  uint32_t job = 0;
  uint32_t workers = 2;
  uint32_t fragment_bytes = 1024;
  uint32_t chunk_elements = 768;  // 3 fragments of 1024
  uint32_t chunks = 1;            // ids [0, chunks); one more id belongs to another pipeline
  uint32_t credit_bytes = 64 * 1024;
  wire::Dtype dtype = wire::Dtype::kF32;
  pipeline::Mode mode = pipeline::Mode::kAggregate;
  pipeline::Reduction reduction = pipeline::Reduction::kSum;
  optimizer::OptimizerSpec optimizer = {};
  wire::SyncSpec sync = {};
  wire::Delivery delivery = wire::Delivery::kBroadcast;
  wire::Numerics numerics = wire::Numerics::kFast;
  bool replicated = false;
};

pipeline::ShardSpec spec_of(const JobOptions& options);

struct Sent {
  nic::Endpoint to;
  wire::Header header;
  std::vector<std::byte> payload;

  wire::StatusPayload status() const {
    wire::StatusPayload status;
    std::memcpy(&status, payload.data(), sizeof(status));
    return status;
  }
  float value(size_t index = 0) const {
    float value = 0;
    std::memcpy(&value, payload.data() + index * sizeof(float), sizeof(value));
    return value;
  }
};

// A packet under construction: header and payload, tagged when it is delivered.
struct Packet {
  wire::Header header;
  std::vector<std::byte> payload;
  nic::Endpoint from;
};

// Memory of a flight recorder of this many records.
class FlightMemory {
 public:
  explicit FlightMemory(uint64_t capacity);
  std::span<std::byte> span() { return std::as_writable_bytes(std::span(memory_)); }
  // As a file of it is.
  std::vector<std::byte> image() { return {span().begin(), span().end()}; }
  std::vector<pipeline::FlightRecord> records();

 private:
  std::vector<pipeline::FlightRecord> memory_;  // the head too: it is aligned so
};

class Box {
 public:
  explicit Box(std::span<std::byte> flight = {})
      : core({.pipeline_index = kPipeline, .tag = {.payload_crc = true}, .flight = flight}) {}

  // Admits a job and installs it; the shard is the box's.
  pipeline::JobShard& admit(const JobOptions& options);
  void remove(pipeline::JobShard& shard);

  // A push that the box would aggregate: whole fragment, every element `value`.
  Packet push(const JobOptions& options, uint32_t rank, uint32_t fragment, float value,
              uint32_t round = 0, uint32_t chunk = 0);
  Packet pull(const JobOptions& options, uint32_t rank, uint32_t round, uint64_t held_mask = 0,
              uint32_t chunk = 0);
  void push_chunk(const JobOptions& options, uint32_t rank, float value, uint32_t round = 0,
                  uint32_t chunk = 0);
  // Every worker pushes the whole chunk; what leaves is returned.
  std::vector<Sent> run_round(const JobOptions& options, uint32_t round, uint32_t chunk = 0);

  void deliver(const Packet& packet);
  void deliver_raw(const std::vector<std::byte>& bytes);
  // One burst of what the box has to send, taken whole; checks every tag.
  std::vector<Sent> take_burst();
  std::vector<Sent> take_all();

  uint64_t count(pipeline::Counter counter) const { return core.counters().get(counter); }

  pipeline::Engine core;
  uint64_t now_ns = 1'000'000'000;

 private:
  uint64_t next_packet_number_ = 1;
  std::vector<std::unique_ptr<pipeline::JobShard>> shards_;
};

// The packet as it is on the wire.
std::vector<std::byte> wire_bytes(const Packet& packet);

// The names of the counters that differ between two snapshots, port counters left out.
class CounterChange {
 public:
  explicit CounterChange(const pipeline::Engine& core);
  // Every counter but the port's that moved since, in table order.
  std::vector<pipeline::Counter> moved() const;

 private:
  const pipeline::Engine& engine_;
  std::vector<uint64_t> before_;
};

}  // namespace pbox::test
