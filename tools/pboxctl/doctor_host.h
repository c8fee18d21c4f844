// The checks of a box on its own machine: the machine first, then a real exchange with the box.
#pragma once

#include "config/config.h"
#include "tools/pboxctl/doctor_report.h"

namespace pboxctl {

// Runs preflight, then check_box against the pboxd that runs here with this configuration. If none
// runs, starts one for the duration of the checks. `seconds` is BoxPath::seconds.
void check_host(const pbox::config::Config& config, uint32_t seconds, Report& report);

}  // namespace pboxctl
