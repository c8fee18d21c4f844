// Parts of one worker whose boxes do not answer, beside a part whose box does. Everything runs on
// one thread, as on the I/O thread: a part that waits on it would hold up the other.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <functional>
#include <future>
#include <optional>

#include "base/clock.h"
#include "nic/socket/port.h"
#include "nic/wire/control_frame.h"
#include "tests/support/loopback_listener.h"
#include "worker/io_waits.h"
#include "worker/part_driver.h"

namespace pbox::worker {
namespace {

using Phase = Membership::Phase;

constexpr uint64_t kPatienceNs = 60 * kNanosPerSecond;

// A box of one pipeline, which answers on the control connection and never to packets.
class ControlBox {
 public:
  explicit ControlBox(nic::QueueAffinity affinity) : affinity_(affinity) {
    auto port = nic::SocketPort::open({.local = *nic::parse_endpoint("127.0.0.1", 0)});
    REQUIRE(port.ok());
    data_.emplace(std::move(*port));
  }
  ~ControlBox() {
    if (connection_ >= 0) close(connection_);
  }
  ControlBox(const ControlBox&) = delete;
  ControlBox& operator=(const ControlBox&) = delete;

  nic::SocketPort& data() { return *data_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(listener_.port()); }
  uint32_t heartbeats = 0;

  void serve() {
    if (connection_ < 0) connection_ = listener_.accept();
    if (connection_ < 0) return;
    char bytes[4096];
    const ssize_t count = recv(connection_, bytes, sizeof(bytes), 0);
    if (count > 0) reader_.append(bytes, static_cast<size_t>(count));
    for (auto body = reader_.next(); body && *body; body = reader_.next()) {
      proto::WorkerMessage message;
      REQUIRE(message.ParseFromString(**body));
      answer(message);
    }
  }

  void send(const proto::BoxMessage& message) const {
    const auto framed = wire::frame(message);
    REQUIRE(framed.ok());
    REQUIRE(::send(connection_, framed->data(), framed->size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(framed->size()));
  }

 private:
  void answer(const proto::WorkerMessage& message) {
    proto::BoxMessage answer;
    if (message.has_heartbeat()) ++heartbeats;
    if (message.has_ask_data_addresses()) {
      answer.mutable_data_addresses()->add_addresses("");
    } else if (message.has_join()) {
      proto::Session& session = *answer.mutable_session();
      session.set_epoch(1);
      session.set_fragment_bytes(1024);
      session.set_chunk_bytes(4096);
      session.set_chunk_pipeline(std::string(1, '\0'));
      session.set_heartbeat_interval_ms(10);
      session.set_dead_after_ms(86'400'000);
      proto::PipelineSession& pipeline = *session.add_pipelines();
      pipeline.set_spi(0x3001);
      pipeline.set_credit_bytes(65'536);
      pipeline.set_udp_port(data_->local().port);
      pipeline.set_affinity(static_cast<uint32_t>(affinity_));
    } else {
      return;
    }
    send(answer);
  }

  nic::QueueAffinity affinity_;
  std::optional<nic::SocketPort> data_;
  test::LoopbackListener listener_;
  int connection_ = -1;
  wire::FrameReader reader_;
};

// A part of a worker, with its driver.
struct Part {
  Part(const std::string& box, BoxAddresses& addresses)
      : membership(options_for(box), {{.name = "t", .elements = 7}}, {}),
        driver(*drivers.emplace_back(std::make_unique<PartDriver>(
            membership, addresses, std::vector<std::string>{"socket"}, options_for(box)))) {
    membership.begin(monotonic_ns());
    driver.perform_actions();
  }
  static MembershipOptions options_for(const std::string& box) {
    MembershipOptions options;
    options.box = box;
    options.probes_path = false;
    options.join_timeout_ms = 600'000;
    return options;
  }

  Membership membership;
  std::vector<std::unique_ptr<PartDriver>> drivers;
  PartDriver& driver;
};

// Serves parts and boxes in turn, as the I/O thread and the boxes do, until the condition holds.
void serve_until(std::initializer_list<Part*> parts, std::initializer_list<ControlBox*> boxes,
                 const std::function<bool()>& condition) {
  const uint64_t end_ns = monotonic_ns() + kPatienceNs;
  while (!condition()) {
    REQUIRE(monotonic_ns() < end_ns);
    for (ControlBox* box : boxes) box->serve();
    std::vector<pollfd> waits;
    for (Part* part : parts) {
      part->driver.pump(monotonic_ns());
      part->driver.add_control_wait(waits);
    }
    poll(waits.data(), waits.size(), 1);
  }
}

// Lets the part push, and returns the address that its packets come from.
nic::Endpoint push(Part& part, ControlBox& box) {
  static std::array<float, 7> values{};
  auto* const bytes = reinterpret_cast<std::byte*>(values.data());
  part.membership.start({.input = bytes, .output = bytes});
  std::optional<int32_t> next;
  const uint64_t end_ns = monotonic_ns() + kPatienceNs;
  std::array<nic::RxPacket, 8> packets;
  for (;;) {
    part.driver.send(0, monotonic_ns(), next);
    if (box.data().rx_burst(packets) > 0) return packets[0].from;
    REQUIRE(monotonic_ns() < end_ns);
  }
}

// Sends the part a packet without any information.
void send_packet(ControlBox& box, const nic::Endpoint& to) {
  nic::TxPacket packet;
  packet.to = &to;
  REQUIRE(box.data().tx_burst({&packet, 1}) == 1);
}

}  // namespace

TEST_CASE("a lane without packets is looked at when its descriptor is ready, or after a while") {
  BoxAddresses addresses;
  ControlBox box(nic::QueueAffinity::kUdpPort);
  Part part(box.address(), addresses);
  serve_until({&part}, {&box}, [&] { return part.membership.phase() == Phase::kRunning; });
  const nic::Endpoint worker = push(part, box);
  const uint64_t now_ns = monotonic_ns();
  CHECK(part.driver.receive(now_ns) == 0);
  send_packet(box, worker);
  CHECK(part.driver.receive(now_ns) == 0);
  std::vector<pollfd> waits;
  part.driver.add_lane_waits(waits);
  REQUIRE(poll(waits.data(), waits.size(), 10'000) == 1);
  size_t first = 0;
  part.driver.note_ready(waits, first, now_ns);
  CHECK(first == waits.size());
  CHECK(part.driver.receive(now_ns) == 1);

  CHECK(part.driver.receive(now_ns) == 0);
  send_packet(box, worker);
  REQUIRE(poll(waits.data(), waits.size(), 10'000) == 1);
  CHECK(part.driver.receive(now_ns + 1000) == 0);
  CHECK(part.driver.receive(now_ns + kNanosPerMilli) == 1);
}

TEST_CASE("an I/O thread that wakes for packets alone leaves the control side in peace") {
  BoxAddresses addresses;
  ControlBox box(nic::QueueAffinity::kUdpPort);
  Part part(box.address(), addresses);
  serve_until({&part}, {&box}, [&] { return part.membership.phase() == Phase::kRunning; });
  const nic::Endpoint worker = push(part, box);
  const int own[] = {eventfd(0, EFD_CLOEXEC), -1};
  IoWaits waits;
  CHECK(waits.wait(own, part.drivers, kNanosPerMilli, false));  // the time is over
  CHECK_FALSE(waits.is_ready(0));
  send_packet(box, worker);
  CHECK_FALSE(waits.wait(own, part.drivers, kPatienceNs, false));
  CHECK(part.driver.receive(monotonic_ns()) == 1);
  REQUIRE(eventfd_write(own[0], 1) == 0);
  CHECK(waits.wait(own, part.drivers, kPatienceNs, false));
  CHECK(waits.is_ready(0));
  close(own[0]);
}

TEST_CASE("a part that looks for its queues at a silent box holds up no other part") {
  BoxAddresses addresses;
  ControlBox silent(nic::QueueAffinity::kSourceTrial);
  ControlBox sound(nic::QueueAffinity::kUdpPort);
  Part first(silent.address(), addresses);
  serve_until({&first}, {&silent}, [&] { return silent.heartbeats > 0; });
  Part second(sound.address(), addresses);
  serve_until({&first, &second}, {&silent, &sound},
              [&] { return second.membership.phase() == Phase::kRunning; });
  CHECK(first.membership.phase() == Phase::kJoining);

  // Meanwhile the control connection works in both directions.
  const uint32_t before = silent.heartbeats;
  serve_until({&first, &second}, {&silent, &sound}, [&] { return silent.heartbeats > before + 2; });
  proto::BoxMessage failure;
  failure.mutable_failure()->set_code(static_cast<uint32_t>(ErrorCode::kMismatch));
  failure.mutable_failure()->set_message("the ranks disagree");
  silent.send(failure);
  serve_until({&first, &second}, {&silent, &sound},
              [&] { return first.membership.phase() == Phase::kFailed; });
  CHECK(first.membership.failure()->message == "the ranks disagree");
  CHECK(second.membership.phase() == Phase::kRunning);
}

TEST_CASE("a box whose name server does not answer holds up no part but its own") {
  std::promise<void> answer;
  const std::shared_future<void> answered = answer.get_future().share();
  BoxAddresses addresses([answered](const std::string& box) -> Result<BoxAddresses::Addresses> {
    answered.wait();
    return Error{ErrorCode::kUnavailable, "cannot resolve box '" + box + "': no such name"};
  });
  ControlBox sound(nic::QueueAffinity::kUdpPort);
  Part first("box.example:9541", addresses);
  Part second(sound.address(), addresses);
  serve_until({&first, &second}, {&sound},
              [&] { return second.membership.phase() == Phase::kRunning; });
  CHECK(first.membership.phase() == Phase::kJoining);
  answer.set_value();
  serve_until({&first, &second}, {&sound},
              [&] { return first.membership.phase() == Phase::kFailed; });
  CHECK(first.membership.failure()->message ==
        "cannot resolve box 'box.example:9541': no such name");
}

TEST_CASE("a part that goes while its transport is being opened waits for no box") {
  BoxAddresses addresses;
  ControlBox silent(nic::QueueAffinity::kSourceTrial);
  Part part(silent.address(), addresses);
  serve_until({&part}, {&silent}, [&] { return silent.heartbeats > 0; });
  part.membership.leave();
  part.driver.perform_actions();
  part.driver.end_opening();  // would take the ten minutes of the join
  CHECK(part.membership.phase() == Phase::kLeft);
}

}  // namespace pbox::worker
