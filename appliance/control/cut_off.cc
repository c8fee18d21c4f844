#include "appliance/control/cut_off.h"

#include "base/clock.h"

namespace pbox::control {
namespace {

// A rank that has not been heard for this many heartbeat intervals may be cut off.
constexpr uint64_t kSilentIntervals = 2;
// Time for which a report counts. A rank that tries several boxes in turn repeats its report to
// each of them every few seconds.
constexpr uint64_t kReportCountsNs = 30 * kNanosPerSecond;

bool is_cut_off(RegistryContext& context, const Member& member) {
  if (member.cut_off_ns == 0 || context.now_ns - member.cut_off_ns > kReportCountsNs) return false;
  if (member.state != Member::State::kJoined) return true;
  const Connection* connection = context.connections.find(member.connection);
  const uint64_t interval_ns = context.options.heartbeat_interval_ms * kNanosPerMilli;
  return connection == nullptr ||
         context.now_ns - connection->heard_ns > kSilentIntervals * interval_ns;
}

// Returns false for ranks that have left the job, or that the job goes on without.
bool takes_part(const Member& member) {
  return member.state != Member::State::kLeft && member.state != Member::State::kExcluded;
}

}  // namespace

bool note_cut_off(RegistryContext& context, const std::string& job,
                  const google::protobuf::RepeatedField<uint32_t>& ranks) {
  const std::vector<Job*> parts = context.jobs.parts_of(job);
  bool most_are = parts.empty();
  for (Job* part : parts) {
    for (const uint32_t rank : ranks) {
      if (rank < part->members().size()) part->members()[rank].cut_off_ns = context.now_ns;
    }
    size_t present = 0, cut_off = 0;
    for (const Member& member : part->members()) {
      present += takes_part(member) ? 1 : 0;
      cut_off += takes_part(member) && is_cut_off(context, member) ? 1 : 0;
    }
    most_are = most_are || 2 * cut_off > present;
  }
  return most_are;
}

}  // namespace pbox::control
