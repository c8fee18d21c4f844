#include "tests/support/steering_nic.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <list>
#include <map>
#include <new>
#include <stdexcept>
#include <vector>

#include "base/rng.h"
#include "nic/rss.h"
#include "nic/socket/address.h"
#include "nic/wire/control.pb.h"
#include "nic/wire/control_frame.h"
#include "nic/wire/header.h"
#include "tests/support/daemon.h"

namespace pbox::test {
namespace {

nic::Endpoint local_of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return nic::from_sockaddr(address);
}

int open_on_loopback(int type) {
  sockaddr_storage address{};
  const socklen_t length = nic::to_sockaddr(*nic::parse_endpoint("127.0.0.1", 0), address);
  const int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
  require(bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0, "cannot bind");
  const int bytes = 8 << 20;
  if (type == SOCK_DGRAM) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
  return fd;
}

void send_whole(int fd, const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0)
      return;  // the peer has closed; the next read notices that and closes both sides
    sent += static_cast<size_t>(count);
  }
}

nic::RssTable table_of(uint32_t queues) {
  nic::RssTable table;
  for (uint32_t byte = 0; byte < 40; ++byte) {
    table.key.push_back(static_cast<uint8_t>(0x6d * byte * byte + 0x5b * byte + 0xc3));
  }
  for (uint32_t entry = 0; entry < 128; ++entry) {
    table.queues.push_back(static_cast<uint16_t>(entry % queues));
  }
  return table;
}

// Runs in the child process. Its descriptors are closed when the process ends.
class Switch {
 public:
  Switch(const SteeringOptions& options, SteeringCounts& counts)
      : options_(options), counts_(counts), listener_(open_on_loopback(SOCK_STREAM)) {
    require(listen(listener_, 16) == 0, "cannot listen");
  }

  std::string control() const { return to_string(local_of(listener_)); }

  void turn() {
    std::vector<pollfd> waits{{listener_, POLLIN, 0}};
    for (const Connection& one : connections_) {
      waits.push_back({one.worker, POLLIN, 0});
      waits.push_back({one.box, POLLIN, 0});
    }
    for (const Front& front : fronts_) waits.push_back({front.fd, POLLIN, 0});
    for (const auto& [key, fd] : flows_) waits.push_back({fd, POLLIN, 0});
    poll(waits.data(), waits.size(), -1);
    std::map<int, bool> ready;
    for (const pollfd& wait : waits) ready[wait.fd] = wait.revents != 0;
    for (auto one = connections_.begin(); one != connections_.end();) {
      const bool lives =
          (!ready[one->worker] || from_worker(*one)) && (!ready[one->box] || from_box(*one));
      if (!lives) {
        close(one->worker);
        close(one->box);
      }
      one = lives ? std::next(one) : connections_.erase(one);
    }
    for (uint32_t index = 0; index < fronts_.size(); ++index) {
      if (ready[fronts_[index].fd]) towards_box(index);
    }
    for (const auto& [key, fd] : flows_) {
      if (ready[fd]) towards_worker(key.first, key.second, fd);
    }
    if (ready[listener_]) {
      connections_.push_back(
          {accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC), connect_to(options_.box), {}});
    }
  }

 private:
  struct Connection {
    int worker;
    int box;
    wire::FrameReader from_box;
  };
  // The socket to which workers send a pipeline's packets, and that pipeline's address.
  struct Front {
    int fd;
    nic::Endpoint pipeline;
  };

  bool from_worker(const Connection& connection) {
    std::array<char, 4096> buffer;
    const ssize_t bytes = recv(connection.worker, buffer.data(), buffer.size(), 0);
    if (bytes <= 0) return false;
    send_whole(connection.box, {buffer.data(), static_cast<size_t>(bytes)});
    return true;
  }

  bool from_box(Connection& connection) {
    std::array<char, 4096> buffer;
    const ssize_t bytes = recv(connection.box, buffer.data(), buffer.size(), 0);
    if (bytes <= 0) return false;
    connection.from_box.append(buffer.data(), static_cast<size_t>(bytes));
    for (auto body = connection.from_box.next(); body && *body; body = connection.from_box.next()) {
      proto::BoxMessage message;
      require(message.ParseFromString(**body), "the box's message cannot be parsed");
      if (message.has_session()) rewrite(*message.mutable_session());
      send_whole(connection.worker, *wire::frame(message));
    }
    return true;
  }

  void rewrite(proto::Session& session) {
    if (fronts_.empty()) {
      for (const auto& pipeline : session.pipelines()) {
        fronts_.push_back(
            {open_on_loopback(SOCK_DGRAM),
             *nic::parse_endpoint("127.0.0.1", static_cast<uint16_t>(pipeline.udp_port()))});
      }
      table_ = table_of(static_cast<uint32_t>(fronts_.size()));
    }
    if (options_.affinity == nic::QueueAffinity::kRssHash) {
      auto& table = *session.add_rss_tables();
      table.set_key(table_.key.data(), table_.key.size());
      table.mutable_queues()->Add(table_.queues.begin(), table_.queues.end());
    }
    for (int index = 0; index < session.pipelines_size(); ++index) {
      auto& pipeline = *session.mutable_pipelines(index);
      pipeline.set_udp_port(local_of(fronts_[static_cast<size_t>(index)].fd).port);
      pipeline.set_affinity(static_cast<uint32_t>(options_.affinity));
      pipeline.set_queue(static_cast<uint32_t>(index));
    }
  }

  void towards_box(uint32_t index) {
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    const ssize_t bytes = recvfrom(fronts_[index].fd, packet_.data(), packet_.size(), 0,
                                   reinterpret_cast<sockaddr*>(&address), &length);
    wire::Parsed parsed;
    require(bytes > 0 && wire::parse(packet_.data(), static_cast<uint32_t>(bytes), parsed) ==
                             wire::Reject::kNone,
            "a worker's message cannot be parsed");
    const nic::Endpoint from = nic::from_sockaddr(address);
    const bool push = parsed.header.type() == wire::PacketType::kPush;
    if (nic::rss_queue(table_, from, local_of(fronts_[index].fd)) != index) {
      ++(push ? counts_.pushes_misdirected : counts_.others_misdirected);
      return;
    }
    if (static_cast<int>(index) == options_.deaf_pipeline) return;
    if (options_.lose_every > 0 && rng_.below(options_.lose_every) == 0) return;
    if (push) ++counts_.pushes_passed;
    const auto key = std::make_pair(index, from.port);
    if (!flows_.contains(key)) {
      const int fd = open_on_loopback(SOCK_DGRAM);
      length = nic::to_sockaddr(fronts_[index].pipeline, address);
      require(connect(fd, reinterpret_cast<sockaddr*>(&address), length) == 0, "cannot connect");
      flows_[key] = fd;
    }
    send(flows_[key], packet_.data(), static_cast<size_t>(bytes), 0);
  }

  void towards_worker(uint32_t index, uint16_t port, int fd) {
    const ssize_t bytes = recv(fd, packet_.data(), packet_.size(), 0);
    if (bytes <= 0) return;
    sockaddr_storage address{};
    const socklen_t length = nic::to_sockaddr(*nic::parse_endpoint("127.0.0.1", port), address);
    sendto(fronts_[index].fd, packet_.data(), static_cast<size_t>(bytes), 0,
           reinterpret_cast<sockaddr*>(&address), length);
  }

  SteeringOptions options_;
  SteeringCounts& counts_;
  int listener_;
  std::list<Connection> connections_;
  std::vector<Front> fronts_;                           // by pipeline
  std::map<std::pair<uint32_t, uint16_t>, int> flows_;  // by pipeline and worker's source port
  nic::RssTable table_;
  // random, because a fixed pattern of losses could match the pattern of the trial packets
  Rng rng_{1};
  std::array<std::byte, 65536> packet_;
};

std::shared_ptr<SteeringCounts> shared_counts() {
  void* memory = mmap(nullptr, sizeof(SteeringCounts), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(memory != MAP_FAILED, "no shared memory");
  return {new (memory) SteeringCounts,
          [](SteeringCounts* counts) { munmap(counts, sizeof(*counts)); }};
}

}  // namespace

SteeringNic::SteeringNic(const SteeringOptions& options)
    : counts_(shared_counts()), process_([&](Line& line) {
        auto nic = std::make_unique<Switch>(options, *counts_);
        line.say(nic->control());
        for (;;) nic->turn();
      }) {
  control_ = process_.heard().value_or("");
  require(control_.rfind("127.0.0.1:", 0) == 0, "the steering NIC did not start: " + control_);
}

}  // namespace pbox::test
