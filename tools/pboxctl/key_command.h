// The parts of `pboxctl keys`. Each function that returns an int prints its answer and returns the
// exit status.
#pragma once

#include <boost/program_options/variables_map.hpp>
#include <string>

#include "nic/tls/authority.h"
#include "tools/pboxctl/commands.h"

namespace pboxctl {

inline constexpr int64_t kClockSkewSeconds = 300;  // so that hosts with slow clocks accept new keys
inline constexpr unsigned kAuthorityDays = 3650;   // for an authority; no other keys last longer

// Prints the error and returns kFailed.
int fail_keys(const std::string& what);
// Returns --days, or `fallback` if it is not given. If it is out of range, prints an error and
// returns 0.
unsigned days_of(const boost::program_options::variables_map& given, unsigned fallback);
// Returns the validity from kClockSkewSeconds ago until `days` days from now.
pbox::tls::Validity validity_of(unsigned days);

// keys_rotate.cc
int rotate_authority(const boost::program_options::variables_map& given, const Words& more);
int revoke_keys(const Words& more);
int show_authority(const std::string& folder);

}  // namespace pboxctl
