// The ranks of one job, or of a part of it, as this box knows them: who has joined, who is lost,
// and what the ranks that resume after the loss of a box say about themselves. It is a value
// without I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "appliance/control/recovery_plan.h"
#include "appliance/control/step_verdict.h"
#include "nic/tls/identity.h"
#include "nic/wire/zeros.h"

namespace pbox::control {

using ConnectionId = uint64_t;  // 0 if there is none

// The backup copy of a part: the box that holds it, and the name of the job that stores it there.
struct CopyName {
  std::string box;
  std::string job;  // empty if there is no copy
};

// A rank's report about the rounds of a part that it has finished; see FinishedRounds in
// nic/wire/control.proto.
struct RankProgress {
  uint64_t rounds = 0;  // 0 before the first report
  uint64_t at_ns = 0;
  uint64_t busy_ns = 0;
  // By pipeline of the session; may have fewer entries than there are pipelines.
  std::vector<uint64_t> busy_ns_by_pipeline = {};
  bool operator==(const RankProgress&) const = default;
};

struct Member {
  // kExcluded: the job goes on without the rank (policy partial). It was lost for too long, or has
  // left a job of sync.model drop.
  enum class State { kAbsent, kJoined, kLost, kLeft, kExcluded };
  State state = State::kAbsent;
  ConnectionId connection = 0;
  std::string peer;  // address of the control connection
  // The identity that holds the rank's place until the job is over; absent without TLS.
  std::optional<tls::Identity> identity = {};
  std::string software;           // name and version, as the worker states them
  uint32_t protocol_version = 0;  // the session's version; valid once the rank has joined
  bool takes_zeros() const { return protocol_version >= wire::kZerosVersion; }
  uint32_t path_mtu = 0;
  uint32_t workers = 1;  // workers that the rank sums; more than 1 if it is a box
  bool ipv6 = false;
  uint64_t joined_ns = 0;                        // time of its JOIN; valid if kJoined
  std::optional<nic::Endpoint> known_host = {};  // as in pipeline::SessionSpec
  bool is_on_host = false;  // the worker is on the box's host, and may ask for lanes of memory
  // The process has been in the part since it last opened. Only then can the box be sure that a
  // result stays as it is until this process has consumed it.
  bool is_from_start = false;
  uint64_t lost_ns = 0;  // time of the loss; valid if kLost
  std::string lost_reason;
  std::string left_reason;  // kLeft: the reason that the rank has stated, if any
  bool has_left = false;    // kExcluded: the rank has left the job
  // Time at which another box last reported that this rank cannot reach this box (cut_off.h); 0 if
  // none has.
  uint64_t cut_off_ns = 0;
  uint64_t barrier_sequence = 0;             // newest barrier that the rank has asked for
  uint64_t barriers_released = 0;            // newest barrier that a resuming rank has passed
  std::vector<uint64_t> reads_by_staleness;  // from the newest HEARTBEAT
  RankProgress progress;                     // from the newest HEARTBEAT

  uint64_t incarnation = 0;  // differs between processes; 0 if the worker states none
  bool resumes = false;      // the process was in the job before the box was lost
  bool rejoins = false;      // a new process that takes the place of a lost one
  // The following fields are valid if `resumes`.
  uint32_t epoch = 0;              // epoch of the rank's last session
  uint32_t generation = 0;         // generation of the rank's last session
  std::vector<uint32_t> consumed;  // next round that the rank needs, by chunk
  std::vector<bool> lacks;         // by chunk, as in ConsumedRounds
  bool stated = false;             // `consumed` is complete
  std::string box;                 // the box that gave the last session
  CopyName copy;                   // the backup copy that was named with the last session
  uint64_t restored_snapshot = 0;  // number of the snapshot that the job began with; 0 if none
  uint64_t restored_steps = 0;
  std::vector<uint32_t> absent;  // ranks that its generation went on without

  uint64_t learning_rates_set = 0;     // number of learning rates that this process has set
  float learning_rate = 0;             // the last of them
  std::optional<StepVerdict> verdict;  // the newest one that the rank is known to hold

  // Orders ranks by how recently they were told who takes part. Generations restart in each epoch.
  std::pair<uint32_t, uint32_t> told() const { return {epoch, generation}; }
  // Returns whether the rank has joined and, if it resumes, has stated all its rounds.
  bool ready() const { return state == State::kJoined && (!resumes || stated); }
};

class Roster {
 public:
  explicit Roster(uint32_t world_size) : members_(world_size) {}

  uint32_t size() const { return static_cast<uint32_t>(members_.size()); }
  // parse_join() has refused ranks beyond the world size.
  Member& operator[](size_t rank) {
    PBOX_CHECK(rank < members_.size());
    return members_[rank];
  }
  const Member& operator[](size_t rank) const {
    PBOX_CHECK(rank < members_.size());
    return members_[rank];
  }
  auto begin() { return members_.begin(); }
  auto end() { return members_.end(); }
  auto begin() const { return members_.begin(); }
  auto end() const { return members_.end(); }

  // Returns whether every rank is ready, except those that the job had already gone on without.
  bool complete() const;
  // Returns whether a resuming rank that was told about the membership later than `told` says that
  // the job went on without `rank`.
  bool left_behind(uint32_t rank, std::pair<uint32_t, uint32_t> told) const;
  // Returns whether the ready ranks are more than half of the job's newest membership, or exactly
  // half including its lowest rank. Two groups of ranks that cannot reach each other are never both
  // a majority (dynamic linear voting, Jajodia and Mutchler 1990).
  bool has_majority() const;
  bool any_resumes() const;
  // Returns whether some ready rank does not resume.
  bool has_newcomers() const;
  uint32_t count(Member::State state) const;
  // Returns the number of workers of all ranks.
  uint32_t workers() const;
  // Returns the ranks in a state as text: "rank 3" or "ranks 0, 2, 5".
  std::string ranks_in(Member::State state) const;
  // Returns the ready resuming rank with the newest session; null if no rank resumes.
  const Member* newest_resuming() const;
  uint32_t newest_epoch() const;
  // Returns the incarnations of all ranks that have one. Snapshots list them to identify the run.
  std::vector<uint64_t> incarnations() const;
  // Returns the tenant of the ranks; empty without TLS, and for jobs of boxes.
  std::string tenant() const;
  // Returns the rounds that the ready resuming ranks have consumed. The views point into this
  // roster.
  std::vector<ConsumedRounds> stated() const;
  // Returns the barrier at which a recovered job goes on: the newest one that all resuming ranks
  // have asked for. If some ranks are new, and have asked for none, it is the newest one that any
  // rank passed.
  uint64_t barrier_to_resume() const;
  // Returns the newest barrier that all ranks still in the job have asked for; UINT64_MAX if no
  // rank is still in the job.
  uint64_t barrier_reached() const;
  // Returns the learning rate that the rank with the most changes knows; nothing if none was ever
  // set.
  std::optional<float> newest_learning_rate() const;
  // Returns the rank whose learning rate counts: the lowest one still in the job that has ever set
  // one. The ranks of a job usually all set the same, so the rate follows them when ranks are lost.
  std::optional<uint32_t> learning_rate_setter() const;

 private:
  std::vector<Member> members_;
};

}  // namespace pbox::control
