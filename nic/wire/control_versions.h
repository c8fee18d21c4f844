// Versions of the control protocol. A release speaks the newest version that it knows and the one
// before it, so boxes and workers can be upgraded one after the other. All functions are pure; any
// thread may call them.
//
// A peer that asks states the versions that it speaks: `protocol_version` of its message is the
// oldest that suffices, `newest_version` the newest. Older releases speak exactly one version, and
// compare it with `protocol_version`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "nic/wire/control.pb.h"

namespace pbox::wire {

// A release that adds a field or a kind of message has a new version number.
inline constexpr uint32_t kControlProtocolVersion = 3;
inline constexpr uint32_t kControlProtocolVersionMin = kControlProtocolVersion - 1;

// An interval of versions, both ends included.
struct VersionRange {
  uint32_t oldest = kControlProtocolVersionMin;
  uint32_t newest = kControlProtocolVersion;
  bool operator==(const VersionRange&) const = default;
};

// Returns the newest version that both speak; nullopt if there is none.
std::optional<uint32_t> common_version(const VersionRange& one, const VersionRange& other);
// Returns "2", or "2 to 3".
std::string to_string(const VersionRange& range);

// A field, or a kind of message, that was added in kControlProtocolVersionMin or later.
struct AddedField {
  enum class Scope {
    kIgnorable,  // a peer that does not know it may ignore it
    kReceiver,   // the receiver of the message must know it
    kJob,        // every rank and every box of the job must know it
  };
  const char* name;  // "Join.replicas", as in control.proto
  uint32_t since;    // the first version that has it
  Scope scope = Scope::kIgnorable;
  // Returns whether a message uses the field; null if `scope` is kIgnorable.
  bool (*is_used)(const proto::WorkerMessage& message) = nullptr;
};
using AddedFields = std::span<const AddedField>;

// The fields of this release. A test compares the table with control.proto.
AddedFields added_fields();

// Returns the fields of `message` that a receiver of `version` would ignore but must not.
std::vector<const AddedField*> used_fields(const proto::WorkerMessage& message, uint32_t version,
                                           AddedFields fields = added_fields());

// Returns the oldest version that has all fields of scope kJob that the message uses.
uint32_t version_of_job(const proto::WorkerMessage& join, AddedFields fields = added_fields());

// Completes a message by the versions that suffice for it and the fields that it needs.
void state_versions(proto::WorkerMessage& message, AddedFields fields = added_fields());

// Returns the versions that the sender of a question speaks; nullopt if the message states none,
// because its kind has no version.
std::optional<VersionRange> stated_versions(const proto::WorkerMessage& message);
// Returns the versions that a box speaks, according to its answer to AskDataAddresses.
VersionRange stated_versions(const proto::DataAddresses& answer);

// Returns the first name in `needs` that this release does not know; null if it knows all.
const std::string* unknown_need(const google::protobuf::RepeatedPtrField<std::string>& needs,
                                AddedFields fields = added_fields());

}  // namespace pbox::wire
