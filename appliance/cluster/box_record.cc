#include "appliance/cluster/box_record.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "nic/wire/control_versions.h"

namespace pbox::cluster {
namespace {

using Json = nlohmann::json;

template <typename T>
void take(const Json& object, const char* key, T& value) {
  const auto found = object.find(key);
  if (found == object.end()) return;
  if constexpr (std::is_unsigned_v<T>) {
    if (found->is_number_unsigned()) value = found->template get<T>();
  } else {
    if (found->is_string()) value = found->template get<T>();
  }
}

}  // namespace

bool BoxRecord::can_serve(uint32_t version) const {
  if (protocol_version == 0) return true;
  const wire::VersionRange range{protocol_version_min, protocol_version};
  return protocol_version >= version && wire::common_version(range, {}).has_value();
}

const char* to_string(Duty duty) {
  switch (duty) {
    case Duty::kTakesParts: return "takes parts";
    case Duty::kDrains: return "drains";
    case Duty::kStandby: return "becomes a standby";
  }
  PBOX_CHECK(false);
  return "";
}

std::string to_text(const BoxRecord& record) {
  const Json object = {{"control", record.control},
                       {"data", record.data},
                       {"capacity_bytes_per_s", record.capacity_bytes_per_s},
                       {"job_memory_bytes", record.job_memory_bytes},
                       {"version", record.version},
                       {"protocol_version", record.protocol_version},
                       {"protocol_version_min", record.protocol_version_min},
                       {"incarnation", record.incarnation}};
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

BoxRecord from_text(const std::string& name, const std::string& text) {
  constexpr bool kThrows = false;
  const Json object = Json::parse(text, nullptr, kThrows);
  BoxRecord record{.name = name};
  if (!object.is_object()) return record;
  take(object, "control", record.control);
  take(object, "capacity_bytes_per_s", record.capacity_bytes_per_s);
  take(object, "job_memory_bytes", record.job_memory_bytes);
  take(object, "version", record.version);
  take(object, "protocol_version", record.protocol_version);
  // A box that states only its newest protocol speaks only that one.
  record.protocol_version_min = record.protocol_version;
  take(object, "protocol_version_min", record.protocol_version_min);
  take(object, "incarnation", record.incarnation);
  if (const auto data = object.find("data"); data != object.end() && data->is_array()) {
    for (const Json& address : *data) {
      if (address.is_string()) record.data.push_back(address.get<std::string>());
    }
  }
  return record;
}

}  // namespace pbox::cluster
