#include "appliance/control/snapshot_run.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "nic/wire/header.h"

namespace pbox::control {
namespace {

using proto::CutProgress;

// Rounds that a cut lies ahead of the furthest chunk, after `missed` cuts in a row that came too
// late. The first cut is at the furthest chunk: a job at rest has already reached it. A running job
// may have passed it before all boxes have heard of it, so each further cut lies further ahead.
constexpr uint32_t kMissedMax = 8;
constexpr uint32_t margin(uint32_t missed) {
  return missed == 0 ? 0 : 1u << (missed - 1);
}

// If no chunk has reached the cut after this time, the job may have come to rest before the cut.
constexpr uint64_t kPatienceNs = kNanosPerSecond;

}  // namespace

SnapshotRun::SnapshotRun(snapshot::SnapshotStore& store, Ask ask, AskPartMap ask_part_map,
                         Clock clock, std::function<void()> on_end, std::string job,
                         uint64_t deadline_ns)
    : store_(store),
      ask_(std::move(ask)),
      ask_part_map_(std::move(ask_part_map)),
      clock_(std::move(clock)),
      on_end_(std::move(on_end)),
      job_(std::move(job)),
      deadline_ns_(deadline_ns) {
  PBOX_CHECK(ask_ != nullptr && ask_part_map_ != nullptr);
  PBOX_CHECK(clock_ != nullptr && on_end_ != nullptr);
}

void SnapshotRun::begin(const std::string& own_name, std::vector<uint64_t> ranks,
                        const Claim& claim, std::string tenant) {
  PBOX_CHECK(state_ == State::kStarting && number_ == 0);
  own_name_ = own_name;
  ranks_ = std::move(ranks);
  tenant_ = std::move(tenant);
  if (claim == nullptr) return reserve_number();
  claim([weak = weak_from_this()](const Status& claimed) {
    const auto self = weak.lock();
    if (!self || self->is_over()) return;
    if (!claimed) return self->fail(claimed.error().message);
    self->reserve_number();
  });
}

void SnapshotRun::reserve_number() {
  store_.begin(job_, [weak = weak_from_this()](const Result<uint64_t>& number) {
    if (const auto self = weak.lock()) self->on_number(number);
  });
}

void SnapshotRun::on_number(const Result<uint64_t>& number) {
  if (is_over()) {
    if (number) store_.discard(job_, *number);
    return;
  }
  if (!number) return fail(number.error().message);
  number_ = *number;
  ask_places();
}

void SnapshotRun::ask_places() {
  state_ = State::kPlacing;
  ask_part_map_([weak = weak_from_this()](const Result<proto::PartMap>& map) {
    if (const auto self = weak.lock()) self->on_places(map);
  });
}

void SnapshotRun::on_places(const Result<proto::PartMap>& map) {
  if (state_ != State::kPlacing) return;
  if (!map) return fail("the part map is not available: " + map.error().message);
  parts_.clear();
  for (const proto::PartPlace& place : map->parts()) {
    const bool is_here = place.address().empty();
    parts_.push_back({.ask_name = is_here ? "" : place.box(),
                      .box = is_here ? own_name_ : place.box(),
                      .progress = {},
                      .refusal = {}});
  }
  enter(State::kProbing);
  if (attempt_ == 0) ask_all();  // otherwise asked at the next tick
}

void SnapshotRun::enter(State state) {
  state_ = state;
  for (Part& part : parts_) {
    part.progress = {};
    part.is_asked = part.has_answered = false;
  }
}

void SnapshotRun::on_tick(uint64_t now_ns) {
  if (is_over()) return;
  if (now_ns >= deadline_ns_ && state_ != State::kFinishing) {
    const auto slow = std::find_if(parts_.begin(), parts_.end(), [this](const Part& part) {
      return state_ == State::kProbing ? !part.has_answered
                                       : part.progress.state() != CutProgress::WRITTEN;
    });
    std::string why = "the snapshot was not finished in time";
    if (slow != parts_.end() && !slow->has_answered && !slow->refusal.empty()) {
      why += ": box " + slow->box + ": " + slow->refusal;
    } else if (slow != parts_.end()) {
      why += ": box " + slow->box + " has " + std::to_string(slow->progress.chunks_copied()) +
             " of " + std::to_string(slow->progress.chunks()) +
             " chunks at the cut; do its ranks still train? See `pboxctl stragglers`";
    }
    return fail(why);
  }
  if (is_stalled(now_ns)) {
    missed_ = 0;
    start_next_attempt();
  }
  ask_all();
}

bool SnapshotRun::is_stalled(uint64_t now_ns) {
  if (state_ != State::kCutting) return false;
  if (cutting_from_ns_ == 0) cutting_from_ns_ = now_ns;
  if (now_ns - cutting_from_ns_ < kPatienceNs) return false;
  return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) {
    return part.has_answered && part.progress.state() == CutProgress::CUTTING &&
           part.progress.chunks_copied() == 0;
  });
}

void SnapshotRun::start_next_attempt() {
  ++attempt_;
  enter(State::kProbing);
}

void SnapshotRun::ask_all() {
  if (state_ != State::kProbing && state_ != State::kCutting) return;
  const auto [state, attempt] = std::pair(state_, attempt_);
  for (uint32_t part = 0; part < parts_.size(); ++part) {
    // An answer arrived during the call and changed the state.
    if (state_ != state || attempt_ != attempt) return;
    const bool is_written = parts_[part].progress.state() == CutProgress::WRITTEN;
    if (!parts_[part].is_asked && !is_written) ask(part);
  }
}

void SnapshotRun::ask(uint32_t part) {
  PBOX_CHECK(part < parts_.size() && number_ != 0);
  proto::AskCut question;
  question.set_job(job_);
  question.set_part(part);
  if (state_ == State::kCutting) {
    question.set_snapshot(number_);
    question.set_round(round_);
  }
  PBOX_DCHECK(!parts_[part].is_asked);
  parts_[part].is_asked = true;
  ask_(parts_[part].ask_name, question,
       [weak = weak_from_this(), part, attempt = attempt_, state = state_](const auto& answer) {
         if (const auto self = weak.lock()) self->on_answer(part, attempt, state, answer);
       });
}

void SnapshotRun::on_answer(uint32_t part, uint32_t attempt, State state,
                            const Result<CutProgress>& answer) {
  if (state_ != state || attempt_ != attempt) return;
  PBOX_CHECK(part < parts_.size());
  Part& from = parts_[part];
  from.is_asked = false;
  if (!answer) {
    from.refusal = answer.error().message;
    if (answer.error().code == ErrorCode::kUnavailable) return;  // asked again at the next tick
    // The part is moving: its new owner has not opened it yet, or the part map was out of date.
    const bool moves = answer.error().code == ErrorCode::kNotFound && round_ == 0;
    if (!moves) return fail("box " + from.box + ": " + from.refusal);
    ++attempt_;
    return ask_places();
  }
  from.progress = *answer;
  from.has_answered = true;
  if (from.progress.state() == CutProgress::FAILED) {
    return fail("box " + from.box + ": " + from.progress.message());
  }
  if (state_ == State::kProbing) {
    on_probed();
  } else {
    on_progress();
  }
}

void SnapshotRun::on_probed() {
  const bool all =
      std::all_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.has_answered; });
  if (!all) return;
  PBOX_CHECK(!parts_.empty());
  round_ = parts_[0].progress.newest_round();
  for (const Part& part : parts_) {
    const uint32_t newest = part.progress.newest_round();
    if (newest == 0) return fail("the job has no weights yet; try again after its first step");
    if (wire::round_distance(newest, round_) > 0) round_ = newest;
  }
  round_ += margin(missed_);
  cutting_from_ns_ = 0;
  enter(State::kCutting);
  ask_all();
}

void SnapshotRun::on_progress() {
  const auto is = [](CutProgress::State state) {
    return [state](const Part& part) { return part.progress.state() == state; };
  };
  if (std::any_of(parts_.begin(), parts_.end(), is(CutProgress::MISSED))) {
    if (++missed_ == kMissedMax) {
      return fail("the job passed every cut before all boxes had heard of it");
    }
    return start_next_attempt();  // starts at the next tick
  }
  if (std::all_of(parts_.begin(), parts_.end(), is(CutProgress::WRITTEN))) finish();
}

void SnapshotRun::finish() {
  PBOX_CHECK(state_ == State::kCutting && !parts_.empty() && number_ != 0);
  state_ = State::kFinishing;
  steps_ = parts_[0].progress.steps_before() + round_ - 1;
  snapshot::Manifest manifest{.job = job_,
                              .number = number_,
                              .steps = steps_,
                              .tenant = tenant_,
                              .taken_at = clock_(),
                              .ranks = ranks_,
                              .parts = {}};
  for (const Part& part : parts_) {
    manifest.parts.push_back({.box = part.box,
                              .name = part.progress.file(),
                              .bytes = part.progress.bytes(),
                              .crc32c = part.progress.crc32c()});
  }
  store_.finish(std::move(manifest), [weak = weak_from_this()](const Status& finished) {
    const auto self = weak.lock();
    if (!self || self->is_over()) return;
    if (!finished) return self->fail(finished.error().message);
    self->end(State::kDone);
  });
}

void SnapshotRun::fail(const std::string& why) {
  error_ = why;
  // Otherwise a full disk would stay full. Only this box could have completed the snapshot, so the
  // parts that other boxes still write are of no use.
  if (number_ != 0) store_.discard(job_, number_);
  end(State::kFailed);
}

void SnapshotRun::end(State state) {
  PBOX_CHECK(!is_over());
  release_cuts();
  state_ = state;
  on_end_();
}

// A box that does not get this message drops the cut by itself when it has not been asked about it
// for a while.
void SnapshotRun::release_cuts() {
  if (number_ == 0) return;
  for (uint32_t part = 0; part < parts_.size(); ++part) {
    proto::AskCut question;
    question.set_job(job_);
    question.set_part(part);
    question.set_snapshot(number_);
    question.set_over(true);
    ask_(parts_[part].ask_name, question, [](const auto&) {});
  }
}

SnapshotView SnapshotRun::view() const {
  constexpr const char* kNames[] = {"starting", "starting", "starting", "cutting",
                                    "writing",  "done",     "failed"};
  SnapshotView view{.job = job_,
                    .state = kNames[static_cast<size_t>(state_)],
                    .number = number_,
                    .steps = steps_,
                    .attempts = attempt_ + 1,
                    .parts = static_cast<uint32_t>(parts_.size()),
                    .error = error_};
  bool all_copied = !parts_.empty();
  for (const Part& part : parts_) {
    view.chunks += part.progress.chunks();
    view.chunks_copied += part.progress.chunks_copied();
    view.bytes += part.progress.bytes();
    const bool is_written = part.progress.state() == CutProgress::WRITTEN;
    view.parts_written += is_written ? 1 : 0;
    all_copied = all_copied && (is_written || part.progress.state() == CutProgress::WRITING);
  }
  if (state_ == State::kCutting && all_copied) view.state = "writing";
  return view;
}

}  // namespace pbox::control
