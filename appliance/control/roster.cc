#include "appliance/control/roster.h"

#include <algorithm>

#include "base/check.h"

namespace pbox::control {

uint32_t Roster::workers() const {
  uint32_t workers = 0;
  for (const Member& member : members_) workers += member.workers;
  return workers;
}

bool Roster::complete() const {
  bool some = false;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    some = some || members_[rank].ready();
    if (!members_[rank].ready() && !left_behind(rank, {0, 0})) return false;
  }
  return some;
}

bool Roster::left_behind(uint32_t rank, std::pair<uint32_t, uint32_t> told) const {
  PBOX_CHECK(rank < members_.size());
  const Member* newest = nullptr;
  for (const Member& member : members_) {
    if (!member.resumes || member.state != Member::State::kJoined) continue;
    if (newest == nullptr || member.told() > newest->told()) newest = &member;
  }
  return newest != nullptr && newest->told() > told &&
         std::find(newest->absent.begin(), newest->absent.end(), rank) != newest->absent.end();
}

bool Roster::has_majority() const {
  uint32_t members = 0, present = 0;
  bool lowest_is_present = false;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank].state == Member::State::kExcluded || left_behind(rank, {0, 0})) continue;
    const bool is_present = members_[rank].ready();
    if (members == 0) lowest_is_present = is_present;
    ++members;
    present += is_present ? 1 : 0;
  }
  PBOX_CHECK(present <= members);
  return 2 * present > members || (2 * present == members && lowest_is_present);
}

bool Roster::any_resumes() const {
  return std::any_of(begin(), end(), [](const Member& member) { return member.resumes; });
}

bool Roster::has_newcomers() const {
  return std::any_of(begin(), end(), [](const Member& member) {
    return member.state == Member::State::kJoined && !member.resumes;
  });
}

uint32_t Roster::count(Member::State state) const {
  return static_cast<uint32_t>(
      std::count_if(begin(), end(), [&](const Member& member) { return member.state == state; }));
}

std::string Roster::ranks_in(Member::State state) const {
  constexpr size_t kShown = 8;
  std::string list;
  size_t found = 0;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank].state != state) continue;
    if (++found <= kShown) list += (found > 1 ? ", " : "") + std::to_string(rank);
  }
  PBOX_DCHECK(found <= members_.size());
  if (found > kShown) list += " and " + std::to_string(found - kShown) + " more";
  return (found == 1 ? "rank " : "ranks ") + list;
}

const Member* Roster::newest_resuming() const {
  const Member* newest = nullptr;
  for (const Member& member : members_) {
    if (!member.resumes || !member.ready()) continue;
    if (newest == nullptr || member.epoch > newest->epoch) newest = &member;
  }
  return newest;
}

uint32_t Roster::newest_epoch() const {
  uint32_t newest = 0;
  for (const Member& member : members_) newest = std::max(newest, member.epoch);
  return newest;
}

std::vector<uint64_t> Roster::incarnations() const {
  std::vector<uint64_t> incarnations;
  for (const Member& member : members_) {
    if (member.incarnation != 0) incarnations.push_back(member.incarnation);
  }
  return incarnations;
}

std::string Roster::tenant() const {
  for (const Member& member : members_) {
    if (member.identity && !member.identity->tenant.empty()) return member.identity->tenant;
  }
  return "";
}

std::vector<ConsumedRounds> Roster::stated() const {
  std::vector<ConsumedRounds> stated;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    const Member& member = members_[rank];
    if (member.resumes && member.ready()) stated.push_back({rank, member.consumed, member.lacks});
  }
  return stated;
}

uint64_t Roster::barrier_to_resume() const {
  uint64_t asked = UINT64_MAX, passed = 0;
  bool some_are_new = false;
  for (const Member& member : members_) {
    if (member.resumes) {
      asked = std::min(asked, member.barrier_sequence);
      passed = std::max(passed, member.barriers_released);
    } else if (member.state == Member::State::kJoined) {
      some_are_new = true;
    }
  }
  return some_are_new ? passed : asked;
}

uint64_t Roster::barrier_reached() const {
  PBOX_DCHECK(!members_.empty());
  uint64_t reached = UINT64_MAX;
  for (const Member& member : members_) {
    if (member.state != Member::State::kExcluded && member.state != Member::State::kLeft) {
      reached = std::min(reached, member.barrier_sequence);
    }
  }
  return reached;
}

std::optional<float> Roster::newest_learning_rate() const {
  const auto setter = std::max_element(begin(), end(), [](const auto& one, const auto& other) {
    return one.learning_rates_set < other.learning_rates_set;
  });
  if (setter == end() || setter->learning_rates_set == 0) return std::nullopt;
  return setter->learning_rate;
}

std::optional<uint32_t> Roster::learning_rate_setter() const {
  for (uint32_t rank = 0; rank < size(); ++rank) {
    const Member& member = members_[rank];
    const bool is_present =
        member.state == Member::State::kJoined || member.state == Member::State::kLost;
    if (is_present && member.learning_rates_set > 0) return rank;
  }
  return std::nullopt;
}

}  // namespace pbox::control
