// The oracle of a job of collectives: each rank's calls, the rounds of slots that they take, and
// all correct values. It is a second implementation of docs/protocol.md ("Collectives"), and uses
// nothing of worker/collective. Values are whole numbers up to 12: exact in every type, as their
// sums are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/options.h"

namespace pbox::sim {

class CollectiveOracle {
 public:
  CollectiveOracle(uint64_t seed, uint32_t job, const JobOptions& options);

  // The part of a call that a slot's round carries.
  struct Piece {
    uint32_t call = 0;   // number of the rank's call
    uint32_t index = 0;  // among the pieces of the call
    CallOptions options;
    uint32_t owner = 0;     // the rank whose segment it is, or the root; 0 for an all_reduce
    uint32_t first = 0;     // element, within the segment if there are segments
    uint32_t elements = 0;  // 0 if the round carries no data
    bool operator==(const Piece&) const = default;
  };

  // Returns the piece that the rank pushes to the slot in this round; nothing if its calls do not
  // reach that far.
  std::optional<Piece> piece(uint32_t rank, uint32_t slot, uint64_t round) const;
  // Returns the piece that all ranks push to the slot in this round; nothing if they differ.
  std::optional<Piece> agreed_piece(uint32_t slot, uint64_t round) const;
  // Returns whether all ranks make the rank's call alike, and give its pieces the same rounds.
  bool is_agreed(uint32_t rank, uint32_t call) const;
  // The round to which a rank pushes the one unsound value. Nothing if the job's guard is not
  // `reject`, or no rank pushes an unsound value.
  struct Rejected {
    uint32_t rank = 0, slot = 0, round = 0;
  };
  const std::optional<Rejected>& rejected() const { return rejected_; }
  // Returns the number of rounds of the slot that the rank with the most calls makes.
  uint64_t rounds(uint32_t slot) const;

  std::vector<std::byte> input(uint32_t rank, uint32_t call) const;
  // Returns what the rank must get from a call that all ranks make alike; empty if it gets nothing.
  std::vector<std::byte> output(uint32_t rank, uint32_t call) const;
  // Returns a round's result as it is on the wire.
  const std::vector<std::byte>& result(const Piece& piece) const;
  // Returns whether the rank is sent the round's result.
  bool is_sent_to(const Piece& piece, uint32_t rank) const;
  // Returns the contents of a slot's memory from `first_byte` on, once the ranks of the mask have
  // pushed and before the round is finished. Values of f16 and bf16 are combined as f32.
  std::vector<std::byte> combined(const Piece& piece, uint32_t ranks, uint32_t first_byte,
                                  uint32_t bytes) const;

 private:
  uint32_t pieces_of(const CallOptions& call) const;
  uint32_t elements_per_piece(const CallOptions& call) const;
  void draw_rejected();
  // Returns the first `elements` values of a rank's call, and perhaps more. The number 255 stands
  // for an unsound value, which counts as 0.
  const uint8_t* values(uint32_t rank, uint32_t call, uint64_t elements) const;
  std::vector<double> combine(const Piece& piece, uint32_t ranks, uint32_t first,
                              uint32_t elements) const;

  uint64_t stream_;
  const JobOptions& options_;
  std::vector<std::vector<Piece>> pieces_;  // by rank: all pieces in the order of the calls
  std::optional<Rejected> rejected_;
  uint32_t rejected_call_ = 0;
  uint64_t rejected_element_ = 0;  // index into the input
  // By place, which is round * number of slots + slot: all ranks have the same piece there.
  std::vector<bool> is_agreed_;
  // Values and results are computed once and kept, because boxes and ranks are compared with them
  // again and again: values by rank and call, results by call and piece.
  struct Result {
    std::optional<Piece> piece = {};
    std::vector<std::byte> bytes = {};
  };
  mutable std::map<std::pair<uint32_t, uint32_t>, std::vector<uint8_t>> values_;
  mutable std::map<std::pair<uint32_t, uint32_t>, Result> results_;
};

}  // namespace pbox::sim
