// Starts parts: takes each one through the phases from gathering its ranks to running. A phase that
// has to ask another box or the disk waits for the answer. The class that asked records the answer,
// and then has the start advance. Used on the control thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "appliance/control/backup_keeper.h"
#include "appliance/control/registry_context.h"
#include "appliance/control/relay_connector.h"
#include "appliance/control/session_sender.h"
#include "appliance/control/snapshot_coordinator.h"
#include "appliance/control/state_handover.h"
#include "appliance/control/step_verdicts.h"
#include "appliance/storage/epoch_store.h"

namespace pbox::control {

// The phases of a start, in order. A part is in the first phase that is not complete.
enum class StartPhase : uint8_t {
  kGathering,        // until every rank is ready
  kFetchingState,    // from the previous owner or the backup box
  kReadingSnapshot,  // to begin with, or for the optimizer state
  kConnectingRelay,  // to the upstream box
  kPreparingBackup,  // a backup box joins and receives the state
  kPrefaulting,      // memory is prefaulted
  kReservingEpoch,   // from the store of epochs
  kRunning,
};

const char* to_string(StartPhase phase);

class JobStarter {
 public:
  struct Parts {
    StateHandover& handover;
    SnapshotCoordinator& snapshots;
    RelayConnector& relays;
    BackupKeeper& backups;
    SessionSender& sessions;
    StepVerdicts& verdicts;
  };

  // All references must outlive this object.
  JobStarter(RegistryContext& context, PipelineHost& host, SpiAllocator& spis,
             storage::Epochs& epochs, JobOwner& owner, Parts parts)
      : context_(context),
        host_(host),
        spis_(spis),
        epochs_(epochs),
        owner_(owner),
        parts_(parts) {}

  // Takes the part through all phases that it can complete without waiting. Does nothing for a part
  // that runs or is gone. The part may have failed on return.
  void advance(const JobKey& part) { advance(part, false); }
  // Like advance(), for a part whose missing ranks have had their time: they are excluded.
  void advance_without_missing(const JobKey& part) { advance(part, true); }
  // Tries steps of the start again that have to be repeated, and ends those that take too long.
  // Returns true if the part needs nothing else in this tick; it may then be running, or gone.
  bool on_tick(Job& job);
  // Returns the phase of the part; kGathering for a part that is not here.
  StartPhase phase_of(const JobKey& part) const;
  // Dismisses the ranks that the job has gone on without, as another rank states, and that cannot
  // take part again: those that resume, and all of a job that excludes for good.
  void dismiss_left_behind(Job& job);
  // Forgets a part that has been closed.
  void forget(const JobKey& part) { starts_.erase(part); }

 private:
  enum class Step { kDone, kWaiting, kFailed };
  struct Start {
    StartPhase phase = StartPhase::kGathering;
    // Why no epoch could be reserved; nothing unless the start waits for one.
    std::optional<Error> epoch_refusal;
  };
  struct Advance {
    JobKey part;
    bool without_missing = false;
  };

  void advance(const JobKey& part, bool without_missing);
  void walk(const Advance& advance);
  Step take_step(Job& job, StartPhase phase, bool without_missing, const PartState*& state);
  Step read_snapshot(Job& job, const PartState* state);
  Step prefault(Job& job, const PartState* state);
  Step reserve_epoch(Job& job, const PartState* state);
  void await_epoch(Job& job, const Error& error);
  // Opens the part and sends its sessions.
  Step start_job(Job& job, const Result<uint32_t>& epoch, const PartState* state);
  void note_started(const Job& job, bool recovers);
  void exclude_missing(Job& job);
  // Tells a rank why it cannot go on with the others, and frees its place.
  void dismiss(Job& job, uint32_t rank, const Error& why);

  RegistryContext& context_;
  PipelineHost& host_;
  SpiAllocator& spis_;
  storage::Epochs& epochs_;
  JobOwner& owner_;
  Parts parts_;
  std::map<JobKey, Start> starts_;
  // Parts to be advanced, oldest first. An answer may arrive while a part is being advanced, even
  // within the call that asks; it must not start a job in the middle of a step.
  std::vector<Advance> pending_;
  bool is_advancing_ = false;
};

}  // namespace pbox::control
