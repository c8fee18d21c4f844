#include "appliance/cluster/part_maps.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "appliance/cluster/ask_box.h"

namespace pbox::cluster {
namespace {

constexpr char kJobs[] = "jobs/";
constexpr char kDrains[] = "drains/";
constexpr std::chrono::milliseconds kTick{250};
// A box that starts again registers within this; one that does not loses its parts.
constexpr uint32_t kAbsentTicks = 8;
constexpr std::chrono::milliseconds kProbeTimeout{1'000};
constexpr std::chrono::milliseconds kAnswerTimeout{2'000};
// A worker that could not reach a box for so long is not waited for, whoever else can.
constexpr uint32_t kUnreachableMs = 1'500;
// Nor does such a box get parts of the job again before.
constexpr uint64_t kAvoidS = 600;

Error unknown(const std::string& what) {
  return {ErrorCode::kUnavailable, what + "; it is asked for again"};
}

}  // namespace

uint64_t unix_seconds() {
  return static_cast<uint64_t>(std::time(nullptr));
}

PartMaps::PartMaps(boost::asio::io_context& context, Store& store, Options options)
    : context_(context),
      store_(store),
      options_(std::move(options)),
      timer_(context),
      plan_entries_(context, store, kJobs, [this] { on_plans(); }),
      drains_(context, store, kDrains, [] {}) {
  tick();
}

PartMaps::~PartMaps() {
  *alive_ = false;
}

void PartMaps::on_plans() {
  plans_.clear();
  for (const auto& [key, entry] : plan_entries_.entries()) {
    if (auto plan = part_map_from_text(entry.value)) plans_[key.substr(sizeof(kJobs) - 1)] = *plan;
  }
  options_.on_change();
}

const PartMap* PartMaps::find(const std::string& job) const {
  const auto found = plans_.find(job);
  return found == plans_.end() ? nullptr : &found->second;
}

std::string PartMaps::address_of(const std::string& name) const {
  for (const BoxRecord& box : options_.membership().boxes()) {
    if (box.name == name) return box.control;
  }
  return {};
}

Result<std::optional<proto::PartPlace>> PartMaps::elsewhere(const std::string& job, uint32_t part,
                                                            uint32_t parts) const {
  if (!plan_entries_.loaded()) {
    return unknown(
        "the cluster store has not answered yet, so nobody knows here which box has "
        "part " +
        std::to_string(part) + " of job '" + job + "'");
  }
  const PartMap* plan = find(job);
  if (plan == nullptr) return unknown("no plan of job '" + job + "' has been heard of here yet");
  if (plan->boxes.size() != parts) {
    return Error{ErrorCode::kMismatch, "job '" + job + "' is planned in " +
                                           std::to_string(plan->boxes.size()) +
                                           " parts, this worker has it in " +
                                           std::to_string(parts) + "; start all ranks again"};
  }
  const std::string& box = plan->boxes[part];
  if (box == options_.self) return std::optional<proto::PartPlace>();
  proto::PartPlace place;
  place.set_box(box);
  place.set_address(address_of(box));
  if (place.address().empty()) {
    return unknown("part " + std::to_string(part) + " of job '" + job + "' is on box " + box +
                   ", which is not there now");
  }
  return std::optional<proto::PartPlace>(std::move(place));
}

// Those that drain count: they may have been others' choice before.
bool PartMaps::has_others(const std::string&) const {
  return options_.membership().boxes().size() > 1;
}

proto::PartMap PartMaps::describe(const PartMap& plan) const {
  proto::PartMap message;
  message.set_chunk_bytes(plan.chunk_bytes);
  for (const std::string& box : plan.boxes) {
    proto::PartPlace& place = *message.add_parts();
    place.set_box(box);
    if (box != options_.self) place.set_address(address_of(box));
  }
  for (const BoxRecord& box : options_.membership().boxes()) message.add_boxes(box.control);
  return message;
}

// For a job: only if there are no others such as it avoids.
std::vector<CandidateBox> PartMaps::candidates(const std::string& but,
                                               const PartMap* of_job) const {
  std::vector<PartMap> plans;
  for (const auto& [job, plan] : plans_) {
    if (!plan.is_over) plans.push_back(plan);
  }
  const auto bytes = bytes_by_box(plans);
  std::vector<CandidateBox> boxes;
  size_t wanted = 0;  // of those, which come first
  for (const BoxRecord& record : options_.membership().boxes()) {
    if (record.name == but || is_draining(record.name)) continue;
    const auto found = bytes.find(record.name);
    boxes.push_back({.name = record.name,
                     .pipelines = static_cast<uint32_t>(record.data.size()),
                     .bytes_per_second = static_cast<double>(record.capacity_bytes_per_s),
                     .bytes = found == bytes.end() ? 0 : found->second});
    const bool is_avoided = of_job != nullptr && of_job->avoids(record.name, unix_seconds());
    if (!is_avoided) std::swap(boxes[wanted++], boxes.back());
  }
  if (wanted > 0) boxes.resize(wanted);
  return boxes;
}

void PartMaps::ask(const proto::AskPartMap& question, Answer done) {
  if (question.is_backup()) return done(here_alone());
  if (!plan_entries_.loaded()) {
    return done(unknown("the cluster store has not answered yet ([cluster] endpoints)"));
  }
  const std::string& job = question.job();
  const PartMap* plan = find(job);
  const std::string& lost = question.lost_box();
  const bool has_lost =
      plan != nullptr && !lost.empty() && lost != options_.self &&
      std::find(plan->boxes.begin(), plan->boxes.end(), lost) != plan->boxes.end();
  // Who begins says how much there is; a plan that is left of a job before may say otherwise.
  const bool begins = question.bytes() > 0;
  if (plan == nullptr && !begins) return done(unknown("there is no plan of job '" + job + "'"));
  const bool is_outdated =
      plan != nullptr && begins && (plan->is_over || plan->may_move != question.may_move());
  if (plan != nullptr && !has_lost && !is_outdated) return done(describe(*plan));
  const bool is_under_way = waiting_.contains(job);
  waiting_[job].push_back(std::move(done));
  if (is_under_way) return;
  if (plan == nullptr || (begins && plan->is_over && plan->bytes != question.bytes())) {
    make(question);
  } else if (has_lost) {
    replace_if_gone(question);
  } else {
    PartMap mended = *plan;
    mended.bytes = question.bytes();
    mended.may_move = question.may_move();
    mended.is_over = false;
    mended.avoided.clear();
    change(job, mended, [] {});
  }
}

// Upon what is known of the plan now.
void PartMaps::change(const std::string& job, const PartMap& plan,
                      std::function<void()> on_committed) {
  commit(job, plan, {{kJobs + job, revision(job)}}, std::move(on_committed));
}

int64_t PartMaps::revision(const std::string& job) const {
  const KeyValue* entry = plan_entries_.find(kJobs + job);
  return entry == nullptr ? 0 : entry->mod_revision;
}

void PartMaps::move(const std::string& job, const PartMap& plan, const std::string& why,
                    std::function<void(Status)> done) {
  if (waiting_.contains(job) || !options_.membership().leads()) {
    return done(unknown("the plan of job '" + job + "' is being changed, or another box leads"));
  }
  const auto is_committed = std::make_shared<bool>(false);
  waiting_[job].push_back([is_committed, job, done = std::move(done)](const auto& answer) {
    if (*is_committed) return done(ok_status());
    done(answer ? unknown("the plan of job '" + job + "' was changed meanwhile") : answer.error());
  });
  commit(job, plan, {{kJobs + job, revision(job)}, options_.membership().lead_fence()},
         [this, job, why, is_committed] {
           *is_committed = true;
           options_.log(BoxDirectory::Severity::kInfo, "parts_rebalanced",
                        "parts of job '" + job + "' change boxes: " + why);
         });
}

// Of a job that is a copy of another's part: the box that had it to be here chose this one.
proto::PartMap PartMaps::here_alone() const {
  proto::PartMap plan;
  plan.set_chunk_bytes(options_.chunk_bytes());
  plan.add_parts()->set_box(options_.self);
  return plan;
}

// Each part begins with another box, so that all get some.
std::vector<proto::PartPlace> PartMaps::backups(const std::string& job, uint32_t part) const {
  std::vector<proto::PartPlace> places;
  for (const BoxRecord& box : options_.membership().boxes()) {
    if (box.name == options_.self || is_draining(box.name)) continue;
    places.emplace_back().set_box(box.name);
    places.back().set_address(box.control);
  }
  const size_t first = places.empty() ? 0 : (std::hash<std::string>{}(job) + part) % places.size();
  std::rotate(places.begin(), places.begin() + static_cast<ptrdiff_t>(first), places.end());
  return places;
}

// A box that is not registered is not there, and its address is nobody's.
void PartMaps::ask_box(const std::string& box, const proto::WorkerMessage& question,
                       BoxAnswer done) {
  const std::string address = address_of(box);
  if (address.empty()) return done(unknown("box " + box + " is not registered"));
  cluster::ask_box(context_, address, question, kAnswerTimeout,
                   [this, alive = alive_, done = std::move(done)](auto answer) {
                     if (!*alive) return;
                     done(std::move(answer));
                     options_.on_answers();
                   });
}

void PartMaps::take_back(const std::string& job, uint32_t part) {
  const PartMap* plan = find(job);
  if (plan == nullptr || part >= plan->boxes.size() || waiting_.contains(job)) return;
  waiting_[job];  // one change at a time; the next one shows whether another is needed
  PartMap mended = *plan;
  mended.boxes[part] = options_.self;
  mended.may_move = false;
  change(job, mended, [this, job, part] {
    options_.log(BoxDirectory::Severity::kWarning, "part_taken_back",
                 "part " + std::to_string(part) + " of job '" + job +
                     "' was given to another box, but cannot move; it stays here");
  });
}

void PartMaps::answer_all(const std::string& job, const Result<PartMap>& plan) {
  const auto found = waiting_.find(job);
  if (found == waiting_.end()) return;
  const std::vector<Answer> answers = std::move(found->second);
  waiting_.erase(found);
  for (const Answer& answer : answers) {
    answer(plan ? Result<proto::PartMap>(describe(*plan)) : plan.error());
  }
  options_.on_answers();
}

void PartMaps::make(const proto::AskPartMap& question) {
  const std::string& job = question.job();
  auto boxes = candidates("");
  if (boxes.empty()) {
    return answer_all(job, unknown("no box takes parts of a new job: none is registered, or all "
                                   "drain"));
  }
  PartMap plan = make_plan(question.bytes(), options_.chunk_bytes(), std::move(boxes));
  plan.may_move = question.may_move();
  change(job, plan, [this, job, parts = plan.boxes.size()] {
    options_.log(BoxDirectory::Severity::kInfo, "job_planned",
                 "job '" + job + "' is planned in " + std::to_string(parts) + " parts");
  });
}

// A worker cannot reach the box: is it gone, or only the way to it?
void PartMaps::replace_if_gone(const proto::AskPartMap& question) {
  const std::string job = question.job(), box = question.lost_box();
  const uint32_t lost_for_ms = question.lost_for_ms();
  const std::string address = address_of(box);
  if (address.empty()) return give_away_parts(job, box, "it is not registered");
  probe(context_, address, kProbeTimeout,
        [this, alive = alive_, job, box, lost_for_ms](const Result<uint64_t>& up_for_ms) {
          if (!*alive) return;
          if (!up_for_ms) return give_away_parts(job, box, up_for_ms.error().message);
          // One that was away itself is there again.
          if (lost_for_ms >= kUnreachableMs && *up_for_ms > 2 * uint64_t{lost_for_ms}) {
            constexpr bool kAvoid = true;
            std::string why = "it answers this box, but a worker could not reach it for ";
            why.append(std::to_string(lost_for_ms)).append(" ms");
            return give_away_parts(job, box, why, kAvoid);
          }
          const PartMap* plan = find(job);
          answer_all(job, plan != nullptr ? Result<PartMap>(*plan)
                                          : unknown("the plan of job '" + job + "' is gone"));
        });
}

void PartMaps::give_away_parts(const std::string& job, const std::string& box,
                               const std::string& why, bool avoid) {
  const PartMap* plan = find(job);
  if (plan == nullptr) return answer_all(job, unknown("the plan of job '" + job + "' is gone"));
  auto boxes = candidates(box, plan);
  if (boxes.empty()) {
    return answer_all(job, unknown("box " + box + " has parts of job '" + job +
                                   "', cannot be "
                                   "reached (" +
                                   why + "), and no other box is there"));
  }
  PartMap changed = give_away(*plan, box, std::move(boxes));
  if (avoid) changed.avoided[box] = unix_seconds() + kAvoidS;
  change(job, changed, [this, job, box, why] {
    options_.log(BoxDirectory::Severity::kWarning, "parts_given_away",
                 "the parts of job '" + job + "' that box " + box + " had go to others: " + why);
  });
}

// Whoever waits is told what the store has afterwards, whosever change that is.
void PartMaps::commit(const std::string& job, const PartMap& plan,
                      std::vector<Condition> conditions, std::function<void()> on_committed) {
  store_.commit(
      {.conditions = std::move(conditions), .puts = {{kJobs + job, to_text(plan)}}, .deletes = {}},
      [this, alive = alive_, job, plan,
       on_committed = std::move(on_committed)](const Result<Outcome>& outcome) {
        if (!*alive) return;
        if (outcome && outcome->committed) {
          on_committed();
          answer_all(job, plan);
        } else if (outcome) {
          read_back(job, plan);
        } else {
          answer_all(job, outcome.error());
        }
      });
}

// Somebody else's change was first. It will do where it is of the same job: not what another one
// has left.
void PartMaps::read_back(const std::string& job, const PartMap& wanted) {
  store_.get(kJobs + job, [this, alive = alive_, job, wanted](const Result<Snapshot>& snapshot) {
    if (!*alive) return;
    if (!snapshot) return answer_all(job, snapshot.error());
    for (const KeyValue& entry : snapshot->entries) {
      if (entry.key != kJobs + job) continue;
      const auto plan = part_map_from_text(entry.value);
      if (!plan) continue;
      const bool is_of_same = plan->bytes == wanted.bytes && plan->may_move == wanted.may_move &&
                              plan->is_over == wanted.is_over;
      return answer_all(job, is_of_same ? Result<PartMap>(*plan)
                                        : unknown("the plan of job '" + job + "' has changed"));
    }
    answer_all(job, unknown("the plan of job '" + job + "' is gone"));
  });
}

void PartMaps::tick() {
  timer_.expires_after(kTick);
  timer_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
    if (error || !*alive) return;
    note_ends();
    if (options_.membership().leads() && store_.health().up && plan_entries_.loaded()) {
      empty_boxes();
      forget_plans();
    }
    tick();
  });
}

// The leader's: boxes that drain, and such as have parts and have not been there for a while.
void PartMaps::empty_boxes() {
  std::set<std::string> absent;
  std::vector<std::pair<std::string, std::string>> leaving;  // job, box
  for (const auto& [job, plan] : plans_) {
    const std::set<std::string> boxes(plan.boxes.begin(), plan.boxes.end());
    for (const std::string& box : boxes) {
      const bool is_absent = address_of(box).empty();
      if (is_absent) absent.insert(box);
      const bool is_gone = is_absent && absent_ticks_[box] >= kAbsentTicks;
      if (is_gone || (is_draining(box) && plan.may_move)) leaving.emplace_back(job, box);
    }
  }
  for (auto entry = absent_ticks_.begin(); entry != absent_ticks_.end();) {
    entry = absent.contains(entry->first) ? std::next(entry) : absent_ticks_.erase(entry);
  }
  for (const std::string& box : absent) ++absent_ticks_[box];
  for (const auto& [job, box] : leaving) {
    if (waiting_.contains(job) || candidates(box).empty()) continue;
    waiting_[job];  // one change at a time
    give_away_parts(job, box, is_draining(box) ? "it drains" : "it is not registered any more");
  }
}

// What is said in plans of the jobs of this box.
void PartMaps::note_ends() {
  if (!store_.health().up || !plan_entries_.loaded()) return;
  for (const auto& [job, plan] : plans_) {
    const bool is_here = options_.has_job(job);
    const bool has_ended = ended_.contains(job) && !is_here;
    if ((plan.is_over && is_here) || (!plan.is_over && has_ended)) set_over(job, has_ended);
  }
  std::erase_if(ended_, [this](const std::string& job) {
    const PartMap* plan = find(job);
    return plan == nullptr || plan->is_over || options_.has_job(job);
  });
}

void PartMaps::set_over(const std::string& job, bool is_over) {
  if (waiting_.contains(job)) return;
  waiting_[job];  // one change at a time; the next tick sees to the rest
  PartMap mended = *find(job);
  mended.is_over = is_over;
  change(job, mended, [] {});
}

// The leader's.
void PartMaps::forget_plans() {
  const auto now = std::chrono::steady_clock::now();
  std::map<std::string, Over> over;
  for (const auto& [job, plan] : plans_) {
    if (!plan.is_over || waiting_.contains(job)) continue;
    const auto known = over_.find(job);
    const bool is_known = known != over_.end() && known->second.revision == revision(job);
    Over& entry = over[job] = is_known ? known->second : Over{revision(job), now};
    if (now - entry.since < options_.forget_after) continue;
    entry.since = now;  // tried again as late, if it fails
    store_.commit(
        {.conditions = {{kJobs + job, entry.revision}, options_.membership().lead_fence()},
         .puts = {},
         .deletes = {kJobs + job}},
        [](const Result<Outcome>&) {});
  }
  over_ = std::move(over);
}

bool PartMaps::is_draining(const std::string& box) const {
  return drains_.find(kDrains + box) != nullptr;
}

size_t PartMaps::parts_of(const std::string& box) const {
  size_t count = 0;
  for (const auto& [job, plan] : plans_) {
    if (plan.is_over) continue;
    count += static_cast<size_t>(std::count(plan.boxes.begin(), plan.boxes.end(), box));
  }
  return count;
}

void PartMaps::set_draining(const std::string& box, bool draining,
                            std::function<void(Status)> done) {
  Transaction change;
  if (draining) {
    change.puts.push_back({kDrains + box, options_.self});
  } else {
    change.deletes.push_back(kDrains + box);
  }
  store_.commit(std::move(change), [done = std::move(done)](const Result<Outcome>& outcome) {
    done(outcome ? ok_status() : Status(outcome.error()));
  });
}

}  // namespace pbox::cluster
