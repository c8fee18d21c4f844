// A box: the product's control plane, pipelines and loops, over simulated ports and connections.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "appliance/control/job_registry.h"
#include "pipeline/loop.h"
#include "tests/sim/backup_relay.h"
#include "tests/sim/box_checker.h"
#include "tests/sim/box_cluster.h"
#include "tests/sim/box_uplinks.h"
#include "tests/sim/forger.h"
#include "tests/sim/host.h"
#include "tests/sim/sim_disk.h"

namespace pbox::sim {

// The epochs of a box that is in no cluster: those on its own disk, combined with the box's number
// so that no two boxes have the same epoch.
class BoxEpochs : public storage::Epochs {
 public:
  BoxEpochs(storage::EpochStore& own, HostId box, uint32_t boxes)
      : own_(own), box_(box), boxes_(boxes) {}
  Result<uint32_t> next(uint32_t floor) override {
    const auto own = own_.next(floor / boxes_);
    if (!own) return own.error();
    return *own * boxes_ + box_;
  }
  uint32_t newest() const override { return own_.newest() * boxes_ + box_; }

 private:
  storage::EpochStore& own_;
  HostId box_;
  uint32_t boxes_;
};

class Box final : public ControlEnd,
                  public control::PipelineHost,
                  public control::BackupBoxes,
                  public control::ConnectionKeys {
 public:
  Box(Rack& rack, HostId host);

  // Starts the box. After crash() it has only what its disk has kept.
  void start();
  // Ends the process as `kill -9` does. If `silently`, the machine loses power, and peers notice
  // only when they next send.
  void crash(bool silently);
  void set_disk_failures(uint32_t one_of) {
    disk_.fail_one_of(one_of);
    if (snapshots_) snapshots_->fail_one_of(one_of);
  }
  bool up() const { return registry_ != nullptr; }
  // Returns null if the box is in no cluster, or is down.
  BoxCluster* cluster() { return cluster_ ? &*cluster_ : nullptr; }

  bool on_accept(ConnectionId id, HostId from) override;
  void on_connected(ConnectionId) override {}
  void on_control_message(ConnectionId id, const std::string& body) override;
  void on_closed(ConnectionId id, const std::string& reason) override;

  HostId host() const { return host_; }
  const control::JobRegistry& registry() const { return *registry_; }
  // Changes the consistency models of a job's tensors, as an operator does.
  Status set_sync(const std::string& job, const control::SyncChange& change);
  // Begins a snapshot, as an operator does.
  Status begin_snapshot(const std::string& job, uint64_t timeout_ns);
  // Returns the parts that run here and could move.
  std::vector<control::PartProgress> progress() { return registry_->pipeline_moves().progress(); }
  // Moves a part's groups of chunks to these pipelines, as an operator does.
  Status move_chunks(const std::string& job, uint32_t part, const std::vector<uint32_t>& groups);
  bool has_part(const std::string& job, uint32_t part) const;
  // These functions carry out episodes of faults.
  void pause(uint64_t length_ns);
  void pause_pipeline(uint32_t pipeline, uint64_t length_ns);
  void jump(uint64_t ahead_ns);
  void set_small_ring(uint32_t pipeline, bool small);

  // Hands forged packets to one pipeline, which must refuse them all. Returns their number.
  uint64_t attack(uint64_t draw, Forger& forger, uint32_t bursts);

  void check_all() {
    if (checker_) checker_->check_all();
  }
  // Returns the number of PULLs that all pipelines have received since the last start.
  uint64_t pulls_received() const;

 private:
  struct Pipeline {
    nic::Endpoint local;
    ReceiveRing* ring = nullptr;
    std::unique_ptr<SimPort> port;
    std::unique_ptr<pipeline::Engine> engine;
    std::unique_ptr<pipeline::Mailbox> mailbox;
    std::unique_ptr<pipeline::Loop<SimPort>> loop;
    std::unique_ptr<Thread> thread;
    uint64_t next_ticket = 1;
  };

  uint32_t count() const override { return static_cast<uint32_t>(pipelines_.size()); }
  control::PipelineInfo info(uint32_t pipeline) const override;
  void execute(uint32_t pipeline, pipeline::Command command) override;
  Status install(uint32_t pipeline, pipeline::JobShard& shard) override;
  void remove(uint32_t pipeline, std::unique_ptr<pipeline::JobShard> shard) override;
  void wake(uint32_t pipeline) override { pipelines_[pipeline].thread->wake_soon(); }

  std::unique_ptr<control::Relay> join(const std::string& address, control::RelaySpec spec,
                                       std::function<void(Status)> on_change) override;

  // The box's client side: its questions to other boxes, and the connections to its backup boxes.
  class Client final : public ControlEnd {
   public:
    explicit Client(Box& box) : box_(box) {}
    bool on_accept(ConnectionId, HostId) override { return false; }
    void on_connected(ConnectionId id) override;
    void on_control_message(ConnectionId id, const std::string& body) override;
    void on_closed(ConnectionId id, const std::string& reason) override;

   private:
    Member* relay(ConnectionId id) const;
    Box& box_;
  };
  // A question from this box to another one, over a connection of its own.
  struct Question {
    proto::WorkerMessage message;
    cluster::Environment::Answer done;
  };
  void ask_box(const std::string& address, const proto::WorkerMessage& question,
               uint64_t timeout_ns, cluster::Environment::Answer done);
  void end_question(ConnectionId id, Result<proto::BoxMessage> answer);

  control::KeyPolicy policy() const override {
    return {rack_.options.suite, {.packets = rack_.options.key_packets}};
  }
  seal::SessionKeys* of(ConnectionId connection) override;
  void open_keys(ConnectionId id);
  void close_connection(ConnectionId id, const std::string& reason);

  void join_cluster();
  bool turn(uint32_t index, bool carries_out_command);
  void turn_control();
  // Carries out the actions that the registry asks for.
  void flush();
  void carry_out(const control::Action& action);
  bool is_box(ConnectionId id) const;  // the other end is a box, not a worker
  void note_part(ConnectionId id, const std::string& body);
  JobModel& job_of(ConnectionId id);
  // Notes that the epoch was assigned to a job, or (kOfCopies) to a backup copy, or (kOfUplinks) to
  // a part of the racks' job. No epoch may be assigned twice.
  void note_epoch(uint32_t epoch, uint32_t job);
  static constexpr uint32_t kOfCopies = UINT32_MAX;
  static constexpr uint32_t kOfUplinks = 1u << 16;
  // Notes that a part was refused. If the rack is short of room, its job may fail.
  void note_refusal(const std::string& text);
  void check_installed(uint32_t pipeline, pipeline::JobShard& shard);
  void check_quota() const;
  void check_adopted(const pipeline::JobShard& shard);
  // Checks that the parts of a job take one slot together. `refused`: the job that was refused a
  // slot, or null.
  void check_slots(const JobModel* refused) const;
  // Checks that a part without room here is handed back, unless no other box has room either.
  void check_handed_back(const JobModel& job) const;
  // Checks that the part map that this box knows assigns the part to this box, which runs it.
  void check_place(const std::string& job, uint32_t part) const;
  static void note_begin(JobModel& job, const proto::Session& session);
  void learn_session(ConnectionId id, const proto::Session& session);
  control::RegistryOptions registry_options();

  Rack& rack_;
  HostId host_;
  HostId client_host_;
  Client client_;
  std::vector<Pipeline> pipelines_;
  Thread control_thread_;
  std::unique_ptr<BoxChecker> checker_;  // null while the box is down, and in a run without checks
  SimDisk disk_;
  std::optional<SimSnapshots> snapshots_;  // empty while the box is down, or without snapshots
  std::optional<storage::EpochStore> epochs_;
  std::optional<BoxEpochs> box_epochs_;
  control::SingleBoxDirectory single_box_;
  std::optional<BoxCluster> cluster_;
  // all relays that ever existed, because jobs refer to them
  std::vector<std::unique_ptr<BackupMember>> relays_;
  std::optional<BoxUplinks> uplinks_;  // set only in two levels, in a rack's box
  std::unique_ptr<control::JobRegistry> registry_;
  uint64_t starts_ = 0;
  // Over all starts of the box: the job and the start to which each epoch was assigned.
  std::map<uint32_t, std::pair<uint32_t, uint64_t>> epochs_given_;
  struct Peer {
    HostId host = 0;
    uint32_t part = 0;  // from its JOIN
  };
  std::map<ConnectionId, Peer> peers_;
  std::map<ConnectionId, std::unique_ptr<seal::SessionKeys>> session_keys_;
  ConnectionId hears_from_ = 0;  // connection whose message is being handled; 0 if none
  std::map<ConnectionId, Question> questions_;
};

}  // namespace pbox::sim
