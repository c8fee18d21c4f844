// Decides whether a worker may join, and creates the job when its first rank does. Used on the
// control thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "appliance/control/capacity.h"
#include "appliance/control/registry_context.h"
#include "appliance/control/state_handover.h"
#include "appliance/storage/epoch_store.h"

namespace pbox::control {

class JobAdmission {
 public:
  // Abilities of this box that its options do not name.
  struct Abilities {
    bool has_upstream = false;   // its sums go on to another box
    bool knows_backups = false;  // other boxes can have backup copies
  };

  // All references must outlive this object.
  JobAdmission(RegistryContext& context, const PipelineHost& host, const storage::Epochs& epochs,
               const StateHandover& handover, JobOwner& owner, Abilities abilities)
      : context_(context),
        host_(host),
        epochs_(epochs),
        handover_(handover),
        owner_(owner),
        abilities_(abilities) {}

  // Returns the job that the worker of this JOIN may join; creates the job for its first rank. The
  // error says why the worker may not join. If all ranks of a running job are lost and a new run
  // begins, the old job fails here. `identity`: as in Connection.
  Result<Job*> admit(const proto::WorkerMessage& message,
                     const std::optional<tls::Identity>& identity);

 private:
  Status check_abilities(const JobSpec& spec) const;
  Result<Job*> make_job(const proto::Join& join, JobSpec spec);
  // Returns the error for a job that finds no room because of other jobs, and counts the refusal.
  // On a box with keys, tenants learn nothing about each other, so `figures` go only to the log.
  Error no_room(const JobSpec& spec, const std::string& wanted, const std::string& figures) const;
  Status check_job_slots(const JobSpec& spec) const;
  Status check_places(const Job& job, const std::vector<PipelineUse>& uses) const;
  Placement choose_pipelines(const JobSpec& spec, const std::vector<PipelineUse>& uses) const;
  Status check_tenant(const JobSpec& spec, const Job& job) const;
  Status check_total(const JobSpec& spec, uint64_t wanted) const;
  Status check_memory(const Job& job, const std::vector<PipelineUse>& uses) const;
  Status check_arenas(const Job& job, const std::vector<PipelineUse>& uses) const;
  Status check_member(const Job& job, const JobSpec& spec, const proto::Join& join) const;
  static Status check_seat(const Job& job, const proto::Join& join,
                           const std::optional<tls::Identity>& identity);
  Status check_gathering(const Job& job, const proto::Join& join) const;
  Status check_resuming(const Job& job, const proto::Join& join) const;
  Status check_return(const Job& job, const proto::Join& join) const;

  RegistryContext& context_;
  const PipelineHost& host_;
  const storage::Epochs& epochs_;
  const StateHandover& handover_;
  JobOwner& owner_;
  Abilities abilities_;
};

}  // namespace pbox::control
