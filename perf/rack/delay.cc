// pbox-rack-delay: cables that are long. For each given pair of network interfaces, the program
// takes the Ethernet frames that arrive at one of them and sends them from the other one after a
// delay, in both directions. It prints "ready" when it forwards, and runs until its standard input
// ends. Rack (rack.h) starts it, since not every kernel has netem.
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/program_options.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/clock.h"
#include "perf/lists.h"
#include "perf/rack/delay_queue.h"

namespace {

namespace po = boost::program_options;
using pbox::perf::DelayQueue;
using pbox::perf::PathQuality;

constexpr size_t kBatch = 32;
constexpr size_t kFrameBytes = 66'000;  // a segmented message, its headers, and a virtio header
constexpr int kBufferBytes = 32 << 20;

// An interface whose frames are received and sent as they are. Each frame begins with a virtio
// header, which keeps what the sender has left to its device: checksum and segmentation.
class Interface {
 public:
  explicit Interface(const std::string& name)
      : fd_(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = static_cast<int>(if_nametoindex(name.c_str()));
    if (fd_ < 0 || address.sll_ifindex == 0 || !set(SOL_PACKET, PACKET_VNET_HDR, 1) ||
        !set(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1) ||
        !set(SOL_SOCKET, SO_RCVBUFFORCE, kBufferBytes) ||
        !set(SOL_SOCKET, SO_SNDBUFFORCE, kBufferBytes) ||
        bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      throw std::runtime_error("interface '" + name + "': " + std::strerror(errno));
    }
  }
  ~Interface() { close(fd_); }
  Interface(const Interface&) = delete;
  Interface& operator=(const Interface&) = delete;

  int fd() const { return fd_; }

 private:
  bool set(int level, int option, int value) const {
    return setsockopt(fd_, level, option, &value, sizeof(value)) == 0;
  }

  int fd_;
};

// Tables for system calls over many frames.
class Batch {
 public:
  Batch() : bytes_(kBatch * kFrameBytes) {
    for (size_t index = 0; index < kBatch; ++index) {
      headers_[index].msg_hdr.msg_iov = &vectors_[index];
      headers_[index].msg_hdr.msg_iovlen = 1;
    }
  }

  void receive(const Interface& from, DelayQueue& queue) {
    for (;;) {
      for (size_t index = 0; index < kBatch; ++index) {
        vectors_[index] = {bytes_.data() + index * kFrameBytes, kFrameBytes};
      }
      const int count = recvmmsg(from.fd(), headers_.data(), kBatch, MSG_DONTWAIT, nullptr);
      if (count <= 0) return;
      const uint64_t now_ns = pbox::monotonic_ns();
      for (size_t index = 0; index < static_cast<size_t>(count); ++index) {
        queue.push({bytes_.data() + index * kFrameBytes, headers_[index].msg_len}, now_ns);
      }
      if (static_cast<size_t>(count) < kBatch) return;
    }
  }

  void send(const Interface& to, DelayQueue& queue) {
    for (;;) {
      const size_t due = queue.due(pbox::monotonic_ns(), kBatch);
      if (due == 0) return;
      for (size_t index = 0; index < due; ++index) {
        vectors_[index] = {queue.frame(index).data(), queue.frame(index).size()};
      }
      const int sent = sendmmsg(to.fd(), headers_.data(), static_cast<unsigned>(due), MSG_DONTWAIT);
      if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS)) return;  // later
      queue.pop(sent > 0 ? static_cast<size_t>(sent) : 1);            // a refused frame is lost
    }
  }

 private:
  std::vector<std::byte> bytes_;
  std::array<mmsghdr, kBatch> headers_{};
  std::array<iovec, kBatch> vectors_{};
};

struct Direction {
  const Interface* from;
  const Interface* to;
  DelayQueue queue;
};

struct Cables {
  std::vector<std::unique_ptr<Interface>> ends;
  std::vector<Direction> directions;
};

// Adds a cable that is stated as A,B,DELAY_US,JITTER_US,LOSS.
void add_cable(Cables& cables, const std::string& text) {
  const std::vector<std::string> words = pbox::perf::entries_of(text);
  if (words.size() != 5) {
    throw std::runtime_error("--pair '" + text + "': use A,B,DELAY_US,JITTER_US,LOSS");
  }
  const PathQuality quality{.delay_ns = std::stoull(words[2]) * 1000,
                            .jitter_ns = std::stoull(words[3]) * 1000,
                            .loss = std::stod(words[4])};
  cables.ends.push_back(std::make_unique<Interface>(words[0]));
  cables.ends.push_back(std::make_unique<Interface>(words[1]));
  const Interface* const one = cables.ends.end()[-2].get();
  const Interface* const other = cables.ends.end()[-1].get();
  const uint64_t seed = cables.directions.size() + 1;
  cables.directions.push_back({one, other, DelayQueue(quality, seed)});
  cables.directions.push_back({other, one, DelayQueue(quality, seed + 1)});
}

uint64_t ns_until_due(const Cables& cables) {
  uint64_t wait_ns = pbox::kNanosPerSecond;
  const uint64_t now_ns = pbox::monotonic_ns();
  for (const Direction& direction : cables.directions) {
    const auto due_ns = direction.queue.due_ns();
    if (due_ns) wait_ns = std::min(wait_ns, *due_ns > now_ns ? *due_ns - now_ns : 0);
  }
  return wait_ns;
}

void forward(Cables& cables) {
  Batch batch;
  std::vector<pollfd> waits{{STDIN_FILENO, POLLIN, 0}};
  for (const Direction& direction : cables.directions) {
    waits.push_back({direction.from->fd(), POLLIN, 0});
  }
  while (waits[0].revents == 0) {
    const timespec timeout = pbox::timespec_of(ns_until_due(cables));
    ppoll(waits.data(), waits.size(), &timeout, nullptr);
    for (size_t index = 0; index < cables.directions.size(); ++index) {
      Direction& direction = cables.directions[index];
      if (waits[index + 1].revents != 0) batch.receive(*direction.from, direction.queue);
      batch.send(*direction.to, direction.queue);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<std::string> pairs;
    po::options_description description("pbox-rack-delay");
    description.add_options()("pair", po::value(&pairs)->required());
    po::variables_map values;
    po::store(po::parse_command_line(argc, argv, description), values);
    po::notify(values);
    Cables cables;
    for (const std::string& pair : pairs) add_cable(cables, pair);
    prctl(PR_SET_TIMERSLACK, 1);  // otherwise frames leave 50 us late
    std::cout << "ready" << std::endl;
    forward(cables);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "pbox-rack-delay: " << error.what() << "\n";
    return 1;
  }
}
