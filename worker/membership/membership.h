// A worker's membership in one part of a job, as a pure state machine. It joins, keeps the control
// connection alive, detects that the box or a rank is lost, and owns the data protocol (Exchange).
// Events go in with the time at which they happened, and actions come out. It has no thread,
// socket, clock or source of randomness, so the same events always give the same actions.
//
// If the box is lost, the membership searches for it, unless options.recovery says otherwise. The
// exchange is suspended and operations stay pending. A new session, with that box or with its
// successor, continues where this worker was.
//
// The driver (PartDriver in the product) carries out the actions in order and reports their
// outcome, moves packets between exchange() and the transport while the phase is kRunning, and
// drives the exchange's timers. Used by one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/rng.h"
#include "nic/endpoint.h"
#include "nic/seal/session_keys.h"
#include "nic/wire/control.pb.h"
#include "nic/wire/control_versions.h"
#include "nic/wire/guard.h"
#include "nic/wire/schedule.h"
#include "nic/wire/sync.h"
#include "worker/membership/control_requests.h"
#include "worker/membership/held_verdict.h"
#include "worker/membership/priorities.h"
#include "worker/protocol/exchange.h"

namespace pbox::worker {

enum class Recovery : uint8_t { kCopy = 0, kNone = 1 };                   // the values in JOIN
enum class LostPolicy : uint8_t { kWait = 0, kPartial = 1, kAbort = 2 };  // the values in JOIN

struct MembershipOptions {
  std::string box = "127.0.0.1:9541";  // HOST:PORT, as shown in errors
  std::string job = "default";
  // The part of the job to join, and the names and addresses of boxes that may own it
  // (proto::PartMap).
  uint32_t part = 0;
  uint32_t parts = 1;
  std::vector<uint32_t> filled_parts = {0};  // the parts that have chunks, ascending
  std::string box_name = {};
  std::vector<std::string> boxes = {};  // HOST:PORT of each box; empty: there is only one
  uint32_t rank = 0;
  uint32_t world_size = 1;
  bool optimize = false;
  bool mean = false;
  bool weighted = false;      // means are divided by the sum of the pushes' weights
  bool collective = false;    // tensors are slots
  uint32_t chunk_bytes = 0;   // 0: the box's default
  uint32_t window_bytes = 0;  // 0: what the box grants
  uint32_t path_mtu = 0;      // path MTU that JOIN states, to try out a path; 0: the measured one
  bool probes_path = true;    // a join fails if the largest packets do not pass
  uint32_t join_timeout_ms = 60'000;
  uint32_t lost_timeout_ms = 0;  // 0: the box's default
  Recovery recovery = Recovery::kCopy;
  uint32_t recover_timeout_ms = 60'000;  // how long to search for a lost box
  LostPolicy on_worker_lost = LostPolicy::kWait;
  wire::PriorityPolicy priority_policy = wire::PriorityPolicy::kExplicit;
  wire::Delivery delivery = wire::Delivery::kBroadcast;
  wire::Numerics numerics = wire::Numerics::kFast;
  wire::GuardSpec guard = {};
  bool rejoin = false;  // takes the place of a lost rank, or joins an elastic job that has begun
  // Ranks with which an elastic job begins; each of its ranks has `rejoin`. 0: not elastic.
  uint32_t min_world_size = 0;
  std::string restore = {};  // snapshot to begin with: "latest" or a number; empty: none
  wire::SyncSpec sync;
  wire::SyncModel relaxed_model = wire::SyncModel::kBsp;  // see SessionSpec
  // Number of other boxes that keep a replica of weights and optimizer state.
  uint32_t replicas = 0;
  bool is_backup = false;          // the job is such a replica, which the joined box keeps
  bool backup_has_clocks = false;  // see JOIN
  uint32_t workers = 0;  // number of workers that this rank, a box, sums; 0: it is a worker
  bool caller_keeps_results = false;  // see SessionSpec; ignored with recovery none
  // Shared by the memberships of all parts; if null, this one makes its own.
  std::shared_ptr<HeldVerdict> verdict = nullptr;
  std::shared_ptr<SendPaths> paths = nullptr;
  uint64_t incarnation = 1;  // identifies this worker; never used by another one
  uint64_t seed = 1;         // seeds the jitter
  wire::AddedFields added_fields = wire::added_fields();
};

// Returns whether some tensor of the job has a consistency model other than BSP.
inline bool is_relaxed(const MembershipOptions& options) {
  return options.sync.model != wire::SyncModel::kBsp ||
         options.relaxed_model != wire::SyncModel::kBsp;
}

// Returns whether this worker keeps results, so that the job survives the loss of its box.
inline bool keeps_results(const MembershipOptions& options) {
  return options.recovery == Recovery::kCopy && !is_relaxed(options);
}

// Returns whether a session that is lost can be resumed. Otherwise its loss ends the membership.
// With a model other than BSP only a box that has the job's state can resume it.
inline bool can_resume(const MembershipOptions& options) {
  return keeps_results(options) || is_relaxed(options);
}

// Returns whether the job's rounds wait for a verdict of the box.
inline bool needs_verdicts(const MembershipOptions& options, const proto::Optimizer& optimizer) {
  const bool rejects = options.optimize && options.guard.policy == wire::Guard::kReject;
  return rejects || optimizer.max_grad_norm() > 0 || optimizer.skip_nonfinite();
}

// The properties of an open transport.
struct TransportFacts {
  std::vector<uint32_t> receivable_bytes;  // by pipeline of the session
  uint64_t rto_floor_ns = 0;
  std::span<const std::byte> unread_memory = {};  // Transport::unread_memory()
};

struct Action {
  enum class Kind {
    // Connect to `box`, which has the name `box_name` unless that is empty, by deadline_ns; then
    // on_connected or on_disconnected.
    kConnect,
    kDisconnect,   // no event follows
    kSend,         // send `message`; no event follows
    kMeasurePath,  // find the narrowest path to any of `addresses`; then on_path_mtu
    // Open a transport for `session` by deadline_ns, while control messages continue; then
    // on_transport_open.
    kOpenTransport,
    kCloseTransport  // no event follows
  };
  Kind kind = Kind::kConnect;
  uint64_t deadline_ns = 0;
  std::string box = {};
  std::string box_name = {};
  proto::WorkerMessage message = {};
  std::vector<nic::Endpoint> addresses = {};
  SessionSpec session = {};
};

// Returns a request for a job's part map, with the fields that every such request has.
proto::AskPartMap part_map_request(const std::string& job);

// Returns the oldest control protocol that has every field which the job uses.
uint32_t version_of_job(const MembershipOptions& options, const std::vector<TensorSpec>& tensors,
                        const proto::Optimizer& optimizer);

// Returns when an answer of the box to a request of a join is overdue.
uint64_t answer_deadline_ns(const MembershipOptions& options, uint64_t now_ns);

// Returns the error of a box that has been silent for this long.
Error silence_error(const std::string& box, uint64_t silent_ns);

// Replaces `boxes` (HOST:PORT of each) with the boxes of the part map, followed by some that were
// known before. Those may be back when the current ones are gone.
void merge_box_list(const proto::PartMap& map, std::vector<std::string>& boxes);

class Membership {
 public:
  enum class Phase { kIdle, kJoining, kRunning, kRecovering, kFailed, kLeft };

  Membership(MembershipOptions options, std::vector<TensorSpec> tensors,
             proto::Optimizer optimizer);

  // Events. Those that do not fit the phase change nothing: they may have been in flight.
  void begin(uint64_t now_ns);
  // `keys` makes the keys of the sessions on this connection; null if it has no TLS. It must exist
  // until the next connection.
  void on_connected(const nic::Endpoint& peer, uint64_t now_ns, seal::SessionKeys* keys = nullptr);
  void on_disconnected(const Error& why, uint64_t now_ns);  // also after a failed connect
  void on_message(const proto::BoxMessage& message, uint64_t now_ns);
  void on_path_mtu(const Result<uint32_t>& path_mtu, uint64_t now_ns);
  void on_transport_open(const Result<TransportFacts>& facts, uint64_t now_ns);
  void on_time(uint64_t now_ns);
  // Returns when on_time() has to be called; UINT64_MAX: never. Does not cover the exchange's
  // deadline.
  uint64_t next_deadline_ns() const;

  // Requests of the application; ignored once the membership is over. The box confirms barriers
  // and learning rates in the order of the requests.
  //
  // Starts an operation on a tensor of this part. Its priority counts as far as the job's policy
  // allows. Initial weights are pushed, or fetched if the job has begun. Only with an exchange().
  void start(const Operation& operation);
  void ask_barrier();
  // `by_tensor` has one priority per tensor, or is empty (proto::SetPriorities).
  void ask_priorities(wire::PriorityPolicy policy, std::span<const int32_t> by_tensor);
  void ask_learning_rate(float learning_rate);
  // `request`: complete except for its sequence.
  void ask_sync(const proto::SetSync& request);
  // `reason`: given if this rank is a box whose part of the job has failed. Other ranks that wait
  // for this one are told it.
  void leave(const std::string& reason = "");
  // Ends the membership without telling the box, because another part of the job has ended.
  void abandon(const Error& why);

  // Takes the actions that the driver must carry out, in order. If the verdict that the parts share
  // has changed, the last action sends it.
  std::vector<Action> take_actions();

  Phase phase() const { return phase_; }
  // Why the membership is over; set in kFailed and kLeft, when the exchange has been abandoned.
  const std::optional<Error>& failure() const { return failure_; }
  // Null before the first session, then always the same object.
  Exchange* exchange() { return exchange_ ? &*exchange_ : nullptr; }
  const Exchange* exchange() const { return exchange_ ? &*exchange_ : nullptr; }
  const proto::Session& session() const { return session_; }
  const std::string& box() const { return options_.box; }  // HOST:PORT of the part's last known box
  // When and why the box was lost; set only in kRecovering.
  struct Loss {
    uint64_t since_ns = 0;
    std::string reason;
  };
  const std::optional<Loss>& loss() const { return loss_; }
  // A snapshot, and the optimizer steps that its weights had taken. Snapshot 0: none.
  struct Restored {
    uint64_t snapshot = 0, steps = 0;
    bool operator==(const Restored&) const = default;
  };
  struct History {
    Restored restored;  // the snapshot that the job began with, by the first session
    uint64_t recoveries = 0;
    uint64_t optimizer_restarts = 0;  // how often the optimizer's state was lost with a box
    Restored optimizer_state;         // where the state came from in the last of these restarts
  };
  const History& history() const { return history_; }
  const ControlRequests& requests() const { return requests_; }
  // Ranks that the job continues without, ascending.
  const std::vector<uint32_t>& absent_ranks() const { return absent_ranks_; }

 private:
  // The progress of a join: the event that the membership waits for.
  enum class Step {
    kRetry,
    kConnection,
    kPartMap,
    kDataAddresses,
    kPathMtu,
    kSession,
    kRounds,
    kTransport
  };

  // In membership_join.cc.
  void describe_progress(proto::Join& join) const;
  void on_data_addresses(const proto::DataAddresses& answer, uint64_t now_ns);
  void on_session(const proto::Session& session, uint64_t now_ns);
  void on_rounds(const proto::RoundMap& rounds, uint64_t now_ns);
  void ask_transport(uint64_t now_ns);
  Status open_exchange();
  void connect(const std::string& box, uint64_t deadline_ns);
  void ask_data_addresses(uint64_t now_ns);
  // Waits for an answer of the driver or of the box. Answers of the driver need no deadline.
  void await(Step step, uint64_t deadline_ns = UINT64_MAX);
  bool joins() const { return phase_ == Phase::kJoining || phase_ == Phase::kRecovering; }
  bool awaits(Step step) const { return joins() && step_ == step; }
  void check_join(uint64_t now_ns);

  // In membership_recover.cc, for a box that is lost, or does not admit this worker yet.
  void lose_box(const Error& why, uint64_t now_ns);
  void begin_recovery(const std::string& reason, uint64_t now_ns);
  void ask_part_map(uint64_t now_ns);
  void on_part_map(const proto::PartMap& map, uint64_t now_ns);
  void on_moved(const proto::PartPlace& place, uint64_t now_ns);
  void redirect(const proto::PartPlace& place, uint64_t now_ns);
  void try_again(const Error& why, uint64_t now_ns);
  // A step of joining has failed. Ends a first join; makes one more attempt in a recovery.
  void fail_or_retry(const Error& why, uint64_t now_ns);
  void check_recovery(uint64_t now_ns);
  void repeat_requests();

  Action& act(Action::Kind kind);
  proto::WorkerMessage& send();
  void on_failure(const proto::Failure& failure, uint64_t now_ns);
  void on_membership(uint32_t generation,
                     const google::protobuf::RepeatedField<uint32_t>& absent_ranks);
  void on_priorities(const proto::SetPriorities& priorities);
  void learn_priorities();
  uint64_t silence_ends_ns() const;
  void check_liveness(uint64_t now_ns);
  void end(Phase phase, Error error);
  void fail(Error error) { end(Phase::kFailed, std::move(error)); }
  bool is_over() const { return failure_.has_value(); }

  MembershipOptions options_;
  std::vector<TensorSpec> tensors_;
  proto::Optimizer optimizer_;
  Phase phase_ = Phase::kIdle;
  std::optional<Error> failure_;
  std::vector<Action> actions_;
  std::optional<Exchange> exchange_;
  Rng rng_;

  Step step_ = Step::kConnection;
  uint64_t step_deadline_ns_ = UINT64_MAX;
  uint64_t join_ends_ns_ = 0;
  nic::Endpoint peer_;
  seal::SessionKeys* session_keys_ = nullptr;  // see on_connected()
  proto::Session session_;
  SessionSpec spec_;

  uint64_t heartbeat_interval_ns_ = 0;
  uint64_t heartbeat_due_ns_ = UINT64_MAX;
  uint64_t dead_after_ns_ = 0;
  uint64_t heard_ns_ = 0;
  uint64_t peers_due_ns_ = 0;
  // When the box said that a rank has left, and the reason that the rank has stated.
  struct Departure {
    uint64_t told_ns = 0;
    std::string reason;
  };
  std::map<uint32_t, Departure> left_;  // by rank
  std::vector<uint32_t> absent_ranks_;

  std::optional<Loss> loss_;
  std::string last_failure_;  // why the last attempt failed
  uint32_t attempts_ = 0;
  uint32_t redirections_ = 0;          // since the last session
  std::string connected_box_;          // HOST:PORT that the control connection goes to
  bool has_answered_ = false;          // a message has arrived on that connection
  bool seems_lost_ = false;            // the last attempt at options_.box had no answer
  size_t next_box_ = 0;                // index into options_.boxes
  uint64_t unreachable_since_ns_ = 0;  // since when options_.box has not answered; 0: it has
  History history_;

  ControlRequests requests_;
  std::shared_ptr<HeldVerdict> verdict_;
  uint64_t confirmed_version_ = 0;  // version of the verdict that the box was sent last
  Priorities priorities_;
  std::optional<proto::SetPriorities> priorities_requested_;  // requested and not confirmed
  bool priorities_changed_ = false;  // they have changed, so they may differ from those in JOIN
  bool priorities_known_ = false;    // the box of this session has sent them
};

// Returns when the search for the lost box ends.
inline uint64_t recovery_ends_ns(const MembershipOptions& options, const Membership::Loss& loss) {
  return loss.since_ns + options.recover_timeout_ms * kNanosPerMilli;
}

}  // namespace pbox::worker
