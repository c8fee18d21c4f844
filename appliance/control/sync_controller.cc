#include "appliance/control/sync_controller.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "appliance/control/field_text.h"
#include "appliance/control/sync_spec.h"
#include "base/check.h"

namespace pbox::control {
namespace {

using wire::Release;
using wire::SyncModel;
using wire::SyncSpec;

// A higher staleness has helped if the waits have fallen to this share of what they were.
constexpr double kHelps = 0.75;

std::string percent(double share) {
  char text[16];
  std::snprintf(text, sizeof(text), "%.0f%%", 100 * share);
  return text;
}

std::string rounds(double count) {
  char text[16];
  std::snprintf(text, sizeof(text), "%.1f", count);
  return text;
}

}  // namespace

SyncController::SyncController(const SyncSpec& bounds, uint64_t readers)
    : bounds_(bounds),
      readers_(readers),
      rule_{.model = SyncModel::kPssp, .staleness = bounds.staleness_min, .probability = 1} {
  PBOX_CHECK(bounds.model == SyncModel::kAdaptive && readers > 0);
  PBOX_CHECK(bounds.staleness_min <= bounds.staleness);
}

SyncSpec SyncController::rule_within(const SyncSpec& bounds) const {
  PBOX_CHECK(bounds.model == SyncModel::kAdaptive);
  SyncSpec rule = rule_;
  rule.staleness = std::clamp(rule.staleness, bounds.staleness_min, bounds.staleness);
  rule.probability = std::max(rule.probability, bounds.probability);
  return rule;
}

bool SyncController::observe(const SyncCounts& counts, uint64_t now_ns) {
  if (!begin_) {
    begin_ = counts;
    begin_ns_ = now_ns;
    return false;
  }
  PBOX_CHECK(counts.reads >= begin_->reads && now_ns >= begin_ns_);
  const uint64_t reads = counts.reads - begin_->reads;
  const uint64_t elapsed_ns = now_ns - begin_ns_;
  if (elapsed_ns == 0) return false;
  if (reads < kReadsPerWindow * readers_ && elapsed_ns < kWindowMaxNs) return false;
  const auto count = static_cast<double>(std::max<uint64_t>(reads, 1));
  const double time_ns = static_cast<double>(elapsed_ns) * static_cast<double>(readers_);
  window_ = {.waited = static_cast<double>(counts.parked_ns - begin_->parked_ns) / time_ns,
             .delayed = static_cast<double>(counts.delayed - begin_->delayed) / count,
             .lead = static_cast<double>(counts.lead_sum - begin_->lead_sum) / count};
  begin_ = counts;
  begin_ns_ = now_ns;
  // Nothing was read and nothing waits: the application does something else.
  if (reads == 0 && window_.waited == 0) return false;
  return decide(now_ns);
}

bool SyncController::decide(uint64_t now_ns) {
  if (waited_before_) staleness_helps_ = window_.waited <= kHelps * *waited_before_;
  waited_before_.reset();
  SyncSpec next = rule_;
  std::string what;
  calm_ = window_.waited < kLittle ? calm_ + 1 : 0;
  if (window_.waited > kMuch) {
    loosen(next, what);
  } else if (calm_ >= kCalmWindows) {
    calm_ = 0;
    staleness_helps_ = true;
    tighten(next, what);
  }
  choose_release(next, what);
  if (next == rule_) return false;
  rule_ = next;
  ++decisions_made_;
  if (decisions_.size() == kDecisionsKept) decisions_.pop_front();
  decisions_.push_back({now_ns, rule_,
                        "ranks waited " + percent(window_.waited) + " of the time, " +
                            rounds(window_.lead) + " rounds ahead: " + what});
  return true;
}

void SyncController::loosen(SyncSpec& rule, std::string& what) {
  if (rule.staleness < bounds_.staleness && staleness_helps_) {
    const uint32_t step = std::max(1u, rule.staleness / 2);
    rule.staleness = std::min(bounds_.staleness, rule.staleness + step);
    waited_before_ = window_.waited;
    what =
        "staleness " + std::to_string(rule.staleness) + ", was " + std::to_string(rule_.staleness);
  } else if (rule.probability > bounds_.probability) {
    rule.probability = std::max(bounds_.probability, rule.probability / 2);
    what = "probability " + number(rule.probability) + ", was " + number(rule_.probability) +
           (staleness_helps_ ? "; staleness is the most" : "; more staleness has not helped");
  }
}

void SyncController::tighten(SyncSpec& rule, std::string& what) const {
  if (rule.probability < 1) {
    rule.probability = std::min(1.0f, 2 * rule.probability);
    what = "probability " + number(rule.probability) + ", was " + number(rule_.probability);
  } else if (rule.staleness > bounds_.staleness_min && window_.lead + 1 < rule.staleness) {
    --rule.staleness;
    what =
        "staleness " + std::to_string(rule.staleness) + ", was " + std::to_string(rule_.staleness);
  }
}

void SyncController::choose_release(SyncSpec& rule, std::string& what) const {
  if (window_.delayed == 0) return;
  const bool are_exceptions = 2 * window_.lead < rule.staleness;
  rule.release = are_exceptions ? Release::kLazy : Release::kSoft;
  if (rule.release == rule_.release) return;
  if (!what.empty()) what += ", ";
  what += std::string("release ") + to_string(rule.release) + ", was " + to_string(rule_.release);
}

}  // namespace pbox::control
