#include "tests/unit/appliance/control/registry_desk.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "nic/wire/control_versions.h"

namespace pbox::control {

SynchronousHost::SynchronousHost(uint32_t pipelines) : shards_(pipelines) {
  for (uint32_t index = 0; index < pipelines; ++index) {
    engines_.push_back(std::make_unique<pipeline::Engine>(
        pipeline::EngineOptions{.pipeline_index = index, .tag = {}}));
  }
}

namespace {

class PagesToCome : public Prefault {
 public:
  explicit PagesToCome(std::shared_ptr<const bool> have_come) : have_come_(std::move(have_come)) {}
  bool is_over() const override { return *have_come_; }

 private:
  std::shared_ptr<const bool> have_come_;
};

}  // namespace

std::unique_ptr<Prefault> SynchronousHost::prefault(const NumaArena&) {
  return has_pages ? std::make_unique<PagesToCome>(has_pages) : nullptr;
}

PipelineInfo SynchronousHost::info(uint32_t pipeline) const {
  return {.address = address,
          .udp_port = static_cast<uint16_t>(9542 + pipeline),
          .receive_buffer_bytes = receive_buffer_bytes,
          .numa_node = numa_node,
          .hugepages = hugepages,
          .affinity = affinity,
          .queue = pipeline / 2,
          .rss = rss.empty() ? nullptr : rss[pipeline]};
}

Result<wire::QueuePairAddress> SynchronousHost::connect(uint32_t pipeline, uint64_t owner,
                                                        const wire::QueuePairAddress& peer) {
  if (!has_queue_pairs) return PipelineHost::connect(pipeline, owner, peer);
  ++connected[owner];
  wire::QueuePairAddress own = peer;
  own.number += 1'000;
  return own;
}

void SynchronousHost::execute(uint32_t pipeline, pipeline::Command command) {
  if (command.kind == pipeline::CommandKind::kInstall) shards_[pipeline].push_back(command.shard);
  if (command.kind == pipeline::CommandKind::kRemove) std::erase(shards_[pipeline], command.shard);
  engines_[pipeline]->execute(command);
}

Desk::Desk(const RegistryOptions& options, uint32_t pipelines, snapshot::SnapshotStore* shelf,
           Upstream* upstream, BackupBoxes* backups)
    : options_(options),
      shelf_(shelf),
      upstream_(upstream),
      backups_(backups),
      host_(std::make_unique<SynchronousHost>(pipelines)) {
  disk_ = std::move(*storage::open_state_folder(""));
  epochs_.emplace(*disk_);
  registry_ =
      std::make_unique<JobRegistry>(options, *host_, *epochs_, parts, shelf_, upstream_, backups_);
}

void Desk::crash() {
  registry_.reset();
  host_ = std::make_unique<SynchronousHost>(host_->count());
  epochs_.emplace(*disk_);
  registry_ =
      std::make_unique<JobRegistry>(options_, *host_, *epochs_, parts, shelf_, upstream_, backups_);
  for (auto& [id, closed] : closed_) closed = true;
  said_.clear();
}

ConnectionId Desk::open(std::optional<tls::Identity> identity) {
  const ConnectionId id = next_id_++;
  closed_[id] = false;
  registry_->on_open(
      id,
      nic::parse_endpoint((from_own_host ? "127.0." : "10.0.") + std::to_string(id / 250) + "." +
                              std::to_string(id % 250),
                          5000)
          .value(),
      now_ns_, std::move(identity));
  deliver();
  return id;
}

void Desk::say(ConnectionId id, const proto::WorkerMessage& message) {
  say_bytes(id, message.SerializeAsString());
}

void Desk::say_bytes(ConnectionId id, const std::string& body) {
  REQUIRE_FALSE(is_closed(id));
  registry_->on_message(id, body, now_ns_);
  deliver();
}

void Desk::hang_up(ConnectionId id, const std::string& reason) {
  closed_[id] = true;
  registry_->on_closed(id, reason, now_ns_);
  deliver();
}

void Desk::pass(uint64_t duration_ns, const std::vector<ConnectionId>& alive) {
  proto::WorkerMessage heartbeat;
  heartbeat.mutable_heartbeat()->set_sequence(1);
  const uint64_t end_ns = now_ns_ + duration_ns;
  while (now_ns_ < end_ns) {
    now_ns_ = std::min(end_ns, now_ns_ + 50 * kMilli);
    for (const ConnectionId id : alive) {
      if (is_closed(id)) continue;
      registry_->on_message(id, heartbeat.SerializeAsString(), now_ns_);
    }
    registry_->on_tick(now_ns_);
    deliver();
  }
}

void Desk::stand_still(uint64_t duration_ns) {
  now_ns_ += duration_ns;
  registry_->on_standstill({.gap_ns = duration_ns}, now_ns_);
  deliver();
}

void Desk::shut_down() {
  registry_->shut_down();
  deliver();
}

// Carries out the registry's actions as the server does: a closed connection is reported back,
// which may cause more actions.
void Desk::deliver() {
  for (auto actions = registry_->take_actions(); !actions.empty();
       actions = registry_->take_actions()) {
    for (const Action& action : actions) {
      if (is_closed(action.connection)) continue;
      if (action.kind == Action::Kind::kSend) {
        if (!action.message.has_heartbeat()) said_[action.connection].push_back(action.message);
        continue;
      }
      closed_[action.connection] = true;
      registry_->on_closed(action.connection, "closed by the box", now_ns_);
    }
  }
}

std::vector<proto::BoxMessage> Desk::take(ConnectionId id) {
  return std::exchange(said_[id], {});
}

proto::Failure Desk::take_failure(ConnectionId id) {
  const auto messages = take(id);
  REQUIRE(messages.size() == 1);
  REQUIRE(messages[0].has_failure());
  return messages[0].failure();
}

ConnectionId Desk::join(const proto::WorkerMessage& message) {
  const ConnectionId id = open();
  say(id, message);
  return id;
}

std::vector<ConnectionId> Desk::start(const std::string& job, uint32_t world_size,
                                      std::vector<proto::Session>* sessions) {
  std::vector<ConnectionId> ids;
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    ids.push_back(join(join_message(job, rank, world_size)));
  }
  for (const ConnectionId id : ids) {
    const auto messages = take(id);
    REQUIRE(messages.size() == 1);
    REQUIRE(messages[0].has_session());
    if (sessions != nullptr) sessions->push_back(messages[0].session());
  }
  return ids;
}

uint32_t credit_alone(uint32_t receive_buffer_bytes, uint32_t sessions, uint64_t window_bytes) {
  const TenantDemand tenant{.window_bytes = sessions * window_bytes};
  return credit_share(receive_buffer_bytes, {&tenant, 1}, tenant, window_bytes);
}

proto::WorkerMessage join_message(const std::string& job, uint32_t rank, uint32_t world_size) {
  proto::WorkerMessage message;
  proto::Join& join = *message.mutable_join();
  join.set_protocol_version(wire::kControlProtocolVersion);
  join.set_job(job);
  join.set_rank(rank);
  join.set_world_size(world_size);
  join.set_path_mtu(1500);
  join.set_software("a test");
  const std::pair<const char*, uint64_t> tensors[] = {{"weight", 20000}, {"bias", 7}};
  for (const auto& [name, elements] : tensors) {
    auto& tensor = *join.add_tensors();
    tensor.set_name(name);
    tensor.set_elements(elements);
    tensor.set_lr_scale(1);
  }
  return message;
}

proto::WorkerMessage join_optimizing(uint32_t rank) {
  auto message = join_message("train", rank, 2);
  message.mutable_join()->set_mode(1);
  message.mutable_join()->mutable_optimizer()->set_kind(4);  // adam
  message.mutable_join()->mutable_optimizer()->set_learning_rate(0.5f);
  message.mutable_join()->mutable_optimizer()->set_beta1(0.9f);
  message.mutable_join()->mutable_optimizer()->set_beta2(0.99f);
  message.mutable_join()->mutable_optimizer()->set_epsilon(1e-8f);
  message.mutable_join()->set_incarnation(1000 + rank);
  return message;
}

void close_with_one(proto::Join& join) {
  join.set_recovery(static_cast<uint32_t>(Recovery::kNone));
  join.mutable_sync()->set_model(static_cast<uint32_t>(wire::SyncModel::kDrop));
  join.mutable_sync()->set_quorum(1);
}

JobSpec spec_of(const proto::WorkerMessage& message) {
  const auto spec = parse_join(message.join(), {});
  REQUIRE(spec);
  return *spec;
}

std::vector<pipeline::Chunk*> chunks_of(Desk& desk) {
  std::vector<pipeline::Chunk*> chunks;
  for (const uint32_t pipeline : {0u, 1u}) {
    for (pipeline::JobShard* shard : desk.host().shards(pipeline)) {
      for (auto& chunk : shard->chunks()) chunks.push_back(&chunk);
    }
  }
  std::sort(chunks.begin(), chunks.end(),
            [](const auto* one, const auto* other) { return one->id < other->id; });
  return chunks;
}

proto::WorkerMessage leave_message() {
  proto::WorkerMessage message;
  message.mutable_leave();
  return message;
}

proto::WorkerMessage barrier_message(uint64_t sequence) {
  proto::WorkerMessage message;
  message.mutable_barrier()->set_sequence(sequence);
  return message;
}

proto::WorkerMessage priorities_message(uint32_t policy, const std::vector<int32_t>& by_tensor) {
  proto::WorkerMessage message;
  message.mutable_set_priorities()->set_policy(policy);
  message.mutable_set_priorities()->mutable_by_tensor()->Add(by_tensor.begin(), by_tensor.end());
  return message;
}

proto::WorkerMessage learning_rate_message(float learning_rate, uint64_t sequence) {
  proto::WorkerMessage message;
  message.mutable_set_learning_rate()->set_learning_rate(learning_rate);
  message.mutable_set_learning_rate()->set_sequence(sequence);
  return message;
}

}  // namespace pbox::control
