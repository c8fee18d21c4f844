// Snapshots on one box: the runs that it coordinates over all boxes with parts of a job, the cuts
// that it takes of its own parts for itself or for another box, and the snapshots that a part
// begins with. Used on the control thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "appliance/control/part_directory.h"
#include "appliance/control/registry_context.h"
#include "appliance/control/snapshot_run.h"
#include "appliance/snapshot/store.h"

namespace pbox::control {

class SnapshotCoordinator {
 public:
  // All arguments must outlive this object. `store` is null if this box keeps no snapshots.
  SnapshotCoordinator(RegistryContext& context, PipelineHost& host, PartDirectory& parts,
                      snapshot::SnapshotStore* store, JobOwner& owner)
      : context_(context), host_(host), parts_(parts), store_(store), owner_(owner) {}

  // Begins a snapshot of all parts of the job, wherever they are. The snapshot fails unless it is
  // complete within `timeout_ns`. kNotFound if no part of the job is here. kInvalidArgument if this
  // box keeps no snapshots, or if a job of this kind has none. kUnavailable while another snapshot
  // of the job is being taken.
  Status begin(const std::string& job, uint64_t timeout_ns);
  // Returns the newest snapshot that was begun here; nothing if there was none.
  std::optional<SnapshotView> view(const std::string& job) const;

  // Answers the box that coordinates a snapshot. kNotFound if the part is not here any more.
  Result<proto::CutProgress> take_cut(const proto::AskCut& question,
                                      const Connection* asker = nullptr);
  // Returns the memory of all cuts, or of one tenant's, in bytes. A cut counts until the disk has
  // written it, even if no box asks for it any more.
  uint64_t cut_bytes(std::optional<std::string_view> tenant) const;
  // Adds these bytes to the use of each tenant.
  void add_use(TenantUses& uses) const;

  // Call it while the part starts. Reads the snapshot that it begins with, or whose optimizer state
  // replaces the one that was lost. `state` is what the previous owner hands over, or null. Returns
  // true if there is nothing to wait for; otherwise the owner advances the part, or fails it. The
  // error says why the part cannot start.
  Result<bool> read_for_start(Job& job, const PartState* state);
  bool is_reading(const JobKey& part) const { return reads_.contains(part); }

  void on_tick();
  // Gives cuts and reads `gap_ns` more time, because the box stood still. Runs keep their
  // deadlines.
  void forgive(uint64_t gap_ns);
  // Call it when the pipelines have given the part's shards back.
  void on_closed(const JobKey& part);
  // Call it when the part is gone, and does not gather again.
  void on_removed(const JobKey& part);

 private:
  struct PartCut {
    uint64_t number = 0;  // number of the snapshot
    uint32_t round = 0;
    uint64_t heard_ns = 0;  // time of the newest question about it
    uint64_t bytes = 0;     // memory that it takes until it is handed to the disk
    JobShards::Cuts cuts;   // empty once the pipelines have copied everything
    proto::CutProgress progress;
  };
  struct Run {
    std::shared_ptr<SnapshotRun> run;
    uint64_t begun_ns = 0;
  };
  // A snapshot that is being read for the start of a part.
  struct Read {
    uint64_t number = 0;  // number of the question
    uint64_t due_ns = 0;  // time at which the part goes on without an answer; 0 if it cannot
  };
  using Loaded = Result<snapshot::Restored>;

  // Returns how far the chunks of a running part are.
  Result<proto::CutProgress> survey(const Job& job);
  Status begin_cut(Job& job, const proto::AskCut& question);
  void continue_cut(const Job& job, PartCut& cut);
  void write_cut(const Job& job, PartCut& cut);
  void on_written(const JobKey& part, uint64_t number, uint32_t round,
                  const Result<snapshot::PartFile>& file);
  void end_cut(const JobKey& part);
  void tick_cuts();
  void tick_reads();
  void tick_runs();
  void begin_due();
  void on_end(const SnapshotRun& run);
  Result<bool> read_beginning(Job& job, const PartState* state);
  bool read_optimizer_state(Job& job, const PartState* state);
  void read(const Job& job, snapshot::Choice choice, uint64_t due_ns,
            void (SnapshotCoordinator::*done)(Job&, Loaded));
  void on_read(const JobKey& part, uint64_t number, Loaded loaded,
               void (SnapshotCoordinator::*done)(Job&, Loaded));
  void on_beginning(Job& job, Loaded loaded);
  void on_optimizer_state(Job& job, Loaded loaded);

  RegistryContext& context_;
  PipelineHost& host_;
  PartDirectory& parts_;
  snapshot::SnapshotStore* store_;
  JobOwner& owner_;
  std::map<JobKey, PartCut> cuts_;
  // Memory of the cuts that the disk is writing, by tenant.
  std::map<std::string, uint64_t, std::less<>> writing_bytes_;
  std::map<std::string, Run> runs_;  // by job: the newest that this box has begun
  std::map<JobKey, Read> reads_;
  // Time of the next regular snapshot, by the job's first part.
  std::map<JobKey, uint64_t> due_ns_;
};

}  // namespace pbox::control
