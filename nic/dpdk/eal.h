// DPDK's environment abstraction layer (EAL): memory, devices, logging. A process starts it at most
// once and keeps it until it ends: DPDK cannot be started twice.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace pbox::nic {

struct EalOptions {
  std::vector<std::string> pci_addresses = {};  // devices to use; other PCI devices are not touched
  bool no_huge = false;                         // ordinary pages, for development without root
  // Memory in MiB by NUMA node; empty: DPDK allocates on demand. With no_huge it must not be empty,
  // and the sum is reserved at start.
  std::vector<uint32_t> memory_mib = {};
  // CPUs for the calling thread and DPDK's own threads; empty: all that the caller may use now.
  std::vector<int> control_cpus = {};
};

// Starts DPDK. Later calls ignore their options and return the result of the first. Installs no
// signal handler. DPDK starts only its own interrupt threads, and releases its memory when the
// process ends. The calling thread stays on control_cpus. Control thread.
Status start_eal(const EalOptions& options);

// Returns DPDK's command-line arguments for `options`, without the program's name. `cpus`: the CPUs
// that the process may use.
std::vector<std::string> eal_arguments(const EalOptions& options, const std::vector<int>& cpus);

// Returns and clears DPDK's warnings and errors since the last call, formatted for the end of an
// error text: " (line | line)". Empty if there are none. Any thread.
std::string take_eal_messages();

// Returns whether devices use the process's virtual addresses. Only then can they read memory that
// is not DPDK's.
bool eal_uses_virtual_addresses();

// Registers the calling thread with DPDK, for its per-thread caches, until this object is destroyed
// by the same thread. Each thread that polls a port needs one. status() is an error if DPDK has no
// thread slot left.
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
