#include "appliance/control/authorise.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace pbox::control {
namespace {

using Message = proto::WorkerMessage;
using enum Right;

// clang-format off
constexpr MessageRights kRights[] = {
    // message                                            box      tenant   operator viewer
    {Message::kJoin,            "JOIN",                   kAsWorker, kOwnJob, kNever,  kNever},
    {Message::kLeave,           "LEAVE",                  kJoined, kJoined, kNever,  kNever},
    {Message::kHeartbeat,       "a heartbeat",            kJoined, kJoined, kNever,  kNever},
    {Message::kBarrier,         "a barrier",              kJoined, kJoined, kNever,  kNever},
    {Message::kSetLearningRate, "a learning rate",        kJoined, kJoined, kNever,  kNever},
    {Message::kAskDataAddresses, "AskDataAddresses",      kPlain, kPlain, kPlain, kPlain},
    {Message::kRounds,          "rounds",                 kJoined, kJoined, kNever,  kNever},
    {Message::kSetPriorities,   "priorities",             kJoined, kJoined, kNever,  kNever},
    {Message::kAskPartMap,      "AskPartMap",             kAsWorker, kOwnJob, kNever,  kNever},
    {Message::kQueuePairs,      "queue pairs",            kJoined, kJoined, kNever,  kNever},
    {Message::kAskState,        "AskState",               kListed, kNever,  kNever,  kNever},
    {Message::kPortGivenUp,     "a port that is given up", kJoined, kJoined, kNever, kNever},
    {Message::kAskCut,          "AskCut",                 kListed, kNever,  kNever,  kNever},
    {Message::kAskReport,       "AskReport",              kListed, kNever,  kNever,  kNever},
    {Message::kStepVerdict,     "a verdict on a round",   kJoined, kJoined, kNever,  kNever},
    {Message::kAskStep,         "AskStep",                kListed, kNever,  kNever,  kNever},
    {Message::kSlotOperation,   "a slot's operation",     kJoined, kJoined, kNever,  kNever},
    {Message::kSetSync,         "a consistency model",    kJoined, kJoined, kNever,  kNever},
    {Message::KIND_NOT_SET,     "an unknown message",     kJoined, kJoined, kNever,  kNever},
};
// clang-format on

Right right_of(const MessageRights& row, tls::Role role) {
  switch (role) {
    case tls::Role::kBox: return row.box;
    case tls::Role::kTenant: return row.tenant;
    case tls::Role::kOperator: return row.operating;
    case tls::Role::kViewer: return row.viewing;
  }
  PBOX_CHECK(false);
  return kNever;
}

Error denied(const tls::Identity& peer, const std::string& why) {
  return {ErrorCode::kInvalidArgument, "the keys of " + tls::to_uri(peer) + " do not allow " + why};
}

bool is_for_replica(const Message& message) {
  return message.has_join() ? message.join().is_backup() : message.ask_part_map().is_backup();
}

// Refuses a box that the store does not list. Otherwise the keys of a box that was taken out of the
// cluster would still give access to the state of jobs.
Status check_listed(const tls::Identity& peer, const std::string& what, bool is_listed) {
  if (is_listed) return ok_status();
  return denied(peer, what + "; the cluster's store lists no box '" + peer.box +
                          "' (`pboxctl boxes`), or this box has none ([cluster] store)");
}

// Checks the job that a JOIN names, or the AskPartMap that comes before it.
Status check_own_job(const tls::Identity& peer, const Message& message) {
  const bool is_join = message.has_join();
  PBOX_CHECK(is_join || message.has_ask_part_map());
  const std::string& job = is_join ? message.join().job() : message.ask_part_map().job();
  if (is_for_replica(message)) {
    return denied(peer, "a replica of a box's part; only boxes make replicas");
  }
  if (!tls::owns_job(peer, job)) {
    return denied(peer, "job '" + job + "'; name it " + peer.tenant + "/NAME, where " +
                            peer.job_glob +
                            " matches NAME, or use keys of that job (`pboxctl keys "
                            "job`)");
  }
  // AskPartMap states a rank only to report that it cannot reach its box.
  const bool has_rank = is_join || !message.ask_part_map().lost_box().empty();
  const uint32_t rank = is_join ? message.join().rank() : message.ask_part_map().rank();
  if (has_rank && !peer.ranks.contains(rank)) {
    return denied(peer, "rank " + std::to_string(rank) + " of job '" + job +
                            "'; use keys for that rank (`pboxctl keys job --ranks`)");
  }
  return ok_status();
}

}  // namespace

std::span<const MessageRights> message_rights() {
  return kRights;
}

Status authorise(const tls::Identity& peer, const Message& message, const Standing& standing) {
  const auto* row =
      std::find_if(std::begin(kRights), std::end(kRights),
                   [&](const MessageRights& rights) { return rights.kind == message.kind_case(); });
  if (row == std::end(kRights)) return denied(peer, "this message");
  switch (right_of(*row, peer.role)) {
    case kPlain:
      if (message.ask_data_addresses().cut_off_job().empty()) return ok_status();
      if (peer.role != tls::Role::kBox) return denied(peer, "a report of ranks; it is for boxes");
      return check_listed(peer, "a report of ranks", standing.is_listed);
    case kOwnJob: return check_own_job(peer, message);
    case kJoined:
      if (standing.has_joined) return ok_status();
      return denied(peer, std::string(row->name) + " before JOIN");
    case kListed: return check_listed(peer, row->name, standing.is_listed);
    case kAsWorker:
      if (!is_for_replica(message)) return ok_status();
      return check_listed(peer, "a replica", standing.is_listed);
    case kNever: break;
  }
  return denied(peer, std::string(row->name) + "; it is for " +
                          (row->tenant == kNever ? "boxes" : "boxes and workers") +
                          " (`pboxctl keys`)");
}

}  // namespace pbox::control
