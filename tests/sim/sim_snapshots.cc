#include "tests/sim/sim_snapshots.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <optional>

#include "appliance/snapshot/folder.h"
#include "base/clock.h"
#include "tests/sim/violation.h"

namespace pbox::sim {
namespace {

namespace fs = std::filesystem;

const std::atomic<bool> kNeverStops{false};

// A box waits 30 s for a snapshot's optimizer state before it goes on without it. This limit is
// lower, because the answer may wait for the box's thread.
constexpr uint64_t kSurelyInTimeNs = 25 * kNanosPerSecond;

std::string text_of(const std::string& job, uint64_t number) {
  return "snapshots: " + job + ", snapshot " + std::to_string(number) + ": ";
}

bool share_a_rank(const std::vector<uint64_t>& one, const std::vector<uint64_t>& other) {
  return std::any_of(one.begin(), one.end(), [&](uint64_t rank) {
    return std::find(other.begin(), other.end(), rank) != other.end();
  });
}

}  // namespace

// Makes the folder, in a file system in memory if there is one. The files are small.
std::string SnapshotFolder::make() {
  const fs::path memory = "/dev/shm";
  std::error_code error;
  std::string path =
      fs::is_directory(memory, error) ? memory.string() : fs::temp_directory_path().string();
  path += "/pbox-sim-XXXXXX";
  require(mkdtemp(path.data()) != nullptr, [&] { return "cannot create a folder " + path; });
  return path;
}

SnapshotFolder::~SnapshotFolder() {
  std::error_code error;
  if (!path_.empty()) fs::remove_all(path_, error);
}

void SnapshotFolder::note_number(const std::string& job, uint64_t number) {
  require(number > numbers_[job], [&] { return text_of(job, number) + "its number is not new"; });
  numbers_[job] = number;
}

void SnapshotFolder::note_finished(const snapshot::Manifest& manifest, const Jobs& jobs) {
  const std::string& job = manifest.job;
  auto& finished = finished_[job];
  require(!finished.contains(manifest.number),
          [&] { return text_of(job, manifest.number) + "it has been completed before"; });
  Finished& one = finished[manifest.number];
  one.manifest = manifest;
  for (const auto& model : jobs) {
    if (model->name != job) continue;
    const uint32_t part = model->options.part;
    const auto head = heads_.find({job, part});
    require(head != heads_.end() && manifest.parts.size() == model->options.parts,
            [&] { return text_of(job, manifest.number) + "it lacks a part"; });
    auto restored = snapshot::load(path_, head->second, {.which = std::to_string(manifest.number)},
                                   kNeverStops);
    require(restored.ok(), [&] {
      return text_of(model->title, manifest.number) +
             "it cannot be read: " + restored.error().message;
    });
    check_part(*model, *restored);
    one.parts[part] = std::move(*restored);
  }
}

void SnapshotFolder::check_part(JobModel& job, const snapshot::Restored& part) {
  require(part.chunks.size() == job.chunks.size(),
          [&] { return text_of(job.title, part.number) + "it lacks a chunk"; });
  for (const pipeline::ChunkState& chunk : part.chunks) {
    require(job.has_had(chunk, part.steps - job.steps_before()), [&] {
      return text_of(job.title, part.number) + "chunk " + std::to_string(chunk.chunk) +
             " has not been like this after " + std::to_string(part.steps) + " steps";
    });
  }
}

void SnapshotFolder::check_read(const std::string& job, const snapshot::Choice& choice,
                                const snapshot::Restored& restored) const {
  const auto finished = finished_.find(job);
  uint64_t newest = 0;
  for (const auto& [number, one] :
       finished != finished_.end() ? finished->second : std::map<uint64_t, Finished>()) {
    const bool is_of_run = choice.ranks.empty() || number == choice.begun_with ||
                           share_a_rank(one.manifest.ranks, choice.ranks);
    if (is_of_run) newest = number;
  }
  require(choice.which != "latest" || restored.number == newest, [&] {
    return text_of(job, restored.number) + "it is read, but snapshot " + std::to_string(newest) +
           " is the newest of this run";
  });
}

const snapshot::Restored* SnapshotFolder::find(const std::string& job, uint32_t part,
                                               uint64_t number) const {
  const auto finished = finished_.find(job);
  if (finished == finished_.end()) return nullptr;
  const auto one = finished->second.find(number);
  if (one == finished->second.end()) return nullptr;
  const auto found = one->second.parts.find(part);
  return found == one->second.parts.end() ? nullptr : &found->second;
}

void SnapshotFolder::check_end() const {
  for (const auto& [job, finished] : finished_) {
    std::vector<Error> damaged;
    const auto kept = snapshot::list(path_, job, damaged);
    require(damaged.empty(), [&] { return "snapshots: " + damaged[0].message; });
    const bool has_newest = !kept.empty() && kept.back().number == finished.rbegin()->first;
    require(has_newest && kept.size() == std::min<size_t>(finished.size(), 2),
            [&, &job = job] { return "snapshots: of " + job + ", the last two are not kept"; });
    for (const snapshot::Manifest& manifest : kept) {
      const Status whole = snapshot::verify(path_, manifest);
      require(whole.ok(), [&] { return "snapshots: " + whole.error().message; });
    }
  }
}

// Calls the function on the box's thread at this time, unless the box has been lost by then.
void SimSnapshots::at(uint64_t due_ns, std::function<void()> function) {
  queue_.at(due_ns,
            [this, alive = std::weak_ptr(alive_), function = std::move(function)]() mutable {
              if (alive.expired()) return;
              const uint64_t paused_until_ns = thread_.paused_until_ns();
              if (paused_until_ns > queue_.now_ns())
                return at(paused_until_ns, std::move(function));
              function();
            });
}

template <typename Answer>
void SimSnapshots::run(std::function<Answer()> work, std::function<void(Answer)> done) {
  uint64_t takes_ns = 20'000 << rng_.below(10);
  if (rng_.below(50) == 0) takes_ns = kNanosPerSecond << rng_.below(3);
  if (rng_.below(1000) == 0) takes_ns = kLongestNs;
  free_ns_ = std::max(free_ns_, queue_.now_ns()) + takes_ns;
  const bool fails_before = fails(), fails_after = fails();
  at(free_ns_, [this, work = std::move(work), done = std::move(done), fails_before, fails_after] {
    const auto failed = [] { return Error{ErrorCode::kSystem, "the simulated disk fails"}; };
    auto answer = std::make_shared<std::optional<Answer>>(failed());
    if (!fails_before) *answer = work();
    if (fails_after) *answer = failed();
    at(queue_.now_ns() + 1'000 + rng_.below(100'000), [this, answer, done] {
      done(std::move(**answer));
      on_done_();
    });
  });
}

void SimSnapshots::begin(const std::string& job, std::function<void(Result<uint64_t>)> done) {
  run<Result<uint64_t>>(
      [this, job] {
        const auto number = snapshot::make_next(folder_.path(), job);
        if (number) folder_.note_number(job, *number);
        return number;
      },
      std::move(done));
}

void SimSnapshots::write_part(uint64_t number, snapshot::PartHead head, snapshot::Cuts cuts,
                              std::function<void(Result<snapshot::PartFile>)> done) {
  run<Result<snapshot::PartFile>>(
      [this, number, head = std::move(head), cuts = std::move(cuts)] {
        const std::string name = snapshot::part_name(head);
        auto file = snapshot::write_part(
            snapshot::number_folder(folder_.path(), head.job, number) + "/" + name, head, cuts,
            kNeverStops);
        if (file) file->name = name;
        if (file) folder_.note_written(head);
        return file;
      },
      std::move(done));
}

void SimSnapshots::finish(snapshot::Manifest manifest, std::function<void(Status)> done) {
  run<Status>(
      [this, manifest = std::move(manifest)] {
        const Status finished = snapshot::finish(folder_.path(), manifest);
        if (finished) folder_.note_finished(manifest, jobs_);
        counts_.add(Fault::kSnapshotTaken, finished ? 1 : 0);
        return finished;
      },
      std::move(done));
}

void SimSnapshots::discard(const std::string& job, uint64_t number) {
  run<Status>(
      [this, job, number] {
        snapshot::discard(folder_.path(), job, number);
        return ok_status();
      },
      [](const Status&) {});
}

void SimSnapshots::load(snapshot::PartHead part, snapshot::Choice choice,
                        std::function<void(Result<snapshot::Restored>)> done) {
  const Part key{part.job, part.part};
  // A job begins with the snapshot, or the snapshot replaces a lost optimizer state.
  const bool begins = choice.ranks.empty();
  if (!begins) loaded_.erase(key);
  run<Result<snapshot::Restored>>(
      [this, part = std::move(part), choice = std::move(choice)] {
        auto restored = snapshot::load(folder_.path(), part, choice, kNeverStops);
        require(restored.ok(), [&] { return "snapshots: " + restored.error().message; });
        folder_.check_read(part.job, choice, *restored);
        return restored;
      },
      [this, key, begins, asked_ns = thread_.now_ns(), done = std::move(done)](auto restored) {
        const bool is_in_time = thread_.now_ns() - asked_ns < kSurelyInTimeNs;
        if (restored && begins) note_begin(key, *restored);
        if (restored && !begins && is_in_time) loaded_[key] = restored->number;
        done(std::move(restored));
      });
}

void SimSnapshots::note_begin(const Part& part, const snapshot::Restored& restored) {
  for (const auto& job : jobs_) {
    if (job->name == part.first && job->options.part == part.second) job->begin_with(restored);
  }
  counts_.add(Fault::kSnapshotRestored, restored.number > 0 ? 1 : 0);
}

uint64_t SimSnapshots::loaded(const std::string& job, uint32_t part) const {
  const auto found = loaded_.find({job, part});
  return found == loaded_.end() ? 0 : found->second;
}

}  // namespace pbox::sim
