// A box's configuration as a subcommand is given it: exactly as pboxd would read it.
#pragma once

#include "config/parse.h"
#include "tools/pboxctl/commands.h"

namespace pboxctl {

// `file`: empty, or what --config named. `settings`: pboxd's own flags, "--section.key=value".
pbox::config::ParseOutcome read_config(const std::string& file, const Words& settings);

}  // namespace pboxctl
