// The draws of a seed. This is swarm testing (Groce et al., "Swarm Testing", ISSTA 2012): each kind
// of fault is present or absent in a seed, so that frequent faults do not always hide rare ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "appliance/control/job_spec.h"
#include "nic/seal/session_keys.h"
#include "nic/wire/collective.h"
#include "nic/wire/dtype.h"
#include "pipeline/job_shard.h"

namespace pbox::sim {

struct TensorOptions {
  uint32_t elements = 1;
  int32_t priority = 0;
  std::optional<wire::SyncSpec> sync = {};  // its own model; if empty, it has the job's
  uint32_t row_elements = 0;  // elements of a table's row; 0 if the tensor is not a table
  wire::Compression compression = wire::Compression::kNone;
};

// Which ranks compute for longer than the others, and when.
enum class Straggling : uint8_t {
  kNone,
  kOneRank,   // always the same rank
  kInTurns,   // a different rank every few rounds
  kByChance,  // any rank, at random
};

// A call of a collective.
struct CallOptions {
  wire::Verb verb = wire::Verb::kBarrier;
  wire::Combine combine = wire::Combine::kSum;
  wire::Dtype dtype = wire::Dtype::kU8;
  uint32_t count = 0;
  uint32_t root = 0;
  bool operator==(const CallOptions&) const = default;
};

// Returns whether the box's guard checks the values of a call. It does for sums and means of types
// that gradients may have.
bool is_guarded(const CallOptions& call);

// A rank whose calls differ from those of the other ranks.
struct Disagreement {
  uint32_t rank = 0;
  std::vector<CallOptions> calls;
};

// A rank's place among the ranks that join its box.
struct RackPlace {
  uint32_t rack = 0;  // the box has the same number
  uint32_t rank = 0;
  uint32_t ranks = 0;
};

struct JobOptions {
  uint32_t number = 0;  // the same for all parts of a job
  uint32_t part = 0;
  uint32_t parts = 1;
  uint32_t box = 0;
  uint32_t workers = 2;
  uint32_t rounds = 3;
  wire::Dtype dtype = wire::Dtype::kF32;
  pipeline::Mode mode = pipeline::Mode::kAggregate;
  pipeline::Reduction reduction = pipeline::Reduction::kSum;
  bool weighted = false;  // pushes have weights; their values are not multiplied by these
  optimizer::OptimizerKind optimizer = optimizer::OptimizerKind::kNone;
  wire::SyncSpec sync;
  uint32_t chunk_bytes = 1024;
  uint32_t path_mtu = 1500;
  uint32_t window_bytes = limits::kCreditBytesMax;
  std::vector<TensorOptions> tensors;
  // If true, a rank completes all tensors of a round before the next round. Otherwise each tensor
  // continues on its own.
  bool by_steps = true;
  bool same_order = true;
  bool in_place = false;
  control::LostPolicy on_worker_lost = control::LostPolicy::kWait;
  control::Recovery recovery = control::Recovery::kCopy;
  // If true, the job waits for lost ranks until they are back, however long that takes. Otherwise
  // it waits for a short time and may then end.
  bool patient = true;
  wire::PriorityPolicy priority_policy = wire::PriorityPolicy::kExplicit;
  wire::Delivery delivery = wire::Delivery::kBroadcast;
  wire::Numerics numerics = wire::Numerics::kFast;
  wire::GuardSpec guard;
  bool pushes_unsound = false;  // with guard zero or reject: ranks push unsound values too
  bool pushes_zeros = false;    // many fragments of gradients are zero
  bool barrier_at_end = true;   // no rank leaves before all are done
  uint64_t think_max_ns = 0;    // upper bound of the pause between two operations
  Straggling straggling = Straggling::kNone;
  uint32_t straggler_factor = 1;  // factor by which a straggler's pauses are longer
  bool rogue = false;             // rank 0 violates the protocol
  bool may_move = false;          // may move between boxes while it runs
  bool has_copy = false;          // another box has a backup copy of weights and optimizer state
  bool has_snapshots = false;     // mode optimize, in a rack whose boxes take snapshots
  bool restores = false;          // begins with the last snapshot of the former run
  // An elastic job begins with this many of its ranks, or more; 0 if the job is not elastic.
  // `arrivals_ns`: when each rank joins, counted from the start of the run. If empty, all join at
  // once.
  uint32_t workers_min = 0;
  std::vector<uint64_t> arrivals_ns = {};
  // The number of ranks of each rack, with two levels. The job's ranks are those of the first rack,
  // then those of the second, and so on. Empty with one level.
  std::vector<uint32_t> racks = {};
  bool racks_disagree = false;  // each rack's ranks give the tensors different priorities
  // A job of collectives: the tensors are its slots, and `rounds` is the number of calls.
  bool is_collective = false;
  std::vector<CallOptions> calls = {};
  std::optional<Disagreement> disagreement = {};

  const std::vector<CallOptions>& calls_of(uint32_t rank) const {
    return disagreement && disagreement->rank == rank ? disagreement->calls : calls;
  }
  // Returns true if ranks may be at different rounds, that is, if some tensor's model is not BSP.
  bool is_relaxed() const { return relaxed_model() != wire::SyncModel::kBsp; }
  wire::SyncModel relaxed_model() const;  // a tensor's model that is not BSP; BSP if there is none
  // Like relaxed_model(), over all parts of the job.
  wire::SyncModel relaxed_elsewhere = wire::SyncModel::kBsp;
  const wire::SyncSpec& sync_of(uint32_t tensor) const {
    return tensors[tensor].sync ? *tensors[tensor].sync : sync;
  }
  bool is_elastic() const { return workers_min != 0; }
  // Returns the rank's place in its rack. For jobs of two levels only.
  RackPlace place_of(uint32_t rank) const;
  // Returns the number of the box that the rank joins, in a job that does not move.
  uint32_t box_of(uint32_t rank) const { return racks.empty() ? box : place_of(rank).rack; }
  // Returns the priority that a rank gives to its operations.
  int32_t priority_of(uint32_t rank, uint32_t tensor) const;
  // Returns the weight of a push, which is the same for all processes of the rank; 1 if pushes have
  // no weights. weights() returns the sum over the ranks whose bits are set.
  uint32_t weight(uint32_t rank, uint32_t tensor, uint32_t round) const;
  uint32_t weights(uint32_t ranks, uint32_t tensor, uint32_t round) const;
  std::string name() const { return "job" + std::to_string(number); }  // as the product knows it
  // Returns a tensor's name as the product knows it, which is unique among all parts of the job.
  std::string tensor_name(uint32_t tensor) const {
    return std::to_string(tensor) + ".weight" + (part > 0 ? "." + std::to_string(part) : "");
  }
  uint64_t bytes() const;  // size of the tensors
  uint64_t longest_think_ns() const { return think_max_ns * straggler_factor; }
  uint32_t lost_timeout_ms() const { return patient ? 120'000 : 700; }
  uint32_t recover_timeout_ms() const { return patient ? 300'000 : 3'000; }
};

// Faults per packet; probabilities in [0, 1].
struct PacketFaults {
  double drop = 0;
  double burst_begin = 0, burst_end = 1;  // bursts in which a link loses everything (Gilbert 1960)
  double duplicate = 0;
  double reorder = 0;
  double delay = 0;
  uint64_t delay_max_ns = 0;
  double flip = 0;
  double truncate = 0;
  double wrong_queue = 0;
};

enum class EpisodeKind : uint8_t {
  kPartition,     // blocks the packets of one direction between two hosts
  kClog,          // holds the packets of one direction and delivers them all at once
  kDropFragment,  // drops one fragment of one chunk of a job, whoever sends it
  kPauseWorker,
  kPauseBox,
  kPausePipeline,
  kClockWorker,
  kClockBox,
  kSmallRing,  // makes the receive ring of a box's pipeline small
  kSlowReader,
  kControlStall,
  kControlBreak,
  kCrashWorker,  // a new process starts when the episode ends
  kCrashBox,     // the box starts again when the episode ends
  kDisk,         // steps of a box's disk fail
  kOutsider,     // packets from an address that belongs to no host of the rack
  // A job moves to another box. This and all kinds below except kRebind need jobs that may move.
  kMovePart,
  kStaleMap,  // a box does not hear which box has which job
  kDrainBox,  // a box drains or is a standby until the episode ends
  kRebind,    // a worker's packets come from new ports, as after a NAT has lost its state
  kCount
};

// A fault that happens once, from begin_ns, counted from the start of the run, for length_ns.
struct Episode {
  EpisodeKind kind = EpisodeKind::kPartition;
  uint64_t begin_ns = 0;
  uint64_t length_ns = 0;
  uint64_t draw = 0;  // selects the victims
};

// The access cable of one worker's host (cable.h). All packets to and from the host pass it.
struct Cable {
  uint32_t host = 0;  // a HostId (network.h)
  uint64_t bytes_per_second = 0;
  uint64_t delay_ns = 0;     // in one direction; added to Options::latency_ns
  uint64_t queue_bytes = 0;  // room for frames in each direction
  // A TCP flow uses the cable in this direction until the faults end.
  bool tcp_to_box = false, tcp_from_box = false;
};

// An operator asks a box for a snapshot.
struct SnapshotCall {
  uint64_t begin_ns = 0;    // counted from the start of the run
  uint64_t timeout_ns = 0;  // counted from begin_ns
  uint32_t job = 0;         // index of the job
  uint32_t box = 0;
};

// An operator changes the consistency model of some tensors of a relaxed job.
struct ModelChange {
  uint64_t begin_ns = 0;                // counted from the start of the run
  uint32_t job = 0;                     // index of the job
  std::optional<uint32_t> tensor = {};  // empty for all tensors
  wire::SyncSpec sync;
};

// A box moves some groups of chunks of one of its parts to other pipelines.
struct ChunkMove {
  uint64_t begin_ns = 0;  // counted from the start of the run
  uint32_t box = 0;
  uint64_t draw = 0;  // chooses the part, the groups and the pipelines
};

struct Options {
  uint64_t seed = 1;
  uint32_t boxes = 1;
  uint32_t pipelines = 1;
  // With two levels the last box, the upper one, sums what the boxes of the racks have summed.
  bool has_levels = false;
  uint32_t top_pipelines = 0;                 // pipelines of the upper box
  uint32_t top() const { return boxes - 1; }  // the upper box
  uint32_t pipelines_of(uint32_t box) const {
    return has_levels && box == top() ? top_pipelines : pipelines;
  }
  uint32_t ring_bytes = 1u << 20;  // size of each pipeline's receive ring
  uint32_t ring_slots = 0;
  bool payload_crc = true;
  seal::Suite suite = seal::Suite::kNone;                // how packets are protected
  uint64_t key_packets = seal::KeyUpdates::kPacketsMax;  // packets that one key seals
  uint32_t burst_packets = limits::kBurstPackets;        // the most that a port gives at once
  uint32_t send_packets = limits::kBurstPackets;         // the most that a port takes at once
  uint64_t latency_ns = 20'000;
  uint64_t jitter_ns = 0;
  uint64_t link_bytes_per_us = 0;       // rate of each host in each direction; 0 for no limit
  uint32_t box_links = 1;               // factor by which a box's links are faster
  uint32_t send_divisor = 1;            // factor by which a box sends more slowly than it receives
  uint64_t send_ahead_ns = UINT64_MAX;  // most time by which a port is ahead of its link
  std::vector<Cable> cables;  // at most one per host; a host without one has no bottleneck
  uint32_t window_bytes = 0;  // pipeline.window_bytes of each box's configuration
  uint64_t rto_floor_ns = 2'000'000;
  uint64_t dead_after_ns = 10'000'000'000;  // silence after which a box or worker counts as dead
  bool same_sessions = false;  // a box that restarts draws the same session numbers as before
  bool has_cluster = false;    // the boxes share a store, and jobs move between them
  // If true, a process asks for its job's part map once, as libpbox does. Otherwise each part asks
  // by itself.
  bool asks_once = false;
  bool is_tight = false;  // boxes may lack room for the jobs
  // Room of the first box: memory of all jobs, memory of those on one pipeline, and the number of
  // jobs. In a tight rack the second box has twice as much memory, the third three times as much.
  uint64_t memory_bytes = 256u << 20;
  uint64_t arena_bytes = 128u << 20;
  uint32_t job_slots = 16;
  uint64_t memory_of(uint32_t box) const {
    return is_tight ? memory_bytes * (box + 1) : memory_bytes;
  }
  uint64_t arena_of(uint32_t box) const { return is_tight ? arena_bytes * (box + 1) : arena_bytes; }
  // Members whose first port turns out not to work use the next one, in the same session.
  bool ports_fall_back = false;
  uint32_t attack_bursts = 0;  // bursts of forged packets in each attack; 0 if there are no attacks
  // Workers' control connections come from a different host than their packets.
  bool has_control_network = false;
  std::vector<JobOptions> jobs;  // an entry per part; a job's further parts come after all jobs
  // Returns the size by which boxes cut jobs. A worker states it for each part of its job.
  uint64_t largest_part_bytes() const;
  PacketFaults faults;
  std::vector<Episode> episodes;
  std::vector<ModelChange> model_changes;
  // All boxes keep snapshots in one folder. `snapshot_every_ns` is snapshots.every_s of each box's
  // configuration.
  bool has_snapshots = false;
  uint64_t snapshot_every_ns = 0;
  std::vector<SnapshotCall> snapshot_calls;
  std::vector<ChunkMove> chunk_moves;
  // True if the same jobs have run before, without faults, and have left snapshots. `run`
  // distinguishes the processes of the former run from those of this one.
  bool has_former_run = false;
  uint32_t run = 0;
  uint64_t faults_end_ns = 0;  // time at which all faults end, counted from the start of the run
  uint64_t events_max = 20'000'000;  // a run with more events counts as one that does not end
};

const char* name_of(EpisodeKind kind);

Options draw(uint64_t seed);
// Returns the same rack as draw(seed), but always with keys, and with attacks.
Options draw_attacked(uint64_t seed);
// Returns the former run of a rack that has one.
Options former_run(const Options& options);
// Returns a job of several racks, each with a box of its own, and one more box that sums the racks.
Options draw_levels(uint64_t seed);

// Returns one line with all options.
std::string to_string(const Options& options);

}  // namespace pbox::sim
