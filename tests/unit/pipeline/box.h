// One pipeline's engine without port, clock or worker. Tests hand it packets and read its packets.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "pipeline/engine.h"
#include "pipeline/observe/flight_image.h"

namespace pbox::test {

constexpr uint32_t kPipeline = 3;

// The spi of a job's worker on kPipeline. Its random part differs per job.
constexpr uint32_t spi_of(uint32_t job, uint32_t rank) {
  return (0x5au + job) << 24 | kPipeline << pipeline::kSpiPipelineShift | job * 64 | rank;
}

nic::Endpoint address_of(uint32_t job, uint32_t rank);

struct JobOptions {
  uint32_t job = 0;
  std::string name = {};  // if empty, "job " and the number
  uint32_t workers = 2;
  uint32_t fragment_bytes = 1024;
  uint32_t chunk_elements = 768;  // 3 fragments of 1024
  uint32_t chunks = 1;            // ids [0, chunks); id `chunks` belongs to another pipeline
  uint32_t credit_bytes = 64 * 1024;
  wire::Dtype dtype = wire::Dtype::kF32;
  pipeline::Mode mode = pipeline::Mode::kAggregate;
  pipeline::Reduction reduction = pipeline::Reduction::kSum;
  optimizer::OptimizerSpec optimizer = {};
  wire::SyncSpec sync = {};
  std::vector<wire::SyncSpec> models = {};  // by chunk; empty: all have `sync`
  wire::SyncModel relaxed_model = wire::SyncModel::kBsp;
  wire::Delivery delivery = wire::Delivery::kBroadcast;
  wire::Numerics numerics = wire::Numerics::kFast;
  bool replicated = false;
  bool relayed = false;
  uint32_t uplink_lanes = 1;  // chunk c is for lane c modulo this number
  bool gated = false;
  bool partial = false;
  bool weighted = false;
  bool is_collective = false;
  bool takes_zeros = false;  // the workers know ZEROS
  wire::GuardSpec guard = {};
  uint32_t row_bytes = 0;  // bytes of a table's row; 0 if the tensor is no table
  uint32_t row_skipped_bytes = 0;
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

// A packet under construction: header and payload. It gets its tag when it is delivered.
struct Packet {
  wire::Header header;
  std::vector<std::byte> payload;
  nic::Endpoint from;
};

// The memory of a flight recorder of `capacity` records.
class FlightMemory {
 public:
  explicit FlightMemory(uint64_t capacity);
  std::span<std::byte> span() { return std::as_writable_bytes(std::span(memory_)); }
  // Returns the bytes of the recorder's file.
  std::vector<std::byte> image() { return {span().begin(), span().end()}; }
  std::vector<pipeline::FlightRecord> records();

 private:
  std::vector<pipeline::FlightRecord> memory_;  // head and records; the type gives the alignment
};

class Box {
 public:
  explicit Box(std::span<std::byte> flight = {})
      : engine({.pipeline_index = kPipeline, .tag = {.payload_crc = true}, .flight = flight}) {}

  // Creates a job's shard and installs it. The box owns the shard.
  pipeline::JobShard& admit(const JobOptions& options);
  void remove(pipeline::JobShard& shard);

  // Returns a valid push of a whole fragment whose elements are all `value`.
  Packet push(const JobOptions& options, uint32_t rank, uint32_t fragment, float value,
              uint32_t round = 0, uint32_t chunk = 0);
  Packet pull(const JobOptions& options, uint32_t rank, uint32_t round, uint64_t held_mask = 0,
              uint32_t chunk = 0);
  // Names these fragments of a push as zero.
  Packet zeros(const JobOptions& options, uint32_t rank, uint64_t mask, uint32_t round = 0,
               uint32_t chunk = 0);
  void push_chunk(const JobOptions& options, uint32_t rank, float value, uint32_t round = 0,
                  uint32_t chunk = 0);
  // Has every worker push the whole chunk. Returns the packets that leave.
  std::vector<Sent> run_round(const JobOptions& options, uint32_t round, uint32_t chunk = 0);

  void deliver(const Packet& packet);
  void deliver_raw(const std::vector<std::byte>& bytes);
  // Takes one whole burst that the box has to send, and checks every tag.
  std::vector<Sent> take_burst();
  std::vector<Sent> take_all();

  uint64_t count(pipeline::Counter counter) const { return engine.counters().get(counter); }

  pipeline::Engine engine;
  uint64_t now_ns = 1'000'000'000;

 private:
  uint64_t next_packet_number_ = 1;
  std::vector<std::unique_ptr<pipeline::JobShard>> shards_;
};

// Returns the packet's bytes on the wire.
std::vector<std::byte> wire_bytes(const Packet& packet);

// The counters that have moved since this was made, without the port's counters.
class CounterChange {
 public:
  explicit CounterChange(const pipeline::Engine& engine);
  // The counters in table order.
  std::vector<pipeline::Counter> moved() const;

 private:
  const pipeline::Engine& engine_;
  std::vector<uint64_t> before_;
};

}  // namespace pbox::test
