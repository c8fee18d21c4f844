// The training process's use of its tensors: rounds one after another, in an order and at a pace of
// its own. It checks every result, and that nothing touches its buffers between operations.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "tests/sim/application.h"

namespace pbox::sim {

class Training final : public Application {
 public:
  Training(JobModel& job, uint32_t rank, uint64_t seed);

  uint64_t start_due(worker::Membership& membership, uint64_t now_ns,
                     uint64_t rack_now_ns) override;
  void completed(uint32_t tensor, const worker::Exchange& exchange, uint64_t now_ns) override;
  void resume(const worker::Exchange& exchange, uint64_t now_ns) override;
  bool done() const override;
  int32_t priority(uint32_t tensor) const override { return tensors_[tensor].priority; }
  std::optional<uint64_t> operations_dropped() const override;
  uint64_t rounds_completed() const override { return rounds_completed_; }
  uint64_t oldest_start_ns() const override;
  std::string waiting_for() const override;

 private:
  struct Tensor {
    uint32_t round = 0;  // the next round to start, or the round in flight
    bool busy = false;
    bool fetches = false;  // the previous round's weights must be fetched first
    uint64_t ready_ns = 0;
    uint64_t started_ns = 0;
    uint32_t input_crc = 0;
    int32_t priority = 0;
    uint32_t own_from = 0;  // results from this round on certainly contain this rank's part
    std::vector<std::byte> input, output;
    // For tables: a checksum of the output between two operations, because results change only some
    // of its rows, and the rows that an operation pushes.
    uint32_t output_crc = 0;
    std::vector<uint64_t> row_ids;
    std::vector<std::byte> rows;
  };

  bool may_start(const Tensor& tensor) const;
  // Returns whether this rank continues after its rounds because other ranks need a quorum. In jobs
  // of one part that may lack ranks it does not, because the box does not count ranks that have
  // left. There ranks leave once they are done, and the last rank trains alone for a few more
  // steps. In jobs of several parts they cannot, because a process leaves all parts at once.
  bool goes_on() const;
  void fill(uint32_t index, std::vector<std::byte>& input);
  void start(worker::Membership& membership, uint32_t index, uint64_t rack_now_ns);
  void check_result(uint32_t index, uint32_t contributors);
  void check_contributors(uint32_t index, uint32_t contributors) const;
  bool is_table(uint32_t index) const { return job_.options.tensors[index].row_elements > 0; }
  // Called when the buffers belong to the application again, until the next operation.
  void take_back(uint32_t index);
  bool are_untouched(uint32_t index) const;
  // Returns the rows of a table that the rank pushes.
  std::shared_ptr<const worker::RowPush> rows_of(uint32_t index);
  // The content of a buffer between operations, which repeats after 256 bytes.
  using Pattern = std::array<std::byte, 256>;
  static Pattern pattern(uint32_t round);
  static void scribble(std::vector<std::byte>& buffer, uint32_t round);
  static bool is_scribble(const std::vector<std::byte>& buffer, uint32_t round);

  JobModel& job_;
  uint32_t rank_;
  uint32_t process_;  // number of this process among the rank's processes, from 0
  Rng rng_;
  std::vector<Tensor> tensors_;
  std::vector<uint32_t> order_;
  uint32_t step_ = 0;  // current step, if the application goes by steps
  size_t tensors_done_ = 0;
  uint64_t rounds_completed_ = 0;
  uint64_t operations_dropped_ = 0;
  bool went_on_ = false;
  bool took_over_ = false;  // this process has taken the place of an earlier one
};

}  // namespace pbox::sim
