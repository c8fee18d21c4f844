// The checks of a box from the inside: the machine, then a real exchange with the box on it.
#pragma once

#include "config/config.h"
#include "tools/pboxctl/doctor_report.h"

namespace pboxctl {

// Preflight; then, with the pboxd that runs here by this configuration or else with one that is
// started for the purpose, everything of check_box. `seconds`: as in BoxPath.
void check_host(const pbox::config::Config& config, uint32_t seconds, Report& report);

}  // namespace pboxctl
