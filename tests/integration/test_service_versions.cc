// A rolling upgrade: a real pboxd and real workers, some of which speak the control protocol of the
// previous release. A process between them and the box has that release's definitions. It forwards
// what that release knows, and refuses what that release refuses. Both sides of it run this
// release's code, so this proves that the messages fit together, but nothing about faults of the
// older release.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <optional>

#include "nic/wire/control_frame.h"
#include "tests/control_v2.pb.h"
#include "tests/support/daemon.h"
#include "tests/support/older_protocol.h"
#include "tests/support/sums.h"

namespace pbox::test {
namespace {

namespace v2 = proto::v2;
using Catch::Contains;

// The answer of release 0.1.0 if it refuses the message.
std::optional<v2::BoxMessage> refusal_of(const v2::WorkerMessage& message) {
  v2::BoxMessage answer;
  const bool has_version = message.has_join() || message.has_ask_part_map();
  const uint32_t version = message.has_join() ? message.join().protocol_version()
                                              : message.ask_part_map().protocol_version();
  if (has_version && version != 2) {
    answer.mutable_failure()->set_code(10);
    answer.mutable_failure()->set_message("the box speaks 2");
    return answer;
  }
  if (message.kind_case() == v2::WorkerMessage::KIND_NOT_SET) {
    answer.mutable_failure()->set_code(1);
    answer.mutable_failure()->set_message("the first message must be JOIN");
    return answer;
  }
  return std::nullopt;
}

class Connection {
 public:
  Connection(const OlderProtocol& protocol, int worker, int box)
      : protocol_(protocol), worker_(worker), box_(box) {}
  ~Connection() {
    close(worker_);
    close(box_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void add_waits(std::vector<pollfd>& waits) const {
    waits.push_back({worker_, POLLIN, 0});
    waits.push_back({box_, POLLIN, 0});
  }
  // Returns false once a side has closed its end.
  bool pass_on() {
    return pass<v2::WorkerMessage>("WorkerMessage", worker_, box_, from_worker_) &&
           pass<v2::BoxMessage>("BoxMessage", box_, worker_, from_box_);
  }

 private:
  template <typename Message>
  bool pass(const char* name, int from, int to, wire::FrameReader& reader) {
    char buffer[65536];
    const ssize_t bytes = recv(from, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (bytes < 0) return errno == EAGAIN || errno == EINTR;
    if (bytes == 0) return false;
    reader.append(buffer, static_cast<size_t>(bytes));
    for (auto body = reader.next(); body && *body; body = reader.next()) {
      Message message;
      if (!message.ParseFromString(protocol_.forget_new_fields(name, **body))) return false;
      if constexpr (std::is_same_v<Message, v2::WorkerMessage>) {
        if (const auto refusal = refusal_of(message)) return write(from, *refusal) && false;
      }
      if (!write(to, message)) return false;
    }
    return true;
  }
  static bool write(int to, const google::protobuf::MessageLite& message) {
    const std::string frame = *wire::frame(message);
    size_t sent = 0;
    while (sent < frame.size()) {
      const ssize_t bytes = send(to, frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
      if (bytes <= 0) return false;
      sent += static_cast<size_t>(bytes);
    }
    return true;
  }

  const OlderProtocol& protocol_;
  int worker_, box_;
  wire::FrameReader from_worker_, from_box_;
};

void stand_between(const std::string& box, uint16_t port, Line& line) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  require(bind(listener, generic, size) == 0 && listen(listener, 16) == 0, "cannot listen");
  require(getsockname(listener, generic, &size) == 0, "no address");
  line.say(std::to_string(ntohs(address.sin_port)));
  const OlderProtocol protocol(PBOX_OLDER_PROTOCOL);
  std::vector<std::unique_ptr<Connection>> connections;
  for (;;) {
    std::vector<pollfd> waits = {{listener, POLLIN, 0}};
    for (const auto& connection : connections) connection->add_waits(waits);
    poll(waits.data(), waits.size(), -1);
    std::erase_if(connections, [](const auto& connection) { return !connection->pass_on(); });
    if ((waits[0].revents & POLLIN) == 0) continue;
    const int worker = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    const int to_box = connect_to(box);
    require(worker >= 0 && to_box >= 0, "no connection to the box");
    connections.push_back(std::make_unique<Connection>(protocol, worker, to_box));
  }
}

// An address at which a box talks like release 0.1.0, and which workers use like workers of that
// release.
class OlderPeer {
 public:
  explicit OlderPeer(const std::string& box, uint16_t port = 0)
      : process_([=](Line& line) { stand_between(box, port, line); }) {
    const auto said = process_.heard();
    if (!said || said->find("FAILED") == 0)
      throw std::runtime_error("the peer of the older release did not start");
    port_ = static_cast<uint16_t>(std::stoul(*said));
  }
  uint16_t port() const { return port_; }
  std::string control() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  WorkerProcess process_;
  uint16_t port_ = 0;
};

struct Sides {
  std::string rank_0, rank_1;
};

constexpr uint64_t kElements = 20'000;

// One rank of two. It waits for go() in the middle, and needs every sum to be right.
void train(const std::string& box, uint32_t rank, Line& line) {
  const AbiWorker worker({.box = box, .job = "upgrade", .rank = rank, .world_size = 2});
  const uint32_t tensor = worker.tensor("gradient", kElements);
  worker.join();
  for (uint32_t round = 0; round < 8; ++round) {
    if (round == 4) {
      line.say("half");
      line.await_go();
    }
    const std::vector<float> input(kElements, static_cast<float>(100 * rank + round));
    std::vector<float> output(kElements);
    worker.push_pull(tensor, input.data(), output.data());
    worker.wait(tensor);
    for (const float sum : output) {
      require(sum == static_cast<float>(100 + 2 * round), "a sum is wrong");
    }
  }
  worker.must(pbox_barrier(worker.context(), 0));
  worker.leave();
}

void run(
    const Sides& sides, const std::function<void()>& in_the_middle = [] {}) {
  std::vector<WorkerProcess> ranks;
  ranks.emplace_back([&](Line& line) { train(sides.rank_0, 0, line); });
  ranks.emplace_back([&](Line& line) { train(sides.rank_1, 1, line); });
  for (WorkerProcess& rank : ranks) REQUIRE(rank.heard() == "half");
  in_the_middle();
  for (WorkerProcess& rank : ranks) rank.go();
  for (WorkerProcess& rank : ranks) CHECK(rank.finish() == "");
}

}  // namespace

TEST_CASE(
    "workers of this release train at a box that talks the protocol of the previous release") {
  Daemon daemon;
  const OlderPeer older(daemon.control());
  run({older.control(), older.control()});
}

TEST_CASE("a worker of the previous release trains beside one of this release") {
  Daemon daemon;
  const OlderPeer older(daemon.control());
  run({daemon.control(), older.control()});
  run({older.control(), daemon.control()});
}

TEST_CASE("zeros are named to and by this release only") {
  Daemon daemon;
  const OlderPeer older(daemon.control());
  std::vector<WorkerProcess> ranks;
  for (const uint32_t rank : {0u, 1u}) {
    ranks.emplace_back([&, rank](Line&) {
      const bool is_older = rank == 1;
      const AbiWorker worker({.box = is_older ? older.control() : daemon.control(),
                              .job = "zeros",
                              .rank = rank,
                              .world_size = 2});
      const uint32_t tensor = worker.tensor("gradient", kElements);
      worker.join();
      for (uint32_t round = 0; round < 3; ++round) {
        std::vector<float> gradient(kElements);
        worker.push_pull(tensor, gradient.data(), gradient.data());
        worker.wait(tensor);
        require(gradient == std::vector<float>(kElements), "a sum is wrong");
      }
      const pbox_statistics statistics = worker.statistics();
      const uint64_t bytes = 3 * kElements * sizeof(float);
      require((statistics.zero_fragments == 0) == is_older, "zeros are named to an older box");
      require((statistics.bytes_pulled == bytes) == is_older, "zeros are named to an older rank");
      worker.leave();
    });
  }
  for (WorkerProcess& rank : ranks) CHECK(rank.finish() == "");
}

TEST_CASE("a connection with the previous protocol is made anew after a loss") {
  Daemon daemon;
  std::optional<OlderPeer> older(std::in_place, daemon.control());
  const uint16_t port = older->port();
  run({daemon.control(), older->control()}, [&] {
    older.reset();
    older.emplace(daemon.control(), port);
  });
}

TEST_CASE("every dtype and mode of the previous release is understood in both directions") {
  Daemon daemon;
  const OlderPeer older(daemon.control());
  for (const pbox_dtype dtype : {PBOX_F32, PBOX_F16, PBOX_BF16}) {
    const SumsOutcome outcome = run_sums({.box = older.control(),
                                          .job = "sums-" + std::to_string(dtype),
                                          .dtype = dtype,
                                          .elements = {1, 8193},
                                          .rounds = 3});
    CHECK(outcome.failure == "");
    CHECK(outcome.identical);
  }
  std::vector<WorkerProcess> ranks;
  for (const uint32_t rank : {0u, 1u}) {
    ranks.emplace_back([&, rank](Line&) {
      const AbiWorker worker(
          {.box = rank == 0 ? older.control() : daemon.control(),
           .job = "weights",
           .rank = rank,
           .world_size = 2,
           .adjust = [](pbox_options& options) { options.mode = PBOX_MODE_OPTIMIZE; }});
      const uint32_t tensor = worker.tensor("weights", kElements);
      std::vector<float> weights(kElements, 1);
      worker.join_with_sgd(0.5f, tensor, weights);
      const std::vector<float> gradient(kElements, 1);
      worker.push_pull(tensor, gradient.data(), weights.data());
      worker.wait(tensor);
      require(weights[0] == weights[kElements - 1], "the weights differ");
      require(weights[0] < 1, "no step was taken");
      worker.leave();
    });
  }
  for (WorkerProcess& rank : ranks) CHECK(rank.finish() == "");
}

}  // namespace pbox::test
