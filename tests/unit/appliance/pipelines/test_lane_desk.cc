// A desk on an io_context that the test runs by hand, and workers that connect to its socket.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "appliance/pipelines/lane_desk.h"
#include "tests/support/no_free_descriptors.h"

namespace pbox::pipelines {
namespace {

constexpr auto kDeskPatience = std::chrono::seconds(10);
constexpr uint64_t kDeskOwner = 41;

Descriptor lane_memory() {
  Descriptor file(memfd_create("pbox-test", MFD_CLOEXEC));
  REQUIRE(file.ok());
  return file;
}

// A desk that only records the lanes it would attach.
class NotingDesk {
 public:
  struct Attached {
    uint64_t owner = 0;
    uint32_t pipeline = 0;
    uint32_t spi = 0;
    uint64_t ring_bytes = 0;
    uint64_t memory_bytes_max = 0;
    bool operator==(const Attached&) const = default;
  };

  NotingDesk() {
    auto opened = LaneDesk::open(
        context, [this](uint64_t owner, const LaneDesk::Seat& seat, const nic::ReceivedHello& hello,
                        Descriptor& connection) { return attach(owner, seat, hello, connection); });
    REQUIRE(opened.ok());
    desk = std::move(*opened);
  }

  // Runs handlers until the condition holds. Returns whether it does.
  bool run_until(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + kDeskPatience;
    while (!condition() && std::chrono::steady_clock::now() < end) {
      context.restart();
      context.run_one_for(std::chrono::milliseconds(20));
    }
    return condition();
  }
  // Runs the handlers that need not wait.
  void run_ready() {
    context.restart();
    context.poll();
  }

  boost::asio::io_context context;
  std::unique_ptr<LaneDesk> desk;
  std::vector<Attached> attached;
  std::vector<Descriptor> connections;
  std::string trouble;  // why lanes cannot be made; empty if they can

 private:
  Status attach(uint64_t owner, const LaneDesk::Seat& seat, const nic::ReceivedHello& received,
                Descriptor& connection) {
    if (!trouble.empty()) return Error{ErrorCode::kResourceExhausted, trouble};
    const Descriptor memory = lane_memory();
    const Descriptor bell(eventfd(0, EFD_CLOEXEC));
    attached.push_back({owner, seat.pipeline, seat.grant.spi, received.hello.ring_bytes,
                        seat.grant.memory_bytes_max});
    connections.push_back(std::move(connection));
    return nic::send_answer(connections.back().get(), {}, {memory.get(), bell.get()});
  }
};

Descriptor connect_to(const LaneDesk::Offer& offer) {
  bool would_block = false;
  auto socket = nic::connect_lane(offer.socket, would_block);
  REQUIRE(socket.ok());
  return std::move(*socket);
}

nic::LaneHello hello_for(const LaneDesk::Offer& offer, uint32_t pipeline) {
  return {.pipeline = pipeline, .token = offer.token, .ring_bytes = 1 << 20};
}

void say(const Descriptor& socket, const nic::LaneHello& hello) {
  const Descriptor memory = lane_memory();
  REQUIRE(nic::send_hello(socket.get(), hello, {memory.get()}).ok());
}

// Returns whether the desk has closed the connection.
bool is_shut(const Descriptor& socket) {
  char byte = 0;
  const ssize_t count = recv(socket.get(), &byte, sizeof(byte), MSG_DONTWAIT | MSG_PEEK);
  return count == 0 || (count < 0 && errno == ECONNRESET);
}

// Returns the desk's answer; null if it closes the connection instead.
std::optional<nic::LaneAnswer> answer_on(NotingDesk& box, const Descriptor& socket) {
  std::optional<nic::LaneAnswer> answer;
  bool is_closed = false;
  REQUIRE(box.run_until([&] {
    auto received = nic::receive_answer(socket.get());
    is_closed = !received.ok();
    if (received && *received) answer = (*received)->answer;
    return is_closed || answer.has_value();
  }));
  return answer;
}

// Returns why the desk refuses this hello; empty if it accepts it.
std::string refusal_of(NotingDesk& box, const LaneDesk::Offer& offer, const nic::LaneHello& hello) {
  const Descriptor socket = connect_to(offer);
  say(socket, hello);
  const auto answer = answer_on(box, socket);
  REQUIRE(answer.has_value());
  const std::string refusal = answer->refusal.data();
  if (!refusal.empty()) CHECK(box.run_until([&] { return is_shut(socket); }));
  return refusal;
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const std::vector<LaneDesk::Seat> kTwoSeats = {{.pipeline = 5, .grant = {.spi = 0x51}},
                                               {.pipeline = 2, .grant = {.spi = 0x22}}};

}  // namespace

TEST_CASE("a worker with an offer gets a lane for each pipeline of its session") {
  NotingDesk box;
  const LaneDesk::Offer offer = box.desk->offer(kDeskOwner, kTwoSeats);
  const LaneDesk::Offer other =
      box.desk->offer(kDeskOwner + 1, {{.pipeline = 7, .grant = {.spi = 0x77}}});
  CHECK(offer.socket == other.socket);
  CHECK(offer.token != other.token);
  CHECK(refusal_of(box, offer, hello_for(offer, 1)).empty());
  CHECK(refusal_of(box, other, hello_for(other, 0)).empty());
  CHECK(refusal_of(box, offer, hello_for(offer, 0)).empty());
  const std::vector<NotingDesk::Attached> expected = {
      {kDeskOwner, 2, 0x22, 1 << 20},
      {kDeskOwner + 1, 7, 0x77, 1 << 20},
      {kDeskOwner, 5, 0x51, 1 << 20},
  };
  CHECK((box.attached == expected));
}

TEST_CASE("the connection of a lane stays open, and is the lane's from then on") {
  NotingDesk box;
  const LaneDesk::Offer offer = box.desk->offer(kDeskOwner, kTwoSeats);
  const Descriptor socket = connect_to(offer);
  say(socket, hello_for(offer, 0));
  REQUIRE(answer_on(box, socket).has_value());
  box.desk.reset();
  box.run_ready();
  CHECK_FALSE(is_shut(socket));
  box.connections.clear();
  CHECK(is_shut(socket));
}

TEST_CASE("a worker without a valid offer is refused, and told why") {
  NotingDesk box;
  const LaneDesk::Offer offer = box.desk->offer(kDeskOwner, kTwoSeats);
  nic::LaneHello wrong = hello_for(offer, 0);
  wrong.token.back() ^= std::byte{1};
  CHECK(refusal_of(box, offer, wrong) == "the box has not offered this worker a lane");
  wrong.token = {};
  CHECK(refusal_of(box, offer, wrong) == "the box has not offered this worker a lane");

  box.desk->withdraw(kDeskOwner + 1);
  CHECK(refusal_of(box, offer, hello_for(offer, 0)).empty());
  box.desk->withdraw(kDeskOwner);
  CHECK(refusal_of(box, offer, hello_for(offer, 0)) ==
        "the box has not offered this worker a lane");
  CHECK(box.attached.size() == 1);
}

TEST_CASE("a new offer to a worker replaces its earlier one") {
  NotingDesk box;
  const LaneDesk::Offer earlier = box.desk->offer(kDeskOwner, kTwoSeats);
  const LaneDesk::Offer later =
      box.desk->offer(kDeskOwner, {{.pipeline = 9, .grant = {.spi = 0x99}}});
  CHECK(earlier.token != later.token);
  CHECK(mentions(refusal_of(box, earlier, hello_for(earlier, 0)), "has not offered"));
  CHECK(refusal_of(box, later, hello_for(later, 0)).empty());
  REQUIRE(box.attached.size() == 1);
  CHECK(box.attached[0].spi == 0x99);
}

TEST_CASE("a worker asks once for each lane, also if it gets a new offer") {
  NotingDesk box;
  const LaneDesk::Offer offer = box.desk->offer(kDeskOwner, kTwoSeats);
  CHECK(refusal_of(box, offer, hello_for(offer, 1)).empty());
  const std::string refusal =
      "the worker has already asked for its lane to pipeline 1; it must "
      "join again to get another";
  CHECK(refusal_of(box, offer, hello_for(offer, 1)) == refusal);
  const LaneDesk::Offer later = box.desk->offer(kDeskOwner, kTwoSeats);
  CHECK(refusal_of(box, later, hello_for(later, 1)) == refusal);
  CHECK(refusal_of(box, later, hello_for(later, 0)).empty());
  CHECK(box.attached.size() == 2);
  // Another connection of the worker, and one that has the number of an earlier one.
  for (const uint64_t owner : {kDeskOwner + 1, kDeskOwner}) {
    box.desk->withdraw(kDeskOwner);
    const LaneDesk::Offer other = box.desk->offer(owner, kTwoSeats);
    CHECK(refusal_of(box, other, hello_for(other, 1)).empty());
  }
}

TEST_CASE("the box reads one file of a worker's memory, for all lanes and offers") {
  NotingDesk box;
  const std::vector<LaneDesk::Seat> seats = {{.pipeline = 0, .grant = {.memory_bytes_max = 7}},
                                             {.pipeline = 1, .grant = {.memory_bytes_max = 7}},
                                             {.pipeline = 2, .grant = {.memory_bytes_max = 7}},
                                             {.pipeline = 3, .grant = {.memory_bytes_max = 7}}};
  LaneDesk::Offer offer = box.desk->offer(kDeskOwner, seats);
  const Descriptor first = lane_memory(), second = lane_memory();
  const auto bytes_max_of = [&](uint32_t pipeline, const Descriptor& memory) {
    const Descriptor socket = connect_to(offer);
    const Descriptor segment = lane_memory();
    nic::LaneHello hello = hello_for(offer, pipeline);
    hello.memory_bytes = 7;
    REQUIRE(nic::send_hello(socket.get(), hello, {segment.get(), memory.get()}).ok());
    const auto answer = answer_on(box, socket);
    REQUIRE(answer.has_value());
    CHECK(answer->refusal[0] == 0);
    return box.attached.back().memory_bytes_max;
  };
  CHECK(bytes_max_of(0, first) == 7);
  CHECK(bytes_max_of(1, second) == 0);
  CHECK(bytes_max_of(2, first) == 7);
  offer = box.desk->offer(kDeskOwner, seats);
  CHECK(bytes_max_of(3, second) == 0);
}

TEST_CASE("a lane for a pipeline that is not in the session is refused") {
  NotingDesk box;
  const LaneDesk::Offer offer = box.desk->offer(kDeskOwner, kTwoSeats);
  for (const uint32_t pipeline : {2u, 5u, UINT32_MAX}) {
    CHECK(refusal_of(box, offer, hello_for(offer, pipeline)) ==
          "pipeline " + std::to_string(pipeline) + " is not one of the session's 2");
  }
  CHECK(box.attached.empty());
}

TEST_CASE("an offer of memory ends with the memory, and other offers stay") {
  NotingDesk box;
  const auto memory = NumaArena::create(4096, kAnyNumaNode);
  REQUIRE(memory.ok());
  const LaneDesk::Offer gone =
      box.desk->offer(kDeskOwner, {{.pipeline = 0, .grant = {.spi = 1}},
                                   {.pipeline = 1, .grant = {.spi = 2, .results = &*memory}}});
  const LaneDesk::Offer stays = box.desk->offer(kDeskOwner + 1, kTwoSeats);
  box.desk->withdraw_memory(*memory);
  CHECK(mentions(refusal_of(box, gone, hello_for(gone, 0)), "has not offered"));
  CHECK(box.attached.empty());
  const Descriptor socket = connect_to(stays);
  say(socket, hello_for(stays, 0));
  CHECK(box.run_until([&] { return box.attached.size() == 1; }));
}

TEST_CASE("a worker of another version of lanes is refused, and told both versions") {
  NotingDesk box;
  const LaneDesk::Offer offer = box.desk->offer(kDeskOwner, kTwoSeats);
  nic::LaneHello hello = hello_for(offer, 0);
  hello.version = 7;
  const std::string refusal = refusal_of(box, offer, hello);
  CHECK(mentions(refusal, "version 7"));
  CHECK(mentions(refusal, "version " + std::to_string(nic::LaneHello::kVersion)));
  CHECK(mentions(refusal, "port 'socket'"));
  CHECK(box.attached.empty());
}

TEST_CASE("a pipeline that cannot make a lane tells the worker its reason, cut to what fits") {
  NotingDesk box;
  const LaneDesk::Offer offer = box.desk->offer(kDeskOwner, kTwoSeats);
  box.trouble = "no room";
  CHECK(refusal_of(box, offer, hello_for(offer, 0)) == "no room");
  box.trouble = std::string(1000, 'x');
  CHECK(refusal_of(box, offer, hello_for(offer, 1)) == std::string(251, 'x'));
}

TEST_CASE("a connection that says nothing is displaced by as many others as may wait") {
  NotingDesk box;
  const LaneDesk::Offer offer = box.desk->offer(kDeskOwner, kTwoSeats);
  const Descriptor silent = connect_to(offer);
  std::vector<Descriptor> others;
  for (size_t count = 1; count < LaneDesk::kPendingMax; ++count) {
    others.push_back(connect_to(offer));
  }
  box.run_ready();
  CHECK_FALSE(is_shut(silent));
  others.push_back(connect_to(offer));
  CHECK(box.run_until([&] { return is_shut(silent); }));
  CHECK(std::none_of(others.begin(), others.end(), is_shut));
  // The others may still speak.
  for (const uint32_t pipeline : {0u, 1u}) {
    const Descriptor& other = pipeline == 0 ? others.front() : others.back();
    say(other, hello_for(offer, pipeline));
    const auto answer = answer_on(box, other);
    REQUIRE(answer.has_value());
    CHECK(answer->refusal[0] == 0);
  }
}

TEST_CASE("connections may speak, or end, in the moment in which others displace them") {
  NotingDesk box;
  for (int round = 0; round < 3; ++round) {
    const LaneDesk::Offer offer = box.desk->offer(kDeskOwner, kTwoSeats);
    std::vector<Descriptor> waiting;
    for (size_t count = 0; count < LaneDesk::kPendingMax; ++count) {
      waiting.push_back(connect_to(offer));
    }
    box.run_ready();
    for (size_t index = 0; index < waiting.size(); index += 2) {
      say(waiting[index], hello_for(offer, 0));
    }
    std::vector<Descriptor> later;
    for (size_t count = 0; count < 2 * LaneDesk::kPendingMax; ++count) {
      later.push_back(connect_to(offer));
      if (count % 3 == 0) say(later.back(), hello_for(offer, 1));
      if (count % 3 == 1) later.pop_back();
    }
    for (size_t index = 1; index < waiting.size(); index += 4) waiting[index] = Descriptor();
    box.run_ready();
    box.connections.clear();
    box.desk->withdraw(kDeskOwner);
    const LaneDesk::Offer next = box.desk->offer(kDeskOwner, kTwoSeats);
    CHECK(refusal_of(box, next, hello_for(next, 0)).empty());
    box.desk->withdraw(kDeskOwner);
  }
}

TEST_CASE("garbage closes its own connection, and disturbs no other") {
  NotingDesk box;
  const LaneDesk::Offer offer = box.desk->offer(kDeskOwner, kTwoSeats);
  const Descriptor honest = connect_to(offer);
  const std::vector<char> zeros(4096);
  for (const size_t bytes : {size_t{1}, sizeof(nic::LaneHello), zeros.size()}) {
    const Descriptor socket = connect_to(offer);
    REQUIRE(send(socket.get(), zeros.data(), bytes, MSG_NOSIGNAL) > 0);  // without a descriptor
    CHECK(box.run_until([&] { return is_shut(socket); }));
  }
  static_cast<void>(connect_to(offer));  // closed before it says anything
  const Descriptor both = connect_to(offer);
  say(both, hello_for(offer, 0));
  REQUIRE(send(both.get(), zeros.data(), 10, MSG_NOSIGNAL) > 0);
  const auto answer = answer_on(box, both);
  REQUIRE(answer.has_value());
  CHECK(answer->refusal[0] == 0);  // later messages are the lane's
  CHECK_FALSE(is_shut(honest));
  say(honest, hello_for(offer, 1));
  REQUIRE(answer_on(box, honest).has_value());
  CHECK(box.attached.size() == 2);
}

TEST_CASE("a worker is told that the box has no descriptors left for its lane") {
  NotingDesk box;
  const LaneDesk::Offer offer = box.desk->offer(kDeskOwner, kTwoSeats);
  const Descriptor socket = connect_to(offer);
  box.run_ready();
  say(socket, hello_for(offer, 0));
  {
    const test::NoFreeDescriptors none;
    box.run_ready();
  }
  const auto answer = answer_on(box, socket);
  REQUIRE(answer.has_value());
  CHECK(mentions(answer->refusal.data(), "LimitNOFILE"));
}

TEST_CASE("a worker that has gone before its lane is made disturbs nobody") {
  NotingDesk box;
  const LaneDesk::Offer offer = box.desk->offer(kDeskOwner, kTwoSeats);
  for (const uint32_t pipeline : {0u, 9u}) {
    const Descriptor socket = connect_to(offer);
    say(socket, hello_for(offer, pipeline));
  }
  box.run_ready();
  CHECK(refusal_of(box, offer, hello_for(offer, 1)).empty());
}

TEST_CASE("a desk that is closed ends the connections that wait, and two desks differ") {
  NotingDesk box;
  NotingDesk other;
  const LaneDesk::Offer offer = box.desk->offer(kDeskOwner, kTwoSeats);
  const LaneDesk::Offer of_other = other.desk->offer(kDeskOwner, kTwoSeats);
  CHECK(offer.socket != of_other.socket);
  CHECK(mentions(refusal_of(other, of_other, hello_for(offer, 0)), "has not offered"));
  const Descriptor waits = connect_to(offer);
  box.run_ready();
  const Descriptor is_early = connect_to(offer);
  box.desk.reset();
  box.run_ready();
  CHECK(is_shut(waits));
  CHECK(is_shut(is_early));
  bool would_block = false;
  CHECK_FALSE(nic::connect_lane(offer.socket, would_block).ok());
}

}  // namespace pbox::pipelines
