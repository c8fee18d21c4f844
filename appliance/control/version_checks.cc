#include "appliance/control/version_checks.h"

#include <algorithm>

#include "appliance/control/peer_text.h"
#include "base/check.h"
#include "base/version.h"

namespace pbox::control {
namespace {

std::string software_in(const proto::WorkerMessage& message) {
  if (message.has_join()) return "this worker (" + printable(message.join().software()) + ")";
  if (message.has_ask_part_map()) {
    return "this worker (" + printable(message.ask_part_map().software()) + ")";
  }
  return "the other box";
}

std::string since(const wire::AddedField& field) {
  return field.name + std::string(", which was added in control protocol ") +
         std::to_string(field.since);
}

std::string rank_text(uint32_t rank, const std::string& software, uint32_t version) {
  return "rank " + std::to_string(rank) + " (" + software + ") speaks control protocol " +
         std::to_string(version);
}

constexpr char kRemedy[] = "; use one release of libpbox on all ranks, or do without that option";

}  // namespace

Status check_versions(const proto::WorkerMessage& message, wire::AddedFields fields) {
  const wire::VersionRange own;
  const auto stated = wire::stated_versions(message);
  if (stated && !wire::common_version(*stated, own)) {
    return Error{ErrorCode::kVersionMismatch,
                 software_in(message) + " speaks control protocol " + wire::to_string(*stated) +
                     ", this box (PBox " + kVersion + ") speaks " + wire::to_string(own) +
                     "; upgrade the older of the two: releases whose control protocols follow "
                     "each other work together"};
  }
  if (const std::string* need = wire::unknown_need(message.needs(), fields)) {
    return Error{ErrorCode::kVersionMismatch,
                 software_in(message) + " uses " + printable(*need) + ", which this box (PBox " +
                     kVersion + ", control protocol " + wire::to_string(own) +
                     ") does not know; upgrade the box, or do without that option"};
  }
  return ok_status();
}

Status check_versions_of_ranks(const Job& job, const proto::WorkerMessage& message,
                               wire::AddedFields fields) {
  PBOX_CHECK(message.has_join());
  const proto::Join& join = message.join();
  const uint32_t version = session_version(message);
  for (const wire::AddedField* field : job.spec().added_fields) {
    if (field->since <= version) continue;
    return Error{ErrorCode::kVersionMismatch,
                 job.spec().title() + " uses " + since(*field) + ", but " +
                     rank_text(join.rank(), printable(join.software()), version) + kRemedy};
  }
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    const Member& member = job.members()[rank];
    if (member.state != Member::State::kJoined || rank == join.rank()) continue;
    for (const wire::AddedField* field :
         wire::used_fields(message, member.protocol_version, fields)) {
      if (field->scope != wire::AddedField::Scope::kJob) continue;
      return Error{ErrorCode::kVersionMismatch,
                   "rank " + std::to_string(join.rank()) + " of " + job.spec().title() + " uses " +
                       since(*field) + ", but " +
                       rank_text(rank, member.software, member.protocol_version) + kRemedy};
    }
  }
  return ok_status();
}

uint32_t session_version(const proto::WorkerMessage& join) {
  const auto stated = wire::stated_versions(join);
  PBOX_CHECK(stated.has_value());
  const auto version = wire::common_version(*stated, {});
  PBOX_CHECK(version.has_value());  // check_versions() has refused others
  return *version;
}

}  // namespace pbox::control
