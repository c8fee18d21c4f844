// Chooses for one tensor, while the job runs, whether it travels compressed. The tensor is two
// tensors of the job, a plain one and a compressed one, and a round is an exchange of one of them.
// All ranks must choose alike, so they vote: a third tensor sums four numbers of each rank. Pure;
// used by one thread.
//
// Rounds are counted over both forms. A window is kWindowRounds of them in one form. With the last
// round of window k each rank sends its k-th vote, and the sum of these votes decides window k + 1.
// A rank that joins later has not seen earlier votes: within a window the rounds of both forms show
// which one is under way, and at its beginning the rank fetches the sum of the newest vote.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"

namespace pbox::worker {

enum class Form : uint8_t { kPlain = 0, kCompressed = 1 };

class CompressionChoice {
 public:
  static constexpr uint32_t kWindowRounds = 16;
  // The first rounds of a window are not measured, because other tensors of the job may not have
  // changed their form yet.
  static constexpr uint32_t kSettlingRounds = 4;
  // Besides window 0, which is plain, and window 1, which is compressed, these windows are in the
  // form that seems slower, in case the network or the machines have changed.
  static constexpr uint32_t kFirstTrial = 8;
  static constexpr uint32_t kTrialInterval = 64;
  // Compression has to be faster by this factor.
  static constexpr double kGain = 1.05;

  // Seconds of a round and the number of ranks that know them, for both forms. The numbers are
  // summed, or averaged, over the ranks. Their unit is kVoteUnit, so small that votes do not show
  // in a gradient's norm and pass every guard against large values.
  struct Vote {
    float seconds[2] = {};
    float ranks[2] = {};
  };
  static_assert(sizeof(Vote) == 16);
  static constexpr float kVoteUnit = 0x1p-40f;  // a power of two, so no vote is rounded

  // The arguments are the rounds that the three tensors had when this worker joined.
  CompressionChoice(uint32_t plain_rounds, uint32_t compressed_rounds, uint32_t votes)
      : rounds_{plain_rounds, compressed_rounds}, votes_(votes) {}

  uint32_t round() const { return rounds_[0] + rounds_[1]; }
  // The next round lacks nothing; or the vote, which this rank has to send unless it has; or the
  // sum of the newest vote, which this rank has to fetch.
  enum class Lack : uint8_t { kNothing, kVote, kSum };
  Lack lacks() const;
  // Returns the form of the next round, which must lack nothing.
  Form form() const;
  // Returns whether this rank sends its vote together with the next round.
  bool votes_next() const {
    return round() % kWindowRounds == kWindowRounds - 1 && votes_ == window();
  }
  // Returns this rank's vote.
  Vote vote();
  // Takes the sum of the votes of one window. If it was not `fetched`, it is the result of a vote
  // that this rank sent.
  void on_sum(const Vote& sum, bool fetched);
  // Counts the next round, which is complete, in the form that form() had returned.
  void on_round(Form form, double seconds);

  // Returns the form of the newest round.
  Form newest() const { return newest_; }
  // Returns the mean seconds of a round in this form, over all ranks; 0: not known.
  double mean_seconds(Form form) const;
  // Returns how many windows had a different form than the window before.
  uint32_t changes() const { return changes_; }

  // Returns the form of a window, from the sum of the votes on it.
  static Form decide(const Vote& sum, uint32_t window);

 private:
  uint32_t window() const { return round() / kWindowRounds; }

  uint32_t rounds_[2];
  uint32_t votes_;  // windows whose sums are complete
  std::optional<uint32_t> decided_window_;
  Vote sum_;  // decides decided_window_
  Vote own_;
  std::vector<float> seconds_;  // measured in the current window
  Form newest_ = Form::kPlain;
  uint32_t changes_ = 0;
};

}  // namespace pbox::worker
