#include "tests/sim/box.h"

#include <algorithm>

#include "base/clock.h"
#include "nic/wire/control_frame.h"
#include "tests/sim/violation.h"

namespace pbox::sim {
namespace {

// Duration of a turn with packets. A turn without packets ends when something arrives.
constexpr uint64_t kTurnNs = 2'000;
constexpr uint64_t kRestartNs = 100 * kNanosPerMilli;
constexpr uint64_t kTickNs = 50 * kNanosPerMilli;
constexpr uint32_t kSmallRingSlots = 6;
constexpr uint64_t kQuestionNs = 2 * kNanosPerSecond;
// More than the jobs of any seed need.
constexpr uint64_t kJobMemoryBytes = 256u << 20;
constexpr uint32_t kJobSlots = 16;

}  // namespace

Box::Box(Rack& rack, HostId host)
    : rack_(rack),
      host_(host),
      client_host_(client_of(rack.options, host)),
      client_(*this),
      control_thread_(rack.queue, [this] { turn_control(); }),
      disk_(rack.options.seed * 31 + host, rack.counts) {
  for (uint32_t index = 0; index < rack.options.pipelines; ++index) {
    Pipeline& pipeline = pipelines_.emplace_back();
    pipeline.local = endpoint_of(host, static_cast<uint16_t>(limits::kDataPortFirst + index));
    pipeline.thread = std::make_unique<Thread>(rack.queue, [this, index] {
      if (turn(index, false))
        pipelines_[index].thread->wake_at(pipelines_[index].thread->now_ns() + kTurnNs);
    });
  }
  rack.control.attach(host, *this);
  rack.control.attach(client_host_, client_);
  rack.parts.attach(host, [this] {
    if (!up()) return;
    registry_->on_parts_changed();
    flush();
  });
}

control::RegistryOptions Box::registry_options() const {
  control::RegistryOptions options;
  options.box_name = "box" + std::to_string(host_);
  options.dead_after_ns = rack_.options.dead_after_ns;
  options.heartbeat_interval_ms =
      static_cast<uint32_t>(rack_.options.dead_after_ns / kNanosPerMilli / 10);
  options.payload_crc = rack_.options.payload_crc;
  options.jobs_max = kJobSlots;
  options.job_memory_bytes = kJobMemoryBytes;
  options.arena_bytes.assign(rack_.options.pipelines, kJobMemoryBytes / 2);
  // Half of all seeds draw the same session numbers at each start. Then only the epoch
  // distinguishes a session from one before the crash. Names of backup copies must differ in any
  // case.
  const auto& jobs = rack_.options.jobs;
  const bool names_copies =
      std::any_of(jobs.begin(), jobs.end(), [](const JobOptions& job) { return job.has_copy; });
  uint64_t seed = rack_.options.seed + 1000 * host_;
  if (names_copies) {
    seed += starts_ << 32;
  } else if (!rack_.options.same_sessions) {
    seed += starts_;
  }
  options.draw = seeded_draws(seed);
  return options;
}

void Box::start() {
  if (up()) return;
  auto epochs = storage::EpochStore::open(disk_);
  if (!epochs) {
    require(epochs.error().message.find("damaged") == std::string::npos,
            [&] { return "the disk did not keep a whole epoch file: " + epochs.error().message; });
    rack_.queue.after(kRestartNs, [this] { start(); });
    return;
  }
  epochs_.emplace(std::move(*epochs));
  checker_ = std::make_unique<BoxChecker>(rack_, rack_.options.pipelines);
  for (uint32_t index = 0; index < pipelines_.size(); ++index) {
    Pipeline& pipeline = pipelines_[index];
    pipeline.ring = &rack_.network.open(
        pipeline.local, {.bytes_max = rack_.options.ring_bytes,
                         .slots_max = rack_.options.ring_slots,
                         .on_arrival = [thread = pipeline.thread.get()] { thread->wake_soon(); }});
    pipeline.port =
        std::make_unique<SimPort>(rack_.network, pipeline.local, *pipeline.ring, rack_.options);
    pipeline.port->set_watch([this, index](const nic::TxPacket& packet) {
      checker_->sent(index, *pipelines_[index].port, packet);
    });
    pipeline.engine = std::make_unique<pipeline::Engine>(
        pipeline::EngineOptions{.pipeline_index = index,
                                .tag = {.payload_crc = rack_.options.payload_crc},
                                .draw = seeded_draws(rack_.options.seed * 64 + host_ * 8 + index)});
    pipeline.mailbox = std::make_unique<pipeline::Mailbox>();
    pipeline.loop = std::make_unique<pipeline::Loop<SimPort>>(
        *pipeline.engine, *pipeline.port, *pipeline.mailbox, pipeline::PollPolicy{.busy = true});
    pipeline.next_ticket = 1;
  }
  ++starts_;
  box_epochs_.emplace(*epochs_, host_, rack_.options.boxes);
  registry_ = std::make_unique<control::JobRegistry>(registry_options(), *this, *box_epochs_, *this,
                                                     nullptr, nullptr, this);
  rack_.parts.forget(host_);
  rack_.parts.set_registered(host_, true);
  control_thread_.wake_soon();
}

uint64_t Box::pulls_received() const {
  uint64_t pulls = 0;
  for (const Pipeline& pipeline : pipelines_) {
    if (pipeline.engine)
      pulls += pipeline.engine->counters().get(pipeline::Counter::kPullsReceived);
  }
  return pulls;
}

void Box::crash(bool silently) {
  if (!up()) return;
  rack_.control.abort_all(host_, silently);
  rack_.control.abort_all(client_host_, silently);
  rack_.parts.set_registered(host_, false);
  for (auto& relay : relays_) relay->crash();
  registry_.reset();
  for (Pipeline& pipeline : pipelines_) {
    rack_.network.close(pipeline.local);
    pipeline.loop.reset();
    pipeline.engine.reset();
    pipeline.port.reset();
  }
  checker_.reset();
  peers_.clear();
  questions_.clear();
  if (silently) disk_.crash();
}

control::PipelineInfo Box::info(uint32_t index) const {
  return {.address = nic::address_string(pipelines_[index].local),
          .udp_port = pipelines_[index].local.port,
          .receive_buffer_bytes = rack_.options.ring_bytes,
          .receive_slots = rack_.options.ring_slots,
          .mtu = 1500,
          .hugepages = Hugepages::kNever};
}

bool Box::turn(uint32_t index, bool carries_out_command) {
  if (!up()) return false;
  Pipeline& pipeline = pipelines_[index];
  const Packet* next = pipeline.ring->waiting.empty() ? nullptr : &pipeline.ring->waiting.front();
  // A damaged packet gets a burst of its own, so that any change of state is its doing.
  const bool alone = next != nullptr && next->damaged && !carries_out_command;
  pipeline.port->set_burst_packets(alone ? 1 : rack_.options.burst_packets);
  checker_->before_turn(index, *pipeline.engine, alone);
  const bool worked = pipeline.loop->turn(pipeline.thread->now_ns());
  checker_->after_turn(index, *pipeline.engine, *pipeline.port, carries_out_command);
  for (auto& relay : relays_) relay->wake();
  return worked;
}

void Box::execute(uint32_t index, pipeline::Command command) {
  Pipeline& pipeline = pipelines_[index];
  command.ticket = pipeline.next_ticket++;
  require(pipeline.mailbox->commands.push(command), "a pipeline's mailbox is full");
  // The control thread waits while the pipeline takes its turns.
  while (pipeline.mailbox->completed_ticket.load() < command.ticket) turn(index, true);
  pipeline.thread->wake_soon();
  if (command.kind == pipeline::CommandKind::kRemove) checker_->removed(index, *command.shard);
}

Status Box::install(uint32_t index, pipeline::JobShard& shard) {
  checker_->installed(index, shard);
  checker_->check_memory(registry_->memory_taken_bytes());
  require(registry_->memory_taken_bytes() <= kJobMemoryBytes, "jobs hold more than the quota");
  return PipelineHost::install(index, shard);
}

void Box::remove(uint32_t index, std::unique_ptr<pipeline::JobShard> shard) {
  execute(index, {.kind = pipeline::CommandKind::kRemove, .shard = shard.get()});
}

void Box::turn_control() {
  if (!up()) return;
  registry_->on_tick(control_thread_.now_ns());
  flush();
  control_thread_.wake_at(control_thread_.now_ns() + kTickNs);
}

bool Box::on_accept(ConnectionId id, HostId from) {
  if (!up()) return false;
  peers_[id] = from;
  registry_->on_open(id, endpoint_of(from, limits::kControlPort), control_thread_.now_ns());
  return true;
}

void Box::on_control_message(ConnectionId id, const std::string& body) {
  registry_->on_message(id, body, control_thread_.now_ns());
  flush();
}

void Box::on_closed(ConnectionId id, const std::string& reason) {
  registry_->on_closed(id, reason, control_thread_.now_ns());
  flush();
}

BackupMember* Box::Client::relay(ConnectionId id) const {
  const auto found = std::find_if(box_.relays_.begin(), box_.relays_.end(),
                                  [id](const auto& relay) { return relay->has(id); });
  return found == box_.relays_.end() ? nullptr : found->get();
}

void Box::Client::on_connected(ConnectionId id) {
  if (BackupMember* member = relay(id)) return member->on_connected(id);
  const auto found = box_.questions_.find(id);
  if (found == box_.questions_.end()) return;
  const auto framed = wire::frame(found->second.message);
  box_.rack_.control.send(id, box_.client_host_, framed->substr(wire::kControlLengthBytes));
}

void Box::Client::on_control_message(ConnectionId id, const std::string& body) {
  if (BackupMember* member = relay(id)) return member->on_control_message(id, body);
  if (!box_.questions_.contains(id)) return;
  proto::BoxMessage message;
  require(message.ParseFromString(body), "a box sent an invalid control message");
  if (!message.has_failure()) return box_.end_question(id, std::move(message));
  box_.end_question(
      id, Error{static_cast<ErrorCode>(message.failure().code()), message.failure().message()});
}

void Box::Client::on_closed(ConnectionId id, const std::string& reason) {
  if (BackupMember* member = relay(id)) return member->on_closed(id, reason);
  if (box_.questions_.contains(id)) {
    box_.end_question(id, Error{ErrorCode::kUnavailable, reason});
  }
}

void Box::flush() {
  for (const auto& event : registry_->take_events()) {
    rack_.say("box " + std::to_string(host_), [&] { return event.name + (": " + event.text); });
  }
  for (;;) {
    const auto actions = registry_->take_actions();
    if (actions.empty()) return;
    for (const control::Action& action : actions) carry_out(action);
  }
}

void Box::carry_out(const control::Action& action) {
  if (action.kind == control::Action::Kind::kClose) {
    rack_.control.close(action.connection, host_);
    // Does what the control server does once the last message has been sent.
    registry_->on_closed(action.connection, "closed by the box", control_thread_.now_ns());
    return;
  }
  const bool is_to_box = peers_.at(action.connection) >= client_of(rack_.options, 0);
  if (action.message.has_session() && is_to_box) {
    note_epoch(action.message.session().epoch(), kOfCopies);
  } else if (action.message.has_session()) {
    learn_session(action.connection, action.message.session());
    for (const uint32_t rank : action.message.session().absent_ranks()) {
      job_of(action.connection).reads.exclude(rank);
    }
  }
  if (action.message.has_membership() && !is_to_box) {
    for (const uint32_t rank : action.message.membership().absent_ranks()) {
      job_of(action.connection).forget(rank);
      job_of(action.connection).reads.exclude(rank);
    }
  }
  const auto framed = wire::frame(action.message);
  require(framed.ok(), "a control message is too long for its frame");
  rack_.control.send(action.connection, host_, framed->substr(wire::kControlLengthBytes));
}

JobModel& Box::job_of(ConnectionId id) {
  const HostId worker = peers_.at(id);
  const auto job = std::find_if(rack_.jobs.begin(), rack_.jobs.end(), [&](const auto& model) {
    return worker >= model->first_host && worker < model->first_host + model->options.workers;
  });
  return **job;
}

void Box::note_epoch(uint32_t epoch, uint32_t job) {
  const std::pair owner{job, starts_};
  const auto [given, is_new] = epochs_given_.emplace(epoch, owner);
  const bool is_one_jobs = given->second == owner && (is_new || job != kOfCopies);
  require(is_one_jobs && (!is_new || given->first == epochs_given_.rbegin()->first),
          [&] { return "epoch " + std::to_string(epoch) + " was assigned before"; });
}

void Box::learn_session(ConnectionId id, const proto::Session& session) {
  JobModel& job = job_of(id);
  note_epoch(session.epoch(), job.index);
  for (int index = 0; index < session.pipelines_size(); ++index) {
    checker_->named(static_cast<uint32_t>(index), session.pipelines(index).spi(), job);
  }
  for (const uint32_t rank : session.absent_ranks()) job.forget(rank);
}

Result<std::optional<proto::PartPlace>> Box::other_owner(const std::string& job, uint32_t,
                                                         uint32_t) const {
  const auto owner = rack_.parts.known_owner(host_, job);
  if (!owner) return Error{ErrorCode::kUnavailable, "this box does not know yet who owns " + job};
  if (*owner == host_) return std::optional<proto::PartPlace>();
  proto::PartPlace place;
  place.set_box("box" + std::to_string(*owner));
  place.set_address(address_of_box(*owner));
  return std::optional<proto::PartPlace>(std::move(place));
}

// Imitates a store: the answer takes a while, and reflects the state at the time of the answer.
void Box::ask(const proto::AskPartMap& question, Answer done) {
  const auto lost = question.lost_box();
  const std::string job = question.job();
  if (!lost.empty()) give_away(job, static_cast<HostId>(std::stoul(lost.substr(3))));
  rack_.queue.after(rack_.options.latency_ns, [this, job, done = std::move(done)] {
    const auto owner = rack_.parts.known_owner(host_, job);
    if (!owner) {
      done(Error{ErrorCode::kUnavailable, "this box does not know yet who owns " + job});
    } else {
      proto::PartMap plan;
      plan.set_chunk_bytes(limits::kChunkBytesDefault);
      proto::PartPlace& place = *plan.add_parts();
      place.set_box("box" + std::to_string(*owner));
      if (*owner != host_) place.set_address(address_of_box(*owner));
      for (HostId box = 0; box < rack_.options.boxes; ++box) plan.add_boxes(address_of_box(box));
      done(std::move(plan));
    }
    if (up()) flush();
  });
}

// Returns the registered boxes, starting with the next one.
std::vector<proto::PartPlace> Box::backup_candidates(const std::string&, uint32_t) const {
  std::vector<proto::PartPlace> places;
  for (HostId step = 1; step < rack_.options.boxes; ++step) {
    const HostId box = (host_ + step) % rack_.options.boxes;
    if (!rack_.parts.is_registered(box)) continue;
    places.emplace_back().set_box("box" + std::to_string(box));
    places.back().set_address(address_of_box(box));
  }
  return places;
}

std::unique_ptr<control::Relay> Box::join(const std::string& address, control::RelaySpec spec,
                                          std::function<void(Status)> on_change) {
  const auto tell = [this, on_change = std::move(on_change)](const Status& status) {
    on_change(status);
    if (up()) flush();
  };
  relays_.push_back(std::make_unique<BackupMember>(
      rack_, host_, static_cast<uint32_t>(relays_.size()), address, std::move(spec), tell));
  return std::make_unique<BackupRelay>(*relays_.back());
}

void Box::ask_box(const std::string& box, const proto::WorkerMessage& message, BoxAnswer done) {
  const auto other = static_cast<HostId>(std::stoul(box.substr(3)));
  const ConnectionId id = rack_.control.connect(client_host_, other);
  Question& asked = questions_[id];
  asked.message = message;
  asked.done = std::move(done);
  rack_.say("box " + std::to_string(host_), [&] {
    const proto::AskState& question = message.ask_state();
    return "asks " + box + " for job " + question.job() + " of epoch " +
           std::to_string(question.epoch()) + (question.taken() ? " no more" : "");
  });
  rack_.queue.after(kQuestionNs, [this, id] {
    if (questions_.contains(id)) end_question(id, Error{ErrorCode::kUnavailable, "no answer"});
  });
}

void Box::end_question(ConnectionId id, Result<proto::BoxMessage> answer) {
  const proto::AskState& question = questions_.at(id).message.ask_state();
  if (question.is_backup() && !question.taken() && answer) rack_.counts.add(Fault::kCopyUsed);
  const BoxAnswer done = std::move(questions_.extract(id).mapped().done);
  rack_.control.close(id, client_host_);
  done(std::move(answer));
  flush();
}

// A worker reports that it cannot reach the box `lost`. This box believes it and takes the job
// over. A wrong report must do no harm.
void Box::give_away(const std::string& job, HostId lost) {
  if (lost == host_ || rack_.parts.known_owner(host_, job) != lost) return;
  rack_.say("box " + std::to_string(host_),
            [&] { return "takes over " + job + " from box " + std::to_string(lost); });
  rack_.parts.give_away(job, lost, host_);
}

void Box::pause(uint64_t length_ns) {
  for (const HostId host : {host_, client_host_}) {
    rack_.control.stall(host, rack_.queue.now_ns() + length_ns);
  }
  control_thread_.pause(length_ns);
  for (Pipeline& pipeline : pipelines_) pipeline.thread->pause(length_ns);
  for (auto& relay : relays_) relay->pause_thread(length_ns);
}

void Box::pause_pipeline(uint32_t index, uint64_t length_ns) {
  pipelines_[index % pipelines_.size()].thread->pause(length_ns);
}

void Box::jump(uint64_t ahead_ns) {
  control_thread_.jump(ahead_ns);
  for (Pipeline& pipeline : pipelines_) pipeline.thread->jump(ahead_ns);
  for (auto& relay : relays_) relay->jump(ahead_ns);
}

void Box::set_small_ring(uint32_t index, bool small) {
  if (!up()) return;
  ReceiveRing& ring = *pipelines_[index % pipelines_.size()].ring;
  ring.slots_max = small ? kSmallRingSlots : rack_.options.ring_slots;
}

}  // namespace pbox::sim
