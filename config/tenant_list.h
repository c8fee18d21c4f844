// Converts the items of jobs.tenants between text and value. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace pbox::config {

struct TenantsRead {
  std::vector<Tenant> tenants;
  // Each names tenant, word and remedy. If there are any, `tenants` is invalid.
  std::vector<std::string> faults;
};

// "acme weight=3 jobs=10 memory_mib=4096; * sessions=64 connections=100"
TenantsRead read_tenants(const std::string& text);
// Returns a text that reads back to the same tenants.
std::string print_tenants(const std::vector<Tenant>& tenants);

}  // namespace pbox::config
