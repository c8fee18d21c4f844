// Snapshots in the simulator: the product's files, in a folder that all boxes of a rack share. Each
// box has a simulated disk, which does one step after the other. A step takes time, and it may fail
// before or after its work is done.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "appliance/snapshot/store.h"
#include "base/clock.h"
#include "base/rng.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/faults.h"
#include "tests/sim/host.h"
#include "tests/sim/job_model.h"

namespace pbox::sim {

// The folder, and the checks of the snapshots in it.
class SnapshotFolder {
 public:
  using Jobs = std::vector<std::unique_ptr<JobModel>>;
  SnapshotFolder() : path_(make()) {}
  ~SnapshotFolder();
  SnapshotFolder(const SnapshotFolder&) = delete;
  SnapshotFolder& operator=(const SnapshotFolder&) = delete;

  const std::string& path() const { return path_; }

  // Called when a box gets this number for a snapshot of the job. Checks that it is new.
  void note_number(const std::string& job, uint64_t number);
  // Called when a box has written a part.
  void note_written(const snapshot::PartHead& head) { heads_[{head.job, head.part}] = head; }
  // Called when a box has completed a snapshot of one of these jobs. Checks that all its parts are
  // as they were after the same round.
  void note_finished(const snapshot::Manifest& manifest, const Jobs& jobs);
  // Called when a box has read the state of a part. Checks that the snapshot is the newest that the
  // choice allows.
  void check_read(const std::string& job, const snapshot::Choice& choice,
                  const snapshot::Restored& restored) const;
  // Returns the state of a part in a complete snapshot; null if there is no such snapshot.
  const snapshot::Restored* find(const std::string& job, uint32_t part, uint64_t number) const;
  // Checks that the last two snapshots are kept, whole and readable.
  void check_end() const;

 private:
  struct Finished {
    snapshot::Manifest manifest;
    std::map<uint32_t, snapshot::Restored> parts;
  };

  static std::string make();
  static void check_part(JobModel& job, const snapshot::Restored& part);

  const std::string path_;
  std::map<std::string, uint64_t> numbers_;  // by job: its newest number
  std::map<std::pair<std::string, uint32_t>, snapshot::PartHead> heads_;
  std::map<std::string, std::map<uint64_t, Finished>> finished_;  // by job and number
};

// A box's access to the folder.
class SimSnapshots final : public snapshot::SnapshotStore {
 public:
  // The longest time that a step of the disk takes.
  static constexpr uint64_t kLongestNs = 40 * kNanosPerSecond;

  // All arguments that are passed by reference outlive this object. `on_done` is called after each
  // answer.
  SimSnapshots(EventQueue& queue, const Thread& thread, SnapshotFolder& folder,
               SnapshotFolder::Jobs& jobs, FaultCounts& counts, uint64_t seed,
               std::function<void()> on_done)
      : queue_(queue),
        thread_(thread),
        folder_(folder),
        jobs_(jobs),
        counts_(counts),
        rng_(seed),
        on_done_(std::move(on_done)) {}

  void begin(const std::string& job, std::function<void(Result<uint64_t>)> done) override;
  void write_part(uint64_t number, snapshot::PartHead head, snapshot::Cuts cuts,
                  std::function<void(Result<snapshot::PartFile>)> done) override;
  void finish(snapshot::Manifest manifest, std::function<void(Status)> done) override;
  void discard(const std::string& job, uint64_t number) override;
  void load(snapshot::PartHead part, snapshot::Choice choice,
            std::function<void(Result<snapshot::Restored>)> done) override;

  // From now on one step in this many fails, at random; 0 for none.
  void fail_one_of(uint32_t steps) { fail_one_of_ = steps; }
  // Returns the number of the snapshot whose optimizer state the box was given last for a part; 0
  // if there is none, or it came so late that the box may have gone on without it.
  uint64_t loaded(const std::string& job, uint32_t part) const;

 private:
  using Part = std::pair<std::string, uint32_t>;  // job and part

  void note_begin(const Part& part, const snapshot::Restored& restored);
  // Calls `work` once the disk has done all earlier steps, and `done` with its answer later.
  template <typename Answer>
  void run(std::function<Answer()> work, std::function<void(Answer)> done);
  void at(uint64_t due_ns, std::function<void()> function);
  bool fails() { return fail_one_of_ > 0 && rng_.below(fail_one_of_) == 0; }

  EventQueue& queue_;
  const Thread& thread_;
  SnapshotFolder& folder_;
  SnapshotFolder::Jobs& jobs_;
  FaultCounts& counts_;
  Rng rng_;
  std::function<void()> on_done_;
  uint32_t fail_one_of_ = 0;
  uint64_t free_ns_ = 0;  // when the disk will have done all steps that were begun so far
  std::map<Part, uint64_t> loaded_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace pbox::sim
