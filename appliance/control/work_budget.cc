#include "appliance/control/work_budget.h"

namespace pbox::control {
namespace {

// More sources than this are looked through for those whose debts are paid off.
constexpr size_t kSourcesKept = 1024;

}  // namespace

void SourceDebts::add(const std::string& source, uint64_t debt_ns, uint64_t now_ns) {
  if (debt_ns == 0) return;
  if (by_source_.size() > kSourcesKept) {
    std::erase_if(by_source_, [&](const auto& entry) { return entry.second.debt_ns(now_ns) == 0; });
  }
  by_source_[source].charge(now_ns, debt_ns);
}

WorkBudget* SourceDebts::find(const std::string& source, uint64_t now_ns) {
  const auto found = by_source_.find(source);
  if (found == by_source_.end()) return nullptr;
  if (found->second.debt_ns(now_ns) > 0) return &found->second;
  by_source_.erase(found);
  return nullptr;
}

WorkBudget* ConnectionBudget::shared(uint64_t now_ns) {
  WorkBudget* found = shares_ ? debts_.find(source_, now_ns) : nullptr;
  shares_ = found != nullptr;
  return found;
}

void ConnectionBudget::charge(uint64_t now_ns, uint64_t spent_ns) {
  own_.charge(now_ns, spent_ns);
  if (WorkBudget* budget = shared(now_ns)) {
    budget->charge(now_ns, spent_ns);
  } else if (has_ended_) {
    debts_.add(source_, spent_ns, now_ns);
  }
}

uint64_t ConnectionBudget::heard_at_ns(uint64_t now_ns) {
  const WorkBudget* budget = shared(now_ns);
  return std::max(own_.heard_at_ns(), budget == nullptr ? 0 : budget->heard_at_ns());
}

// The time that a connection took while it shared its source's budget is charged there already.
void ConnectionBudget::end(uint64_t now_ns) {
  PBOX_CHECK(!has_ended_);
  has_ended_ = true;
  if (shared(now_ns) == nullptr) debts_.add(source_, own_.debt_ns(now_ns), now_ns);
}

}  // namespace pbox::control
