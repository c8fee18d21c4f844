#include "tests/sim/box_cluster.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "nic/wire/control_versions.h"
#include "tests/sim/violation.h"

namespace pbox::sim {
namespace {

using cluster::BoxDirectory;

// All clocks of a simulated rack begin shortly after this time.
constexpr uint64_t kUnixSeconds = 1'700'000'000;
// After no box had room for a part, it is not handed back for this long.
constexpr uint64_t kNoRoomForNs = 10 * kNanosPerSecond;

}  // namespace

SimEnvironment::SimEnvironment(boost::asio::execution_context& context, EventQueue& queue,
                               const Thread& thread, Meter& meter, AskBox ask)
    : cluster::Environment(context),
      queue_(queue),
      thread_(thread),
      meter_(meter),
      ask_(std::move(ask)) {}

SimEnvironment::Clock::time_point SimEnvironment::now() const {
  return Clock::time_point(std::chrono::nanoseconds(thread_.now_ns()));
}

uint64_t SimEnvironment::unix_seconds() const {
  return kUnixSeconds + thread_.now_ns() / kNanosPerSecond;
}

void SimEnvironment::at(uint64_t due_ns, std::weak_ptr<void> alive,
                        std::function<void()> function) {
  queue_.at(due_ns, [this, alive = std::move(alive), function = std::move(function)] {
    if (alive.expired()) return;
    if (thread_.paused_until_ns() > queue_.now_ns()) {
      return at(thread_.paused_until_ns(), alive, function);
    }
    meter_.run(function);
  });
}

void SimEnvironment::post(std::function<void()> function) {
  at(queue_.now_ns(), alive_, std::move(function));
}

std::shared_ptr<void> SimEnvironment::after(Clock::duration wait, std::function<void()> function) {
  auto wanted = std::make_shared<bool>(true);
  const auto wait_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(wait).count();
  at(queue_.now_ns() + static_cast<uint64_t>(wait_ns), wanted, std::move(function));
  return wanted;
}

void SimEnvironment::ask_box(const std::string& control, const proto::WorkerMessage& question,
                             std::chrono::milliseconds timeout, Answer done) {
  ask_(control, question, static_cast<uint64_t>(timeout.count()) * kNanosPerMilli, std::move(done));
}

BoxCluster::BoxCluster(Rack& rack, HostId box, uint64_t starts, const Thread& thread,
                       storage::Disk& disk, storage::EpochStore& epochs, Callbacks callbacks)
    : name_(name_of_box(box)),
      thread_(thread),
      store_(rack.queue, rack.cluster.store(), rack.meter, rack.options.latency_ns,
             rack.options.seed * 131 + box * 17 + starts) {
  boost::asio::make_service<SimEnvironment>(context_, rack.queue, thread, rack.meter,
                                            callbacks.ask);
  const std::string& name = name_;
  store_.start({.on_session = [this](int64_t) {
    if (directory_) directory_->on_session();
  }});
  epochs_.emplace(context_, store_, disk, epochs, "rack/" + name);
  const auto log = [this, &rack](BoxDirectory::Severity, const char* event,
                                 const std::string& text) {
    if (event == std::string("no_room")) no_room_ns_[text] = thread_.now_ns();
    rack.say(name_, [&] { return event + (": " + text); });
  };
  cluster::BoxRecord record{.name = name,
                            .control = address_of_box(box),
                            .job_memory_bytes = rack.options.memory_of(box),
                            .protocol_version = wire::kControlProtocolVersion,
                            .protocol_version_min = wire::kControlProtocolVersionMin,
                            .incarnation = std::to_string(starts)};
  for (uint32_t index = 0; index < rack.options.pipelines; ++index) {
    record.data.push_back(name + ":" + std::to_string(limits::kDataPortFirst + index));
  }
  directory_.emplace(context_, store_, record, log, [this] {
    if (maps_) maps_->on_boxes_changed();
  });
  store_.set_check([this](const cluster::Transaction& transaction) {
    if (maps_) check_duties(transaction);
  });
  const auto& registry = callbacks.registry;
  maps_.emplace(
      context_, store_,
      cluster::PartMaps::Options{
          .self = name,
          .chunk_bytes =
              [&rack] { return static_cast<uint32_t>(rack.options.largest_part_bytes()); },
          .box_directory = [this]() -> const BoxDirectory& { return *directory_; },
          .has_job = [registry](const std::string& job) { return registry().has_job(job); },
          .running = [registry](const std::string& job) { return registry().running(job); },
          .report =
              [registry, box, &rack] {
                const proto::BoxReport report = registry().report();
                rack.cluster.note_room(box, report.largest_part_bytes());
                return report;
              },
          .on_change = std::move(callbacks.on_change),
          .on_answers = std::move(callbacks.on_answers),
          .log = log,
          .needs_majority = rack.options.suite != seal::Suite::kNone,
          .delete_after = kDeleteMapsAfter});
}

// Checks that a box gives no part to a box that it knows is draining. The part may stay where it
// was, and a box may give a part to itself.
void BoxCluster::check_duties(const cluster::Transaction& transaction) const {
  constexpr std::string_view kJobs = "jobs/";
  for (const cluster::Put& put : transaction.puts) {
    if (!put.key.starts_with(kJobs)) continue;
    const auto map = cluster::part_map_from_text(put.value);
    const auto before = maps_->maps().find(put.key.substr(kJobs.size()));
    for (size_t part = 0; map && part < map->boxes.size(); ++part) {
      const std::string& box = map->boxes[part];
      const bool had_it = before != maps_->maps().end() && part < before->second.boxes.size() &&
                          before->second.boxes[part] == box;
      require(had_it || box == name_ || !maps_->is_draining(box), [&] {
        return "duty: " + name_ + " gives part " + std::to_string(part) + " of " + put.key +
               " to " + box + ", which drains";
      });
    }
  }
}

bool BoxCluster::lists(const std::string& box) const {
  const auto& records = directory_->boxes();
  return std::any_of(records.begin(), records.end(),
                     [&box](const cluster::BoxRecord& record) { return record.name == box; });
}

bool BoxCluster::knows_room(const std::string& box) {
  return box == name_ || (lists(box) && maps_->reports().all().contains(box));
}

bool BoxCluster::found_no_room(const JobModel& job) const {
  const auto found = no_room_ns_.find("part " + std::to_string(job.options.part) + " of job '" +
                                      job.name + "' has room neither here nor on any other box");
  return found != no_room_ns_.end() && thread_.now_ns() <= found->second + kNoRoomForNs;
}

}  // namespace pbox::sim
