#include "appliance/control/slot_mismatches.h"

#include <optional>

#include "appliance/control/peer_text.h"
#include "base/check.h"
#include "base/clock.h"

namespace pbox::control {
namespace {

// Time for the two ranks to answer. A rank that does not answer has died, or its application blocks
// libpbox's thread.
constexpr uint64_t kWorkersAnswerNs = 2 * kNanosPerSecond;
constexpr size_t kTextBytesMax = 256;

std::optional<pipeline::ShapeMismatch> mismatch_of(const Job& job) {
  for (const auto& shard : job.shards().all()) {
    if (const auto found = shard->mismatch()) return found;
  }
  return {};
}

}  // namespace

void SlotMismatches::on_tick(Job& job) {
  if (!job.spec().collective) return;
  const JobKey key = key_of(job.spec());
  const auto known = asked_.find(key);
  if (known != asked_.end()) {
    if (context_.now_ns >= known->second.ends_ns) end(job, Asked(known->second));
    return;
  }
  const auto found = mismatch_of(job);
  if (!found) return;
  PBOX_CHECK(found->first_rank < job.members().size());
  PBOX_CHECK(found->other_rank < job.members().size());
  Asked asked{.mismatch = *found, .ends_ns = context_.now_ns + kWorkersAnswerNs, .told = {}};
  asked.answers += ask(job, found->first_rank, *found) ? 1 : 0;
  asked.answers += ask(job, found->other_rank, *found) ? 1 : 0;
  if (asked.answers == 0) return end(job, asked);
  asked_[key] = std::move(asked);
}

bool SlotMismatches::ask(const Job& job, uint32_t rank, const pipeline::ShapeMismatch& mismatch) {
  const Member& member = job.members()[rank];
  if (member.state != Member::State::kJoined || member.connection == 0) return false;
  proto::BoxMessage message;
  message.mutable_ask_slot_operation()->set_chunk(mismatch.chunk);
  message.mutable_ask_slot_operation()->set_round(mismatch.round);
  context_.connections.send(member.connection, std::move(message));
  return true;
}

void SlotMismatches::on_answer(const Connection& connection, const proto::SlotOperation& answer) {
  PBOX_CHECK(connection.job != nullptr);
  const auto found = asked_.find(key_of(connection.job->spec()));
  if (found == asked_.end()) return;
  Asked& asked = found->second;
  const bool is_asked =
      connection.rank == asked.mismatch.first_rank || connection.rank == asked.mismatch.other_rank;
  if (!is_asked || answer.chunk() != asked.mismatch.chunk) return;
  asked.told[connection.rank] = printable(answer.text(), kTextBytesMax);
  if (asked.told.size() == asked.answers) end(*connection.job, Asked(asked));
}

void SlotMismatches::end(Job& job, const Asked& asked) {
  const auto told = [&](uint32_t rank) {
    const auto found = asked.told.find(rank);
    const bool is_known = found != asked.told.end() && !found->second.empty();
    return "rank " + std::to_string(rank) +
           (is_known ? " is at " + found->second : " has not reported its operation");
  };
  owner_.fail(job, {ErrorCode::kMismatch,
                    job.spec().title() + ": the ranks disagree about an operation: " +
                        told(asked.mismatch.first_rank) + ", " + told(asked.mismatch.other_rank) +
                        "; make the same calls in the same order on every rank"});
}

}  // namespace pbox::control
