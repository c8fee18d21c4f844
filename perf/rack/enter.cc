// pbox-rack-enter HOSTS ADDRESS COMMAND...: runs a shell command line on one machine of a rack.
// mpirun uses it in place of ssh. HOSTS has the form of the peers' --hosts: PATH@ADDRESS, separated
// by commas. The machine's address becomes its host name, because Open MPI treats ranks with the
// same host name as ranks of one machine.
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "perf/lists.h"

namespace {

std::string path_of(const std::string& hosts, const std::string& address) {
  for (const std::string& host : pbox::perf::entries_of(hosts)) {
    const size_t at = host.find('@');
    if (at != std::string::npos && host.substr(at + 1) == address) return host.substr(0, at);
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: pbox-rack-enter PATH@ADDRESS,... ADDRESS COMMAND...\n");
    return 2;
  }
  const std::string address = argv[2];
  const std::string path = path_of(argv[1], address);
  const int network = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (network < 0 || setns(network, CLONE_NEWNET) != 0 || unshare(CLONE_NEWUTS) != 0 ||
      sethostname(address.data(), address.size()) != 0) {
    std::fprintf(stderr, "pbox-rack-enter: cannot enter the machine %s ('%s')\n", address.c_str(),
                 path.c_str());
    return 1;
  }
  std::string command;
  for (int index = 3; index < argc; ++index) command += std::string(argv[index]) + " ";
  execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
  std::fprintf(stderr, "pbox-rack-enter: cannot run /bin/sh\n");
  return 127;
}
