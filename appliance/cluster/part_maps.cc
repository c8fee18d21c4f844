#include "appliance/cluster/part_maps.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "appliance/cluster/ask_box.h"
#include "appliance/cluster/part_maps_detail.h"
#include "base/check.h"
#include "base/limits.h"

namespace pbox::cluster {
namespace {

constexpr std::chrono::milliseconds kProbeTimeout{1'000};
constexpr std::chrono::milliseconds kAnswerTimeout{8'000};
// A box that some worker could not reach for this long loses its parts of the job, even if this box
// can reach it. With Options::needs_majority most ranks must be cut off.
constexpr uint32_t kUnreachableMs = 1'500;

}  // namespace

PartMaps::PartMaps(boost::asio::io_context& context, Store& store, Options options)
    : context_(context),
      store_(store),
      options_(std::move(options)),
      environment_(Environment::of(context)),
      timer_(context),
      reports_(context),
      entries_(context, store, kJobs, [this] { on_maps(); }),
      drains_(context, store, kDrains, [] {}) {
  tick();
}

PartMaps::~PartMaps() {
  *alive_ = false;
}

void PartMaps::on_maps() {
  maps_.clear();
  for (const auto& [key, entry] : entries_.entries()) {
    if (auto map = part_map_from_text(entry.value)) maps_[key.substr(sizeof(kJobs) - 1)] = *map;
  }
  options_.on_change();
}

const PartMap* PartMaps::find(const std::string& job) const {
  const auto found = maps_.find(job);
  return found == maps_.end() ? nullptr : &found->second;
}

std::string PartMaps::address_of(const std::string& name) const {
  for (const BoxRecord& box : options_.box_directory().boxes()) {
    if (box.name == name) return box.control;
  }
  return {};
}

Result<std::optional<proto::PartPlace>> PartMaps::other_owner(const std::string& job, uint32_t part,
                                                              uint32_t parts) const {
  if (part >= parts) {
    return Error{ErrorCode::kInvalidArgument,
                 "part " + std::to_string(part) + " of job '" + job +
                     "' is out of range; this worker divides the job into " +
                     std::to_string(parts) + " parts"};
  }
  if (!entries_.loaded()) {
    return unavailable(
        "the cluster store has not answered yet, so this box does not know which box has part " +
        std::to_string(part) + " of job '" + job + "'");
  }
  const PartMap* map = find(job);
  if (map == nullptr) {
    return unavailable("this box has not seen the part map of job '" + job + "' yet");
  }
  if (map->boxes.size() != parts) {
    return Error{ErrorCode::kMismatch, "job '" + job + "' has " +
                                           std::to_string(map->boxes.size()) +
                                           " parts, but this worker divides it into " +
                                           std::to_string(parts) + "; start all ranks again"};
  }
  const std::string& box = map->boxes[part];
  if (box == options_.self) return std::optional<proto::PartPlace>();
  proto::PartPlace place;
  place.set_box(box);
  place.set_address(address_of(box));
  if (place.address().empty()) {
    return unavailable("part " + std::to_string(part) + " of job '" + job + "' is on box " + box +
                       ", which is not registered now");
  }
  return std::optional<proto::PartPlace>(std::move(place));
}

bool PartMaps::lists_box(const std::string& box) const {
  return options_.box_directory().last_record(box) != nullptr;
}

// Boxes that drain count too: other boxes may have chosen them before they drained.
bool PartMaps::has_other_boxes(const std::string&) const {
  return options_.box_directory().boxes().size() > 1;
}

proto::PartMap PartMaps::to_message(const PartMap& map) const {
  proto::PartMap message;
  message.set_chunk_bytes(map.chunk_bytes);
  for (const std::string& box : map.boxes) {
    proto::PartPlace& place = *message.add_parts();
    place.set_box(box);
    if (box != options_.self) place.set_address(address_of(box));
  }
  for (const BoxRecord& box : options_.box_directory().boxes()) message.add_boxes(box.control);
  return message;
}

void PartMaps::ask(const proto::AskPartMap& question, Answer done) {
  if (question.is_backup()) return done(map_of_this_box());
  if (!entries_.loaded()) {
    return done(unavailable("the cluster store has not answered yet ([cluster] endpoints)"));
  }
  const std::string& job = question.job();
  const PartMap* map = find(job);
  const std::string& lost = question.lost_box();
  const bool has_lost = map != nullptr && !lost.empty() && lost != options_.self &&
                        std::find(map->boxes.begin(), map->boxes.end(), lost) != map->boxes.end();
  // A worker that begins a job states its size. A map left by an earlier job of the same name may
  // differ.
  const bool begins = question.bytes() > 0;
  if (map == nullptr && !begins)
    return done(unavailable("there is no part map of job '" + job + "'"));
  const bool is_outdated = map != nullptr && begins && map->is_over;
  if (map != nullptr && !has_lost && !is_outdated) return done(to_message(*map));
  const bool is_under_way = waiting_.contains(job);
  waiting_[job].push_back(std::move(done));
  if (has_lost) note_report(question);
  if (is_under_way) return;
  if (has_lost && !is_outdated) return reassign_if_lost(job, lost);
  with_reports([this, question] { make(question); });
}

// Commits the map on condition that the job's key has not changed since this box last saw it.
void PartMaps::change(const std::string& job, const PartMap& map,
                      std::function<void()> on_committed) {
  commit(job, map, {{kJobs + job, revision(job)}}, std::move(on_committed));
}

int64_t PartMaps::revision(const std::string& job) const {
  const KeyValue* entry = entries_.find(kJobs + job);
  return entry == nullptr ? 0 : entry->mod_revision;
}

void PartMaps::move(const std::string& job, const PartMap& map, const std::string& why,
                    std::function<void(Status)> done) {
  if (waiting_.contains(job) || !options_.box_directory().leads()) {
    return done(
        unavailable("the part map of job '" + job + "' is being changed, or another box leads"));
  }
  const auto is_committed = std::make_shared<bool>(false);
  waiting_[job].push_back([is_committed, job, done = std::move(done)](const auto& answer) {
    if (*is_committed) return done(ok_status());
    done(answer ? unavailable("the part map of job '" + job + "' was changed meanwhile")
                : answer.error());
  });
  commit(job, map, {{kJobs + job, revision(job)}, options_.box_directory().lead_fence()},
         [this, job, why, is_committed] {
           *is_committed = true;
           options_.log(BoxDirectory::Severity::kInfo, "parts_rebalanced",
                        "parts of job '" + job + "' move to other boxes: " + why);
         });
}

// Returns the map of a job that is the backup copy of a part. The primary has chosen this box.
proto::PartMap PartMaps::map_of_this_box() const {
  proto::PartMap map;
  map.set_chunk_bytes(options_.chunk_bytes());
  map.add_parts()->set_box(options_.self);
  return map;
}

// The list of each part starts at a different box, which spreads the backups over all boxes.
std::vector<proto::PartPlace> PartMaps::backup_candidates(const std::string& job,
                                                          uint32_t part) const {
  std::vector<proto::PartPlace> places;
  for (const BoxRecord& box : options_.box_directory().boxes()) {
    if (box.name == options_.self || is_draining(box.name)) continue;
    if (const PartMap* map = find(job); !box.can_serve(map ? map->protocol_version : 0)) continue;
    places.emplace_back().set_box(box.name);
    places.back().set_address(box.control);
  }
  const size_t first = places.empty() ? 0 : (std::hash<std::string>{}(job) + part) % places.size();
  std::rotate(places.begin(), places.begin() + static_cast<ptrdiff_t>(first), places.end());
  return places;
}

// A box whose registration has lapsed is asked all the same: it may be alive, and may be the only
// one that has a part's state.
void PartMaps::ask_box(const std::string& box, const proto::WorkerMessage& question,
                       BoxAnswer done) {
  const BoxRecord* record = options_.box_directory().last_record(box);
  if (record == nullptr) return done(unavailable("box " + box + " was never registered"));
  cluster::ask_box(context_, record->control, question, kAnswerTimeout,
                   [this, alive = alive_, done = std::move(done)](auto answer) {
                     if (!*alive) return;
                     done(std::move(answer));
                     options_.on_answers();
                   });
}

void PartMaps::reclaim_part(const std::string& job, uint32_t part) {
  const PartMap* map = find(job);
  if (map == nullptr || part >= map->boxes.size() || waiting_.contains(job)) return;
  waiting_[job];  // marks a change in progress; if another is needed, the next event shows it
  PartMap changed = *map;
  changed.boxes[part] = options_.self;
  changed.may_move = false;
  change(job, changed, [this, job, part] {
    options_.log(BoxDirectory::Severity::kWarning, "part_taken_back",
                 "part " + std::to_string(part) + " of job '" + job +
                     "' was assigned to another box, but cannot move; it stays here");
  });
}

void PartMaps::answer_all(const std::string& job, const Result<PartMap>& map) {
  const auto found = waiting_.find(job);
  if (found == waiting_.end()) return;
  const std::vector<Answer> answers = std::move(found->second);
  waiting_.erase(found);
  std::erase_if(unchecked_, [&](const auto& entry) { return entry.first.first == job; });
  for (const Answer& answer : answers) {
    answer(map ? Result<proto::PartMap>(to_message(*map)) : map.error());
  }
  options_.on_answers();
}

void PartMaps::make(const proto::AskPartMap& question) {
  const std::string& job = question.job();
  PBOX_CHECK(waiting_.contains(job));
  const PartMap* old = find(job);
  if (old != nullptr && !old->is_over) return answer_all(job, *old);  // another box was first
  if (old != nullptr && can_be_reused(*old, question)) {
    PartMap reused = *old;
    reused.may_move = question.may_move();
    reused.protocol_version = question.job_version();
    reused.is_over = false;
    reused.avoided.clear();
    return change(job, reused, [] {});
  }
  auto boxes = candidates(job, "", question.job_version());
  if (boxes.empty()) {
    return answer_all(
        job,
        unavailable("no box takes parts of a new job: none is registered, or all of them drain" +
                    boxes_too_old(question.job_version())));
  }
  PartMap map = make_part_map(question.bytes(), options_.chunk_bytes(), std::move(boxes));
  map.may_move = question.may_move();
  map.protocol_version = question.job_version();
  change(job, map, [this, job, parts = map.boxes.size()] {
    options_.log(BoxDirectory::Severity::kInfo, "job_planned",
                 "job '" + job + "' is divided into " + std::to_string(parts) + " parts");
  });
}

void PartMaps::note_report(const proto::AskPartMap& question) {
  Reports& reports = unchecked_[{question.job(), question.lost_box()}];
  reports.lost_for_ms = std::max(reports.lost_for_ms, question.lost_for_ms());
  if (question.lost_for_ms() >= kUnreachableMs && question.rank() < limits::kWorkersPerJobMax) {
    reports.ranks.insert(question.rank());
  }
}

// Called if workers cannot reach the box. Finds out whether the box is lost or only the path to it.
void PartMaps::reassign_if_lost(const std::string& job, const std::string& box) {
  PBOX_CHECK(waiting_.contains(job));
  const std::string address = address_of(box);
  if (address.empty()) return reassign_parts_of(job, box, "it is not registered");
  const Reports reports = std::exchange(unchecked_[{job, box}], {});
  proto::AskDataAddresses question;
  if (options_.needs_majority && !reports.ranks.empty()) {
    question.set_cut_off_job(job);
    question.mutable_cut_off_ranks()->Add(reports.ranks.begin(), reports.ranks.end());
  }
  probe(
      context_, address, question, kProbeTimeout,
      [this, alive = alive_, job, box,
       lost_for_ms = reports.lost_for_ms](const Result<proto::DataAddresses>& answer) {
        if (!*alive) return;
        if (!answer) return reassign_parts_of(job, box, answer.error().message);
        const bool is_agreed = !options_.needs_majority || answer->most_are_cut_off();
        // A box that has restarted since then was itself down and is reachable again.
        if (lost_for_ms >= kUnreachableMs && answer->up_for_ms() > 2 * uint64_t{lost_for_ms} &&
            is_agreed) {
          constexpr bool kAvoid = true;
          std::string why = "it answers this box, but ";
          why.append(options_.needs_majority ? "most ranks" : "a worker");
          why.append(" could not reach it for ").append(std::to_string(lost_for_ms)).append(" ms");
          return reassign_parts_of(job, box, why, kAvoid);
        }
        const auto unchecked = unchecked_.find({job, box});
        const bool has_more = unchecked != unchecked_.end() && unchecked->second.lost_for_ms > 0;
        if (has_more) return reassign_if_lost(job, box);  // reported while the box was probed
        const PartMap* map = find(job);
        answer_all(job, map != nullptr
                            ? Result<PartMap>(*map)
                            : unavailable("the part map of job '" + job + "' no longer exists"));
      });
}

void PartMaps::reassign_parts_of(const std::string& job, const std::string& box,
                                 const std::string& why, bool avoid) {
  with_reports([this, job, box, why, avoid] { reassign_now(job, box, why, avoid); });
}

void PartMaps::reassign_now(const std::string& job, const std::string& box, const std::string& why,
                            bool avoid) {
  PBOX_CHECK(waiting_.contains(job));
  const PartMap* map = find(job);
  if (map == nullptr) {
    return answer_all(job, unavailable("the part map of job '" + job + "' no longer exists"));
  }
  const auto boxes = candidates(job, box, map->protocol_version, map);
  if (boxes.empty()) {
    return answer_all(
        job,
        unavailable("box " + box + " has parts of job '" + job + "' and cannot be reached (" + why +
                    "), and no other box is available" + boxes_too_old(map->protocol_version)));
  }
  PartMap changed = reassign_parts(*map, box, boxes);
  const auto stay = std::count(changed.boxes.begin(), changed.boxes.end(), box);
  std::string obstacle;
  if (stay > 0) {
    obstacle = std::to_string(stay) + " parts of job '" + job + "' stay on box " + box +
               ": no other box has room for them (each takes " +
               std::to_string(map->memory_per_part()) + " bytes or more)" +
               boxes_too_old(map->protocol_version);
  }
  if (is_draining(box)) state_drain_obstacle(box, job, obstacle);
  if (changed.boxes == map->boxes) return answer_all(job, unavailable(obstacle));
  if (avoid) changed.avoided[box] = environment_.unix_seconds() + kAvoidS;
  change(job, changed, [this, job, box, why, obstacle] {
    options_.log(BoxDirectory::Severity::kWarning, "parts_given_away",
                 "the parts of job '" + job + "' on box " + box + " move to other boxes: " + why +
                     (obstacle.empty() ? "" : "; " + obstacle));
  });
}

// All waiting requests are answered with the map that the store holds afterwards, whichever box
// wrote it.
void PartMaps::commit(const std::string& job, const PartMap& map, std::vector<Condition> conditions,
                      std::function<void()> on_committed) {
  PBOX_CHECK(waiting_.contains(job) && !map.boxes.empty());
  store_.commit(
      {.conditions = std::move(conditions), .puts = {{kJobs + job, to_text(map)}}, .deletes = {}},
      [this, alive = alive_, job, map,
       on_committed = std::move(on_committed)](const Result<Outcome>& outcome) {
        if (!*alive) return;
        if (outcome && outcome->committed) {
          on_committed();
          answer_all(job, map);
        } else if (outcome) {
          read_back(job, map);
        } else {
          answer_all(job, from_store(outcome.error()));
        }
      });
}

// Another box committed first. Its map is accepted if it describes the same job, not one left by an
// earlier job of that name.
void PartMaps::read_back(const std::string& job, const PartMap& wanted) {
  PBOX_CHECK(waiting_.contains(job));
  store_.get(kJobs + job, [this, alive = alive_, job, wanted](const Result<Snapshot>& snapshot) {
    if (!*alive) return;
    if (!snapshot) return answer_all(job, from_store(snapshot.error()));
    for (const KeyValue& entry : snapshot->entries) {
      if (entry.key != kJobs + job) continue;
      const auto map = part_map_from_text(entry.value);
      if (!map) continue;
      const bool is_of_same = map->bytes == wanted.bytes && map->may_move == wanted.may_move &&
                              map->is_over == wanted.is_over;
      return answer_all(job, is_of_same
                                 ? Result<PartMap>(*map)
                                 : unavailable("the part map of job '" + job + "' has changed"));
    }
    answer_all(job, unavailable("the part map of job '" + job + "' no longer exists"));
  });
}

Duty PartMaps::duty_of(const std::string& box) const {
  const KeyValue* entry = drains_.find(kDrains + box);
  if (entry == nullptr) return Duty::kTakesParts;
  return drain_entry_of(entry->value).is_standby ? Duty::kStandby : Duty::kDrains;
}

std::vector<std::string> PartMaps::standbys_switched_off() const {
  std::vector<std::string> names;
  for (const auto& [key, entry] : drains_.entries()) {
    const std::string name = key.substr(sizeof(kDrains) - 1);
    if (duty_of(name) == Duty::kStandby && address_of(name).empty()) names.push_back(name);
  }
  return names;
}

size_t PartMaps::parts_of(const std::string& box) const {
  size_t count = 0;
  for (const auto& [job, map] : maps_) {
    if (map.is_over) continue;
    count += static_cast<size_t>(std::count(map.boxes.begin(), map.boxes.end(), box));
  }
  return count;
}

std::string PartMaps::drain_obstacle(const std::string& box) const {
  const KeyValue* entry = drains_.find(kDrains + box);
  return entry == nullptr ? "" : drain_entry_of(entry->value).obstacle;
}

void PartMaps::set_duty(const std::string& box, Duty duty, std::function<void(Status)> done,
                        bool as_leader) {
  const KeyValue* entry = drains_.find(kDrains + box);
  Transaction change;
  if (as_leader) change.conditions.push_back(options_.box_directory().lead_fence());
  if (duty == Duty::kTakesParts) {
    change.deletes.push_back(kDrains + box);
  } else {
    change.conditions.push_back({kDrains + box, entry == nullptr ? 0 : entry->mod_revision});
    const DrainEntry wanted{duty == Duty::kStandby, drain_obstacle(box)};
    change.puts.push_back({kDrains + box, to_text(wanted)});
  }
  store_.commit(std::move(change), [done = std::move(done)](const Result<Outcome>& outcome) {
    if (!outcome) return done(outcome.error());
    done(outcome->committed
             ? ok_status()
             : Status(unavailable("another box changed the box's duty at the same time")));
  });
}

}  // namespace pbox::cluster
