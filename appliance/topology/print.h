// Prints a topology as text for people and as JSON for programs. Pure; any thread.
#pragma once

#include <string>

#include "appliance/topology/plan.h"

namespace pbox::topology {

std::string to_text(const Topology& topology);  // tables, then the reasons
std::string to_json(const Topology& topology);  // one object

}  // namespace pbox::topology
