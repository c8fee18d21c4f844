#include "appliance/cluster/part_maps.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "appliance/cluster/ask_box.h"
#include "base/check.h"

namespace pbox::cluster {
namespace {

constexpr char kJobs[] = "jobs/";
constexpr char kDrains[] = "drains/";
constexpr std::chrono::milliseconds kTick{250};
// A box that restarts registers again within this many ticks; one that does not loses its parts.
constexpr uint32_t kAbsentTicks = 8;
constexpr std::chrono::milliseconds kProbeTimeout{1'000};
constexpr std::chrono::milliseconds kAnswerTimeout{2'000};
// A box that some worker could not reach for this long loses its parts of the job, even if others
// can reach it.
constexpr uint32_t kUnreachableMs = 1'500;
// Time in seconds during which such a box gets no parts of the job.
constexpr uint64_t kAvoidS = 600;

Error unavailable(const std::string& what) {
  return {ErrorCode::kUnavailable, what + "; the request will be repeated"};
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

// With `job_map`, boxes that the job avoids are returned only if there are no others.
std::vector<CandidateBox> PartMaps::candidates(const std::string& excluded,
                                               const PartMap* job_map) const {
  std::vector<PartMap> maps;
  for (const auto& [job, map] : maps_) {
    if (!map.is_over) maps.push_back(map);
  }
  const auto bytes = bytes_by_box(maps);
  std::vector<CandidateBox> boxes;
  size_t wanted = 0;  // boxes at the front of `boxes` that are not avoided
  for (const BoxRecord& record : options_.box_directory().boxes()) {
    if (record.name == excluded || is_draining(record.name)) continue;
    const auto found = bytes.find(record.name);
    boxes.push_back({.name = record.name,
                     .pipelines = static_cast<uint32_t>(record.data.size()),
                     .bytes_per_second = static_cast<double>(record.capacity_bytes_per_s),
                     .bytes = found == bytes.end() ? 0 : found->second});
    const bool is_avoided = job_map != nullptr && job_map->avoids(record.name, unix_seconds());
    if (!is_avoided) std::swap(boxes[wanted++], boxes.back());
  }
  if (wanted > 0) boxes.resize(wanted);
  return boxes;
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
  const bool is_outdated =
      map != nullptr && begins && (map->is_over || map->may_move != question.may_move());
  if (map != nullptr && !has_lost && !is_outdated) return done(to_message(*map));
  const bool is_under_way = waiting_.contains(job);
  waiting_[job].push_back(std::move(done));
  if (is_under_way) return;
  if (map == nullptr || (begins && map->is_over && map->bytes != question.bytes())) {
    make(question);
  } else if (has_lost) {
    reassign_if_lost(question);
  } else {
    PartMap changed = *map;
    changed.bytes = question.bytes();
    changed.may_move = question.may_move();
    changed.is_over = false;
    changed.avoided.clear();
    change(job, changed, [] {});
  }
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

// The map of a job that is the backup copy of another job's part: the primary chose this box for
// it.
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
    places.emplace_back().set_box(box.name);
    places.back().set_address(box.control);
  }
  const size_t first = places.empty() ? 0 : (std::hash<std::string>{}(job) + part) % places.size();
  std::rotate(places.begin(), places.begin() + static_cast<ptrdiff_t>(first), places.end());
  return places;
}

// The address of a box that is not registered is unknown, so the question cannot be sent.
void PartMaps::ask_box(const std::string& box, const proto::WorkerMessage& question,
                       BoxAnswer done) {
  const std::string address = address_of(box);
  if (address.empty()) return done(unavailable("box " + box + " is not registered"));
  cluster::ask_box(context_, address, question, kAnswerTimeout,
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
  for (const Answer& answer : answers) {
    answer(map ? Result<proto::PartMap>(to_message(*map)) : map.error());
  }
  options_.on_answers();
}

void PartMaps::make(const proto::AskPartMap& question) {
  PBOX_CHECK(waiting_.contains(question.job()));
  const std::string& job = question.job();
  auto boxes = candidates("");
  if (boxes.empty()) {
    return answer_all(
        job,
        unavailable("no box takes parts of a new job: none is registered, or all of them drain"));
  }
  PartMap map = make_part_map(question.bytes(), options_.chunk_bytes(), std::move(boxes));
  map.may_move = question.may_move();
  change(job, map, [this, job, parts = map.boxes.size()] {
    options_.log(BoxDirectory::Severity::kInfo, "job_planned",
                 "job '" + job + "' is divided into " + std::to_string(parts) + " parts");
  });
}

// A worker cannot reach the box. Finds out whether the box is lost or only the path to it.
void PartMaps::reassign_if_lost(const proto::AskPartMap& question) {
  PBOX_CHECK(waiting_.contains(question.job()));
  const std::string job = question.job(), box = question.lost_box();
  const uint32_t lost_for_ms = question.lost_for_ms();
  const std::string address = address_of(box);
  if (address.empty()) return reassign_parts_of(job, box, "it is not registered");
  probe(context_, address, kProbeTimeout,
        [this, alive = alive_, job, box, lost_for_ms](const Result<uint64_t>& up_for_ms) {
          if (!*alive) return;
          if (!up_for_ms) return reassign_parts_of(job, box, up_for_ms.error().message);
          // A box that has restarted since then was itself down and is reachable again.
          if (lost_for_ms >= kUnreachableMs && *up_for_ms > 2 * uint64_t{lost_for_ms}) {
            constexpr bool kAvoid = true;
            std::string why = "it answers this box, but a worker could not reach it for ";
            why.append(std::to_string(lost_for_ms)).append(" ms");
            return reassign_parts_of(job, box, why, kAvoid);
          }
          const PartMap* map = find(job);
          answer_all(job, map != nullptr
                              ? Result<PartMap>(*map)
                              : unavailable("the part map of job '" + job + "' no longer exists"));
        });
}

void PartMaps::reassign_parts_of(const std::string& job, const std::string& box,
                                 const std::string& why, bool avoid) {
  PBOX_CHECK(waiting_.contains(job));
  const PartMap* map = find(job);
  if (map == nullptr) {
    return answer_all(job, unavailable("the part map of job '" + job + "' no longer exists"));
  }
  auto boxes = candidates(box, map);
  if (boxes.empty()) {
    return answer_all(
        job, unavailable("box " + box + " has parts of job '" + job + "' and cannot be reached (" +
                         why + "), and no other box is available"));
  }
  PartMap changed = reassign_parts(*map, box, std::move(boxes));
  if (avoid) changed.avoided[box] = unix_seconds() + kAvoidS;
  change(job, changed, [this, job, box, why] {
    options_.log(BoxDirectory::Severity::kWarning, "parts_given_away",
                 "the parts of job '" + job + "' on box " + box + " move to other boxes: " + why);
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
          answer_all(job, outcome.error());
        }
      });
}

// Another box committed first. Its map is accepted if it describes the same job, not one left by an
// earlier job of that name.
void PartMaps::read_back(const std::string& job, const PartMap& wanted) {
  PBOX_CHECK(waiting_.contains(job));
  store_.get(kJobs + job, [this, alive = alive_, job, wanted](const Result<Snapshot>& snapshot) {
    if (!*alive) return;
    if (!snapshot) return answer_all(job, snapshot.error());
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

void PartMaps::tick() {
  timer_.expires_after(kTick);
  timer_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
    if (error || !*alive) return;
    update_over_marks();
    if (options_.box_directory().leads() && store_.health().up && entries_.loaded()) {
      evacuate_boxes();
      delete_old_maps();
    }
    tick();
  });
}

// Leader only: moves parts off boxes that drain, and off boxes that have not been registered for a
// while.
void PartMaps::evacuate_boxes() {
  PBOX_CHECK(options_.box_directory().leads());
  std::set<std::string> absent;
  std::vector<std::pair<std::string, std::string>> leaving;  // job, box
  for (const auto& [job, map] : maps_) {
    const std::set<std::string> boxes(map.boxes.begin(), map.boxes.end());
    for (const std::string& box : boxes) {
      const bool is_absent = address_of(box).empty();
      if (is_absent) absent.insert(box);
      const bool is_gone = is_absent && absent_ticks_[box] >= kAbsentTicks;
      if (is_gone || (is_draining(box) && map.may_move)) leaving.emplace_back(job, box);
    }
  }
  for (auto entry = absent_ticks_.begin(); entry != absent_ticks_.end();) {
    entry = absent.contains(entry->first) ? std::next(entry) : absent_ticks_.erase(entry);
  }
  for (const std::string& box : absent) ++absent_ticks_[box];
  for (const auto& [job, box] : leaving) {
    if (waiting_.contains(job) || candidates(box).empty()) continue;
    waiting_[job];  // marks a change in progress
    reassign_parts_of(job, box, is_draining(box) ? "it drains" : "it is no longer registered");
  }
}

// Keeps `is_over` in the maps of this box's jobs up to date.
void PartMaps::update_over_marks() {
  if (!store_.health().up || !entries_.loaded()) return;
  for (const auto& [job, map] : maps_) {
    const bool is_here = options_.has_job(job);
    const bool has_ended = ended_.contains(job) && !is_here;
    if ((map.is_over && is_here) || (!map.is_over && has_ended)) set_over(job, has_ended);
  }
  std::erase_if(ended_, [this](const std::string& job) {
    const PartMap* map = find(job);
    return map == nullptr || map->is_over || options_.has_job(job);
  });
}

void PartMaps::set_over(const std::string& job, bool is_over) {
  if (waiting_.contains(job)) return;
  PBOX_CHECK(find(job) != nullptr);
  waiting_[job];  // marks a change in progress; later ticks handle the rest
  PartMap changed = *find(job);
  changed.is_over = is_over;
  change(job, changed, [] {});
}

// Leader only: deletes the maps of jobs that ended long ago.
void PartMaps::delete_old_maps() {
  PBOX_CHECK(options_.box_directory().leads());
  const auto now = std::chrono::steady_clock::now();
  std::map<std::string, Over> over;
  for (const auto& [job, map] : maps_) {
    if (!map.is_over || waiting_.contains(job)) continue;
    const auto known = over_.find(job);
    const bool is_known = known != over_.end() && known->second.revision == revision(job);
    Over& entry = over[job] = is_known ? known->second : Over{revision(job), now};
    if (now - entry.since < options_.delete_after) continue;
    entry.since = now;  // if the commit fails, the next attempt comes after the same delay
    store_.commit(
        {.conditions = {{kJobs + job, entry.revision}, options_.box_directory().lead_fence()},
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
  for (const auto& [job, map] : maps_) {
    if (map.is_over) continue;
    count += static_cast<size_t>(std::count(map.boxes.begin(), map.boxes.end(), box));
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
