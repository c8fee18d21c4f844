// A worker's exchange without a port or a box. Tests read what it pushes and play the box.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "worker/protocol/exchange.h"

namespace pbox::test {

inline constexpr uint32_t kSpi = 0x5a006001;
inline constexpr uint32_t kFragmentBytes = 1024;
inline constexpr uint32_t kChunkBytes = 4096;  // 4 fragments
inline constexpr uint64_t kStartNs = 1'000'000'000;

struct ShimOptions {
  std::vector<uint64_t> tensor_chunks = {1};  // whole chunks of f32 in each tensor
  uint32_t credit_bytes = 64 * 1024;
  uint32_t window_bytes = limits::kCreditBytesMax;
  uint64_t packets_before = 0;                        // sent while the transport was opened
  std::shared_ptr<seal::SessionSeal> seal = nullptr;  // null: without keys
  std::shared_ptr<worker::SendPath> path = nullptr;   // null: a short one of its own
  bool has_choice = false;  // tensor 1 is a form of tensor 0, tensor 2 has the votes on it
  bool has_shadow = false;
  uint32_t shadows = 1;
  wire::Delivery delivery = wire::Delivery::kBroadcast;
  bool ignores_results = false;
  bool caller_keeps_results = false;
  bool optimizes = false;  // mode optimize
  bool holds_rounds = false;
  bool has_upper_box = false;
  bool takes_zeros = false;
  std::vector<uint32_t> open_rounds = {};
  std::vector<uint8_t> chunk_pipeline = {};  // 0 or 1 by chunk; empty: there is one pipeline
  wire::SyncSpec sync = {};
  float learning_rate = 1;  // used if reads are cached
  float gradient_scale = 1;
  uint32_t row_elements = 0;  // all tensors are tables of such rows; 0: none is
  wire::Compression compression = wire::Compression::kNone;  // the same for every tensor
};

// Returns a path whose chunks are known to need no time, so that only Window bounds what is in
// flight.
std::shared_ptr<worker::SendPath> short_path(uint64_t slack_ns);

struct Pushed {
  wire::Header header;
  std::vector<std::byte> payload;
  uint64_t held_mask() const {
    uint64_t mask = 0;
    std::memcpy(&mask, payload.data(), sizeof(mask));
    return mask;
  }
};

// A packet of the box, which a test can change before it is delivered.
struct Answer {
  wire::Header header;
  std::vector<std::byte> payload;
};

class Shim {
 public:
  explicit Shim(const ShimOptions& options = {});

  // Suspends, then resumes in epoch + 1 with another spi, at a box with these open rounds.
  Status resume(const std::vector<uint32_t>& open_rounds, const std::vector<uint32_t>& give = {});

  // Starts a tensor in place, on this object's own buffer filled with `value`. If the caller keeps
  // results, the result goes to kept(tensor) instead.
  void start(uint32_t tensor, float value = 1.0f, int32_t priority = 0);

  // These return what the worker sends, all of it taken by the port: one burst, everything, or all
  // packets of one type.
  std::vector<Pushed> take_burst();
  std::vector<Pushed> take_all();
  std::vector<Pushed> take_all(wire::PacketType type);

  Answer result(uint32_t chunk, uint32_t round, uint32_t fragment, float value);
  // Names these fragments of a result as zero.
  Answer zeros(uint32_t chunk, uint32_t round, uint64_t mask);
  // The result of a job that applies pushes as they arrive. The data has this clock and includes
  // the worker's own rounds below `applied`.
  Answer relaxed_result(uint32_t chunk, uint32_t clock, uint32_t applied, uint32_t fragment,
                        float value);
  Answer status(uint32_t chunk, uint32_t round, uint64_t received_mask,
                uint16_t missing_workers = 0, uint16_t first_missing_rank = 0);
  // Announces that the result can be pulled.
  Answer announcement(uint32_t chunk, uint32_t round);
  void deliver(const Answer& answer);
  void deliver_result(uint32_t chunk, uint32_t round, float value);
  void deliver_relaxed(uint32_t chunk, uint32_t clock, uint32_t applied, float value);

  // Moves the clock until an overdue timer produces a packet. Returns how long that took.
  uint64_t expire();

  std::vector<float>& buffer(uint32_t tensor) { return buffers_[tensor]; }
  // `slot`: round & 1 if outputs alternate, otherwise 0.
  std::vector<float>& kept(uint32_t tensor, uint32_t slot = 0) { return kept_[slot][tensor]; }

  worker::SessionSpec session;

 private:
  std::unique_ptr<worker::Exchange> owned_;  // on the heap, so that a shim can be moved

 public:
  worker::Exchange& exchange;
  uint64_t now_ns = kStartNs;
  uint32_t credit_bytes;  // credit that the box's packets grant
  std::vector<Pushed> everything;

 private:
  std::vector<std::vector<float>> buffers_, kept_[2];
  uint64_t next_packet_number_ = 1;
};

}  // namespace pbox::test
