// Parts of a job whose lanes lead to the same pipeline of a box.
#include <catch2/catch.hpp>
#include <deque>

#include "tests/unit/worker/protocol/shim.h"
#include "worker/protocol/send_path.h"

namespace pbox::test::send_path_test {
namespace {

using wire::PacketType;

constexpr uint32_t kChunks = 200;
constexpr uint64_t kChunkNs = 1'000'000;  // time that the path takes for each chunk
constexpr uint64_t kSlackNs = 2'000'000;

// Parts of one job that share a path. The path takes their chunks one after the other.
class Parts {
 public:
  explicit Parts(size_t count, bool shares = true) {
    for (size_t part = 0; part < count; ++part) {
      shims_.push_back(std::make_unique<Shim>(
          ShimOptions{.tensor_chunks = {kChunks, 1}, .path = shares ? path_ : nullptr}));
    }
  }
  Shim& operator[](size_t part) { return *shims_[part]; }

  // Takes what all parts push. Returns the number of chunks.
  size_t push() {
    size_t chunks = 0;
    for (size_t part = 0; part < shims_.size(); ++part) {
      for (const Pushed& packet : shims_[part]->take_all(PacketType::kPush)) {
        if (packet.header.fragment != 0) continue;
        in_flight_.push_back({part, packet.header.chunk});
        ++chunks;
      }
    }
    return chunks;
  }
  // Delivers the result of the oldest chunk.
  void answer() {
    REQUIRE_FALSE(in_flight_.empty());
    for (auto& shim : shims_) shim->now_ns += kChunkNs;
    const auto [part, chunk] = in_flight_.front();
    in_flight_.pop_front();
    shims_[part]->deliver_result(chunk, 0, 1.0f);
  }
  // Exchanges chunks of all parts until the path has been measured.
  void measure() {
    for (auto& shim : shims_) shim->start(0);
    for (size_t done = 0; done < shims_.size() * kChunks / 2; ++done) {
      push();
      answer();
    }
    push();
  }
  size_t in_flight() const { return in_flight_.size(); }
  void end(size_t part) {
    std::erase_if(in_flight_, [&](const auto& one) { return one.first == part; });
    shims_.erase(shims_.begin() + static_cast<ptrdiff_t>(part));
  }

 private:
  std::shared_ptr<worker::SendPath> path_ = short_path(kSlackNs);
  std::vector<std::unique_ptr<Shim>> shims_;
  std::deque<std::pair<size_t, uint32_t>> in_flight_;
};

size_t in_flight_with(size_t parts, bool shares) {
  Parts job(parts, shares);
  job.measure();
  return job.in_flight();
}

}  // namespace

TEST_CASE("parts that share a path have no more in flight than one part would have") {
  const size_t one = in_flight_with(1, true);
  CHECK(one < 8);
  CHECK(in_flight_with(4, true) == one);
  CHECK(in_flight_with(4, false) >= 4 * one / 2);  // without sharing
}

TEST_CASE("an urgent chunk of one part may exceed a path that another part has filled") {
  Parts job(2);
  job.measure();
  job[1].start(1, 1.0f, 3);
  CHECK(job.push() == 1);
  job[0].start(1, 1.0f, 3);
  CHECK(job.push() == 0);
}

TEST_CASE("a chunk that is as urgent as another part's on the path waits for room") {
  Parts job(2);
  job.measure();
  job[1].start(1, 1.0f, 0);
  CHECK(job.push() == 0);
}

TEST_CASE("chunks of a part that has ended leave the path") {
  Parts job(2);
  job.measure();
  const size_t before = job.in_flight();
  job.end(0);
  const size_t rest = job.in_flight();
  REQUIRE(rest < before);
  CHECK(rest + job.push() >= before - 1);
}

TEST_CASE("lanes to the same pipeline and queue share a path, which ends with the last of them") {
  worker::SendPaths paths;
  const worker::SessionSpec::Pipeline first{.box = *nic::parse_endpoint("10.0.0.1", 9542)};
  worker::SessionSpec::Pipeline other = first;
  auto path = paths.find(first, kSlackNs);
  CHECK(paths.find(first, kSlackNs) == path);
  other.box.port = 9543;
  CHECK(paths.find(other, kSlackNs) != path);
  other = first;
  other.queue = 1;
  CHECK(paths.find(other, kSlackNs) != path);
  const std::weak_ptr<worker::SendPath> weak = path;
  path.reset();
  CHECK(weak.expired());
  CHECK(paths.find(first, kSlackNs) != nullptr);
}

TEST_CASE("on a long path packets leave one burst at a time, and the lane wakes for the next") {
  constexpr uint64_t kPathNs = 10'000'000;
  auto window = std::make_shared<worker::CongestionWindow>(kSlackNs);
  auto path = std::make_shared<worker::SendPath>(kSlackNs, window);
  path->add_lane(kChunkBytes, kFragmentBytes);
  window->arrive(kStartNs - kPathNs, kChunkBytes, true, kStartNs);
  Shim shim(ShimOptions{.path = path});
  shim.start(0);
  CHECK(shim.take_all(PacketType::kPush).size() == 1);
  const uint64_t due_ns = shim.exchange.next_deadline_ns();
  CHECK(due_ns > shim.now_ns);
  CHECK(due_ns < shim.now_ns + 1'000'000);
  shim.now_ns = due_ns - 1;
  CHECK(shim.take_all().empty());
  shim.now_ns = due_ns;
  CHECK(shim.take_all(PacketType::kPush).size() == 1);
  shim.deliver_result(0, 0, 1.0f);  // the others need not be sent any more
  CHECK(shim.exchange.take_completed().size() == 1);
  CHECK(shim.exchange.next_deadline_ns() == UINT64_MAX);
}

TEST_CASE("a lane whose port takes nothing does not wake for its pace") {
  constexpr uint64_t kPathNs = 10'000'000;
  auto window = std::make_shared<worker::CongestionWindow>(kSlackNs);
  auto path = std::make_shared<worker::SendPath>(kSlackNs, window);
  path->add_lane(kChunkBytes, kFragmentBytes);
  window->arrive(kStartNs - kPathNs, kChunkBytes, true, kStartNs);
  Shim shim(ShimOptions{.path = path});
  shim.start(0);
  const size_t packets = shim.exchange.to_send(0, shim.now_ns).size();
  CHECK(packets == 1);
  CHECK(shim.exchange.next_deadline_ns() == UINT64_MAX);
  shim.exchange.sent(0, packets);
  CHECK(shim.exchange.next_deadline_ns() > shim.now_ns);
  CHECK(shim.exchange.next_deadline_ns() < shim.now_ns + 1'000'000);
}

}  // namespace pbox::test::send_path_test
