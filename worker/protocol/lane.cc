#include "worker/protocol/lane.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace pbox::worker {
namespace {

// How often a lane asks for chunks that wait for other ranks, and for how many at a time.
constexpr uint64_t kPollFloorNs = 10'000'000;
constexpr uint64_t kPollCapNs = 100'000'000;
constexpr uint32_t kPollCountMin = 2;
constexpr uint32_t kPollCountMax = 64;

// Returns whether results show which packet they answer. In broadcast BSP a result that is sent
// again is marked, so the time to an unmarked one can be measured even if the worker has probed. In
// other jobs a probed chunk cannot be measured (Karn, Partridge 1987).
bool retransmissions_are_marked(const SessionSpec& session) {
  return !session.is_relaxed() && session.delivery == wire::Delivery::kBroadcast;
}

}  // namespace

Lane::Lane(ExchangeState& state, const SessionSpec::Pipeline& pipeline, uint32_t chunk_bytes)
    : state_(state),
      spi_(pipeline.spi),
      box_(pipeline.box),
      seal_(pipeline.seal),
      window_bytes_(std::min(pipeline.credit_bytes, state.session.window_bytes)),
      path_(pipeline.path != nullptr ? pipeline.path
                                     : std::make_shared<SendPath>(state.session.rto_floor_ns)) {
  PBOX_CHECK(seal_ != nullptr);
  path_->add_lane(chunk_bytes, state.session.fragment_bytes);
  if (seal_->encrypts()) room_.make();
  if (!state.stages.empty()) rows_room_.make();
}

ExchangeChunk& Lane::chunk(uint32_t id) const {
  PBOX_DCHECK(id < state_.chunks.size());
  return state_.chunks[id];
}

void Lane::leave_path() {
  path_->note_unqueued(queue_.size());
  path_->forget(state_);
}

void Lane::clear() {
  leave_path();
  queue_ = {};
  sending_.clear();
  to_probe_.clear();
  in_flight_.clear();
  waiting_.clear();
  poll_at_ns_ = UINT64_MAX;
  pushed_.clear();
  outstanding_bytes_ = 0;
  deadline_ns_ = UINT64_MAX;
  outgoing_begin_ = outgoing_end_ = 0;
}

void Lane::set_generation(uint16_t generation) {
  for (size_t index = outgoing_begin_; index < outgoing_end_; ++index) {
    outgoing_[index].header.generation = generation;
    seal(index, outgoing_payload_[index]);
  }
}

void Lane::note_packet(const wire::Header& header, uint64_t now_ns) {
  last_heard_ns_ = now_ns;
  const uint64_t credit = uint64_t{header.credit} * limits::kCreditUnitBytes;
  if (credit > 0) window_bytes_ = std::min<uint64_t>(credit, state_.session.window_bytes);
}

void Lane::measure(const ExchangeChunk& chunk, uint64_t now_ns) {
  PBOX_DCHECK(now_ns >= chunk.pushed_ns);
  if (chunk.is_measurable) rtt_.sample(now_ns - chunk.pushed_ns);
  // A slot's round without data shows nothing of the path's rate.
  if (chunk.wire_bytes == 0) return;
  path_->arrive(chunk, now_ns);
}

void Lane::end_flight(ExchangeChunk& chunk) {
  PBOX_DCHECK(chunk.in_flight);
  chunk.in_flight = false;
  leave_window(chunk);
  remove(chunk.waits_for_others ? waiting_ : in_flight_, chunk);
  chunk.waits_for_others = false;
  if (in_flight_.empty()) deadline_ns_ = UINT64_MAX;
  if (waiting_.empty()) poll_at_ns_ = UINT64_MAX;
  drop_unsent(state_.chunk_id(chunk));
  note_overtaken(chunk);
}

void Lane::add(std::vector<uint32_t>& list, ExchangeChunk& chunk) {
  chunk.flight_index = static_cast<uint32_t>(list.size());
  list.push_back(state_.chunk_id(chunk));
}

void Lane::remove(std::vector<uint32_t>& list, const ExchangeChunk& chunk) {
  PBOX_DCHECK(chunk.flight_index < list.size());
  PBOX_DCHECK(list[chunk.flight_index] == state_.chunk_id(chunk));
  list[chunk.flight_index] = list.back();
  this->chunk(list.back()).flight_index = chunk.flight_index;
  list.pop_back();
}

void Lane::wait_for_others(ExchangeChunk& chunk, uint64_t now_ns) {
  PBOX_DCHECK(chunk.in_flight);
  cancel_sending(chunk);
  leave_window(chunk);
  if (chunk.waits_for_others) return;
  path_->acknowledge(chunk);
  remove(in_flight_, chunk);
  add(waiting_, chunk);
  chunk.waits_for_others = true;
  if (waiting_.size() > 1) return;
  poll_count_ = kPollCountMin;
  poll_turn_ = 0;
  set_poll(kPollFloorNs, now_ns);
}

void Lane::end_wait(ExchangeChunk& chunk, bool found, uint64_t now_ns) {
  if (!chunk.waits_for_others) return;
  remove(waiting_, chunk);
  add(in_flight_, chunk);
  chunk.waits_for_others = false;
  poll_found_ = poll_found_ || found;
  if (waiting_.empty()) {
    poll_at_ns_ = UINT64_MAX;
  } else {  // other results are due too, or were lost
    const uint64_t at_ns = std::exchange(poll_at_ns_, UINT64_MAX);
    set_poll(kPollFloorNs, now_ns);
    poll_at_ns_ = std::min(poll_at_ns_, at_ns);
  }
}

void Lane::set_poll(uint64_t interval_ns, uint64_t now_ns) {
  const uint64_t timeout_ns = rtt_.timeout_ns(state_.session.rto_floor_ns);
  poll_interval_ns_ = std::clamp(interval_ns, std::min(timeout_ns, kPollCapNs), kPollCapNs);
  const uint64_t wait_ns = poll_interval_ns_;
  poll_at_ns_ = now_ns + wait_ns * 3 / 4 + state_.rng.below(wait_ns / 2 + 1);
}

// Asks for the oldest waiting chunk, and for others in turn.
bool Lane::poll(uint64_t now_ns) {
  if (poll_at_ns_ > now_ns) return false;
  PBOX_DCHECK(!waiting_.empty());
  poll_count_ = poll_found_ ? std::min(2 * poll_count_, kPollCountMax) : kPollCountMin;
  const auto oldest = std::min_element(
      waiting_.begin(), waiting_.end(),
      [this](uint32_t a, uint32_t b) { return chunk(a).push_sequence < chunk(b).push_sequence; });
  to_probe_.push_back(*oldest);
  const size_t others = std::min<size_t>(poll_count_ - 1, waiting_.size() - 1);
  for (size_t asked = 0; asked < others; ++poll_turn_) {
    const uint32_t id = waiting_[poll_turn_ % waiting_.size()];
    if (id == *oldest) continue;
    to_probe_.push_back(id);
    ++asked;
  }
  set_poll(poll_found_ ? kPollFloorNs : 2 * poll_interval_ns_, now_ns);
  poll_found_ = false;
  return true;
}

void Lane::leave_window(ExchangeChunk& chunk) {
  path_->leave(chunk);
  const uint64_t cost = window_cost(chunk.flight_bytes, chunk.flight_packets);
  PBOX_DCHECK(!chunk.in_window || outstanding_bytes_ >= cost);
  if (chunk.in_window) outstanding_bytes_ -= cost;
  chunk.in_window = false;
}

void Lane::arm(ExchangeChunk& chunk, uint64_t now_ns) {
  // The interval doubles per unanswered probe, up to 64 ms or the time-out itself. It varies by
  // +/-25 %, so that workers do not probe in step.
  constexpr uint64_t kBackOffCapNs = 64'000'000;
  PBOX_DCHECK(chunk.in_flight && !chunk.waits_for_others);
  const uint64_t base = rtt_.timeout_ns(state_.session.rto_floor_ns);
  uint64_t wait = base << std::min<uint32_t>(chunk.probes, 6);
  wait = std::min(wait, std::max(base, kBackOffCapNs));
  if (chunk.overtaken && chunk.probes <= 1) wait = usual_answer_ns();
  set_deadline(chunk, now_ns + wait * 3 / 4 + state_.rng.below(wait / 2 + 1));
}

void Lane::set_deadline(ExchangeChunk& chunk, uint64_t deadline_ns) {
  chunk.deadline_ns = deadline_ns;
  deadline_ns_ = std::min(deadline_ns_, deadline_ns);
}

// A lane on which other chunks are answered is slow rather than lossy: packets queue before the
// box. Its chunks get more time before the first probe, because the answer to a needless probe is a
// whole result.
bool Lane::is_still_expected(const ExchangeChunk& chunk, uint64_t now_ns,
                             uint64_t& until_ns) const {
  constexpr uint64_t kPatience = 4;
  if (chunk.probes > 0 || chunk.overtaken) return false;
  const uint64_t timeout_ns = rtt_.timeout_ns(state_.session.rto_floor_ns);
  until_ns = std::min(last_heard_ns_ + timeout_ns, chunk.pushed_ns + kPatience * timeout_ns);
  return until_ns > now_ns;
}

// All ranks push in one order, so results arrive roughly in that order. Urgent chunks are the
// exception: they overtake others on every rank and on the box. A chunk that later chunks of no
// higher priority have overtaken misses something: a push of this rank or of another one, or a part
// of the result. It is probed as soon as it is later than usual, which costs a small packet.
// Waiting for the time-out would block the window (RFC 9002, 6.1: packet and time threshold; RFC
// 5827: fewer overtakers suffice if nothing follows). A chunk that was probed no longer measures
// the path, so one rank's losses do not stretch the time-outs of all.
void Lane::note_overtaken(const ExchangeChunk& done) {
  path_->overtake(done);
  const bool is_last = queue_.empty() && sending_.empty();
  const uint64_t overtakers = is_last ? 1 : 3;
  size_t kept = 0, seen = 0;
  for (; seen < pushed_.size(); ++seen) {
    const auto [id, sequence] = pushed_[seen];
    PBOX_DCHECK(sequence <= newest_sequence_);
    if (sequence >= done.push_sequence) break;
    ExchangeChunk& other = chunk(id);
    if (!other.in_flight || other.push_sequence != sequence) continue;
    if (other.probes > 0) continue;
    if (other.to_send != 0 || sequence + overtakers > done.push_sequence ||
        state_.priority(other) < state_.priority(done)) {
      pushed_[kept++] = pushed_[seen];
      continue;
    }
    other.overtaken = true;
    set_deadline(other, std::min(other.deadline_ns, other.pushed_ns + usual_answer_ns()));
  }
  PBOX_DCHECK(kept <= seen);
  const auto begin = pushed_.begin();
  pushed_.erase(begin + static_cast<ptrdiff_t>(kept), begin + static_cast<ptrdiff_t>(seen));
}

uint64_t Lane::deadline_ns() const {
  // Packets that the port has refused wait for the port, and all others wait behind them.
  const bool waits = !has_unsent() && (!sending_.empty() || !queue_.empty());
  return std::min({deadline_ns_, poll_at_ns_, waits ? paced_until_ns_ : UINT64_MAX});
}

bool Lane::probe_overdue(uint64_t now_ns, bool receiving) {
  constexpr uint64_t kPollAgainNs = 100'000;
  bool probes = poll(now_ns);
  if (deadline_ns_ > now_ns) return probes;
  deadline_ns_ = UINT64_MAX;
  for (const uint32_t id : in_flight_) {
    ExchangeChunk& chunk = this->chunk(id);
    PBOX_DCHECK(chunk.in_flight);
    if (chunk.to_send != 0) continue;  // its timer starts when the last fragment has left
    uint64_t deadline_ns = chunk.deadline_ns;
    if (deadline_ns > now_ns || is_still_expected(chunk, now_ns, deadline_ns)) {
      set_deadline(chunk, deadline_ns);
      continue;
    }
    if (receiving && !chunk.overtaken) {
      set_deadline(chunk, now_ns + kPollAgainNs);
      continue;
    }
    chunk.is_measurable = chunk.is_measurable && retransmissions_are_marked(state_.session);
    ++chunk.probes;
    probes = true;
    pull(chunk, now_ns);
  }
  return probes;
}

void Lane::prove_address(ExchangeChunk& chunk, const wire::Challenge& challenge, uint64_t now_ns) {
  PBOX_DCHECK(chunk.in_flight);
  challenge_ = challenge;
  chunk.is_measurable = false;
  pull(chunk, now_ns);
}

void Lane::pull(ExchangeChunk& chunk, uint64_t now_ns) {
  to_probe_.push_back(state_.chunk_id(chunk));
  if (!chunk.waits_for_others) arm(chunk, now_ns);
}

}  // namespace pbox::worker
