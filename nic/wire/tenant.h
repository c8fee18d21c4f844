// The tenant of a job: to whom the job counts where a box shares itself out.
#pragma once

#include <string_view>

namespace pbox::wire {

// Returns the part of the job's name before the first '/'. Jobs without a '/' are of the tenant "".
// Backup copies count to the tenant of their job, whose name theirs begins with.
constexpr std::string_view tenant_of(std::string_view job) {
  const size_t slash = job.find('/');
  return slash == std::string_view::npos ? std::string_view() : job.substr(0, slash);
}

}  // namespace pbox::wire
