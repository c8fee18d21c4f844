// Joins relayed jobs to the upstream box, which sums the sums of several racks. The ranks wait
// until all racks have joined, and are told if some rack does not. Used on the control thread.
#pragma once

#include <cstdint>
#include <map>

#include "appliance/control/registry_context.h"
#include "appliance/control/upstream.h"

namespace pbox::control {

class RelayConnector {
 public:
  // All arguments must outlive this object. `upstream` is null if the sums of this box stay here.
  RelayConnector(RegistryContext& context, Upstream* upstream, JobOwner& owner)
      : context_(context), upstream_(upstream), owner_(owner) {}

  bool has_upstream() const { return upstream_ != nullptr; }
  // Joins the upstream box. Returns true if the part is not relayed or has joined; otherwise the
  // owner advances it once it has joined, or fails it.
  bool connect(Job& job);
  // Forgets a part that has been closed.
  void forget(const JobKey& part) { questions_.erase(part); }

 private:
  void on_answer(const JobKey& part, uint64_t number, const Status& status);

  RegistryContext& context_;
  Upstream* upstream_;
  JobOwner& owner_;
  std::map<JobKey, uint64_t> questions_;  // number of the join under way or done, by part
};

}  // namespace pbox::control
