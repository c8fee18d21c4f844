#include "perf/wire/perftest.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <iomanip>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "perf/wire/shell.h"

namespace pbox::perf {
namespace {

constexpr uint32_t kMarginS = 1;  // seconds left out at the beginning and at the end
// 4.096 us * 2^18: about a second without an acknowledgement. perftest's default is 67 ms, which
// emulated or busy cores exceed. Soft-RoCE then retransmits and breaks some of the connections.
constexpr uint32_t kAckTimeout = 18;
// perftest first calibrates its clock. It reports a rate of 0 if it did not get its core meanwhile.
constexpr uint32_t kAttempts = 3;

// Returns a free TCP port, because another program may use perftest's default port.
uint16_t free_tcp_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  auto* const any_address = reinterpret_cast<sockaddr*>(&address);
  const bool bound = socket >= 0 && bind(socket, any_address, bytes) == 0 &&
                     getsockname(socket, any_address, &bytes) == 0;
  const int error = errno;
  if (socket >= 0) close(socket);
  if (!bound) throw std::system_error(error, std::generic_category(), "no free TCP port");
  return ntohs(address.sin_port);
}

std::string side_command(const PerftestOptions& options, const PerftestSide& side, uint16_t port) {
  std::ostringstream words;
  words << "timeout 120 " << options.program << " -b -F --report_gbits -u " << kAckTimeout << " -p "
        << port << " -d " << side.device << " -x " << side.gid_index << " -q "
        << options.queue_pairs << " -s " << options.message_bytes << " -f " << kMarginS << " -D "
        << 2 * kMarginS + std::ceil(options.seconds);
  return words.str();
}

// Returns a command line that runs both sides. The server listens once it has opened its device,
// and the client tries to connect only once. So the client starts when the kernel's table has the
// server's port in state LISTEN (0A), or when the server has ended. $! is the process of `sed`,
// which ends with the server and marks its lines.
std::string command_line(const PerftestOptions& options) {
  const uint16_t port = free_tcp_port();
  std::ostringstream words;
  words << "{ " << side_command(options, options.server, port)
        << " 2>&1; echo \"ended with $?\"; } | sed 's/^/server: /' & "
        << "while kill -0 $! 2>/dev/null && ! grep -q ':" << std::hex << std::uppercase
        << std::setw(4) << std::setfill('0') << port
        << " 0*:0000 0A' /proc/net/tcp; do sleep 0.1; done; "
        << side_command(options, options.client, port)
        << " 127.0.0.1 2>&1; echo \"client ended with $?\"; wait";
  return words.str();
}

// Returns the average bandwidth from the last line of the client's table, whose columns are bytes,
// iterations, peak, average and message rate; 0 if there is no such line.
double average_column(const std::string& said) {
  double average = 0;
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream columns(line);
    double bytes = 0, iterations = 0, peak = 0, value = 0;
    if (columns >> bytes >> iterations >> peak >> value) average = value;
  }
  return average;
}

}  // namespace

double perftest_rate(const PerftestOptions& options, std::ostream& report) {
  std::string failure;
  for (uint32_t attempt = 0; attempt < kAttempts; ++attempt) {
    if (!failure.empty()) report << failure << "\nperftest runs again" << std::endl;
    const std::string said = output_of(command_line(options));
    const double both_gbits = average_column(said);
    if (both_gbits > 0) return both_gbits / 2 * 1e9 / 8;
    failure = options.program + " (package perftest) reports no bandwidth; its output:\n" + said;
  }
  throw std::runtime_error(failure);
}

}  // namespace pbox::perf
