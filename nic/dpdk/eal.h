// DPDK's environment abstraction layer: memory, devices, logging. One per process, for its whole
// life: DPDK cannot be started twice.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace pbox::nic {

struct EalOptions {
  std::vector<std::string> pci_addresses = {};  // devices to take; no other PCI device is touched
  bool no_huge = false;                         // ordinary pages: for development, and without root
  std::vector<uint32_t> memory_mib = {};  // by NUMA node; empty: as it is needed. With no_huge
                                          // their sum is reserved at start, and must be given
  std::vector<int> control_cpus = {};  // where the calling thread and DPDK's own stay; empty: all
                                       // it may use now
};

// Starts DPDK, or finds it started: then the options of the first call hold, and so does its error.
// Installs no signal handler; the only threads are DPDK's own for interrupts. What it keeps goes
// with the process. The calling thread stays on control_cpus. Control thread.
Status start_eal(const EalOptions& options);

// The arguments that `options` become, without the program's name. `cpus`: where the process may
// run.
std::vector<std::string> eal_arguments(const EalOptions& options, const std::vector<int>& cpus);

// What DPDK logged since the last call, warnings and errors: " (line | line)", for an error's text;
// empty if nothing. Any thread.
std::string take_eal_messages();

// True if devices use the process's own addresses, so that they can read memory that is not DPDK's.
bool eal_uses_virtual_addresses();

// The calling thread takes part in DPDK's per-thread caches while this lives; fails when DPDK has
// no thread slot left. The thread that polls a port.
class DpdkThread {
 public:
  DpdkThread();
  ~DpdkThread();
  DpdkThread(const DpdkThread&) = delete;
  DpdkThread& operator=(const DpdkThread&) = delete;
  Status status() const { return status_; }

 private:
  Status status_;
  bool is_registered_ = false;
};

}  // namespace pbox::nic
