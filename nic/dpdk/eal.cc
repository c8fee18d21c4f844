#include "nic/dpdk/eal.h"

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_log.h>

#include <cstdio>
#include <deque>
#include <mutex>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/cpu_set.h"

namespace pbox::nic {
namespace {

constexpr size_t kMessagesMax = 16;  // the newest are kept, because they state the cause

struct Messages {
  std::mutex mutex;
  std::string line;  // the incomplete last line
  std::deque<std::string> lines;
};

Messages& messages() {
  static Messages instance;
  return instance;
}

// The write function of the FILE that DPDK logs to.
ssize_t keep_message(void* /*cookie*/, const char* text, size_t bytes) {
  Messages& kept = messages();
  const std::lock_guard lock(kept.mutex);
  for (const char letter : std::string_view(text, bytes)) {
    if (letter != '\n') {
      kept.line += letter;
      continue;
    }
    if (!kept.line.empty()) kept.lines.push_back(std::exchange(kept.line, {}));
    if (kept.lines.size() > kMessagesMax) kept.lines.pop_front();
  }
  return static_cast<ssize_t>(bytes);
}

void redirect_log() {
  static FILE* const stream = [] {
    FILE* opened = fopencookie(nullptr, "w", {nullptr, keep_message, nullptr, nullptr});
    if (opened != nullptr) setvbuf(opened, nullptr, _IOLBF, 0);
    return opened;
  }();
  if (stream != nullptr) rte_openlog_stream(stream);
}

std::string remedy_for(const EalOptions& options) {
  if (options.no_huge) {
    return "lower dpdk.memory_mib, or raise the memory limit of the process";
  }
  return "reserve hugepages (systemctl enable --now pbox-hugepages.service, or echo 512 > "
         "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages), or use ordinary pages, for "
         "development only (dpdk.no_huge = true; in a worker's port: no_huge), and start the "
         "process again";
}

std::string comma_list(const auto& numbers) {
  std::string list;
  for (const auto number : numbers)
    list.append(list.empty() ? "" : ",").append(std::to_string(number));
  return list;
}

Status start_once(const EalOptions& options) {
  auto cpus = options.control_cpus;
  if (cpus.empty()) {
    const auto affinity = current_affinity();
    if (!affinity) return affinity.error();
    cpus = affinity->cpus;
  }
  redirect_log();
  rte_log_set_global_level(RTE_LOG_WARNING);
  std::vector<std::string> words = eal_arguments(options, cpus);
  words.insert(words.begin(), "pbox");
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  if (rte_eal_init(static_cast<int>(pointers.size()), pointers.data()) < 0) {
    return Error{ErrorCode::kUnavailable,
                 "DPDK does not start: " + std::string(rte_strerror(rte_errno)) +
                     take_eal_messages() + "; " + remedy_for(options)};
  }
  return ok_status();
}

}  // namespace

std::vector<std::string> eal_arguments(const EalOptions& options, const std::vector<int>& cpus) {
  std::vector<std::string> arguments = {"--no-telemetry", "--lcores=0@(" + comma_list(cpus) + ")"};
  if (options.no_huge) {
    const uint32_t total =
        std::accumulate(options.memory_mib.begin(), options.memory_mib.end(), 0u);
    arguments.insert(arguments.end(), {"--no-huge", "--no-shconf", "-m", std::to_string(total)});
  } else {
    arguments.emplace_back("--in-memory");  // leaves no files behind, even after a crash
    if (!options.memory_mib.empty()) {
      arguments.push_back("--socket-mem=" + comma_list(options.memory_mib));
    }
  }
  if (options.pci_addresses.empty()) arguments.emplace_back("--no-pci");
  for (const auto& address : options.pci_addresses) {
    arguments.insert(arguments.end(), {"-a", address});
  }
  return arguments;
}

Status start_eal(const EalOptions& options) {
  // DPDK cannot be started twice, even if the first start failed.
  static const Status first_outcome = start_once(options);
  return first_outcome;
}

std::string take_eal_messages() {
  Messages& kept = messages();
  const std::lock_guard lock(kept.mutex);
  if (kept.lines.empty()) return {};
  std::string text = " (";
  for (const auto& line : kept.lines) text.append(text.size() > 2 ? " | " : "").append(line);
  kept.lines.clear();
  return text + ")";
}

bool eal_uses_virtual_addresses() {
  return rte_eal_iova_mode() == RTE_IOVA_VA;
}

DpdkThread::DpdkThread() : status_(ok_status()) {
  is_registered_ = rte_lcore_id() == LCORE_ID_ANY && rte_thread_register() == 0;
  if (rte_lcore_id() == LCORE_ID_ANY) {
    status_ = Error{ErrorCode::kResourceExhausted, "DPDK cannot register another thread (" +
                                                       std::string(rte_strerror(rte_errno)) +
                                                       "); lower pipeline.count"};
  }
}

DpdkThread::~DpdkThread() {
  if (is_registered_) rte_thread_unregister();
}

}  // namespace pbox::nic
