// The join: drives the parts on the caller's thread until all of them have a session. Also the
// consistency models, which are registered before the join and may change after it.
#include <poll.h>

#include <algorithm>
#include <random>
#include <thread>

#include "base/check.h"
#include "base/clock.h"
#include "base/glob.h"
#include "base/thread.h"
#include "base/version.h"
#include "nic/wire/control_frame.h"
#include "nic/wire/sync_message.h"
#include "worker/client.h"
#include "worker/process/fork_guard.h"
#include "worker/transport/tls_library.h"
#include "worker/transport/transport_library.h"

namespace pbox::worker {
namespace {

constexpr uint64_t kPollNs = 100 * kNanosPerMilli;
constexpr auto kAskAgain = std::chrono::milliseconds(200);

proto::WorkerMessage first_request(const MembershipOptions& options, uint64_t bytes,
                                   uint32_t job_version) {
  proto::WorkerMessage message;
  proto::AskPartMap& request = *message.mutable_ask_part_map();
  request = part_map_request(options.job);
  request.set_bytes(bytes);
  request.set_is_backup(options.is_backup);
  request.set_may_move(options.recovery == Recovery::kCopy || is_relaxed(options));
  request.set_job_version(job_version);
  wire::state_versions(message, options.added_fields);
  return message;
}

uint32_t left_ms(uint64_t end_ns) {
  const uint64_t now_ns = monotonic_ns();
  return now_ns >= end_ns ? 0 : static_cast<uint32_t>((end_ns - now_ns) / kNanosPerMilli) + 1;
}

Error cannot_choose() {
  return {ErrorCode::kInvalidArgument,
          "compression auto needs mode aggregate: in mode optimize the form of a tensor is fixed; "
          "set q8, q4 or none"};
}

Error unanswered(const MembershipOptions& options, uint64_t waited_ns) {
  return {ErrorCode::kTimeout, "box " + options.box + " did not answer this worker of job '" +
                                   options.job + "' within " + in_seconds(waited_ns)};
}

bool is_sane(const proto::PartMap& map) {
  return map.parts_size() > 0 && map.parts_size() <= static_cast<int>(limits::kPartsPerJobMax) &&
         map.chunk_bytes() >= limits::kChunkBytesMin && map.chunk_bytes() <= limits::kChunkBytesMax;
}

// A poll-mode device serves one part: it can be opened once in a process. The first part that is
// opened gets it, and the others need another port.
Status check_ports(const MembershipOptions& options, size_t parts,
                   const std::vector<std::string>& ports) {
  PBOX_CHECK(!ports.empty());
  if (parts < 2 || ports.back().rfind("dpdk:", 0) != 0) return ok_status();
  return Error{ErrorCode::kInvalidArgument,
               "PBOX_PORT=" + ports.back() + " can serve only one part of a job, but job '" +
                   options.job + "' is in " + std::to_string(parts) +
                   " parts, because its box is in a cluster; add a second port for the other parts "
                   "(PBOX_PORT='" +
                   ports.back() + "|socket'), or use a box without [cluster] store = etcd"};
}

// Returns whether a worker can repeat the box's step on its own copy of the weights.
bool repeats_steps(const proto::Optimizer& optimizer, const std::vector<TensorSpec>& tensors) {
  constexpr uint32_t kSgd = 1;
  return optimizer.kind() == kSgd &&
         std::all_of(tensors.begin(), tensors.end(), [&](const TensorSpec& tensor) {
           return tensor.row_elements == 0 &&
                  (tensor.weight_decay < 0 ? optimizer.weight_decay() : tensor.weight_decay) == 0;
         });
}

Error left_during_join() {
  return {ErrorCode::kClosed, "this worker left the job before it had joined"};
}

// Asks one box for the job's part map, until end_ns. Sets `is_reachable` if a connection was made.
Result<proto::PartMap> ask_box(const MembershipOptions& options, const tls::Client* keys,
                               BoxAddresses& addresses, const proto::WorkerMessage& request,
                               uint64_t end_ns, const std::atomic<bool>& leaving,
                               bool& is_reachable) {
  const uint64_t begin_ns = monotonic_ns();
  auto channel = ControlChannel::connect({.box = options.box, .keys = keys}, addresses,
                                         left_ms(end_ns), &leaving);
  if (leaving) return left_during_join();
  if (!channel) return channel.error();
  is_reachable = true;
  if (const Status sent = channel->send(request); !sent) return sent.error();
  while (left_ms(end_ns) > 0) {
    if (leaving) return left_during_join();
    pollfd wait{channel->fd(), POLLIN, 0};
    if (channel->wants_write()) wait.events |= POLLOUT;
    poll(&wait, 1, static_cast<int>(left_ms(std::min(end_ns, monotonic_ns() + kPollNs))));
    if (const Status flushed = channel->flush(); !flushed) return flushed.error();
    const auto messages = channel->receive();
    if (!messages) return messages.error();
    for (const proto::BoxMessage& message : *messages) {
      if (message.has_failure()) {
        return Error{static_cast<ErrorCode>(message.failure().code()), message.failure().message()};
      }
      if (message.has_part_map()) return message.part_map();
    }
  }
  return unanswered(options, end_ns - std::min(end_ns, begin_ns));
}

bool matches(const std::string& tensors, const TensorSpec& tensor) {
  return tensors.empty() || matches_glob(tensors, tensor.name);
}

bool any_matches(const std::string& glob, const std::vector<TensorSpec>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const TensorSpec& tensor) { return matches(glob, tensor); });
}

void answer_cached_reads(wire::SyncSpec& job, std::vector<TensorSpec>& tensors) {
  if (wire::keeps_copies(job)) job.reads = wire::Reads::kAnswered;
  for (TensorSpec& tensor : tensors) {
    if (tensor.sync && wire::keeps_copies(*tensor.sync)) {
      tensor.sync->reads = wire::Reads::kAnswered;
    }
  }
}

// Registers a model before the join: sets it in `job` and `tensors`, which JOIN states.
Status register_sync(const std::string& glob, const wire::SyncSpec& sync, wire::SyncSpec& job,
                     std::vector<TensorSpec>& tensors) {
  if (glob.empty()) job = sync;
  for (TensorSpec& tensor : tensors) {
    if (!matches(glob, tensor)) continue;
    tensor.sync.reset();
    if (!glob.empty()) tensor.sync = sync;
  }
  return ok_status();
}

// Returns the keys in a folder; null if its name is empty.
Result<std::shared_ptr<const WorkerKeys>> keys_in(const std::string& folder) {
  if (folder.empty()) return std::shared_ptr<const WorkerKeys>();
  return open_keys(folder);
}

// Makes the event that wakes the I/O thread, if a join that has failed has not made it.
Status open_wake(Descriptor& wake) {
  if (wake.ok()) return ok_status();
  auto event = create_own_event();
  if (!event) return event.error();
  wake = std::move(*event);
  return ok_status();
}

// Waits for an event of a control connection, but not longer than until limit_ns.
void await_control(const std::vector<std::unique_ptr<PartDriver>>& drivers, uint64_t limit_ns) {
  std::vector<pollfd> waits;
  uint64_t until_ns = limit_ns;
  for (const auto& driver : drivers) {
    driver->add_control_wait(waits);
    until_ns = std::min(until_ns, driver->next_deadline_ns());
  }
  poll(waits.data(), waits.size(), static_cast<int>(left_ms(until_ns)));
}

}  // namespace

// Asks the boxes that the caller has named, in turn, and sets joining.box to the one that answered.
// A reachable box that has no answer yet is asked again until end_ns. A box that cannot be reached
// or that closes the connection is not waited for. A silent box takes an equal share of the time.
Result<proto::PartMap> Client::ask_part_map(MembershipOptions& joining,
                                            const std::vector<TensorSpec>& tensors,
                                            uint64_t end_ns) {
  const std::vector<std::string> boxes = split_list(options_.box, ',');
  uint64_t bytes = options_.collective ? options_.collective_bytes : 0;
  for (const TensorSpec& tensor : tensors) {
    bytes += tensor.elements * wire::dtype_bytes(tensor.dtype);
  }
  const proto::WorkerMessage request =
      first_request(joining, bytes, version_of_job(joining, tensors, optimizer_));
  for (;;) {
    std::optional<Error> why;
    bool any_waits = false;
    for (size_t index = 0; index < boxes.size(); ++index) {
      joining.box = boxes[index];
      bool is_reachable = false;
      const uint64_t now_ns = std::min(monotonic_ns(), end_ns);
      const uint64_t share_ns = (end_ns - now_ns) / (boxes.size() - index);
      auto map = ask_box(joining, keys_.get(), addresses_, request, now_ns + share_ns, leaving_,
                         is_reachable);
      if (leaving_) return left_during_join();
      if (map && is_sane(*map)) {
        if (map->boxes_size() > 0) joining.boxes = boxes;  // a box without a cluster lists none
        return map;
      }
      if (map) return Error{ErrorCode::kInternal, "the box's part map of the job is invalid"};
      const ErrorCode code = map.error().code;
      const bool is_lost = code == ErrorCode::kTimeout || code == ErrorCode::kBoxLost;
      if (is_reachable && !is_lost && code != ErrorCode::kUnavailable) return map.error();
      if (!why || is_reachable) why = map.error();
      if (is_reachable && !is_lost) any_waits = true;
    }
    if (!any_waits || left_ms(end_ns) == 0) return *why;
    std::this_thread::sleep_for(kAskAgain);
  }
}

// On failure the box must see at once that this rank does not join, so no connection is left open.
Status Client::join_parts(const MembershipOptions& joining, const std::vector<TensorSpec>& tensors,
                          const proto::PartMap& map) {
  PBOX_CHECK(drivers_.empty());
  // Starts to resolve the names of all boxes, so that their addresses are known when one is lost,
  // even if no name server answers then.
  for (const std::string& box : map.boxes()) static_cast<void>(addresses_.find(box));
  parts_.emplace(joining, map, tensors, optimizer_);
  if (const Status possible = check_ports(joining, parts_->size(), ports_of(options_.port));
      !possible) {
    parts_.reset();
    return possible.error();
  }
  heap_ = SharedHeap::for_job(ports_of(options_.port), sync_, tensors_);
  const Status joined = drive_join();
  if (joined) return joined;
  drivers_.clear();  // they refer to the parts
  parts_.reset();
  return joined;
}

Status Client::drive_join() {
  for (size_t part = 0; part < parts_->size(); ++part) {
    drivers_.push_back(std::make_unique<PartDriver>(
        (*parts_)[part], addresses_, ports_of(options_.port), options_, keys_, heap_.get()));
    (*parts_)[part].begin(monotonic_ns());
    drivers_.back()->perform_actions();
  }
  const auto is_joining = [&] {
    for (size_t part = 0; part < parts_->size(); ++part) {
      if ((*parts_)[part].phase() == Membership::Phase::kJoining) return true;
    }
    return false;
  };
  while (is_joining() && !parts_->failure()) {
    await_control(drivers_, monotonic_ns() + kPollNs);
    for (const auto& driver : drivers_) driver->pump(monotonic_ns());
    if (leaving_) return left_during_join();
  }
  if (parts_->failure()) return *parts_->failure();
  return parts_->begin();
}

Result<uint32_t> Client::box_pipelines() {
  const std::lock_guard lock(mutex_);
  if (const Status status = check_phase(Phase::kNew); !status) return status.error();
  auto keys = keys_in(options_.keys);
  if (!keys) return keys.error();
  keys_ = std::move(*keys);
  MembershipOptions asking = options_;
  const auto map =
      ask_part_map(asking, tensors_, monotonic_ns() + options_.join_timeout_ms * kNanosPerMilli);
  if (!map) return map.error();
  // The boxes of a cluster cut the job into parts themselves.
  const bool is_single = map->boxes_size() == 0 && map->parts_size() == 1;
  return is_single ? std::clamp(map->pipelines(), 1u, limits::kPartsPerJobMax) : 1;
}

Status Client::join() {
  const std::unique_lock lock(mutex_);
  if (const Status status = check_phase(Phase::kNew); !status) return status.error();
  if (tensors_.empty() && !options_.collective) {
    return Error{ErrorCode::kInvalidArgument,
                 "no tensor is registered; call pbox_register_tensor before pbox_join"};
  }
  if (options_.optimize && optimizer_.kind() == 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "mode optimize needs an optimizer; call pbox_set_optimizer before pbox_join"};
  }
  if (const Status opened = open_wake(wake_); !opened) return opened;
  if (options_.collective) tensors_.clear();  // removes the slots of a join that has failed
  auto keys = keys_in(options_.keys);
  if (!keys) return keys.error();
  keys_ = std::move(*keys);
  // A copy, because the caller may join again after a failure, with the options as they were given.
  MembershipOptions joining = options_;
  joining.seed = std::random_device{}();
  joining.sync = sync_;
  joining.relaxed_model = relaxed_model(sync_, tensors_);
  // A rank cannot repeat the steps of other optimizers on its copy, so the box answers its reads.
  if (!repeats_steps(optimizer_, tensors_)) answer_cached_reads(joining.sync, tensors_);
  std::unique_ptr<ChosenTensors> chosen;
  if (ChosenTensors::any(tensors_)) {
    if (options_.optimize) return cannot_choose();
    chosen = std::make_unique<ChosenTensors>(tensors_);
  }
  const std::vector<TensorSpec>& tensors = chosen ? chosen->tensors() : tensors_;
  const auto map =
      ask_part_map(joining, tensors, monotonic_ns() + options_.join_timeout_ms * kNanosPerMilli);
  if (!map) return map.error();
  if (joining.parts > 1 && (map->boxes_size() > 0 || map->parts_size() > 1)) {
    return Error{ErrorCode::kMismatch,
                 "box " + joining.box + " has joined a cluster, which divides job '" +
                     options_.job + "' into parts anew; start all ranks again"};
  }
  if (options_.collective) {
    if (joining.chunk_bytes == 0) joining.chunk_bytes = map->chunk_bytes();
    tensors_ = Collectives::slots(options_.collective_bytes, joining.chunk_bytes);
  }
  if (Status joined = join_parts(joining, tensors, *map); !joined) return joined;
  job_tensors_.emplace(*parts_, std::move(chosen));

  session_ = parts_->session();
  PBOX_CHECK(tensor_states_.empty());
  if (options_.collective) {
    collectives_.emplace(
        Collectives::Options{.rank = options_.rank,
                             .world_size = options_.world_size,
                             .chunk_bytes = session_.chunk_bytes(),
                             .slots = static_cast<uint32_t>(tensors_.size()),
                             .sends_to_owner_alone = options_.recovery == Recovery::kNone});
  } else {
    tensor_states_.resize(tensors_.size());
  }
  for (uint32_t tensor = 0; tensor < tensor_states_.size(); ++tensor) {
    tensor_states_[tensor].round = job_tensors_->round(tensor);
  }
  absent_ranks_ = parts_->absent_ranks();
  verdict_ = parts_->verdict();
  address_watch_ = AddressWatch::open();
  return start_io();
}

// The I/O thread waits for mutex_, which the caller holds. If there can be no such thread, the join
// has failed.
Status Client::start_io() {
  auto thread = start_thread("exchange tensors", [this] { run_io(); });
  if (!thread) {
    tensor_states_.clear();
    collectives_.reset();
    job_tensors_.reset();
    drivers_.clear();
    parts_.reset();
    return thread.error();
  }
  thread_ = std::move(*thread);
  phase_ = Phase::kJoined;
  return ok_status();
}

Status Client::set_sync(const std::string& tensors, const wire::SyncSpec& sync) {
  std::unique_lock lock(mutex_);
  if (options_.collective) {
    return invalid("mode collective has no tensors: every operation waits for all ranks");
  }
  if (!tensors.empty() && !any_matches(tensors, tensors_)) {
    return invalid("no registered tensor matches '" + tensors +
                   "'; name a tensor, or write a pattern with * and ?");
  }
  if (phase_ == Phase::kNew) return register_sync(tensors, sync, sync_, tensors_);
  if (const Status status = check_phase(Phase::kJoined); !status) return status.error();
  proto::SetSync request;
  request.set_tensors(tensors);
  *request.mutable_sync() = wire::sync_message(sync);
  const uint64_t sequence = ++syncs_asked_;
  requests_.push_back([this, request] { parts_->ask_sync(request); });
  wake();
  const Status status = wait_until(lock, 0, [&] { return syncs_answered_ >= sequence; });
  if (failure_) return *failure_;
  if (!status) {
    return Error{
        ErrorCode::kTimeout,
        "box " + options_.box + " did not confirm sync " + wire::sync_text(sync) + ": " +
            (loss_ ? "it was lost (" + loss_->reason + "); reconnecting" : status.error().message)};
  }
  std::string refusal;
  const auto look = [&] { refusal = parts_->sync_refusal(sequence); };
  if (const Status looked = call_on_io(lock, look); !looked) return looked;
  if (refusal.empty()) return ok_status();
  return invalid(refusal);
}

}  // namespace pbox::worker
