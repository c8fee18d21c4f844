// pbox-peer-tcp: what the bytes of an exchange cost in the kernel alone. Every rank sends its
// gradient over one TCP connection to a server, which returns the same bytes. Nothing is summed or
// checked. See peer.h for the commands.
//
//   pbox-peer-tcp --serve ADDRESS     is only the server; prints "ready ADDRESS:PORT"
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "perf/peers/ranks.h"
#include "perf/peers/shared_barrier.h"

namespace {

using pbox::perf::Gradient;
using pbox::perf::Sample;

constexpr size_t kReadBytes = 256 << 10;

std::runtime_error failed(const std::string& what) {
  return std::runtime_error("cannot " + what + ": " + std::strerror(errno));
}

sockaddr_in to_sockaddr(const std::string& address, uint16_t port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  if (inet_pton(AF_INET, address.c_str(), &to.sin_addr) != 1) {
    throw std::runtime_error("'" + address + "' is no IPv4 address");
  }
  return to;
}

int open_socket() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw failed("open a TCP socket");
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  return fd;
}

// Sets `port` to the one that the kernel chose.
int listen_at(const std::string& address, uint16_t& port) {
  const int fd = open_socket();
  sockaddr_in own = to_sockaddr(address, 0);
  socklen_t bytes = sizeof(own);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&own), bytes) != 0 || listen(fd, SOMAXCONN) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &bytes) != 0) {
    throw failed("listen at " + address);
  }
  port = ntohs(own.sin_port);
  return fd;
}

void send_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) throw failed("send over TCP");
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
}

void echo(int fd) {
  std::vector<std::byte> bytes(kReadBytes);
  try {
    for (;;) {
      const ssize_t count = recv(fd, bytes.data(), bytes.size(), 0);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) break;
      send_all(fd, std::span(bytes).first(static_cast<size_t>(count)));
    }
  } catch (const std::runtime_error&) {  // the rank has ended
  }
  close(fd);
}

[[noreturn]] void serve(int listener) {
  for (;;) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) std::thread(echo, fd).detach();
  }
}

pid_t fork_server(int listener) {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  serve(listener);
}

class TcpRank : public pbox::perf::Rank {
 public:
  TcpRank(const sockaddr_in& server, pthread_barrier_t* barrier, Gradient& gradient)
      : gradient_(gradient), barrier_(barrier), fd_(open_socket()) {
    if (connect(fd_, reinterpret_cast<const sockaddr*>(&server), sizeof(server)) != 0) {
      throw failed("connect to the server");
    }
  }

  void barrier() override { pthread_barrier_wait(barrier_); }

  void exchange() override {
    std::thread sender([this] {
      for (const auto& tensor : gradient_.tensors()) send_all(fd_, std::as_bytes(tensor));
    });
    for (const auto& tensor : gradient_.tensors()) receive(std::as_writable_bytes(tensor));
    sender.join();
  }

 private:
  // The answer may overwrite the gradient: a byte comes back only after it was sent, and unchanged.
  void receive(std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = recv(fd_, bytes.data(), bytes.size(), 0);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) throw failed("receive over TCP");
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
  }

  Gradient& gradient_;
  pthread_barrier_t* barrier_;
  int fd_;
};

sockaddr_in parse_server(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) throw std::runtime_error("--box '" + text + "': use HOST:PORT");
  return to_sockaddr(text.substr(0, colon),
                     static_cast<uint16_t>(std::stoul(text.substr(colon + 1))));
}

int run(const pbox::perf::PeerOptions& options, Gradient& gradient) {
  require_exchange(options);
  pid_t own_server = 0;
  sockaddr_in server{};
  if (options.box.empty()) {
    uint16_t port = 0;
    own_server = fork_server(listen_at("127.0.0.1", port));
    server = to_sockaddr("127.0.0.1", port);
  } else {
    server = parse_server(options.box);
  }
  pthread_barrier_t* barrier = pbox::perf::make_shared_barrier(options.worker_count);
  const pid_t first = getpid();
  const int status = pbox::perf::run_ranks(
      options, gradient,
      {.system = "tcp",
       .make_rank = [&](uint32_t,
                        Gradient& own) { return std::make_unique<TcpRank>(server, barrier, own); },
       .measure_server =
           [&](Sample& sample) {
             if (own_server != 0) sample.cpu_seconds += pbox::perf::process_cpu_seconds(own_server);
           },
       .sums = false});
  if (getpid() == first && own_server != 0) {
    kill(own_server, SIGKILL);
    waitpid(own_server, nullptr, 0);
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--serve") == 0) {
    try {
      uint16_t port = 0;
      const int listener = listen_at(argv[2], port);
      std::printf("ready %s:%u\n", argv[2], unsigned{port});
      std::fflush(stdout);
      serve(listener);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "pbox-peer-tcp: %s\n", error.what());
      return 1;
    }
  }
  return pbox::perf::peer_main(argc, argv, "tcp", run);
}
