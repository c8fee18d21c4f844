// The consistency models of a part's tensors: those in force, changes of them, and the controller
// of adaptive tensors. It has no I/O and runs on the control thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "appliance/control/job_view.h"
#include "appliance/control/sync_controller.h"
#include "appliance/control/sync_spec.h"

namespace pbox::control {

class PartModels {
 public:
  // `spec` must outlive this object.
  explicit PartModels(const JobSpec& spec);

  // Call it when the part opens: takes the models that another box has handed over, or the
  // registered ones.
  void begin(const std::optional<SyncInForce>& handed_over);

  const SyncInForce& in_force() const { return in_force_; }
  // Applies the change, or returns why some tensor cannot have it. The controller begins anew.
  Status change(const SyncChange& change);
  // Lets the controller look at the part's counts. Returns whether rules() has changed; false if no
  // tensor is adaptive.
  bool observe(const SyncCounts& counts, uint64_t now_ns);
  // Returns, by chunk, the model in force, or the controller's rule if the tensor is adaptive.
  std::vector<wire::SyncSpec> rules() const;

  // The newest decision of the controller; null if it has made none.
  const SyncDecision* newest_decision() const;
  // Returns the view of the controller; nothing if no tensor is adaptive.
  std::optional<SyncControlView> view(uint64_t now_ns) const;

 private:
  std::optional<SyncController> make_controller() const;

  const JobSpec& spec_;
  SyncInForce in_force_;
  std::optional<SyncController> controller_;  // absent if no tensor is adaptive
};

}  // namespace pbox::control
