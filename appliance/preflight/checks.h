// Helpers that the parts of preflight share, and the checks of each kind of port. Private to
// appliance/.
#pragma once

#include <string>
#include <vector>

#include "appliance/preflight/preflight.h"
#include "appliance/topology/plan.h"

namespace pbox::preflight::checks {

Check ok(std::string name, std::string finding);
Check warn(std::string name, std::string finding, std::string remedy);
Check fail(std::string name, std::string finding, std::string remedy);

std::string mebibytes(uint64_t bytes);
// Appends an entry to a list in a sentence.
void append(std::string& list, const std::string& separator, const std::string& entry);

// devices.cc: checks the DPDK devices and whether this process may open them. The function is pure.
std::vector<Check> device_checks(const config::Config& config, const host::HostFacts& facts,
                                 const Result<topology::Topology>& topology);
// packets.cc: checks the memory for the packets of DPDK devices. The function is pure.
std::vector<Check> packet_memory_checks(const config::Config& config, const host::HostFacts& facts,
                                        const Result<topology::Topology>& topology);

// rdma.cc: checks whether this process may open the RDMA devices and lock memory for them. The
// function is pure.
std::vector<Check> rdma_checks(const host::HostFacts& facts,
                               const Result<topology::Topology>& topology);

}  // namespace pbox::preflight::checks
