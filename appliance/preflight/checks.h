// What the parts of preflight share, and the checks that data.port = dpdk brings. Private to
// appliance/.
#pragma once

#include <string>
#include <vector>

#include "appliance/preflight/preflight.h"
#include "appliance/topology/plan.h"

namespace pbox::appliance::checks {

Check ok(std::string name, std::string finding);
Check warn(std::string name, std::string finding, std::string remedy);
Check fail(std::string name, std::string finding, std::string remedy);

std::string mebibytes(uint64_t bytes);
// Appends an entry to a list for people.
void append(std::string& list, const std::string& separator, const std::string& entry);

// preflight_devices.cc: what the devices are and who may open them. Pure; any thread.
std::vector<Check> device_checks(const config::Config& config, const HostFacts& facts,
                                 const Result<Topology>& topology);
// preflight_packets.cc: the memory of their packets. Pure; any thread.
std::vector<Check> packet_memory_checks(const config::Config& config, const HostFacts& facts,
                                        const Result<Topology>& topology);

// preflight_rdma.cc: whether RDMA devices may be opened, and memory be locked for them. Pure; any
// thread.
std::vector<Check> rdma_checks(const HostFacts& facts, const Result<Topology>& topology);

}  // namespace pbox::appliance::checks
