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
                                              "--call",       options.call,
                                              "--workers",    std::to_string(options.worker_count),
                                              "--iterations", std::to_string(options.iterations),
                                              "--warmup",     std::to_string(options.warmup),
                                              "--seed",       std::to_string(options.seed)};
  command.insert(command.end(), arguments.begin(), arguments.end());
  if (!options.hosts.empty()) {
    command.insert(command.end(), {"--hosts", to_text(options.hosts)});
  }
  if (options.window_bytes != 0) {
    command.insert(command.end(), {"--window-bytes", std::to_string(options.window_bytes)});
  }
  if (!options.box.empty()) command.insert(command.end(), {"--box", options.box});
  if (options.values != "f32") command.insert(command.end(), {"--values", options.values});
  if (!options.keys.empty()) command.insert(command.end(), {"--keys", options.keys});
  if (options.port != "socket") command.insert(command.end(), {"--port", options.port});
  if (options.memory != "own") command.insert(command.end(), {"--memory", options.memory});
  if (options.recovery != "none") {
    command.insert(command.end(), {"--recovery", options.recovery});
  }
  if (!options.box_flags.empty()) {
    command.insert(command.end(), {"--box-flags", options.box_flags});
  }
}

// Returns the mpirun command line. Open MPI's own messages stay in `subnet` too. Ranks yield while
// they wait, because with more ranks than cores spinning would only measure the scheduler. On the
// machines of a rack, pbox-rack-enter starts the ranks in place of ssh.
std::vector<std::string> mpirun(const PeerOptions& options, const std::string& program_folder,
                                const std::string& subnet, const std::string& transports) {
  std::vector<std::string> command = {"mpirun",
                                      "--allow-run-as-root",
                                      "--oversubscribe",
                                      "--bind-to",
                                      "none",
                                      "--mca",
                                      "oob_tcp_if_include",
                                      subnet,
                                      "--mca",
                                      "pml",
                                      "ob1",
                                      "--mca",
                                      "btl",
                                      transports,
                                      "--mca",
                                      "btl_tcp_if_include",
                                      subnet,
                                      "--mca",
                                      "mpi_yield_when_idle",
                                      "1",
                                      "-n",
                                      std::to_string(options.worker_count)};
  if (options.hosts.empty()) {
    command.insert(command.end(), {"--mca", "plm", "isolated"});
    return command;
  }
  std::string addresses;
  for (const PeerHost& host : options.hosts) {
    addresses += (addresses.empty() ? "" : ",") + host.address;
  }
  const std::string agent = (std::filesystem::path(program_folder) / "pbox-rack-enter").string() +
                            " " + to_text(options.hosts);
  command.insert(command.end(), {"--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent, "--mca",
                                 "plm_rsh_no_tree_spawn", "1", "--host", addresses});
  return command;
}

}  // namespace

Result<std::vector<std::string>> peer_command(std::string_view system, const PeerOptions& options,
                                              const std::string& program_folder,
                                              const std::string& subnet) {
  struct Peer {
    std::string_view system, program, package;
  };
  constexpr std::string_view kOurs = "the packages of group build in tools/packages";
  constexpr Peer kPeers[] = {{"pbox", "pbox-peer-pbox", kOurs},
                             {"udp-limit", "pbox-peer-udp", kOurs},
                             {"tcp", "pbox-peer-tcp", kOurs},
                             {"gloo-tcp", "pbox-peer-gloo", "libgloo-dev"},
                             {"openmpi-tcp", "pbox-peer-mpi", "libopenmpi-dev"},
                             {"openmpi-shm", "pbox-peer-mpi", "libopenmpi-dev"}};
  const auto* peer = std::find_if(std::begin(kPeers), std::end(kPeers),
                                  [&](const Peer& one) { return one.system == system; });
  if (peer == std::end(kPeers)) {
    return Error{
        ErrorCode::kInvalidArgument,
        "system '" + std::string(system) +
            "' is unknown: use pbox, openmpi-tcp, openmpi-shm, gloo-tcp, tcp or udp-limit"};
  }
  const auto program =
      program_path(program_folder, std::string(peer->program), std::string(peer->package));
  if (!program) return program.error();
  std::vector<std::string> command;
  PeerOptions passed_on = options;
  if (system == "openmpi-tcp") command = mpirun(options, program_folder, subnet, "self,tcp");
  if (system == "openmpi-shm") command = mpirun(options, program_folder, subnet, "self,vader");
  if (!command.empty()) passed_on.hosts.clear();  // mpirun starts the ranks on their hosts
  command.push_back(*program);
  append_options(command, passed_on);
  return command;
}

}  // namespace pbox::perf
