#include "appliance/control/compression_spec.h"

#include <algorithm>

#include "appliance/control/field_text.h"
#include "appliance/control/sync_spec.h"

namespace pbox::control {
namespace {

bool is_compressed(const TensorSpec& tensor) {
  return tensor.compression != wire::Compression::kNone;
}

Status check_tensor(const JobSpec& spec, const TensorSpec& tensor) {
  const auto invalid = [&](const std::string& why) {
    return Error{ErrorCode::kInvalidArgument, "tensor " + in_quotes(tensor.name) +
                                                  ": compression " + to_string(tensor.compression) +
                                                  why};
  };
  if (tensor.dtype != wire::Dtype::kF32) {
    return invalid(std::string(" needs f32, and the tensor is ") + to_string(tensor.dtype) +
                   "; set compression none, or exchange gradients of f32");
  }
  if (spec.is_backup) {
    return invalid(" cannot be used with backup = 1: a copy must have all bits");
  }
  if (tensor.row_elements > 0) {
    return invalid(
        " cannot be used for a table, because only some rows are sent; set compression none");
  }
  if (spec.is_relaxed() && spec.relaxed_model != wire::SyncModel::kDrop) {
    return invalid(std::string(" needs model bsp or drop for all tensors, and some tensor has ") +
                   to_string(spec.relaxed_model) +
                   ": a delta is the change of the weights in a round that ranks share; set sync "
                   "bsp or drop, or compression none");
  }
  return ok_status();
}

}  // namespace

const TensorSpec* first_compressed(const JobSpec& spec) {
  const auto tensor = std::find_if(spec.tensors.begin(), spec.tensors.end(), is_compressed);
  return tensor == spec.tensors.end() ? nullptr : &*tensor;
}

Status check_compression(const JobSpec& spec) {
  for (const TensorSpec& tensor : spec.tensors) {
    if (!is_compressed(tensor)) continue;
    if (const Status status = check_tensor(spec, tensor); !status) return status;
  }
  return ok_status();
}

std::string compressed_text(const JobSpec& spec) {
  const auto count = std::count_if(spec.tensors.begin(), spec.tensors.end(), is_compressed);
  return count == 0 ? "" : ", " + std::to_string(count) + " of them compressed";
}

}  // namespace pbox::control
