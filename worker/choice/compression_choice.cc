#include "worker/choice/compression_choice.h"

#include <algorithm>

namespace pbox::worker {
namespace {

float median(std::vector<float> values) {
  PBOX_DCHECK(!values.empty());
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Returns the mean time of a round in this form, in seconds; 0 if no rank knows it.
double mean_of(const CompressionChoice::Vote& sum, Form form) {
  const auto index = static_cast<size_t>(form);
  return sum.ranks[index] > 0 ? double{sum.seconds[index]} / double{sum.ranks[index]} : 0;
}

}  // namespace

CompressionChoice::Lack CompressionChoice::lacks() const {
  if (window() == 0 || round() % kWindowRounds != 0) return Lack::kNothing;
  if (decided_window_ == window()) return Lack::kNothing;
  return votes_ < window() ? Lack::kVote : Lack::kSum;
}

Form CompressionChoice::form() const {
  PBOX_DCHECK(lacks() == Lack::kNothing);
  if (window() == 0) return Form::kPlain;
  if (round() % kWindowRounds != 0) {  // inside a window; only its form has a partial count
    PBOX_CHECK((rounds_[0] % kWindowRounds == 0) != (rounds_[1] % kWindowRounds == 0));
    return rounds_[0] % kWindowRounds != 0 ? Form::kPlain : Form::kCompressed;
  }
  return decide(sum_, window());
}

CompressionChoice::Vote CompressionChoice::vote() {
  if (!seconds_.empty()) {
    const auto form = static_cast<size_t>(newest_);
    own_.seconds[form] = median(seconds_) * kVoteUnit;
    own_.ranks[form] = kVoteUnit;
  }
  return own_;
}

void CompressionChoice::on_sum(const Vote& sum, bool fetched) {
  if (!fetched) ++votes_;
  PBOX_DCHECK(votes_ > 0);
  decided_window_ = votes_;
  sum_ = sum;
}

void CompressionChoice::on_round(Form form, double seconds) {
  const uint32_t at = round() % kWindowRounds;
  if (at == 0) {
    seconds_.clear();
    if (round() > 0 && form != newest_) ++changes_;
  }
  if (at >= kSettlingRounds) seconds_.push_back(static_cast<float>(seconds));
  newest_ = form;
  ++rounds_[static_cast<size_t>(form)];
}

double CompressionChoice::mean_seconds(Form form) const {
  return mean_of(sum_, form);
}

Form CompressionChoice::decide(const Vote& sum, uint32_t window) {
  if (!(sum.ranks[1] > 0)) return Form::kCompressed;  // no rank has measured it yet
  if (!(sum.ranks[0] > 0)) return Form::kPlain;
  const bool is_better = mean_of(sum, Form::kCompressed) * kGain < mean_of(sum, Form::kPlain);
  const bool is_trial = window == kFirstTrial || window % kTrialInterval == 0;
  return is_better != is_trial ? Form::kCompressed : Form::kPlain;
}

}  // namespace pbox::worker
