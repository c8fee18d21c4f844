#include <catch2/catch.hpp>
#include <deque>
#include <string>

#include "tests/unit/worker/protocol/shim.h"
#include "worker/protocol/send_turns.h"

namespace pbox::worker {
namespace {

// Lanes with the priorities of what each has to send.
class Host {
 public:
  explicit Host(std::vector<std::deque<int32_t>> lanes) : lanes_(std::move(lanes)) {}

  // Makes a pass over all lanes. Returns the lanes that sent, one digit a packet.
  std::string pass() {
    std::string sent;
    turns_.begin();
    for (size_t lane = 0; lane < lanes_.size(); ++lane) {
      turns_.add({.part = lane, .lane = 7, .priority = next(lane)});
    }
    turns_.run([&](const SendTurns::Lane& lane) -> std::optional<int32_t> {
      CHECK(lane.lane == 7);
      if (lanes_[lane.part].empty()) return std::nullopt;
      lanes_[lane.part].pop_front();
      sent += std::to_string(lane.part);
      return blocked == lane.part ? std::nullopt : next(lane.part);
    });
    return sent;
  }
  std::string passes() {
    std::string sent;
    for (std::string one = pass(); !one.empty(); one = pass()) sent += one;
    return sent;
  }

  size_t blocked = SIZE_MAX;  // a lane whose port takes one packet a pass

 private:
  std::optional<int32_t> next(size_t lane) const {
    if (lanes_[lane].empty()) return std::nullopt;
    return lanes_[lane].front();
  }

  std::vector<std::deque<int32_t>> lanes_;
  SendTurns turns_;
};

}  // namespace

TEST_CASE("the lane with the most urgent packet sends first, in whichever part it is") {
  CHECK(Host({{1}, {0}, {3}, {2}}).pass() == "2301");
}

TEST_CASE("a lane keeps its turn while it has more urgent packets than the next lane") {
  CHECK(Host({{5, 0}, {9, 9, 7, 1}, {6}}).passes() == "1112010");
}

TEST_CASE("lanes of equal urgency send in the order of the parts, in each pass") {
  Host host({{4, 4, 4}, {4, 4, 4}, {9, 4, 4}});
  CHECK(host.pass() == "201");
  CHECK(host.pass() == "012");
  CHECK(host.pass() == "012");
}

TEST_CASE("less urgent lanes send while the most urgent one is blocked") {
  Host host({{0, 0}, {9, 9}});
  host.blocked = 1;
  CHECK(host.pass() == "10");
}

TEST_CASE("an endless urgent lane does not keep the thread from receiving") {
  Host host({std::deque<int32_t>(1000, 9), {0}});
  CHECK(host.pass().size() <= 4);
}

TEST_CASE("a lane tells the priority of what it sends next") {
  test::Shim shim({.tensor_chunks = {1, 40, 1}});
  CHECK_FALSE(shim.exchange.next_priority(0, shim.now_ns).has_value());
  shim.start(0, 1.0f, -3);
  CHECK(shim.exchange.next_priority(0, shim.now_ns) == -3);
  shim.start(1, 1.0f, 4);
  CHECK(shim.exchange.next_priority(0, shim.now_ns) == 4);
  // Packets that the port did not take go first.
  CHECK(shim.exchange.to_send(0, shim.now_ns).size() == limits::kBurstPackets);
  shim.exchange.sent(0, limits::kBurstPackets - 1);
  shim.start(2, 1.0f, 9);
  CHECK(shim.exchange.next_priority(0, shim.now_ns) == 4);
  shim.exchange.sent(0, 1);
  CHECK(shim.exchange.next_priority(0, shim.now_ns) == std::nullopt);  // the credit is used up
  shim.deliver_result(1, 0, 1.0f);
  CHECK(shim.exchange.next_priority(0, shim.now_ns) == 9);
}

}  // namespace pbox::worker
