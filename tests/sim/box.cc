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

}  // namespace

Box::Box(Rack& rack, HostId host)
    : rack_(rack),
      host_(host),
      client_host_(client_of(rack.options, host)),
      client_(*this),
      control_thread_(rack.queue, [this] { turn_control(); }),
      disk_(rack.options.seed * 31 + host, rack.counts),
      single_box_(limits::kChunkBytesDefault) {
  for (uint32_t index = 0; index < rack.options.pipelines_of(host); ++index) {
    Pipeline& pipeline = pipelines_.emplace_back();
    pipeline.local = endpoint_of(host, static_cast<uint16_t>(limits::kDataPortFirst + index));
    pipeline.thread = std::make_unique<Thread>(rack.queue, [this, index] {
      Pipeline& its = pipelines_[index];
      if (const bool worked = turn(index, false); up())
        its.thread->wake_at(worked ? its.thread->now_ns() + kTurnNs : its.engine->due_ns());
    });
  }
  if (rack.options.has_levels && host != rack.options.top()) {
    uplinks_.emplace(rack, host, [this] {
      if (up()) flush();
    });
  }
  rack.control.attach(host, *this);
  rack.control.attach(client_host_, client_);
}

// Makes the keys of a connection. For each session the checker gets mirrors that open what either
// end sends.
void Box::open_keys(ConnectionId id) {
  session_keys_[id] =
      rack_.keys.of(id, crypto::End::kBox, [this, id](const auto& name, const auto& spec) {
        if (checker_ == nullptr) return;
        checker_->sealed(spec.spi, rack_.keys.mirror(id, crypto::End::kBox, name, spec),
                         rack_.keys.mirror(id, crypto::End::kWorker, name, spec));
      });
}

seal::SessionKeys* Box::of(ConnectionId connection) {
  const auto found = session_keys_.find(connection);
  return found == session_keys_.end() ? nullptr : found->second.get();
}

control::RegistryOptions Box::registry_options() {
  control::RegistryOptions options;
  options.box_name = "box" + std::to_string(host_);
  options.dead_after_ns = rack_.options.dead_after_ns;
  options.heartbeat_interval_ms =
      static_cast<uint32_t>(rack_.options.dead_after_ns / kNanosPerMilli / 10);
  options.payload_crc = rack_.options.payload_crc;
  options.jobs_max = rack_.options.job_slots;
  options.job_memory_bytes = rack_.options.memory_of(host_);
  options.arena_bytes.assign(pipelines_.size(), rack_.options.arena_of(host_));
  // With same_sessions (half of all seeds) a box draws the same session numbers at each start. Then
  // only the epoch distinguishes a session from one before the crash. Not with backup copies: their
  // names come from the same draws, and must differ at each start.
  const auto& jobs = rack_.options.jobs;
  const bool names_copies =
      std::any_of(jobs.begin(), jobs.end(), [](const JobOptions& job) { return job.has_copy; });
  const uint64_t starts = rack_.options.same_sessions ? 0 : starts_;
  const uint64_t seed = rack_.options.seed + 1000 * host_;
  options.draw = seeded_draws(seed + (names_copies ? starts_ << 32 : starts));
  if (rack_.options.suite != seal::Suite::kNone) options.keys = this;
  options.window_bytes = rack_.options.window_bytes;
  options.snapshot_every_ns = rack_.options.snapshot_every_ns;
  return options;
}

void Box::start() {
  if (up()) return;
  auto stored = storage::EpochStore::open(disk_);
  if (!stored) {
    require(stored.error().message.find("damaged") == std::string::npos,
            [&] { return "the disk did not keep a whole epoch file: " + stored.error().message; });
    rack_.queue.after(kRestartNs, [this] { start(); });
    return;
  }
  epochs_.emplace(std::move(*stored));
  // The checker assumes that all ranks of a job join the same box, which is not so in two levels.
  if (rack_.checks && !rack_.options.has_levels) {
    checker_ = std::make_unique<BoxChecker>(rack_, count());
  }
  for (uint32_t index = 0; index < pipelines_.size(); ++index) {
    Pipeline& pipeline = pipelines_[index];
    pipeline.ring = &rack_.network.open(
        pipeline.local, {.bytes_max = rack_.options.ring_bytes,
                         .slots_max = rack_.options.ring_slots,
                         .on_arrival = [thread = pipeline.thread.get()] { thread->wake_soon(); }});
    pipeline.port =
        std::make_unique<SimPort>(rack_.network, pipeline.local, *pipeline.ring, rack_.options);
    if (rack_.options.send_ahead_ns != UINT64_MAX) {
      pipeline.port->bound_sending(rack_.options.send_ahead_ns,
                                   [thread = pipeline.thread.get()] { thread->wake_soon(); });
    }
    if (checker_) {
      pipeline.port->set_watch([this, index](const nic::TxPacket& packet) {
        checker_->sent(index, *pipelines_[index].port, packet);
      });
      pipeline.port->set_burst_watch([this, index](const auto& packets, size_t taken) {
        checker_->offered(index, packets, taken);
      });
    }
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
  if (rack_.cluster.is_on()) join_cluster();
  control::PartDirectory& parts =
      cluster_ ? cluster_->maps() : static_cast<control::PartDirectory&>(single_box_);
  storage::Epochs& epochs = cluster_ ? cluster_->epochs() : *box_epochs_;
  if (rack_.options.has_snapshots) {
    const uint64_t seed = (rack_.options.seed * 61 + host_) * 64 + starts_;
    snapshots_.emplace(rack_.queue, control_thread_, *rack_.snapshots, rack_.jobs, rack_.counts,
                       seed, [this] {
                         if (up()) flush();
                       });
    snapshots_->fail_one_of(disk_.failures_one_of());
  }
  registry_ = std::make_unique<control::JobRegistry>(registry_options(), *this, epochs, parts,
                                                     snapshots_ ? &*snapshots_ : nullptr,
                                                     uplinks_ ? &*uplinks_ : nullptr, this);
  control_thread_.wake_soon();
}

void Box::join_cluster() {
  cluster_.emplace(
      rack_, host_, starts_, control_thread_, disk_, *epochs_,
      BoxCluster::Callbacks{
          .registry = [this]() -> const control::JobRegistry& { return *registry_; },
          .on_change =
              [this] {
                registry_->on_parts_changed();
                flush();
              },
          .on_answers = [this] { flush(); },
          .ask = [this](const std::string& address, const auto& question, uint64_t timeout_ns,
                        auto done) { ask_box(address, question, timeout_ns, std::move(done)); }});
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
  for (auto& relay : relays_) relay->crash();
  if (uplinks_) uplinks_->crash();
  questions_.clear();
  registry_.reset();
  cluster_.reset();
  snapshots_.reset();
  for (Pipeline& pipeline : pipelines_) {
    rack_.network.close(pipeline.local);
    pipeline.loop.reset();
    pipeline.engine.reset();
    pipeline.port.reset();
  }
  checker_.reset();
  peers_.clear();
  session_keys_.clear();
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
  if (checker_) checker_->before_turn(index, *pipeline.engine, alone, pipeline.thread->now_ns());
  const bool worked = pipeline.loop->turn(pipeline.thread->now_ns());
  if (checker_) checker_->after_turn(index, *pipeline.engine, *pipeline.port, carries_out_command);
  for (auto& relay : relays_) relay->wake();
  if (uplinks_) uplinks_->wake();
  return worked;
}

void Box::execute(uint32_t index, pipeline::Command command) {
  Pipeline& pipeline = pipelines_[index];
  command.ticket = pipeline.next_ticket++;
  require(pipeline.mailbox->commands.push(command), "a pipeline's mailbox is full");
  // The control thread waits while the pipeline takes its turns.
  while (pipeline.mailbox->completed_ticket.load() < command.ticket) turn(index, true);
  pipeline.thread->wake_soon();
  if (command.kind == pipeline::CommandKind::kRemove && checker_) {
    checker_->removed(index, *command.shard);
  }
}

Status Box::install(uint32_t index, pipeline::JobShard& shard) {
  if (checker_) check_installed(index, shard);
  return PipelineHost::install(index, shard);
}

void Box::remove(uint32_t index, std::unique_ptr<pipeline::JobShard> shard) {
  execute(index, {.kind = pipeline::CommandKind::kRemove, .shard = shard.get()});
}

Status Box::begin_snapshot(const std::string& job, uint64_t timeout_ns) {
  const Status begun = registry_->begin_snapshot(job, timeout_ns, control_thread_.now_ns());
  flush();
  return begun;
}

Status Box::set_sync(const std::string& job, const control::SyncChange& change) {
  const Status set = registry_->requests().set_sync(job, change);
  flush();
  return set;
}

Status Box::move_chunks(const std::string& job, uint32_t part,
                        const std::vector<uint32_t>& groups) {
  const Status moved = registry_->pipeline_moves().move(job, {{part, groups}}, "an operator asks");
  flush();
  return moved;
}

void Box::turn_control() {
  if (!up()) return;
  rack_.meter.run([&] {
    registry_->on_tick(control_thread_.now_ns());
    flush();
  });
  if (checker_) {
    for (const auto& part : progress()) check_place(part.job, part.part);
  }
  control_thread_.wake_at(control_thread_.now_ns() + kTickNs);
}

bool Box::on_accept(ConnectionId id, HostId from) {
  if (!up()) return false;
  peers_[id] = {.host = from};
  open_keys(id);
  constexpr HostId kControlNetwork = 0x8000;
  const HostId seen = rack_.options.has_control_network ? from | kControlNetwork : from;
  rack_.meter.run([&] {
    registry_->on_open(id, endpoint_of(seen, limits::kControlPort), control_thread_.now_ns());
  });
  return true;
}

void Box::on_control_message(ConnectionId id, const std::string& body) {
  note_part(id, body);
  hears_from_ = id;
  rack_.meter.run([&] {
    registry_->on_message(id, body, control_thread_.now_ns());
    flush();
  });
  hears_from_ = 0;
}

void Box::on_closed(ConnectionId id, const std::string& reason) {
  rack_.meter.run([&] {
    close_connection(id, reason);
    flush();
  });
}

void Box::close_connection(ConnectionId id, const std::string& reason) {
  session_keys_.erase(id);
  registry_->on_closed(id, reason, control_thread_.now_ns());
}

void Box::flush() {
  check_quota();
  for (const auto& event : registry_->take_events()) {
    rack_.say("box " + std::to_string(host_), [&] { return event.name + (": " + event.text); });
    if (event.name == std::string("join_refused")) note_refusal(event.text);
    rack_.counts.add(Fault::kSnapshotFailed, event.name == std::string("snapshot_failed") ? 1 : 0);
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
    close_connection(action.connection, "closed by the box");
    return;
  }
  const bool is_to_box = is_box(action.connection);
  if (action.message.has_session() && is_to_box) {
    const uint32_t uplink = kOfUplinks + peers_.at(action.connection).part;
    note_epoch(action.message.session().epoch(), rack_.options.has_levels ? uplink : kOfCopies);
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
  if (action.message.has_report()) {
    if (checker_) check_slots(nullptr);
    rack_.cluster.note_room(host_, action.message.report().largest_part_bytes());
  }
  const auto framed = wire::frame(action.message);
  require(framed.ok(), "a control message is too long for its frame");
  rack_.control.send(action.connection, host_, framed->substr(wire::kControlLengthBytes));
}

bool Box::has_part(const std::string& job, uint32_t part) const {
  if (!up()) return false;
  const auto views = registry_->views(rack_.queue.now_ns());
  return std::any_of(views.begin(), views.end(), [&](const control::JobView& view) {
    const auto& parts = view.parts;
    return view.name == job && std::find(parts.begin(), parts.end(), part) != parts.end();
  });
}

bool Box::is_box(ConnectionId id) const {
  return peers_.at(id).host >= client_of(rack_.options, 0);
}

// A worker of a job in several parts says on each connection which part it joins, and so does a
// lane to the upper box.
void Box::note_part(ConnectionId id, const std::string& body) {
  const auto peer = peers_.find(id);
  if (peer == peers_.end()) return;
  if (is_box(id) ? !rack_.options.has_levels : job_of(id).options.parts == 1) return;
  proto::WorkerMessage message;
  if (message.ParseFromString(body) && message.has_join()) {
    peer->second.part = message.join().part();
  }
}

JobModel& Box::job_of(ConnectionId id) {
  const Peer& worker = peers_.at(id);
  const auto job = std::find_if(rack_.jobs.begin(), rack_.jobs.end(), [&](const auto& model) {
    return worker.host >= model->first_host &&
           worker.host < model->first_host + model->options.workers &&
           worker.part == model->options.part;
  });
  return **job;
}

void Box::note_refusal(const std::string& text) {
  if (!rack_.options.is_tight) return;
  // On a box with keys a refusal does not name the configuration key, so more texts are looked for.
  const bool lacks_slot = text.find("a place among the jobs") != std::string::npos;
  const bool lacks_memory = text.find(" bytes on pipeline ") != std::string::npos ||
                            text.find(" bytes; the box has no room") != std::string::npos ||
                            text.find("[memory] job_share") != std::string::npos ||
                            text.find("has room neither here") != std::string::npos;
  if (!lacks_slot && !lacks_memory) return;
  if (hears_from_ != 0 && !is_box(hears_from_)) {
    const JobModel& refused = job_of(hears_from_);
    if (lacks_slot) check_slots(&refused);
    const bool is_handed_back = text.find("another box is asked to take") != std::string::npos;
    if (!is_handed_back) check_handed_back(refused);
  }
  rack_.counts.add(Fault::kNoRoom);
  for (const auto& job : rack_.jobs) {
    if (lacks_slot || text.find("'" + job->name + "'") != std::string::npos) job->may_fail = true;
  }
}

void Box::note_epoch(uint32_t epoch, uint32_t job) {
  if (cluster_) {
    rack_.cluster.note_epoch(epoch,
                             "box " + std::to_string(host_) + " start " + std::to_string(starts_) +
                                 (job == kOfCopies ? " copy" : " job " + std::to_string(job)));
  }
  const std::pair owner{job, starts_};
  const auto [given, is_new] = epochs_given_.emplace(epoch, owner);
  const bool is_one_jobs = given->second == owner && (is_new || job != kOfCopies);
  require(is_one_jobs && (!is_new || given->first == epochs_given_.rbegin()->first),
          [&] { return "epoch " + std::to_string(epoch) + " was assigned before"; });
}

// Checks that an elastic job begins with enough ranks. A session without rounds belongs to a job
// that begins anew.
void Box::note_begin(JobModel& job, const proto::Session& session) {
  const JobOptions& options = job.options;
  if (!(options.is_elastic() || options.is_relaxed()) || session.epoch() == job.epoch) return;
  job.epoch = session.epoch();
  if (session.has_rounds()) return;
  job.begin_run();
  if (!options.is_elastic()) return;
  const uint32_t present = job.options.workers - static_cast<uint32_t>(session.absent_ranks_size());
  require(present >= job.options.workers_min, [&] {
    return "elastic: " + job.title + " begins with " + std::to_string(present) +
           " ranks, but needs " + std::to_string(job.options.workers_min);
  });
}

void Box::learn_session(ConnectionId id, const proto::Session& session) {
  JobModel& job = job_of(id);
  note_epoch(session.epoch(), job.index);
  note_begin(job, session);
  // The pipeline follows from the spi: a part's first pipeline need not be the box's first.
  for (int index = 0; checker_ && index < session.pipelines_size(); ++index) {
    const uint32_t spi = session.pipelines(index).spi();
    checker_->named(pipeline::spi_pipeline(spi), spi, job);
  }
  for (const uint32_t rank : session.absent_ranks()) job.forget(rank);
}

void Box::pause(uint64_t length_ns) {
  for (const HostId host : {host_, client_host_}) {
    rack_.control.stall(host, rack_.queue.now_ns() + length_ns);
  }
  control_thread_.pause(length_ns);
  if (cluster_) cluster_->store().cut_off(rack_.queue.now_ns() + length_ns, true);
  for (Pipeline& pipeline : pipelines_) pipeline.thread->pause(length_ns);
  for (auto& relay : relays_) relay->process().thread().pause(length_ns);
  if (uplinks_) uplinks_->pause(length_ns);
}

void Box::pause_pipeline(uint32_t index, uint64_t length_ns) {
  pipelines_[index % pipelines_.size()].thread->pause(length_ns);
}

void Box::jump(uint64_t ahead_ns) {
  control_thread_.jump(ahead_ns);
  for (Pipeline& pipeline : pipelines_) pipeline.thread->jump(ahead_ns);
  for (auto& relay : relays_) relay->process().thread().jump(ahead_ns);
  if (uplinks_) uplinks_->jump(ahead_ns);
}

void Box::set_small_ring(uint32_t index, bool small) {
  if (!up()) return;
  ReceiveRing& ring = *pipelines_[index % pipelines_.size()].ring;
  ring.slots_max = small ? kSmallRingSlots : rack_.options.ring_slots;
}

}  // namespace pbox::sim
