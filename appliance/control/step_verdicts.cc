#include "appliance/control/step_verdicts.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "nic/wire/control_versions.h"

namespace pbox::control {
namespace {

using Severity = RegistryEvent::Severity;

// A report that another box has taken is repeated after this time, since that box may be lost.
constexpr uint64_t kAskAgainNs = 1'000'000'000;

// Returns the report of the part; nullopt unless all of its shards have reported the same round.
std::optional<pipeline::StepReport> report_of(const Job& job) {
  std::optional<pipeline::StepReport> report;
  for (const auto& shard : job.shards().all()) {
    if (shard->chunk_count() == 0) continue;
    PBOX_CHECK(shard->gate != nullptr);
    const auto of_shard = shard->gate->reported();
    if (!of_shard || (report && of_shard->round != report->round)) return std::nullopt;
    if (!report) report = pipeline::StepReport{of_shard->round, 0};
    report->squares += of_shard->squares;
  }
  return report;
}

// Returns whether the rank takes part, or may still consume results because it is not known to be
// gone.
bool is_waited_for(const Member& member) {
  return member.state == Member::State::kJoined || member.state == Member::State::kLost;
}

// Returns the loss scale of the lowest rank that states one, with its age; a scale of 1 if none
// does.
std::pair<float, uint64_t> scale_of(const Job& job) {
  for (const Member& member : job.members()) {
    PBOX_CHECK(!is_waited_for(member) || member.verdict);  // the round would be stepped too early
    if (is_waited_for(member) && member.verdict->loss_scale > 0) {
      return {member.verdict->loss_scale, member.verdict->scale_age};
    }
  }
  return {1.0f, 0};
}

std::optional<uint32_t> rank_with_other_scale(const Job& job, float loss_scale) {
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    const Member& member = job.members()[rank];
    if (!is_waited_for(member) || member.verdict->loss_scale == 0) continue;
    if (member.verdict->loss_scale != loss_scale) return rank;
  }
  return std::nullopt;
}

}  // namespace

void StepVerdicts::on_started(Job& job) {
  if (!job.spec().needs_verdicts()) return;
  progress_[key_of(job.spec())] = {};
  std::optional<StepVerdict> newest;
  for (const Member& member : job.members()) {
    if (!member.verdict) continue;
    if (!newest || member.verdict->is_newer_than(*newest)) newest = member.verdict;
  }
  if (newest) learn(job, *newest);
}

void StepVerdicts::on_rank_back(Job& job, uint32_t rank) {
  const auto found = progress_.find(key_of(job.spec()));
  if (found == progress_.end()) return;
  if (found->second.verdict) tell(job, rank);
  if (job.members()[rank].verdict) learn(job, *job.members()[rank].verdict);
}

void StepVerdicts::on_held(ConnectionId id, const Connection& connection,
                           const proto::StepVerdict& message) {
  const StepVerdict verdict = from_message(message);
  Job& job = *connection.job;
  if (!job.spec().needs_verdicts()) return;
  if (!std::isfinite(verdict.loss_scale) || verdict.loss_scale < 0) {
    return context_.connections.refuse(
        id, {ErrorCode::kInvalidArgument, "loss_scale must be finite and >= 0"});
  }
  Member& member = job.members()[connection.rank];
  if (!member.verdict || !member.verdict->is_newer_than(verdict)) member.verdict = verdict;
  if (!job.running()) return;  // counts when the part opens
  const JobKey part = key_of(job.spec());
  learn(job, verdict);
  if (context_.jobs.contains(part)) give_if_held_by_all(job);
}

void StepVerdicts::look_for_report(Job& job) {
  const auto found = progress_.find(key_of(job.spec()));
  if (found == progress_.end() || !job.running()) return;
  Progress& progress = found->second;
  const auto report = report_of(job);
  if (!report || (progress.report && progress.report->round == report->round)) return;
  progress.report = report;
  if (lacks_verdict(progress)) submit(job);
}

void StepVerdicts::on_tick(Job& job) {
  const JobKey part = key_of(job.spec());
  look_for_report(job);
  const auto found = progress_.find(part);
  if (found == progress_.end() || !context_.jobs.contains(part)) return;
  if (lacks_verdict(found->second) && context_.now_ns >= found->second.ask_again_ns) submit(job);
  if (context_.jobs.contains(part)) give_if_held_by_all(job);
}

bool StepVerdicts::lacks_verdict(const Progress& progress) const {
  return progress.report &&
         !(progress.verdict && progress.verdict->round == progress.report->round);
}

// Reports to the deciding part, which may be here or on another box. If it runs nowhere at the
// moment, the next tick tries again.
void StepVerdicts::submit(Job& job) {
  Progress& progress = progress_[key_of(job.spec())];
  PBOX_CHECK(progress.report.has_value());
  const JobKey deciding_part{job.spec().name, job.spec().deciding_part()};
  Job* deciding = context_.jobs.find(deciding_part);
  if (deciding == nullptr || !deciding->running()) return ask_other_box(job);
  progress.promised_epoch = std::max(progress.promised_epoch, deciding->epoch());
  take_report(*deciding, job.spec().part, *progress.report);
}

void StepVerdicts::ask_other_box(const Job& job) {
  const JobSpec& spec = job.spec();
  Progress& progress = progress_[key_of(spec)];
  if (progress.is_asking) return;
  const auto place = parts_.other_owner(spec.name, spec.deciding_part(), spec.parts);
  if (!place || !*place) return;
  proto::WorkerMessage message;
  proto::AskStep& question = *message.mutable_ask_step();
  question.set_job(spec.name);
  question.set_deciding_part(spec.deciding_part());
  question.set_part(spec.part);
  question.set_epoch(progress.promised_epoch);
  question.set_round(progress.report->round);
  question.set_squares(progress.report->squares);
  wire::state_versions(message);
  progress.is_asking = true;
  parts_.ask_box((*place)->box(), message,
                 [this, alive = std::weak_ptr(context_.alive), part = key_of(spec),
                  epoch = job.epoch()](const Result<proto::BoxMessage>& answer) {
                   if (alive.expired()) return;
                   const Job* asking = context_.jobs.find(part);
                   if (asking != nullptr && asking->epoch() == epoch) on_answer(part, answer);
                 });
}

// The report counts only in the epoch that it names, so the first answer after a change of the
// deciding part's owner only brings the new epoch, and the report is then sent again with it.
void StepVerdicts::on_answer(const JobKey& part, const Result<proto::BoxMessage>& answer) {
  const auto found = progress_.find(part);
  if (found == progress_.end()) return;
  Progress& progress = found->second;
  progress.is_asking = false;
  if (!answer || !answer->has_step_taken()) return;
  progress.ask_again_ns = context_.now_ns + kAskAgainNs;
  const uint32_t epoch = answer->step_taken().epoch();
  if (epoch <= progress.promised_epoch || !lacks_verdict(progress)) return;
  progress.promised_epoch = epoch;
  ask_other_box(*context_.jobs.find(part));
}

void StepVerdicts::on_report(ConnectionId id, const proto::AskStep& question) {
  Job* deciding = context_.jobs.find({question.job(), question.deciding_part()});
  if (deciding == nullptr || !deciding->running() || !deciding->spec().needs_verdicts()) {
    return context_.connections.refuse(
        id, {ErrorCode::kUnavailable,
             "part " + std::to_string(question.deciding_part()) +
                 " of the job, which decides on its rounds, does not run on box '" +
                 context_.options.box_name + "'"});
  }
  proto::BoxMessage answer;
  answer.mutable_step_taken()->set_epoch(deciding->epoch());
  context_.connections.send(id, std::move(answer));
  if (question.epoch() == deciding->epoch()) {
    take_report(*deciding, question.part(), {question.round(), question.squares()});
  }
}

// Decides once every part has reported the round. The sum does not depend on the order of reports.
void StepVerdicts::take_report(Job& deciding, uint32_t part, const pipeline::StepReport& report) {
  const JobSpec& spec = deciding.spec();
  PBOX_CHECK(deciding.running() && spec.part == spec.deciding_part());
  const auto& filled = spec.filled_parts;
  if (std::find(filled.begin(), filled.end(), part) == filled.end()) return;
  Progress& progress = progress_[key_of(spec)];
  progress.reports[part] = report;
  if (!lacks_verdict(progress)) return;
  double squares = 0;
  for (const uint32_t each : filled) {
    const auto found = progress.reports.find(each);
    if (found == progress.reports.end() || found->second.round != progress.report->round) return;
    squares += found->second.squares;
  }
  const bool is_skip = spec.may_skip() && !std::isfinite(squares);
  adopt(deciding, {.round = progress.report->round,
                   .epoch = deciding.epoch(),
                   .norm = std::sqrt(squares),
                   .is_skip = is_skip});
  if (!is_skip) return;
  context_.note(Severity::kInfo, "step_skipped",
                "job '" + spec.name + "': round " + std::to_string(progress.report->round) +
                    " is skipped, because its gradient holds " + spec.unsound_value(),
                spec.name);
}

// Takes a verdict that a rank brings along. The deciding part gives it its own epoch, because other
// parts may have promised to accept no verdict of an earlier one.
void StepVerdicts::learn(Job& job, StepVerdict verdict) {
  const auto found = progress_.find(key_of(job.spec()));
  if (found == progress_.end()) return;
  const Progress& progress = found->second;
  const bool decides = job.spec().part == job.spec().deciding_part();
  const auto& own = progress.verdict;
  if (own && !verdict.is_newer_than(*own)) return;
  if (own && own->round == verdict.round && (decides || progress.is_given)) return;
  if (!decides && verdict.epoch < progress.promised_epoch) return;
  if (decides) verdict.epoch = job.epoch();
  adopt(job, verdict);
}

void StepVerdicts::adopt(Job& job, const StepVerdict& verdict) {
  PBOX_CHECK(job.running() && job.spec().needs_verdicts());
  Progress& progress = progress_[key_of(job.spec())];
  progress.verdict = verdict;
  progress.verdict->loss_scale = 0;  // known once the ranks hold it
  progress.is_given = false;
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    const Member& member = job.members()[rank];
    if (!member.verdict || !member.verdict->is_same(verdict)) tell(job, rank);
  }
  give_if_held_by_all(job);
}

void StepVerdicts::tell(const Job& job, uint32_t rank) {
  const Member& member = job.members()[rank];
  if (member.state != Member::State::kJoined) return;
  const Progress& progress = progress_[key_of(job.spec())];
  proto::BoxMessage message;
  *message.mutable_step_verdict() = to_message(*progress.verdict);
  context_.connections.send(member.connection, std::move(message));
}

void StepVerdicts::give_if_held_by_all(Job& job) {
  const auto found = progress_.find(key_of(job.spec()));
  if (found == progress_.end() || !job.running()) return;
  Progress& progress = found->second;
  if (!progress.verdict || progress.is_given) return;
  if (job.members().count(Member::State::kJoined) == 0) return;
  for (const Member& member : job.members()) {
    const bool holds = member.verdict && member.verdict->is_same(*progress.verdict);
    if (is_waited_for(member) && !holds) return;
  }
  const auto [loss_scale, age] = scale_of(job);
  if (const auto rank = rank_with_other_scale(job, loss_scale)) {
    return owner_.fail(
        job, {ErrorCode::kMismatch,
              job.spec().title() + ": rank " + std::to_string(*rank) + " has the loss scale " +
                  std::to_string(job.members()[*rank].verdict->loss_scale) + " in round " +
                  std::to_string(progress.verdict->round) + ", others have " +
                  std::to_string(loss_scale) + "; set the same one on all ranks"});
  }
  progress.verdict->loss_scale = loss_scale;
  progress.verdict->scale_age = age;
  give(job, loss_scale);
  progress.is_given = true;
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    if (job.members()[rank].verdict && job.members()[rank].verdict->loss_scale == 0)
      tell(job, rank);
  }
}

void StepVerdicts::give(Job& job, float loss_scale) {
  const StepVerdict& verdict = *progress_[key_of(job.spec())].verdict;
  const JobShards& shards = job.shards();
  for (size_t index = 0; index < shards.all().size(); ++index) {
    pipeline::JobShard& shard = *shards.all()[index];
    if (shard.chunk_count() == 0) continue;
    PBOX_CHECK(shard.gate != nullptr && loss_scale > 0);
    host_.execute(
        shards.pipelines()[index],
        {.kind = pipeline::CommandKind::kGiveVerdict,
         .shard = &shard,
         .verdict = {.round = verdict.round,
                     .factor = step_factor(verdict.norm, loss_scale, job.spec().max_grad_norm),
                     .is_skip = verdict.is_skip}});
  }
}

}  // namespace pbox::control
