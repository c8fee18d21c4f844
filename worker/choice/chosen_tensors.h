// The tensors of a job as its ranks exchange them, where the compression of some is chosen while
// the job runs (compression_choice.h). Turns operations on the caller's tensors into operations on
// the job's, and completions back. Pure; used on the I/O thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "worker/choice/compression_choice.h"
#include "worker/protocol/operation.h"
#include "worker/protocol/session_spec.h"

namespace pbox::worker {

class ChosenTensors {
 public:
  // `tensors`: the caller's. Those with `chooses` are compressed at times.
  explicit ChosenTensors(const std::vector<TensorSpec>& tensors);
  ChosenTensors(const ChosenTensors&) = delete;
  ChosenTensors& operator=(const ChosenTensors&) = delete;

  static bool any(const std::vector<TensorSpec>& tensors);
  // For a smaller tensor, three tensors of the job do not pay, unless the caller names it.
  static constexpr uint64_t kElementsMin = 65'536;
  // Returns an error if the tensor's compression cannot be chosen.
  static Status check(const TensorSpec& tensor);

  // Returns the job's tensors: first the caller's, then the others.
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  // Call it once after the join. `round` returns the round of a tensor of the job.
  void begin(const std::function<uint32_t(uint32_t)>& round);

  // Starts an operation on one of the caller's tensors.
  void start(const Operation& operation, uint64_t now_ns);
  // Takes the job's tensors that are complete. Returns the caller's tensors that this completes.
  std::vector<uint32_t> complete(std::span<const uint32_t> tensors, uint64_t now_ns);
  // Takes the operations on the job's tensors that are to be started now.
  std::vector<Operation> take_operations();

  // Returns the job's tensor that the newest operation on a caller's tensor waits for, or has used.
  uint32_t awaited(uint32_t tensor) const;
  // Returns null if the tensor's compression is not chosen.
  const CompressionChoice* choice(uint32_t tensor) const;
  // Returns the caller's tensor that a tensor of the job stands for.
  uint32_t caller_of(uint32_t tensor) const { return callers_[tensor]; }
  // Returns the priorities of all tensors of the job, from those of the caller's tensors; none if
  // `by_tensor` is empty.
  std::vector<int32_t> priorities(const std::vector<int32_t>& by_tensor) const;

 private:
  struct Chosen {
    uint32_t tensor = 0;  // the caller's tensor, which is the plain form
    uint32_t compressed = 0;
    uint32_t votes = 0;
    std::optional<CompressionChoice> choice;
    std::optional<Operation> held;  // started, but its form is not known yet
    std::optional<Form> under_way;
    uint64_t started_ns = 0;
    bool is_voting = false;
    bool is_fetching = false;  // while is_voting
    CompressionChoice::Vote vote, sum;
  };

  void advance(Chosen& chosen);
  void send_vote(Chosen& chosen, bool fetches);

  std::vector<TensorSpec> tensors_;
  std::vector<uint32_t> callers_;   // by tensor of the job
  std::vector<int32_t> chosen_of_;  // by tensor of the job: index in chosen_; -1: none
  std::vector<Chosen> chosen_;      // fixed after construction: operations refer to votes
  std::vector<Operation> operations_;
};

}  // namespace pbox::worker
