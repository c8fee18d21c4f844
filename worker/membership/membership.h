// A worker's membership in a job as a pure state machine: it joins, keeps the control connection
// alive, knows when the box or a rank is gone, and owns the protocol core. Events go in with the
// time at which they happened, actions come out; there is no thread, socket, clock or chance in
// here, so the same events give the same actions.
//
// A box that is lost is looked for again, unless options.recovery says otherwise: the core is
// suspended, operations stay pending, and a new session, of that box or of its successor, goes on
// where this worker was.
//
// The driver (client.h in the product) carries out the actions in order and reports what came of
// them, moves packets between exchange() and the transport while the phase is kRunning, and runs
// the core's own timers. One thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/rng.h"
#include "nic/endpoint.h"
#include "nic/wire/control.pb.h"
#include "nic/wire/schedule.h"
#include "nic/wire/sync.h"
#include "worker/membership/priorities.h"
#include "worker/protocol/exchange.h"

namespace pbox::worker {

enum class Recovery : uint8_t { kCopy = 0, kNone = 1 };                   // as in JOIN
enum class LostPolicy : uint8_t { kWait = 0, kPartial = 1, kAbort = 2 };  // as in JOIN

struct MembershipOptions {
  std::string box = "127.0.0.1:9541";  // HOST:PORT, as errors name it
  std::string job = "default";
  // The part of the job that is joined, and where parts may be: proto::PartMap.
  uint32_t part = 0;
  uint32_t parts = 1;
  std::string box_name = {};
  std::vector<std::string> boxes = {};  // HOST:PORT of each; empty: there is only one
  uint32_t rank = 0;
  uint32_t world_size = 1;
  bool optimize = false;
  bool mean = false;
  uint32_t chunk_bytes = 0;   // 0: the box's default
  uint32_t window_bytes = 0;  // 0: what the box grants
  uint32_t path_mtu = 0;      // what JOIN states, to try a path out; 0: what was measured
  uint32_t join_timeout_ms = 60'000;
  uint32_t lost_timeout_ms = 0;  // 0: the box's
  Recovery recovery = Recovery::kCopy;
  uint32_t recover_timeout_ms = 60'000;  // how long a lost box is looked for
  LostPolicy on_worker_lost = LostPolicy::kWait;
  wire::PriorityPolicy priority_policy = wire::PriorityPolicy::kExplicit;
  wire::Delivery delivery = wire::Delivery::kBroadcast;
  wire::Numerics numerics = wire::Numerics::kFast;
  bool rejoin = false;       // in the place of a rank that the job has lost
  std::string restore = {};  // the snapshot to begin with: "latest" or a number; empty: none
  wire::SyncSpec sync;
  uint32_t replicas = 0;     // other boxes that have a copy of weights and optimizer state
  bool is_backup = false;    // the job is such a copy, at the very box that is joined
  uint64_t incarnation = 1;  // of this worker; never that of another one
  uint64_t seed = 1;         // of jitter
};

// What a transport that is open says of itself.
struct TransportFacts {
  struct Lane {
    uint64_t first_packet_number = 1;  // that opening has not used
    uint32_t receivable_bytes = 0;
  };
  std::vector<Lane> lanes;  // one for each pipeline of the session
  uint64_t rto_floor_ns = 0;
};

struct Action {
  enum class Kind {
    kConnect,        // to box, by deadline_ns; then on_connected or on_disconnected
    kDisconnect,     // no answer
    kSend,           // message
    kMeasurePath,    // the narrowest to any of addresses; then on_path_mtu
    kOpenTransport,  // session, by deadline_ns; control traffic goes on; then on_transport_open
    kCloseTransport  // no answer
  };
  Kind kind = Kind::kConnect;
  uint64_t deadline_ns = 0;
  std::string box = {};
  proto::WorkerMessage message = {};
  std::vector<nic::Endpoint> addresses = {};
  SessionSpec session = {};
};

// What any question for a job's plan says.
proto::AskPartMap plan_question(const std::string& job);

// Those that the plan says are there, then some that were known before: when the former go, the
// latter may be back. HOST:PORT of each.
void know_boxes(const proto::PartMap& plan, std::vector<std::string>& boxes);

class Membership {
 public:
  enum class Phase { kIdle, kJoining, kRunning, kRecovering, kFailed, kLeft };

  Membership(MembershipOptions options, std::vector<TensorSpec> tensors,
             proto::Optimizer optimizer);

  // Events. Those that do not fit the phase change nothing: they may have been under way.
  void begin(uint64_t now_ns);
  void on_connected(const nic::Endpoint& peer, uint64_t now_ns);
  void on_disconnected(const Error& why, uint64_t now_ns);  // also a connect that failed
  void on_message(const proto::BoxMessage& message, uint64_t now_ns);
  void on_path_mtu(const Result<uint32_t>& path_mtu, uint64_t now_ns);
  void on_transport_open(const Result<TransportFacts>& facts, uint64_t now_ns);
  void on_time(uint64_t now_ns);
  // When on_time is next of use; UINT64_MAX for never. The core's deadline is not in it.
  uint64_t next_deadline_ns() const;

  // What the application asks for; ignored once the membership is over. Barriers and learning rates
  // are answered in the order they were asked for.
  // Initial weights are pushed, or, in a job that has begun, fetched into `output`. `priority`: the
  // operation's own, which counts as far as the job's policy lets it.
  void start(uint32_t tensor, const std::byte* input, std::byte* output,
             std::optional<int32_t> priority, bool initial_weights = false);
  // As Exchange's.
  void fetch(uint32_t tensor, std::byte* output, std::optional<int32_t> priority);
  void ask_barrier();
  // As proto::SetPriorities; one per tensor, or none.
  void ask_priorities(wire::PriorityPolicy policy, std::span<const int32_t> by_tensor);
  void ask_learning_rate(float learning_rate);
  void leave();
  // Ends it without a word to the box, as another part of the job has ended.
  void abandon(const Error& why);

  // What is to be done, in order; empties the list.
  std::vector<Action> take_actions() { return std::exchange(actions_, {}); }

  Phase phase() const { return phase_; }
  // Why it is over, in kFailed and kLeft: then the core has been abandoned.
  const std::optional<Error>& failure() const { return failure_; }
  // Null before the first session; then the same one for good.
  Exchange* exchange() { return exchange_ ? &*exchange_ : nullptr; }
  const Exchange* exchange() const { return exchange_ ? &*exchange_ : nullptr; }
  const proto::Session& session() const { return session_; }
  const std::string& box() const { return options_.box; }  // HOST:PORT, the last one heard of
  // When and why the box was lost; only in kRecovering.
  struct Loss {
    uint64_t since_ns = 0;
    std::string reason;
  };
  const std::optional<Loss>& loss() const { return loss_; }
  // What the job began with, as the first session said; snapshot 0: with none.
  struct Restored {
    uint64_t snapshot = 0, steps = 0;
    bool operator==(const Restored&) const = default;
  };
  const Restored& restored() const { return restored_; }
  // Where the optimizer's state was lost with a box: whose it went on with the last time.
  const Restored& moments() const { return moments_; }
  uint64_t recoveries() const { return recoveries_; }
  uint64_t optimizer_restarts() const { return optimizer_restarts_; }
  uint64_t barriers_released() const { return barriers_released_; }    // of those asked for
  uint64_t learning_rates_set() const { return learning_rates_set_; }  // of those asked for
  // Ranks that the job goes on without, ascending.
  const std::vector<uint32_t>& absent_ranks() const { return absent_ranks_; }
  // The least number of workers in any part of the tensor's last result.
  uint32_t contributors(uint32_t tensor) const {
    return std::min<uint32_t>(exchange_->contributors(tensor), options_.world_size);
  }

 private:
  // How far a join has come: what is awaited.
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

  // membership_join.cc
  proto::WorkerMessage join_message(uint32_t path_mtu) const;
  void on_data_addresses(const proto::DataAddresses& answer);
  void on_session(const proto::Session& session, uint64_t now_ns);
  void on_rounds(const proto::RoundMap& rounds, uint64_t now_ns);
  void ask_transport(uint64_t now_ns);
  Status open_core();
  void connect(const std::string& box, uint64_t deadline_ns);
  void ask_data_addresses(uint64_t now_ns);
  void await_driver(Step step);
  void await_box(Step step, uint64_t now_ns);
  bool joins() const { return phase_ == Phase::kJoining || phase_ == Phase::kRecovering; }
  bool awaits(Step step) const { return joins() && step_ == step; }
  void check_join(uint64_t now_ns);

  // membership_recover.cc: a box that is lost, or does not take this worker yet
  void lose_box(const Error& why, uint64_t now_ns);
  void begin_recovery(const std::string& reason, uint64_t now_ns);
  void reconnect(uint64_t now_ns);
  void ask_part_map(uint64_t now_ns);
  void on_part_map(const proto::PartMap& plan, uint64_t now_ns);
  void on_moved(const proto::PartPlace& place, uint64_t now_ns);
  void redirect(const proto::PartPlace& place, uint64_t now_ns);
  void try_again(const Error& why, uint64_t now_ns);
  // A step of joining came to nothing: the end, or, of a recovery, one more attempt.
  void miss(const Error& why, uint64_t now_ns);
  void check_recovery(uint64_t now_ns);
  uint64_t recovery_ends_ns() const;
  Error give_up(uint64_t now_ns) const;
  void send_rounds();
  void repeat_requests();

  Action& act(Action::Kind kind);
  proto::WorkerMessage& send();
  void send_heartbeat(uint64_t now_ns);
  void on_failure(const proto::Failure& failure, uint64_t now_ns);
  void on_membership(uint32_t generation,
                     const google::protobuf::RepeatedField<uint32_t>& absent_ranks);
  void on_priorities(const proto::SetPriorities& priorities);
  void learn_priorities();
  void on_barrier_released(uint64_t sequence);
  void on_learning_rate_set(uint64_t sequence);
  void send_barrier();
  void send_learning_rate(uint64_t sequence, float learning_rate);
  uint64_t silence_ends_ns() const;
  Error silence(uint64_t now_ns) const;
  void check_liveness(uint64_t now_ns);
  void end(Phase phase, Error error);
  void fail(Error error) { end(Phase::kFailed, std::move(error)); }
  bool is_over() const { return phase_ == Phase::kFailed || phase_ == Phase::kLeft; }

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
  proto::Session session_;
  SessionSpec spec_;

  uint64_t heartbeat_interval_ns_ = 0;
  uint64_t heartbeat_due_ns_ = UINT64_MAX;
  uint64_t dead_after_ns_ = 0;
  uint64_t heard_ns_ = 0;
  uint64_t peers_due_ns_ = 0;
  std::map<uint32_t, uint64_t> left_ns_;  // rank to when the box said that it had left
  std::vector<uint32_t> absent_ranks_;

  std::optional<Loss> loss_;
  std::string last_miss_;  // what the last attempt came to
  uint32_t attempts_ = 0;
  uint32_t redirections_ = 0;  // since there was a session
  std::string asked_box_;      // where the connection goes
  bool has_answered_ = false;  // anything, on that connection
  bool seems_lost_ = false;    // the box that has the part: the last attempt at it had no answer
  size_t next_box_ = 0;        // of options_.boxes
  uint64_t unreachable_since_ns_ = 0;  // options_.box, which has not answered since; 0: it did
  Restored restored_, moments_;
  uint64_t recoveries_ = 0, optimizer_restarts_ = 0;

  uint64_t barrier_base_ = 0;  // what was released before this worker came
  uint64_t barriers_asked_ = 0, barriers_released_ = 0;
  uint64_t learning_rates_asked_ = 0, learning_rates_set_ = 0;
  std::deque<float> learning_rates_;  // asked for and not set
  float learning_rate_ = 0;           // the last that was set

  Priorities priorities_;
  std::optional<proto::SetPriorities> priorities_asked_;  // and not heard back
  bool priorities_told_ = false;   // ever, and so they may differ from what JOIN says
  bool priorities_known_ = false;  // by the box of this session: it has told them
};

}  // namespace pbox::worker
