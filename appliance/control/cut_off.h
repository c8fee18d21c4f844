// Ranks that cannot reach this box although other boxes can. A rank says so to another box, which
// asks this one. This box knows which ranks the job has, and still hears those whose reports are
// wrong, so it decides whether the job's parts should go on elsewhere. Control thread.
#pragma once

#include <google/protobuf/repeated_field.h>

#include <string>

#include "appliance/control/registry_context.h"

namespace pbox::control {

// Notes that these ranks, as they say, cannot reach this box. Returns whether more than half of the
// ranks of some part of the job cannot, or no part of the job is here. A rank that this box has
// heard lately does not count, nor does one whose report is old.
bool note_cut_off(RegistryContext& context, const std::string& job,
                  const google::protobuf::RepeatedField<uint32_t>& ranks);

}  // namespace pbox::control
