// What a seed draws: a swarm (Groce et al., "Swarm Testing", ISSTA 2012), in which each kind of
// fault is there or not, so that rare ones are not always drowned in common ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "appliance/control/job_spec.h"
#include "nic/wire/dtype.h"
#include "pipeline/job_shard.h"

namespace pbox::sim {

struct TensorOptions {
  uint32_t elements = 1;
  int32_t priority = 0;
};

// Ranks that compute for longer than the others, and when.
enum class Straggling : uint8_t {
  kNone,
  kOneRank,   // always the same
  kInTurns,   // another one every few rounds
  kByChance,  // any, now and then
};

struct JobOptions {
  uint32_t box = 0;
  uint32_t workers = 2;
  uint32_t rounds = 3;
  wire::Dtype dtype = wire::Dtype::kF32;
  pipeline::Mode mode = pipeline::Mode::kAggregate;
  pipeline::Reduction reduction = pipeline::Reduction::kSum;
  optimizer::OptimizerKind optimizer = optimizer::OptimizerKind::kNone;
  wire::SyncSpec sync;
  uint32_t chunk_bytes = 1024;
  uint32_t path_mtu = 1500;
  uint32_t window_bytes = limits::kCreditBytesMax;
  std::vector<TensorOptions> tensors;
  bool by_steps = true;  // all tensors of a round before any of the next; else each on its own
  bool same_order = true;
  bool in_place = false;
  appliance::LostPolicy on_worker_lost = appliance::LostPolicy::kWait;
  appliance::Recovery recovery = appliance::Recovery::kCopy;
  // Lost ranks are waited for until they are back, whatever happens; else a short time only, and
  // the job may end for it.
  bool patient = true;
  wire::PriorityPolicy priority_policy = wire::PriorityPolicy::kExplicit;
  wire::Delivery delivery = wire::Delivery::kBroadcast;
  wire::Numerics numerics = wire::Numerics::kFast;
  bool barrier_at_end = true;  // nobody leaves before all are done
  uint64_t think_max_ns = 0;   // between an operation and the next
  Straggling straggling = Straggling::kNone;
  uint32_t straggler_factor = 1;  // so many times as long does a straggler think
  bool rogue = false;             // rank 0 does as it likes
  bool may_move = false;          // from box to box, while it runs
  bool has_copy = false;          // another box has a copy of weights and optimizer state

  // Ranks may be at different rounds: the model is not bsp.
  bool is_relaxed() const { return sync.model != wire::SyncModel::kBsp; }
  uint64_t longest_think_ns() const { return think_max_ns * straggler_factor; }
  uint32_t lost_timeout_ms() const { return patient ? 120'000 : 700; }
  uint32_t recover_timeout_ms() const { return patient ? 300'000 : 3'000; }
};

// Per packet, probabilities in [0, 1].
struct PacketFaults {
  double drop = 0;
  double burst_begin = 0, burst_end = 1;  // a link that loses everything (Gilbert 1960)
  double duplicate = 0;
  double reorder = 0;
  double delay = 0;
  uint64_t delay_max_ns = 0;
  double flip = 0;
  double truncate = 0;
  double wrong_queue = 0;
};

enum class EpisodeKind : uint8_t {
  kPartition,     // packets of one direction between two hosts
  kClog,          // they are held, and come all at once
  kDropFragment,  // one fragment of one chunk of a job, whoever sends it
  kPauseWorker,
  kPauseBox,
  kPausePipeline,
  kClockWorker,
  kClockBox,
  kSmallRing,  // of a box's pipeline
  kSlowReader,
  kControlStall,
  kControlBreak,
  kCrashWorker,  // and another process in its place when the episode ends
  kCrashBox,     // and starts again when it ends
  kDisk,         // steps of a box's disk fail
  kOutsider,     // packets from an address that is nobody's
  kMovePart,     // a job goes to another box: from here on, of racks with jobs that move
  kStaleMap,     // a box does not hear which box has which job
  kCount
};

// What happens once: from begin_ns, counted from the start of all, for length_ns.
struct Episode {
  EpisodeKind kind = EpisodeKind::kPartition;
  uint64_t begin_ns = 0;
  uint64_t length_ns = 0;
  uint64_t draw = 0;  // chooses whom it hits
};

struct Options {
  uint64_t seed = 1;
  uint32_t boxes = 1;
  uint32_t pipelines = 1;
  uint32_t ring_bytes = 1u << 20;  // of each pipeline's receive ring
  uint32_t ring_slots = 0;
  bool payload_crc = true;
  uint32_t burst_packets = limits::kBurstPackets;  // at most, that a port gives at once
  uint32_t send_packets = limits::kBurstPackets;   // at most, that a port takes at once
  uint64_t latency_ns = 20'000;
  uint64_t jitter_ns = 0;
  uint64_t link_bytes_per_us = 0;  // of each host, each way; 0: no bound
  uint32_t box_links = 1;          // so many times as fast are those of a box
  uint64_t rto_floor_ns = 2'000'000;
  uint64_t dead_after_ns = 10'000'000'000;  // what silence means to a box and its workers
  bool same_sessions = false;  // a box that starts again draws the session numbers of before
  std::vector<JobOptions> jobs;
  PacketFaults faults;
  std::vector<Episode> episodes;
  uint64_t faults_end_ns = 0;  // then all heals; counted from the start of all
};

const char* name_of(EpisodeKind kind);

Options draw(uint64_t seed);

// One line that says all of it.
std::string to_string(const Options& options);

}  // namespace pbox::sim
