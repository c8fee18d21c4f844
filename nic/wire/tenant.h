// The tenant of a job. A box divides memory, connections, credit and turns to send among tenants.
#pragma once

#include <string_view>

namespace pbox::wire {

// Returns the part of the job's name before the first '/'; "" if there is no '/'. A backup copy
// belongs to the tenant of its job, because its name begins with the job's name.
constexpr std::string_view tenant_of(std::string_view job) {
  const size_t slash = job.find('/');
  return slash == std::string_view::npos ? std::string_view() : job.substr(0, slash);
}

}  // namespace pbox::wire
