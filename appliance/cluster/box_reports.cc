#include "appliance/cluster/box_reports.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "appliance/cluster/ask_box.h"
#include "appliance/cluster/environment.h"
#include "base/check.h"
#include "nic/wire/control_versions.h"

namespace pbox::cluster {
namespace {

constexpr std::chrono::milliseconds kTimeout{1'000};

}  // namespace

void BoxReports::ask(const std::vector<BoxRecord>& boxes, std::function<void()> done) {
  Round round{.missing = {}, .done = std::move(done)};
  for (const BoxRecord& box : boxes) round.missing.insert(box.name);
  const auto is_asked = [&round](const std::string& box) { return round.missing.contains(box); };
  std::erase_if(reports_, [&](const auto& entry) { return !is_asked(entry.first); });
  std::erase_if(silent_, [&](const std::string& box) { return !is_asked(box); });
  if (round.done != nullptr && round.missing.empty()) {
    Environment::of(context_).post([alive = alive_, done = std::move(round.done)] {
      if (*alive) done();
    });
  } else if (round.done != nullptr) {
    rounds_.push_back(std::move(round));
  }
  proto::WorkerMessage question;
  question.mutable_ask_report();
  wire::state_versions(question);
  for (const BoxRecord& box : boxes) {
    if (!asked_.insert(box.name).second) continue;
    ask_box(context_, box.control, question, kTimeout,
            [this, alive = alive_, name = box.name](Result<proto::BoxMessage> answer) {
              if (*alive) take(name, std::move(answer));
            });
  }
}

void BoxReports::take(const std::string& box, Result<proto::BoxMessage> answer) {
  PBOX_CHECK(asked_.erase(box) == 1);  // each question has one answer
  silent_.erase(box);
  reports_.erase(box);
  if (answer && answer->has_report()) reports_[box] = std::move(*answer->mutable_report());
  if (!answer && answer.error().code == ErrorCode::kUnavailable) silent_.insert(box);
  for (Round& round : rounds_) round.missing.erase(box);
  const auto complete = std::stable_partition(
      rounds_.begin(), rounds_.end(), [](const Round& round) { return !round.missing.empty(); });
  std::vector<Round> finished(std::make_move_iterator(complete),
                              std::make_move_iterator(rounds_.end()));
  rounds_.erase(complete, rounds_.end());
  const auto alive = alive_;
  for (const Round& round : finished) {
    if (*alive) round.done();
  }
}

}  // namespace pbox::cluster
