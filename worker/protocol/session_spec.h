// Descriptions of a worker's tensors, and of what a session of the box grants for them. Every layer
// of the worker may use them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/limits.h"
#include "nic/port.h"
#include "nic/rss.h"
#include "nic/seal/session_seal.h"
#include "nic/wire/blocks.h"
#include "nic/wire/dtype.h"
#include "nic/wire/guard.h"
#include "nic/wire/schedule.h"
#include "nic/wire/sync.h"

namespace pbox::worker {

class SendPath;

struct TensorSpec {
  std::string name;
  uint64_t elements = 0;
  uint64_t first_element = 0;  // a piece's offset in its tensor, in elements
  wire::Dtype dtype = wire::Dtype::kF32;
  int32_t priority = 0;  // larger goes earlier
  float lr_scale = 1;
  float weight_decay = -1;    // negative: the job's value
  uint32_t row_elements = 0;  // elements of a row, if it is a table; otherwise 0
  wire::Compression compression = wire::Compression::kNone;  // needs f32
  bool chooses = false;  // compressed only while that is faster (choice/chosen_tensors.h)
  // This is the compressed form of a tensor with `chooses`, or the votes on it.
  bool is_form = false, is_votes = false;
  // The tensor's own consistency model as it was registered; nullopt: the job's.
  std::optional<wire::SyncSpec> sync = {};
};

// Returns the model of some tensor that is not BSP; BSP if all are.
wire::SyncModel relaxed_model(const wire::SyncSpec& job, const std::vector<TensorSpec>& tensors);

// The box's answer to JOIN, together with this side's own bounds.
struct SessionSpec {
  struct Pipeline {
    uint32_t spi = 0;
    uint32_t credit_bytes = 0;
    nic::Endpoint box;
    nic::QueueAffinity affinity = nic::QueueAffinity::kUdpPort;
    uint32_t queue = 0;                             // index of the NIC queue that it polls
    std::shared_ptr<const nic::RssTable> rss = {};  // set for kRssHash
    // Numbers and seals packets, whichever transport sends them. Copies of a session share it.
    std::shared_ptr<seal::SessionSeal> seal = seal::make_seal_without_keys();
    // Shared with the other parts of the job. Null: the lane makes its own.
    std::shared_ptr<SendPath> path = nullptr;
  };
  uint32_t rank = 0;
  uint32_t epoch = 1;
  uint16_t generation = 1;
  uint32_t fragment_bytes = 0;
  uint32_t chunk_bytes = 0;
  wire::TagPolicy tag;  // for packets without keys
  std::vector<Pipeline> pipelines;
  std::vector<uint8_t> chunk_pipeline;  // indexed by chunk id, dense in tensor order
  std::vector<uint32_t> open_rounds;    // at the box, indexed by chunk id; empty: all are 0
  // Ids of the chunks whose last consumed result this worker must send back to the box.
  std::vector<uint32_t> chunks_to_restore;
  wire::Delivery delivery = wire::Delivery::kBroadcast;
  // With delivery by pull: results are never pulled. An operation ends when its results have been
  // announced. A replica's job works this way.
  bool ignores_results = false;
  // The caller's outputs serve as shadows, so results are not copied twice. The caller leaves each
  // output unchanged until the next operation on the tensor is done, and gives the same output
  // again; in mode optimize two outputs take turns. The input is another buffer.
  bool caller_keeps_results = false;
  // Mode optimize: results are weights, and those of compressed tensors deltas (delta_weights.h).
  bool optimizes = false;
  // The box makes no result of a round before it has the whole round, because it needs a verdict.
  bool holds_rounds = false;
  // The box passes sums on to an upper box. Rounds wait for ranks of other racks, which no STATUS
  // names.
  bool has_upper_box = false;
  // This side's bound on bytes in flight per pipeline. The box's credit is another bound.
  uint32_t window_bytes = limits::kCreditBytesMax;
  // The box knows ZEROS: fragments of gradients that are zero are named, not sent (zeros.h).
  bool takes_zeros = false;
  bool probes_path = true;  // the transport tries the largest packets before anything is pushed
  uint64_t rto_floor_ns = 2'000'000;  // for sockets; poll-mode ports use less
  // Gradients in this memory are not prefetched, because this process does not read them.
  std::span<const std::byte> unread_memory = {};
  uint64_t jitter_seed = 1;
  uint64_t rounding_seed = 0;  // the job's, used by compressed tensors
  wire::SyncSpec sync;
  // The model of a tensor of the job, in any part, that is not BSP; BSP if there is none. Used only
  // if `sync` is BSP.
  wire::SyncModel relaxed_model = wire::SyncModel::kBsp;
  wire::GuardSpec guard;
  // Values of the box's optimizer; used only if reads are cached.
  float learning_rate = 0;
  float gradient_scale = 1;  // 1 / world size for a mean

  bool is_relaxed() const {
    return sync.model != wire::SyncModel::kBsp || relaxed_model != wire::SyncModel::kBsp;
  }
};

}  // namespace pbox::worker
