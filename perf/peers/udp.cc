// pbox-peer-udp: the physical limit of a server on loopback. Every rank sends its gradient to
// another process, which returns as many bytes, over UDP sockets in large datagrams. Nothing is
// summed, checked, acknowledged or stored. See peer.h for the commands.
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
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

constexpr size_t kDatagramBytes = 64'512;  // two chunks, as in a segmented message of PBox
constexpr size_t kBatch = 8;               // datagrams per system call
constexpr size_t kWindow = 16;          // datagrams in flight per socket: 1 MiB, as PBox's window
constexpr int kBufferBytes = 64 << 20;  // so large that no datagram is dropped
constexpr int kSilenceMs = 10'000;

int open_socket() {
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  const sockaddr_in loopback{
      .sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  for (const int option : {SO_RCVBUFFORCE, SO_SNDBUFFORCE}) {
    setsockopt(fd, SOL_SOCKET, option, &kBufferBytes, sizeof(kBufferBytes));
  }
  if (fd < 0 || bind(fd, reinterpret_cast<const sockaddr*>(&loopback), sizeof(loopback)) != 0) {
    throw std::runtime_error("cannot open a UDP socket on loopback");
  }
  return fd;
}

sockaddr_in address_of(int fd) {
  sockaddr_in address{};
  socklen_t bytes = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes);
  return address;
}

// Tables for one system call over kBatch datagrams.
class Batch {
 public:
  Batch() : bytes_(kBatch * kDatagramBytes) {
    for (size_t index = 0; index < kBatch; ++index) {
      headers_[index].msg_hdr.msg_iov = &vectors_[index];
      headers_[index].msg_hdr.msg_iovlen = 1;
      headers_[index].msg_hdr.msg_name = &addresses_[index];
    }
  }

  // Receives up to `limit` datagrams and returns how many arrived.
  size_t receive(int fd, size_t limit) {
    for (size_t index = 0; index < limit; ++index) {
      vectors_[index] = {bytes_.data() + index * kDatagramBytes, kDatagramBytes};
      headers_[index].msg_hdr.msg_namelen = sizeof(sockaddr_in);
    }
    const int count =
        recvmmsg(fd, headers_.data(), static_cast<unsigned>(limit), MSG_DONTWAIT, nullptr);
    return count < 0 ? 0 : static_cast<size_t>(count);
  }

  // Sends the first `count` datagrams received back to where they came from.
  void send_back(int fd, size_t count) {
    for (size_t index = 0; index < count; ++index)
      vectors_[index].iov_len = headers_[index].msg_len;
    send(fd, count);
  }

  // Sends the memory at `data` to the connected peer, in datagrams of these lengths.
  void send_from(int fd, const std::byte* data, const std::vector<size_t>& lengths) {
    for (size_t index = 0; index < lengths.size(); ++index) {
      vectors_[index] = {const_cast<std::byte*>(data), lengths[index]};
      headers_[index].msg_hdr.msg_namelen = 0;
      data += lengths[index];
    }
    send(fd, lengths.size());
  }

 private:
  void send(int fd, size_t count) {
    for (size_t sent = 0; sent < count;) {
      const int now = sendmmsg(fd, &headers_[sent], static_cast<unsigned>(count - sent), 0);
      if (now <= 0) throw std::runtime_error("sendmmsg failed");
      sent += static_cast<size_t>(now);
    }
  }

  std::vector<std::byte> bytes_;
  std::array<mmsghdr, kBatch> headers_{};
  std::array<iovec, kBatch> vectors_{};
  std::array<sockaddr_in, kBatch> addresses_{};
};

void serve(int fd) {
  Batch batch;
  for (;;) {
    const size_t count = batch.receive(fd, kBatch);
    if (count == 0) {
      pollfd wait{fd, POLLIN, 0};
      poll(&wait, 1, -1);
    } else {
      batch.send_back(fd, count);
    }
  }
}

// Forks the server process, which has one thread per socket.
pid_t fork_server(const std::vector<int>& sockets) {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<std::thread> threads;
  for (const int fd : sockets) threads.emplace_back(serve, fd);
  for (auto& thread : threads) thread.join();
  _exit(0);
}

class UdpRank : public pbox::perf::Rank {
 public:
  UdpRank(const std::vector<int>& servers, pthread_barrier_t* barrier, Gradient& gradient)
      : gradient_(gradient), barrier_(barrier) {
    for (const int server : servers) {
      const int fd = open_socket();
      const sockaddr_in address = address_of(server);
      if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        throw std::runtime_error("cannot connect a UDP socket on loopback");
      }
      lanes_.push_back({fd, 0});
    }
  }

  void barrier() override { pthread_barrier_wait(barrier_); }

  void exchange() override {
    for (const auto& tensor : gradient_.tensors()) move(std::as_bytes(tensor));
    while (under_way_ > 0) take_answers();
  }

 private:
  struct Lane {
    int fd;
    size_t under_way;
  };

  void move(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      Lane& lane =
          *std::min_element(lanes_.begin(), lanes_.end(),
                            [](const Lane& a, const Lane& b) { return a.under_way < b.under_way; });
      std::vector<size_t> lengths;
      size_t total = 0;
      while (lengths.size() < std::min(kBatch, kWindow - lane.under_way) && total < bytes.size()) {
        lengths.push_back(std::min(kDatagramBytes, bytes.size() - total));
        total += lengths.back();
      }
      batch_.send_from(lane.fd, bytes.data(), lengths);
      lane.under_way += lengths.size();
      under_way_ += lengths.size();
      bytes = bytes.subspan(total);
      while (under_way_ == lanes_.size() * kWindow) take_answers();
    }
  }

  void take_answers() {
    std::vector<pollfd> waits;
    for (const Lane& lane : lanes_) waits.push_back({lane.fd, POLLIN, 0});
    if (poll(waits.data(), waits.size(), kSilenceMs) <= 0) {
      throw std::runtime_error("datagrams were lost on loopback");
    }
    for (Lane& lane : lanes_) {
      const size_t count = batch_.receive(lane.fd, kBatch);
      lane.under_way -= count;
      under_way_ -= count;
    }
  }

  Gradient& gradient_;
  pthread_barrier_t* barrier_;
  std::vector<Lane> lanes_;
  size_t under_way_ = 0;
  Batch batch_;
};

int run(const pbox::perf::PeerOptions& options, Gradient& gradient) {
  require_exchange(options);
  std::vector<int> sockets;
  const auto cores = std::max(1L, sysconf(_SC_NPROCESSORS_ONLN));
  for (long core = 0; core < cores; ++core) sockets.push_back(open_socket());
  pthread_barrier_t* barrier = pbox::perf::make_shared_barrier(options.worker_count);
  const pid_t server = fork_server(sockets);
  const pid_t first = getpid();
  const int status = pbox::perf::run_ranks(
      options, gradient,
      {.system = "udp",
       .make_rank = [&](uint32_t,
                        Gradient& own) { return std::make_unique<UdpRank>(sockets, barrier, own); },
       .measure_server =
           [&](Sample& sample) { sample.cpu_seconds += pbox::perf::process_cpu_seconds(server); },
       .sums = false});
  if (getpid() == first) {
    kill(server, SIGKILL);
    waitpid(server, nullptr, 0);
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  return pbox::perf::peer_main(argc, argv, "udp", run);
}
