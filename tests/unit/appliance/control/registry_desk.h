// A job registry with real pipeline cores behind it and no socket: tests open connections, say what
// workers say, and let time pass; the desk keeps what the box answered, by connection.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "appliance/control/job_registry.h"
#include "pipeline/engine.h"

namespace pbox::control {

// Carries out every command at once, on the calling thread.
class SynchronousHost : public PipelineHost {
 public:
  explicit SynchronousHost(uint32_t pipelines);

  uint32_t count() const override { return static_cast<uint32_t>(engines_.size()); }
  PipelineInfo info(uint32_t pipeline) const override;
  void execute(uint32_t pipeline, pipeline::Command command) override;

  Result<wire::QueuePairAddress> connect(uint32_t pipeline, uint64_t owner,
                                         const wire::QueuePairAddress& peer) override;
  void disconnect(uint64_t owner) override { connected.erase(owner); }
  bool offers_lanes() const override { return has_lanes; }
  Result<LaneOffer> offer_lanes(uint64_t owner, std::vector<LaneSeat>&& lanes) override {
    if (!has_lanes) return PipelineHost::offer_lanes(owner, std::move(lanes));
    offered[owner] = std::move(lanes);
    return LaneOffer{.socket = "lanes", .token = {}};
  }

  // The memory gets its pages when has_pages says so.
  std::unique_ptr<Prefault> prefault(const NumaArena& memory) override;

  pipeline::Engine& engine(uint32_t pipeline) { return *engines_[pipeline]; }
  // Shards installed and not removed, oldest first.
  const std::vector<pipeline::JobShard*>& shards(uint32_t pipeline) const {
    return shards_[pipeline];
  }

  std::string address;  // address of every pipeline; empty: the address of control
  uint32_t receive_buffer_bytes = 4u << 20;
  Hugepages hugepages = Hugepages::kIfFree;
  int numa_node = kAnyNumaNode;
  nic::QueueAffinity affinity = nic::QueueAffinity::kUdpPort;
  bool has_queue_pairs = false;                // each queue pair's number is its peer's plus 1000
  std::map<ConnectionId, uint32_t> connected;  // number of queue pairs by owner
  // Whether memory has its pages by now. If null, memory has them at once.
  std::shared_ptr<bool> has_pages;
  bool has_lanes = false;
  std::map<ConnectionId, std::vector<LaneSeat>> offered;  // by owner
  std::vector<std::shared_ptr<const nic::RssTable>> rss;  // by pipeline; empty: no tables

 private:
  std::vector<std::unique_ptr<pipeline::Engine>> engines_;
  std::vector<std::vector<pipeline::JobShard*>> shards_;
};

inline constexpr uint64_t kMilli = 1'000'000;
inline constexpr uint64_t kSecond = 1'000 * kMilli;

// A box's own epochs, which a test may take away for a while.
class FickleEpochs : public storage::Epochs {
 public:
  explicit FickleEpochs(storage::Disk& disk) : store_(*storage::EpochStore::open(disk)) {}
  Result<uint32_t> next(uint32_t floor) override {
    if (away) return Error{ErrorCode::kUnavailable, "the store of epochs is away"};
    return store_.next(floor);
  }
  uint32_t newest() const override { return store_.newest(); }

  bool away = false;

 private:
  storage::EpochStore store_;
};

// States that all parts are at this box, except for those that a test moves.
class MovableParts : public PartDirectory {
 public:
  Result<std::optional<proto::PartPlace>> other_owner(const std::string& job, uint32_t part,
                                                      uint32_t) const override {
    if (unknown) return *unknown;
    const auto found = moved.find({job, part});
    if (found == moved.end()) return std::optional<proto::PartPlace>();
    return std::optional<proto::PartPlace>(found->second);
  }
  void ask(const proto::AskPartMap& question, Answer done) override {
    questions.push_back(question);
    answers.push_back(std::move(done));
  }
  void ask_box(const std::string& box, const proto::WorkerMessage& question,
               BoxAnswer done) override {
    if (!knows_boxes) return PartDirectory::ask_box(box, question, std::move(done));
    box_questions.push_back({box, question, std::move(done)});
  }
  bool has_other_boxes(const std::string&) const override { return others; }
  bool lists_box(const std::string& box) const override { return listed.contains(box); }
  std::vector<proto::PartPlace> backup_candidates(const std::string&, uint32_t) const override {
    return backup_places;
  }
  void reclaim_part(const std::string& job, uint32_t part) override { moved.erase({job, part}); }
  bool hand_back(const std::string& job, uint32_t part) override {
    handed_back.emplace_back(job, part);
    return others;
  }

  void claim_snapshot(const std::string&, std::function<void(const Status&)> done) override {
    if (!delays_claims) return done(ok_status());
    claims.push_back(std::move(done));
  }
  void release_snapshot(const std::string& job) override { released.push_back(job); }

  bool delays_claims = false;
  std::vector<std::function<void(const Status&)>> claims;  // not granted yet
  std::vector<std::string> released;                       // jobs, for each claim given back
  std::map<std::pair<std::string, uint32_t>, proto::PartPlace> moved;
  std::optional<Error> unknown;
  bool others = false;
  std::set<std::string> listed;  // boxes in the cluster's store
  std::vector<std::pair<std::string, uint32_t>> handed_back;
  std::vector<proto::AskPartMap> questions;
  std::vector<Answer> answers;  // not called yet, in the order of the questions
  struct BoxQuestion {
    std::string box;
    proto::WorkerMessage question;
    BoxAnswer done;
  };
  std::vector<proto::PartPlace> backup_places;
  bool knows_boxes = false;
  std::vector<BoxQuestion> box_questions;  // not answered yet
};

class Desk {
 public:
  // `shelf`, `upstream` and `backups` must outlive the desk. If they are null, the box keeps no
  // snapshots, forwards no sums, and has no boxes for copies.
  explicit Desk(const RegistryOptions& options = {}, uint32_t pipelines = 2,
                snapshot::SnapshotStore* shelf = nullptr, Upstream* upstream = nullptr,
                BackupBoxes* backups = nullptr);

  // Opens a connection from 10.0.0.ID:5000, of a peer that has proved to be `identity`. The next
  // ones come from this host if `from_own_host` is set.
  ConnectionId open(std::optional<tls::Identity> identity = {});
  void say(ConnectionId id, const proto::WorkerMessage& message);
  void say_bytes(ConnectionId id, const std::string& body);
  // Closes the worker's end of a connection.
  void hang_up(ConnectionId id, const std::string& reason = "connection closed");
  // Lets time pass in steps of the server's tick. The connections in `alive` send heartbeats.
  void pass(uint64_t duration_ns, const std::vector<ConnectionId>& alive = {});
  // Lets time pass while the box does not run.
  void stand_still(uint64_t duration_ns);
  void shut_down();
  // Replaces the box by a new one without any message. Its epochs are kept.
  void crash();

  // Returns the messages that the box has sent on a connection since the last call.
  std::vector<proto::BoxMessage> take(ConnectionId id);
  // Returns the connection's FAILURE. Fails the test unless it is the only message since the last
  // call.
  proto::Failure take_failure(ConnectionId id);
  bool is_closed(ConnectionId id) const { return closed_.contains(id) && closed_.at(id); }

  // Opens a connection and joins.
  ConnectionId join(const proto::WorkerMessage& message);
  // Joins ranks 0, 1, ... of the job. Each must get its SESSION.
  std::vector<ConnectionId> start(const std::string& job, uint32_t world_size,
                                  std::vector<proto::Session>* sessions = nullptr);

  JobRegistry& registry() { return *registry_; }
  SynchronousHost& host() { return *host_; }
  FickleEpochs& epochs() { return *epochs_; }
  // Carries out the registry's actions after a test has called the registry itself.
  void deliver();

  MovableParts parts;
  bool from_own_host = false;
  uint64_t now_ns() const { return now_ns_; }
  size_t job_count() const { return registry_->views(now_ns_).size(); }

 private:
  RegistryOptions options_;
  snapshot::SnapshotStore* shelf_;
  Upstream* upstream_;
  BackupBoxes* backups_;
  std::unique_ptr<SynchronousHost> host_;
  std::unique_ptr<storage::Disk> disk_;
  std::optional<FickleEpochs> epochs_;
  std::unique_ptr<JobRegistry> registry_;
  uint64_t now_ns_ = 1000 * kSecond;
  ConnectionId next_id_ = 1;
  std::map<ConnectionId, std::vector<proto::BoxMessage>> said_;
  std::map<ConnectionId, bool> closed_;
};

// credit_alone() returns the credit of each of `sessions` sessions of a tenant that is alone on a
// pipeline. kWindowBytes is the window of a box without [pipeline] window_bytes.
inline constexpr uint64_t kWindowBytes = 1u << 20;
uint32_t credit_alone(uint32_t receive_buffer_bytes, uint32_t sessions,
                      uint64_t window_bytes = kWindowBytes);

// Returns a valid JOIN: mode aggregate, two tensors of 20000 and 7 elements.
proto::WorkerMessage join_message(const std::string& job, uint32_t rank, uint32_t world_size);
// Returns such a JOIN of job "train" with two ranks, with Adam on the box.
proto::WorkerMessage join_optimizing(uint32_t rank);
// Gives a job in mode optimize the model drop, with a quorum of one rank.
void close_with_one(proto::Join& join);
// Returns the job that the JOIN describes; it must be a valid one.
JobSpec spec_of(const proto::WorkerMessage& message);
// Returns the chunks of all jobs on two pipelines, by number.
std::vector<pipeline::Chunk*> chunks_of(Desk& desk);
proto::WorkerMessage leave_message();
proto::WorkerMessage barrier_message(uint64_t sequence);
proto::WorkerMessage learning_rate_message(float learning_rate, uint64_t sequence);
proto::WorkerMessage priorities_message(uint32_t policy, const std::vector<int32_t>& by_tensor);

}  // namespace pbox::control
