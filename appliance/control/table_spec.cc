#include "appliance/control/table_spec.h"

#include <algorithm>

#include "appliance/control/field_text.h"

namespace pbox::control {
namespace {

using wire::kRowBytesLazyMin;

constexpr uint32_t kRowElementsMax = 1 << 24;

Status check_table(const JobSpec& spec, const TensorSpec& tensor) {
  using optimizer::OptimizerKind;
  const std::string what =
      "tensor " + in_quotes(tensor.name) + ": row_elements " + std::to_string(tensor.row_elements);
  const auto invalid = [&](const std::string& why) {
    return Error{ErrorCode::kInvalidArgument, what + why};
  };
  if (tensor.row_elements > kRowElementsMax) {
    return invalid(" is out of range; at most " + std::to_string(kRowElementsMax) + " are allowed");
  }
  if (spec.mode != pipeline::Mode::kOptimize) {
    return invalid(
        " needs mode optimize: the box must hold the rows that a rank does not push; set mode "
        "optimize, or push the whole tensor");
  }
  if (spec.numerics != wire::Numerics::kFast) {
    return invalid(
        " needs numerics fast: the box has no memory for every rank's rows; set numerics fast");
  }
  // A fragment of which nearly all rows are pushed is sent whole (nic/wire/rows.h). Rows below
  // kRowBytesLazyMin that are not pushed then arrive as zeros.
  const bool ignores_zeros = (spec.optimizer.kind == OptimizerKind::kSgd ||
                              spec.optimizer.kind == OptimizerKind::kAdagrad) &&
                             tensor.weight_decay == 0;
  const uint32_t row_bytes = tensor.row_elements * wire::dtype_bytes(tensor.dtype);
  if (!ignores_zeros && row_bytes < kRowBytesLazyMin) {
    return invalid(" makes rows of " + std::to_string(row_bytes) + " bytes; rows of less than " +
                   std::to_string(kRowBytesLazyMin) +
                   " need SGD or Adagrad without weight decay, for which a row that is pushed as "
                   "zero does not change; use one of them, or larger rows");
  }
  return ok_status();
}

}  // namespace

const TensorSpec* first_table(const JobSpec& spec) {
  const auto table =
      std::find_if(spec.tensors.begin(), spec.tensors.end(),
                   [](const TensorSpec& tensor) { return tensor.row_elements != 0; });
  return table == spec.tensors.end() ? nullptr : &*table;
}

Status check_tables(const JobSpec& spec) {
  for (const TensorSpec& tensor : spec.tensors) {
    if (tensor.row_elements == 0) continue;
    if (const Status status = check_table(spec, tensor); !status) return status;
  }
  return ok_status();
}

}  // namespace pbox::control
