#include "perf/peers/launch.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

namespace pbox::perf {
namespace {

Result<std::string> program_path(const std::string& folder, const std::string& name,
                                 const std::string& package) {
  const std::filesystem::path path = std::filesystem::path(folder) / name;
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return path.string();
  return Error{ErrorCode::kNotFound,
               path.string() + " was not built: install " + package + " and configure again"};
}

void append_options(std::vector<std::string>& command, const PeerOptions& options) {
  const std::vector<std::string> arguments = {"--model",      options.model,
                                              "--layout",     options.layout,
                                              "--workers",    std::to_string(options.worker_count),
                                              "--iterations", std::to_string(options.iterations),
                                              "--warmup",     std::to_string(options.warmup),
                                              "--seed",       std::to_string(options.seed)};
  command.insert(command.end(), arguments.begin(), arguments.end());
  if (options.recovery != "none") {
    command.insert(command.end(), {"--recovery", options.recovery});
  }
  if (!options.box_flags.empty()) {
    command.insert(command.end(), {"--box-flags", options.box_flags});
  }
}

// Every message of Open MPI's own stays on loopback too. Ranks yield while they wait: with more
// ranks than cores, spinning would only measure the scheduler.
std::vector<std::string> mpirun(uint32_t worker_count, const std::string& transports) {
  return {"mpirun",
          "--allow-run-as-root",
          "--oversubscribe",
          "--bind-to",
          "none",
          "--mca",
          "plm",
          "isolated",
          "--mca",
          "oob_tcp_if_include",
          "lo",
          "--mca",
          "pml",
          "ob1",
          "--mca",
          "btl",
          transports,
          "--mca",
          "btl_tcp_if_include",
          "lo",
          "--mca",
          "mpi_yield_when_idle",
          "1",
          "-n",
          std::to_string(worker_count)};
}

}  // namespace

Result<std::vector<std::string>> peer_command(std::string_view system, const PeerOptions& options,
                                              const std::string& program_folder) {
  struct Peer {
    std::string_view system, program, package;
  };
  constexpr std::string_view kOurs = "what tools/packages lists";
  constexpr Peer kPeers[] = {{"pbox", "pbox-peer-pbox", kOurs},
                             {"udp-limit", "pbox-peer-udp", kOurs},
                             {"gloo-tcp", "pbox-peer-gloo", "libgloo-dev"},
                             {"openmpi-tcp", "pbox-peer-mpi", "libopenmpi-dev"},
                             {"openmpi-shm", "pbox-peer-mpi", "libopenmpi-dev"}};
  const auto* peer = std::find_if(std::begin(kPeers), std::end(kPeers),
                                  [&](const Peer& one) { return one.system == system; });
  if (peer == std::end(kPeers)) {
    return Error{ErrorCode::kInvalidArgument,
                 "system '" + std::string(system) +
                     "' is unknown: use pbox, openmpi-tcp, openmpi-shm, gloo-tcp or udp-limit"};
  }
  const auto program =
      program_path(program_folder, std::string(peer->program), std::string(peer->package));
  if (!program) return program.error();
  std::vector<std::string> command;
  if (system == "openmpi-tcp") command = mpirun(options.worker_count, "self,tcp");
  if (system == "openmpi-shm") command = mpirun(options.worker_count, "self,vader");
  command.push_back(*program);
  append_options(command, options);
  return command;
}

}  // namespace pbox::perf
