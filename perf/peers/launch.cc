#include "perf/peers/launch.h"

#include <filesystem>

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
  std::vector<std::string> command;
  if (system == "openmpi-tcp" || system == "openmpi-shm") {
    const auto program = program_path(program_folder, "pbox-peer-mpi", "libopenmpi-dev");
    if (!program) return program.error();
    command = mpirun(options.worker_count, system == "openmpi-tcp" ? "self,tcp" : "self,vader");
    command.push_back(*program);
  } else if (system == "gloo-tcp") {
    const auto program = program_path(program_folder, "pbox-peer-gloo", "libgloo-dev");
    if (!program) return program.error();
    command = {*program};
  } else if (system == "udp-limit") {
    const auto program = program_path(program_folder, "pbox-peer-udp", "what tools/packages lists");
    if (!program) return program.error();
    command = {*program};
  } else if (system == "pbox") {
    const auto program =
        program_path(program_folder, "pbox-peer-pbox", "what tools/packages lists");
    if (!program) return program.error();
    command = {*program};
  } else {
    return Error{ErrorCode::kInvalidArgument,
                 "system '" + std::string(system) +
                     "' is unknown: use pbox, openmpi-tcp, openmpi-shm, gloo-tcp or udp-limit"};
  }
  append_options(command, options);
  return command;
}

}  // namespace pbox::perf
