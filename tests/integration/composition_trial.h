// How the ranks of a trial of two features exchange tensors, for test_service_composition.cc.
#pragma once

#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "tests/integration/composition_features.h"
#include "tests/support/daemon.h"
#include "tests/support/sums.h"

namespace pbox::test {

inline constexpr uint64_t kElements = 700;
// Elements of a table's row. Ranks push every other row.
inline constexpr uint32_t kRowElements = 50;

inline bool is_collective(const Trial& trial) {
  return trial.options.mode == PBOX_MODE_COLLECTIVE;
}

// Returns the status of the call or, if it succeeds, of the wait for its result. The call itself
// fails if a guard has already ended the job.
inline pbox_status run_collective(const AbiWorker& worker, const Trial& trial, pbox_verb verb,
                                  uint64_t count, const std::vector<unsigned char>& input,
                                  std::vector<unsigned char>& output) {
  uint64_t operation = 0;
  const pbox_status status =
      pbox_collective(worker.context(), verb, input.data(), output.data(), count, trial.dtype,
                      PBOX_OP_SUM, 0, 0, nullptr, nullptr, &operation);
  return status == PBOX_OK ? pbox_wait_collective(worker.context(), operation, 0) : status;
}

// Computes the sum by an all-reduce, and again by a reduce-scatter and an all-gather. Fails if the
// two differ.
inline void reduce(const AbiWorker& worker, const Trial& trial,
                   const std::vector<unsigned char>& input, std::vector<unsigned char>& result) {
  constexpr uint64_t kSegment = kElements / 2;
  std::vector<unsigned char> segment(input.size() / 2), gathered(input.size());
  worker.must(run_collective(worker, trial, PBOX_ALL_REDUCE, kElements, input, result));
  worker.must(run_collective(worker, trial, PBOX_REDUCE_SCATTER, kSegment, input, segment));
  worker.must(run_collective(worker, trial, PBOX_ALL_GATHER, kSegment, segment, gathered));
  require(result == gathered, "the gathered segments are not the sum");
}

inline void push_rows(const AbiWorker& worker, const Trial& trial, uint32_t tensor, float value,
                      std::vector<unsigned char>& result) {
  std::vector<uint64_t> ids;
  for (uint64_t row = 0; row < kElements / kRowElements; row += 2) ids.push_back(row);
  const auto rows = encode(trial.dtype, std::vector<float>(ids.size() * kRowElements, value));
  worker.must(pbox_push_pull_rows(worker.context(), tensor, ids.data(), ids.size(), rows.data(),
                                  result.data(), nullptr, nullptr));
  worker.wait(tensor);
}

// Returns a result whose pushed elements have this value. Rows that are not pushed are 0.
inline std::vector<unsigned char> result_of(const Trial& trial, float value) {
  std::vector<float> values(kElements, value);
  for (uint64_t at = 0; trial.has_table && at < kElements; ++at) {
    if (at / kRowElements % 2 == 1) values[at] = 0;
  }
  return encode(trial.dtype, values);
}

// Returns whether a compressed result is within `tolerance` of the values.
inline bool is_near(const std::vector<unsigned char>& result, const std::vector<float>& values,
                    float tolerance) {
  for (size_t at = 0; at < values.size(); ++at) {
    float value = 0;
    std::memcpy(&value, result.data() + at * sizeof(value), sizeof(value));
    if (!(std::fabs(value - values[at]) <= tolerance)) return false;
  }
  return true;
}

// Pushes `value` times the sum of both ranks' weights. The box divides by that sum, so the weighted
// mean is the sum of both ranks' values.
inline void push_weighed(const AbiWorker& worker, const Trial& trial, uint32_t tensor, float value,
                         std::vector<unsigned char>& result) {
  constexpr float kWeights[] = {1, 3};
  const float all = kWeights[0] + kWeights[1];
  const auto input = encode(trial.dtype, std::vector<float>(kElements, value * all));
  pbox_operation operation{};
  operation.input = input.data();
  operation.output = result.data();
  operation.tensor_id = tensor;
  operation.weight = kWeights[trial.options.rank];
  worker.must(pbox_push_pull_many(worker.context(), &operation, 1, nullptr, nullptr));
  worker.wait(tensor);
}

inline void push(const AbiWorker& worker, const Trial& trial, uint32_t tensor, float value,
                 std::vector<unsigned char>& result) {
  if (trial.has_table && tensor == 0) return push_rows(worker, trial, tensor, value, result);
  if (trial.options.weighted != 0 && !is_collective(trial)) {
    return push_weighed(worker, trial, tensor, value, result);
  }
  const auto input = encode(trial.dtype, std::vector<float>(kElements, value));
  if (is_collective(trial)) return reduce(worker, trial, input, result);
  worker.push_pull(tensor, input.data(), result.data());
  worker.wait(tensor);
}

// The second tensor of a job whose tensors have models of their own. Its model is ssp; the first
// tensor's is bsp.
class Beside {
 public:
  Beside(const AbiWorker& worker, const Trial& trial) : worker_(worker), trial_(trial) {
    if (!trial.has_models || is_collective(trial)) return;
    tensor_ = worker.tensor("beside", kElements, trial.dtype);
    result_ = encode(trial.dtype, std::vector<float>(kElements, 0));
  }
  // Must be called before the join.
  pbox_status set_model() const {
    return trial_.has_models ? pbox_set_sync(worker_.context(), "beside", "ssp:1") : PBOX_OK;
  }
  void begin() {
    if (!tensor_) return;
    worker_.must(pbox_init_weights(worker_.context(), *tensor_, result_.data(), nullptr, nullptr));
    worker_.wait(*tensor_);
  }
  void push(float value) {
    if (tensor_) test::push(worker_, trial_, *tensor_, value, result_);
  }
  // Must be called after all ranks have pushed and this rank has then read the weights.
  void expect(float value) const {
    require(!tensor_ || result_ == encode(trial_.dtype, std::vector<float>(kElements, value)),
            "the weights of the tensor with a model of its own are wrong");
  }

 private:
  const AbiWorker& worker_;
  const Trial& trial_;
  std::optional<uint32_t> tensor_;
  std::vector<unsigned char> result_;
};

}  // namespace pbox::test
