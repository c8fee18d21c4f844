#include "appliance/control/collective_spec.h"

#include <string>

#include "appliance/control/job_spec.h"
#include "appliance/control/sync_spec.h"
#include "nic/wire/dtype.h"

namespace pbox::control {

Status check_collective(const proto::Join& join) {
  if (!join.collective()) return ok_status();
  const struct {
    bool is_refused;
    const char* what;
    const char* why;
  } fields[] = {
      {join.mode() != static_cast<uint32_t>(pipeline::Mode::kAggregate), "mode optimize",
       "the box sees no weights; leave the optimizer to the ranks"},
      {join.reduction() != static_cast<uint32_t>(pipeline::Reduction::kSum), "reduction mean",
       "each operation states its own op; set reduction sum"},
      {is_relaxed(join), "a sync model other than bsp",
       "every operation waits for all ranks; set sync bsp"},
      {join.numerics() != static_cast<uint32_t>(wire::Numerics::kFast), "numerics ordered",
       "slots have no memory for every rank's values; set numerics fast"},
      {join.delivery() != static_cast<uint32_t>(wire::Delivery::kBroadcast), "delivery pull",
       "results are sent unasked; set delivery broadcast"},
      {join.priority_policy() == static_cast<uint32_t>(wire::PriorityPolicy::kForwardOrder),
       "priority_policy forward-order",
       "slots have no order of layers; set explicit, and give each operation its priority"},
      {join.min_world_size() != 0 && join.min_world_size() < join.world_size(), "min_world_size",
       "an operation needs every rank's data; leave it out"},
      {join.on_worker_lost() == static_cast<uint32_t>(LostPolicy::kPartial),
       "on_worker_lost partial", "an operation needs every rank's data; set wait or abort"},
      {join.rejoins(), "rejoin",
       "a new process does not know which operation is next; start all ranks again"},
      {join.is_backup(), "backup = 1", "a replica has tensors"},
  };
  for (const auto& field : fields) {
    if (!field.is_refused) continue;
    return Error{ErrorCode::kInvalidArgument,
                 std::string("mode collective cannot have ") + field.what + ": " + field.why};
  }
  for (int index = 0; index < join.tensors_size(); ++index) {
    const uint32_t dtype = join.tensors(index).dtype();
    if (dtype == static_cast<uint32_t>(wire::Dtype::kU8)) continue;
    return Error{ErrorCode::kInvalidArgument, "tensor " + std::to_string(index) + " has dtype " +
                                                  std::to_string(dtype) +
                                                  "; mode collective has slots of u8 (5) only"};
  }
  return ok_status();
}

}  // namespace pbox::control
