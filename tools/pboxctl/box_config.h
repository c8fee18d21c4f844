// Reads a box's configuration exactly as pboxd would, for the commands that need it.
#pragma once

#include "config/parse.h"
#include "tools/pboxctl/commands.h"

namespace pboxctl {

// `file` is the value of --config, or empty. `settings` are options of pboxd,
// "--section.key=value".
pbox::config::ParseOutcome read_config(const std::string& file, const Words& settings);

}  // namespace pboxctl
