// Tensors whose compression is chosen while the job runs.
#include <string>

#include "base/check.h"
#include "base/clock.h"
#include "worker/client.h"

namespace pbox::worker {

Status check_chosen(const TensorSpec& tensor) {
  constexpr size_t kNameBytesMax = limits::kTensorNameBytesMax - ChosenTensors::kSuffixBytesMax;
  if (tensor.name.size() > kNameBytesMax) {
    return Error{ErrorCode::kInvalidArgument,
                 "the name of a tensor with compression auto must have at most " +
                     std::to_string(kNameBytesMax) + " bytes, and '" + tensor.name + "' has " +
                     std::to_string(tensor.name.size())};
  }
  if (tensor.row_elements > 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "tensor '" + tensor.name + "' is a table, which is not compressed"};
  }
  return ok_status();
}

void Client::open_choices() {
  if (!chosen_) return;
  chosen_->begin([this](uint32_t tensor) { return parts_->round(tensor); });
}

void Client::start_operation(const Operation& operation) {
  if (!chosen_) return parts_->start(operation);
  chosen_->start(operation, monotonic_ns());
  start_chosen();
}

void Client::start_chosen() {
  for (const Operation& operation : chosen_->take_operations()) parts_->start(operation);
}

void Client::take_completed() {
  std::vector<uint32_t> completed = parts_->take_completed();
  if (completed.empty()) return;
  if (chosen_) {
    completed = chosen_->complete(completed, monotonic_ns());
    start_chosen();
  }
  if (!completed.empty()) complete(completed);
}

uint32_t Client::round_of(uint32_t tensor) const {
  const CompressionChoice* const choice = chosen_ ? chosen_->choice(tensor) : nullptr;
  return choice != nullptr ? choice->round() : parts_->round(tensor);
}

// The job's tensor that the caller's waits for, or has waited for.
uint32_t Client::awaited(uint32_t tensor) const {
  return chosen_ ? chosen_->awaited(tensor) : tensor;
}

void Client::report_choices(Report& report) const {
  if (!chosen_) return;
  for (uint32_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    const CompressionChoice* const choice = chosen_->choice(tensor);
    if (choice == nullptr) continue;
    ++report.chosen_tensors;
    if (choice->newest() == Form::kCompressed) ++report.chosen_compressed;
    report.compression_changes += choice->changes();
  }
}

Result<Client::TensorCompression> Client::tensor_compression(uint32_t tensor) {
  std::unique_lock lock(mutex_);
  if (const Status status = check_phase(Phase::kJoined); !status) return status.error();
  if (tensor >= tensor_states_.size()) {
    return Error{ErrorCode::kInvalidArgument, "tensor " + std::to_string(tensor) + " is unknown"};
  }
  TensorCompression found{.now = tensors_[tensor].compression};
  const Status asked = call_on_io(lock, [&] {
    const CompressionChoice* const choice = chosen_ ? chosen_->choice(tensor) : nullptr;
    if (choice == nullptr) return;
    if (choice->newest() == Form::kPlain) found.now = wire::Compression::kNone;
    found.seconds_plain = choice->mean_seconds(Form::kPlain);
    found.seconds_compressed = choice->mean_seconds(Form::kCompressed);
  });
  if (!asked) return asked.error();
  return found;
}

}  // namespace pbox::worker
