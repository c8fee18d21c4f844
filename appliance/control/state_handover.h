// Hands the state of parts in mode optimize from box to box. The box that gives a part up keeps its
// state: the weights, the optimizer state and the clocks. The box that takes the part over fetches
// that state before it opens the part. Without it, for example after the loss of a box, the weights
// come back from the workers and the optimizer restarts. Used on the control thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "appliance/control/part_directory.h"
#include "appliance/control/part_state.h"
#include "appliance/control/registry_context.h"

namespace pbox::control {

class StateHandover {
 public:
  enum class Transfer { kNone, kUnderWay, kOver };

  // All arguments must outlive this object.
  StateHandover(RegistryContext& context, PartDirectory& parts, JobOwner& owner)
      : context_(context), parts_(parts), owner_(owner) {}

  // The following functions are the former owner's side.

  // Keeps the state until another box has taken it, or for twice the time in which the ranks have
  // to come together elsewhere. `is_copy`: it is a backup copy of another box's part. `copy`: the
  // backup copy that yet another box has of the part.
  void keep(const Job& job, PartState state, bool is_copy, CopyName copy);
  // Answers a box that asks for a state, or that acknowledges it. An acknowledged state is dropped.
  // kNotFound if this box does not keep that state.
  Result<proto::BoxMessage> answer(const proto::AskState& question,
                                   const Connection* asker = nullptr);
  // Drops the states whose time is over.
  void drop_expired();
  // Gives states and answers `gap_ns` more time, because the box stood still.
  void forgive(uint64_t gap_ns);
  void drop(const JobKey& part) { kept_.erase(part); }
  bool keeps(const JobKey& part) const { return kept_.contains(part); }
  uint64_t kept_bytes(const JobKey& part) const;
  // Bytes of all states that are kept, or that are being fetched, or of those of one tenant.
  uint64_t bytes_of(std::optional<std::string_view> tenant) const;
  // Adds these bytes to the use of each tenant.
  void add_use(TenantUses& uses) const;
  // States that no box has acknowledged yet. Backup copies are excluded: the primary has the state.
  size_t states_kept() const;

  // The following functions are the new owner's side, where the part gathers.

  // Fetches the newest state that any rank of the part reports, unless this box keeps it. Returns
  // true if there is nothing to wait for; otherwise the owner advances the part when it is over.
  bool fetch(const Job& job);
  // Gives up on a box that does not answer in time, and asks the box with the backup copy instead.
  Transfer check_deadline(const Job& job);
  // Returns the state that the part can go on from; null if there is none. Valid until the next
  // event.
  const PartState* state_for(const Job& job);
  // Call it when the part is about to open from `state`, which its source has to keep for now.
  void begin_opening(const Job& job, const PartState& state);
  // Call it when the part is open.
  void on_opened(const JobKey& part) { transfers_.erase(part); }
  // Call it when a round has finished here, or when the part ends. Tells the box from whose state
  // the part was opened to drop that state. Until then the part may have to be opened from it once
  // more.
  void release_previous_owner(const Job& job);
  // Tells the box that has this backup copy that no one needs it any more.
  void discard_copy(const CopyName& copy);
  // Forgets a part that has been closed.
  void forget(const JobKey& part);

 private:
  struct KeptState {
    PartState state;
    uint64_t kept_for_ns = 0;  // from the newest question about it
    uint64_t until_ns = 0;
    bool is_copy = false;  // a copy of another box's part; the asking box knows its epoch
    CopyName copy;         // the copy that another box has of it
    std::string asker;     // the box that asked for it last, for the audit log
  };
  // A transfer from the previous owner, or from the box with the backup copy.
  struct StateTransfer {
    std::string box;          // the box that is asked
    std::string session_box;  // the box that gave the ranks their newest session
    std::string job;          // name of the job there
    uint32_t part = 0;        // number of the part there
    bool is_backup = false;   // the box has a backup copy
    CopyName next;            // the copy that is asked for if this box does not answer
    IncomingState state;
    uint64_t answer_due_ns = 0;
    uint64_t number = 0;   // number of the unanswered question; 0 if there is none
    bool is_over = false;  // the state is complete, or given up
  };
  // A box that keeps the state from which a part was opened here.
  struct StateSource {
    std::string box;
    std::string job;  // name there
    uint32_t part = 0;
    uint32_t epoch = 0;
    bool is_backup = false;
  };

  void begin_transfer(const Job& job, const Member& newest);
  void ask(const Job& job, StateTransfer& transfer);
  // Records in the audit log that a box begins to take the state, or has taken it.
  void audit(const proto::AskState& question, KeptState& kept, const Connection* asker) const;
  void on_answer(const JobKey& part, uint64_t number, const Result<proto::PartState>& answer);
  void give_up(const Job& job, const std::string& why);
  void acknowledge_handover(const StateSource& source);

  RegistryContext& context_;
  PartDirectory& parts_;
  JobOwner& owner_;
  std::map<JobKey, KeptState> kept_;
  std::map<JobKey, StateTransfer> transfers_;  // parts that gather
  std::map<JobKey, StateSource> sources_;      // parts that run
  // True while a question is being sent. An answer that arrives within that call is only recorded,
  // and the caller goes on with it.
  bool is_asking_ = false;
};

}  // namespace pbox::control
