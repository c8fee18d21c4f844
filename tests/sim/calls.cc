#include "tests/sim/calls.h"

#include <algorithm>

#include "tests/sim/violation.h"
#include "worker/collective/call_text.h"

namespace pbox::sim {
namespace {

using wire::Verb;

constexpr uint32_t kPendingMax = 8;
constexpr std::byte kUntouched{0xa5};

}  // namespace

Calls::Calls(JobModel& job, uint32_t rank, uint64_t seed)
    : job_(job),
      rank_(rank),
      rng_(seed),
      collectives_({.rank = rank,
                    .world_size = job.options.workers,
                    .chunk_bytes = job.options.chunk_bytes,
                    .slots = static_cast<uint32_t>(job.options.tensors.size()),
                    .sends_to_owner_alone = job.options.recovery == control::Recovery::kNone}),
      calls_(job.options.calls_of(rank).size()),
      pending_max_(rng_.below(2) == 0 ? 1 : 2 + static_cast<uint32_t>(rng_.below(kPendingMax))) {}

void Calls::resume(const worker::Exchange& /*exchange*/, uint64_t /*now_ns*/) {
  require(false, [&] { return job_.title + ": a new process has joined a job of collectives"; });
}

std::string Calls::where(uint32_t number) const {
  const CallOptions& call = job_.options.calls_of(rank_)[number];
  return job_.title + " rank " + std::to_string(rank_) + ", " +
         worker::to_text({.number = number,
                          .verb = call.verb,
                          .combine = call.combine,
                          .dtype = call.dtype,
                          .count = call.count,
                          .root = call.root});
}

uint64_t Calls::start_due(worker::Membership& membership, uint64_t now_ns, uint64_t rack_now_ns) {
  while (next_ < calls_.size() && pending_ < pending_max_ && ready_ns_ <= now_ns) {
    start(next_++, rack_now_ns);
    if (rng_.below(2) == 0) {
      ready_ns_ = now_ns + think_ns(job_.options, rank_, next_, rng_);
    }
  }
  std::vector<worker::Operation> ready;
  collectives_.take_ready(ready);
  for (const worker::Operation& operation : ready) membership.start(operation);
  return next_ < calls_.size() && pending_ < pending_max_ ? ready_ns_ : UINT64_MAX;
}

// Starts a call. In place, input and output share one buffer: one of them is the rank's own segment
// of the other, or both are the whole buffer.
void Calls::start(uint32_t number, uint64_t rack_now_ns) {
  const CallOptions& options = job_.options.calls_of(rank_)[number];
  Call& call = calls_[number];
  call.input = call.expected_input = job_.collectives->input(rank_, number);
  call.expected_output = job_.collectives->output(rank_, number);
  call.output.assign(call.expected_output.size(), kUntouched);
  const std::byte* input = call.input.data();
  std::byte* output = call.output.data();
  const size_t own_segment = rank_ * size_t{options.count} * wire::dtype_bytes(options.dtype);
  if (job_.options.in_place && options.count > 0) {
    if (options.verb == Verb::kAllReduce) {
      input = output;
      std::copy(call.input.begin(), call.input.end(), call.output.begin());
    } else if (options.verb == Verb::kAllGather) {
      input = output + own_segment;
      std::copy(call.input.begin(), call.input.end(),
                call.output.begin() + static_cast<ptrdiff_t>(own_segment));
    } else if (options.verb == Verb::kReduceScatter) {
      output = call.input.data() + own_segment;
      std::copy(call.expected_output.begin(), call.expected_output.end(),
                call.expected_input.begin() + static_cast<ptrdiff_t>(own_segment));
      call.output = call.expected_output = {};
    }
  } else if (options.verb == Verb::kBroadcast && options.root == rank_) {
    call.output.assign(call.input.size(), kUntouched);
    call.expected_output = call.input;
    output = call.output.data();
  }
  call.is_pending = true;
  call.started_ns = rack_now_ns;
  ++pending_;
  const auto started = collectives_.start({.call = {.verb = options.verb,
                                                    .combine = options.combine,
                                                    .dtype = options.dtype,
                                                    .count = options.count,
                                                    .root = options.root},
                                           .input = input,
                                           .output = output,
                                           .priority = static_cast<int32_t>(rng_.below(4))});
  require(started.ok() && *started == number, [&] { return where(number) + " does not start"; });
}

void Calls::check(uint32_t number) const {
  const Call& call = calls_[number];
  require(call.input == call.expected_input, [&] {
    return where(number) + ": the input buffer was written to, or lacks the result in place";
  });
  if (call.output == call.expected_output) return;
  for (size_t byte = 0; byte < call.output.size(); ++byte) {
    require(call.output[byte] == call.expected_output[byte], [&] {
      return where(number) + ": the result differs from the oracle's in byte " +
             std::to_string(byte) + " of " + std::to_string(call.output.size());
    });
  }
}

void Calls::completed(uint32_t slot, const worker::Exchange& /*exchange*/, uint64_t now_ns) {
  const auto ended = collectives_.complete(slot);
  if (!ended) return;
  const auto number = static_cast<uint32_t>(ended->operation);
  Call& call = calls_[number];
  require(call.is_pending, [&] { return where(number) + " completed twice"; });
  require(job_.collectives->is_agreed(rank_, number),
          [&] { return where(number) + " has a result, although the ranks disagree about it"; });
  if (is_checked()) check(number);
  call.is_pending = false;
  call.is_over = true;
  --pending_;
  ++rounds_completed_;
  ready_ns_ = std::max(ready_ns_, now_ns + think_ns(job_.options, rank_, number, rng_));
  if (!done() || !is_checked()) return;
  for (uint32_t other = 0; other < calls_.size(); ++other) check(other);
}

uint64_t Calls::oldest_start_ns() const {
  uint64_t oldest_ns = UINT64_MAX;
  for (const Call& call : calls_) {
    if (call.is_pending) oldest_ns = std::min(oldest_ns, call.started_ns);
  }
  return oldest_ns;
}

std::string Calls::waiting_for() const {
  std::string text;
  for (uint32_t number = 0; number < calls_.size(); ++number) {
    if (calls_[number].is_pending) text.append(" ").append(where(number)).append(";");
  }
  return text.append(" calls not yet made: ").append(std::to_string(calls_.size() - next_));
}

}  // namespace pbox::sim
