// Ranks that cannot reach this box although other boxes can. Such a rank reports this to another
// box, which asks this one. This box decides whether the job's parts should go on elsewhere,
// because it knows the job's ranks and still hears those whose reports are wrong. Used on the
// control thread.
#pragma once

#include <google/protobuf/repeated_field.h>

#include <string>

#include "appliance/control/registry_context.h"

namespace pbox::control {

// Notes that these ranks report that they cannot reach this box. Returns true if no part of the job
// is here, or if more than half of the ranks of some part are cut off. A rank that this box has
// heard lately does not count, nor does one whose report is old.
bool note_cut_off(RegistryContext& context, const std::string& job,
                  const google::protobuf::RepeatedField<uint32_t>& ranks);

}  // namespace pbox::control
