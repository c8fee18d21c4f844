#include "tests/support/wire.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <new>

#include "base/rng.h"
#include "nic/ethernet/format.h"

namespace pbox::test {
namespace {

constexpr size_t kFrameBytesMax = 65'536;
constexpr int kSocketBufferBytes = 16 << 20;
constexpr size_t kDelayFrames = 8;
constexpr int kDelayMs = 1;

std::shared_ptr<WireCounts> make_shared_counts() {
  void* memory =
      mmap(nullptr, sizeof(WireCounts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(memory != MAP_FAILED, "no memory to share with the wire");
  return {new (memory) WireCounts, [](WireCounts* counts) { munmap(counts, sizeof(WireCounts)); }};
}

// One direction of the wire.
class Lane {
 public:
  Lane(const FrameSocket& from, const FrameSocket& to, const WireOptions& options, bool to_box,
       WireCounts& counts)
      : from_(from),
        to_(to),
        options_(options),
        to_box_(to_box),
        counts_(counts),
        rng_(options.seed * 2 + (to_box ? 1 : 0)) {}

  // Forwards at most one burst, so that the other direction gets its turn.
  void turn() {
    for (int budget = 64; budget > 0; --budget) {
      auto frame = from_.receive(0);
      if (!frame) break;
      pass(std::move(*frame));
    }
  }
  void release() {
    while (!delayed_.empty()) {
      to_.send(delayed_.front());
      delayed_.pop_front();
    }
  }
  bool holds() const { return !delayed_.empty(); }

 private:
  bool one_of(uint32_t count) { return count != 0 && rng_.below(count) == 0; }

  void pass(FrameSocket::Frame frame) {
    if (options_.vlan != 0 && !to_box_ && frame.vlan != options_.vlan) return;
    std::string bytes = options_.vlan != 0 && to_box_ ? with_tag(frame.bytes, options_.vlan)
                                                      : std::move(frame.bytes);
    if (one_of(options_.lose_one_of)) {
      ++counts_.lost;
      return;
    }
    if (one_of(options_.delay_one_of)) {
      ++counts_.delayed;
      delayed_.push_back(std::move(bytes));
      return;
    }
    to_.send(bytes);
    if (one_of(options_.repeat_one_of)) {
      ++counts_.repeated;
      to_.send(bytes);
    }
    if (holds() && ++overtaken_by_ == kDelayFrames) {
      overtaken_by_ = 0;
      release();
    }
  }

  const FrameSocket& from_;
  const FrameSocket& to_;
  const WireOptions& options_;
  const bool to_box_;
  WireCounts& counts_;
  Rng rng_;
  std::deque<std::string> delayed_;
  size_t overtaken_by_ = 0;
};

void forward(const std::string& box_side, const std::string& worker_side,
             const WireOptions& options, WireCounts& counts) {
  const FrameSocket box(box_side), workers(worker_side);
  Lane to_box(workers, box, options, true, counts),
      to_workers(box, workers, options, false, counts);
  pollfd waits[2] = {{box.fd(), POLLIN, 0}, {workers.fd(), POLLIN, 0}};
  for (;;) {
    const bool holds = to_box.holds() || to_workers.holds();
    if (poll(waits, 2, holds ? kDelayMs : -1) == 0) {
      to_box.release();
      to_workers.release();
    }
    to_box.turn();
    to_workers.turn();
  }
}

}  // namespace

Wire::Wire(const std::string& box_side, const std::string& worker_side, const WireOptions& options)
    : counts_(make_shared_counts()),
      process_([&, counts = counts_](Line&) { forward(box_side, worker_side, options, *counts); }) {
}

std::string raw_sockets_are_impossible() {
  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
  if (fd < 0) return "raw sockets need CAP_NET_RAW";
  close(fd);
  return "";
}

FrameSocket::FrameSocket(const std::string& interface)
    : fd_(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_ALL))) {
  require(fd_ >= 0, "no raw socket; it needs CAP_NET_RAW");
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(if_nametoindex(interface.c_str()));
  const int on = 1;
  setsockopt(fd_, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof(on));
  setsockopt(fd_, SOL_PACKET, PACKET_AUXDATA, &on, sizeof(on));
  setsockopt(fd_, SOL_SOCKET, SO_RCVBUFFORCE, &kSocketBufferBytes, sizeof(kSocketBufferBytes));
  setsockopt(fd_, SOL_SOCKET, SO_SNDBUFFORCE, &kSocketBufferBytes, sizeof(kSocketBufferBytes));
  require(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0,
          "cannot listen to interface " + interface);
  ifreq request{};
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  require(ioctl(fd_, SIOCGIFHWADDR, &request) == 0, "no MAC of interface " + interface);
  mac_.assign(request.ifr_hwaddr.sa_data, 6);
}

FrameSocket::~FrameSocket() {
  close(fd_);
}

// A frame that an interface refuses because it is down is lost, as on any wire.
void FrameSocket::send(const std::string& bytes) const {
  static_cast<void>(::send(fd_, bytes.data(), bytes.size(), 0));
}

std::optional<FrameSocket::Frame> FrameSocket::receive(int timeout_ms) const {
  pollfd wait{fd_, POLLIN, 0};
  if (timeout_ms > 0 && poll(&wait, 1, timeout_ms) <= 0) return std::nullopt;
  static thread_local std::string buffer(kFrameBytesMax, '\0');
  iovec piece{buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(tpacket_auxdata))];
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t bytes = recvmsg(fd_, &message, 0);
  if (bytes < 0) return std::nullopt;
  Frame frame{buffer.substr(0, static_cast<size_t>(bytes)), 0};
  // The kernel removes VLAN tags from frames and reports them in a control message.
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr;
       each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_type != PACKET_AUXDATA) continue;
    tpacket_auxdata data;
    std::memcpy(&data, CMSG_DATA(each), sizeof(data));
    if ((data.tp_status & TP_STATUS_VLAN_VALID) != 0) {
      frame.vlan = data.tp_vlan_tci & nic::ethernet::kVlanMask;
    }
  }
  return frame;
}

std::string with_tag(const std::string& bytes, uint16_t vlan) {
  std::string tag(nic::ethernet::kTagBytes, '\0');
  nic::store16(tag.data(), nic::ethernet::kTypeTag);
  nic::store16(tag.data() + 2, vlan);
  std::string tagged = bytes;
  return tagged.insert(nic::ethernet::kType, tag);
}

}  // namespace pbox::test
