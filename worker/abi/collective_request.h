// Checks and converts the arguments of a collective for the classes. For the files of abi/ only.
#pragma once

#include <string>

#include "pbox/collective.h"
#include "worker/abi/context.h"

namespace pbox::worker {

inline Result<CollectiveRequest> collective_request(pbox_verb verb, const void* in, void* out,
                                                    uint64_t count, pbox_dtype dtype, pbox_op op,
                                                    uint32_t root, int32_t priority) {
  if (verb < PBOX_ALL_REDUCE || verb > PBOX_BARRIER) {
    return invalid_argument("verb " + std::to_string(verb) +
                            " is unknown: set one of PBOX_ALL_REDUCE to PBOX_BARRIER");
  }
  if (dtype < 0 || static_cast<uint32_t>(dtype) >= wire::kCollectiveDtypeCount) {
    return invalid_argument("dtype " + std::to_string(dtype) +
                            " is unknown: set one of PBOX_F32 to PBOX_F64");
  }
  if (op < PBOX_OP_SUM || op > PBOX_OP_MAX) {
    return invalid_argument("op " + std::to_string(op) +
                            " is unknown: set one of PBOX_OP_SUM to PBOX_OP_MAX");
  }
  return CollectiveRequest{.call = {.verb = static_cast<wire::Verb>(verb),
                                    .combine = static_cast<wire::Combine>(op),
                                    .dtype = static_cast<wire::Dtype>(dtype),
                                    .count = count,
                                    .root = root},
                           .input = static_cast<const std::byte*>(in),
                           .output = static_cast<std::byte*>(out),
                           .priority = priority};
}

}  // namespace pbox::worker
