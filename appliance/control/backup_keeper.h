// Finds and monitors the backup boxes of parts with replicas = 1 (mode optimize). The state of each
// chunk reaches the backup box after each round, before any rank gets the result. If this box is
// lost, the box that takes the part over therefore has everything that any rank can have seen. A
// copy belongs to one opening of its part: if the backup box is lost, the part is opened once more,
// here, with another one. Used on the control thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "appliance/control/part_directory.h"
#include "appliance/control/registry_context.h"
#include "appliance/control/upstream.h"

namespace pbox::control {

class BackupKeeper {
 public:
  // All arguments must outlive this object. `boxes` is null if no other box can have copies; then
  // no part with replicas = 1 is admitted.
  BackupKeeper(RegistryContext& context, PartDirectory& parts, BackupBoxes* boxes, JobOwner& owner)
      : context_(context), parts_(parts), boxes_(boxes), owner_(owner) {}

  // Call it while the part starts. Joins a backup box and gives it `state`, which the part begins
  // with (null if there is none). Returns true if there is nothing to wait for, because the box is
  // ready or no box can have a copy; otherwise the owner advances the part on each answer.
  bool prepare_backup(Job& job, const PartState* state);
  // Call it when the part has started.
  void on_started(const Job& job);
  // Call it on each tick of a running part. Has the part gather again if its backup box is gone, or
  // if it has none and another box can have a copy now. The part may have ended on return.
  void on_tick(Job& job);
  // Forgets a part that has been closed.
  void forget(const JobKey& part) { backups_.erase(part); }

 private:
  // The backup box of one part, or the search for one.
  struct Backup {
    size_t tried = 0;      // boxes that have been asked
    std::string box = {};  // the box that is asked or has the copy
    // Number of the question to that box, while the part starts or runs with it.
    uint64_t number = 0;
    bool is_joined = false;
    uint32_t seeded_epoch = 0;  // epoch of the state that the box is given; 0 if none
    bool is_seeding = false;
    bool is_given_up = false;      // the part starts without a copy
    uint64_t absent_since_ns = 0;  // when the box left the list of candidates; 0 if it is there
    // The next attempt to get a copy, for a part that runs without one.
    std::unique_ptr<Relay> probe = {};
    uint64_t probe_number = 0;
    uint64_t probe_due_ns = 0;
    uint64_t probe_interval_ns = 0;
  };

  bool join_next(Job& job, Backup& backup);
  std::unique_ptr<Relay> join_box(const Job& job, const proto::PartPlace& place,
                                  const std::string& name, uint64_t number);
  // Returns a name for a copy that no box has ever used, so that the copy of one opening is never
  // taken for that of another. "train#3~5f1c..." is a copy of part 3 of job "train".
  std::string new_copy_name(const JobSpec& spec);
  void on_answer(const JobKey& part, uint64_t number, const Status& status);
  void on_probe(Job& job, Backup& backup, const Status& status);
  void monitor_backup(Job& job, Backup& backup);
  void find_backup(Job& job, Backup& backup);
  void lose_backup(Job& job, const Backup& backup, const std::string& why);
  void note_refused(const Job& job, const Backup& backup, const Status& status);

  RegistryContext& context_;
  PartDirectory& parts_;
  BackupBoxes* boxes_;
  JobOwner& owner_;
  std::map<JobKey, Backup> backups_;
};

}  // namespace pbox::control
