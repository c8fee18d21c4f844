#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <numeric>

#include "appliance/placement/place.h"
#include "base/rng.h"

namespace pbox::placement::place_test {
namespace {

Box box_of(double rate, BoxState state = BoxState::kActive, std::vector<uint64_t> loads = {0}) {
  return {.name = "b", .bytes_per_second = rate, .state = state, .loads_bytes = std::move(loads)};
}

std::vector<double> seconds_of(const std::vector<uint32_t>& bytes, const JobPlacement& placement,
                               const std::vector<Box>& boxes) {
  std::vector<double> seconds(boxes.size());
  for (size_t chunk = 0; chunk < bytes.size(); ++chunk) {
    const BoxIndex box = placement.box_of_chunk[chunk];
    seconds[box] += bytes[chunk] / boxes[box].bytes_per_second;
  }
  return seconds;
}

struct Case {
  const char* what;
  std::vector<uint32_t> bytes;
  std::vector<Box> boxes;
  std::vector<BoxIndex> expected;
};

}  // namespace

TEST_CASE("each chunk, largest first, goes to the box that would finish first") {
  const std::vector<Case> cases = {
      {"equal boxes: as bins of bytes", {1, 5, 3, 4, 3}, {box_of(1), box_of(1)}, {1, 0, 1, 1, 0}},
      {"twice the rate: two of three", {9, 9, 9}, {box_of(1), box_of(2)}, {1, 0, 1}},
      {"a slow box is passed over", {8, 1}, {box_of(1), box_of(100)}, {1, 1}},
      {"other jobs' bytes count",
       {10, 10},
       {box_of(1, BoxState::kActive, {15, 10}), box_of(1, BoxState::kActive, {4})},
       {1, 1}},
      {"standby and draining boxes get nothing",
       {1, 1},
       {box_of(9, BoxState::kStandby), box_of(1), box_of(9, BoxState::kDraining)},
       {1, 1}},
      {"no chunks", {}, {box_of(1)}, {}},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    CHECK(place_job(c.bytes, c.boxes).value().box_of_chunk == c.expected);
  }
}

TEST_CASE("inside a box, chunks go to the least loaded pipeline") {
  const std::vector<uint32_t> bytes = {10, 10, 10, 10};
  const std::vector<Box> boxes = {box_of(1, BoxState::kActive, {0, 0}),
                                  box_of(1, BoxState::kActive, {0, 10})};
  const JobPlacement placement = place_job(bytes, boxes).value();
  // 10 bytes of another job leave room for one chunk fewer on the second box, on its idle pipeline.
  CHECK(placement.box_of_chunk == std::vector<BoxIndex>{0, 0, 1, 0});
  CHECK(placement.pipeline_of_chunk == std::vector<uint8_t>{0, 1, 0, 0});
}

TEST_CASE(
    "no box takes longer than its fair share plus one chunk, and equal inputs give equal maps") {
  Rng rng(7);
  for (int repetition = 0; repetition < 200; ++repetition) {
    std::vector<Box> boxes;
    double rate = 0;
    for (size_t i = 0; i < 1 + rng.below(12); ++i) {
      boxes.push_back(box_of(1 + 9 * rng.unit()));
      rate += boxes.back().bytes_per_second;
    }
    std::vector<uint32_t> bytes(rng.below(400));
    const bool few_sizes = rng.below(2) == 0;
    for (uint32_t& size : bytes) {
      size = 1 + static_cast<uint32_t>(few_sizes ? 100 * rng.below(3) : rng.below(32768));
    }
    const JobPlacement placement = place_job(bytes, boxes).value();
    const std::vector<double> seconds = seconds_of(bytes, placement, boxes);
    const double total = std::accumulate(bytes.begin(), bytes.end(), 0.0);
    const double largest = bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
    // The last chunk of the box that finishes last would not have finished earlier on another box:
    // rate_j * makespan <= load_j + chunk for every j, and therefore also for the sums.
    const double count = static_cast<double>(boxes.size());
    CHECK(*std::max_element(seconds.begin(), seconds.end()) <=
          (total + (count - 1) * largest) / rate * (1 + 1e-12));
    CHECK(place_job(bytes, boxes).value().box_of_chunk == placement.box_of_chunk);
  }
}

TEST_CASE("boxes that cannot be used are refused, with their name and the wrong value") {
  const std::vector<uint32_t> bytes = {1};
  const auto refusal = [&](const std::vector<Box>& boxes) {
    return place_job(bytes, boxes).error();
  };
  CHECK(refusal({}).code == ErrorCode::kUnavailable);
  CHECK(refusal({box_of(1, BoxState::kDraining)}).code == ErrorCode::kUnavailable);
  for (const double rate : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    const Error error = refusal({box_of(1), box_of(rate)});
    CHECK(error.code == ErrorCode::kInvalidArgument);
    CHECK(error.message.find("box b: bytes_per_second = " + std::to_string(rate)) == 0);
  }
  CHECK(refusal({box_of(1, BoxState::kActive, {})}).message ==
        "box b: 0 pipelines; a box has 1 to 255");
}

}  // namespace pbox::placement::place_test
