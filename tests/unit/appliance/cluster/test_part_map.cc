#include <algorithm>
#include <catch2/catch.hpp>

#include "appliance/cluster/part_map.h"
#include "base/limits.h"

namespace pbox::cluster::part_map_test {
namespace {

constexpr uint32_t kChunk = 32'768;
constexpr uint64_t kBytes = 100u << 20;

size_t parts_on(const PartMap& map, const std::string& box) {
  return static_cast<size_t>(std::count(map.boxes.begin(), map.boxes.end(), box));
}

}  // namespace

TEST_CASE("a part map is read as it was written, and other text is not a part map") {
  const PartMap map{.chunk_bytes = kChunk,
                    .bytes = kBytes,
                    .may_move = true,
                    .boxes = {"a", "b", "a"},
                    .avoided = {{"c", 1'800'000'000}}};
  CHECK(part_map_from_text(to_text(map)) == map);
  for (const char* text :
       {"", "{}", "[]", "{\"chunk_bytes\":1,\"bytes\":1,\"boxes\":[]}",
        "{\"chunk_bytes\":1,\"bytes\":1,\"boxes\":[1]}",
        "{\"chunk_bytes\":-1,\"bytes\":1,\"boxes\":[\"a\"]}",
        "{\"chunk_bytes\":1,\"bytes\":1,\"boxes\":[\"a\"],\"avoided\":[\"a\"]}",
        "{\"chunk_bytes\":1,\"bytes\":1,\"boxes\":[\"a\"],\"avoided\":{\"a\":-1}}",
        "{\"chunk_bytes\":1"}) {
    CHECK_FALSE(part_map_from_text(text));
  }
}

TEST_CASE("a new job has several parts per pipeline, distributed by the boxes' rates") {
  const auto equal =
      make_part_map(kBytes, kChunk, {{.name = "a", .pipelines = 2}, {.name = "b", .pipelines = 2}});
  CHECK(equal.boxes.size() == 4 * kPartsPerPipeline);
  CHECK(parts_on(equal, "a") == parts_on(equal, "b"));
  const auto unequal = make_part_map(kBytes, kChunk,
                                     {{.name = "a", .pipelines = 2, .bytes_per_second = 3e9},
                                      {.name = "b", .pipelines = 2, .bytes_per_second = 1e9}});
  CHECK(parts_on(unequal, "a") == 3 * parts_on(unequal, "b"));
  const auto loaded = make_part_map(
      kBytes, kChunk,
      {{.name = "a", .pipelines = 2, .bytes = kBytes}, {.name = "b", .pipelines = 2}});
  CHECK(parts_on(loaded, "b") == 4 * kPartsPerPipeline);
}

TEST_CASE("a job has no more parts than chunks, and never more than the limit") {
  CHECK(make_part_map(100, kChunk, {{.name = "a", .pipelines = 8}}).boxes.size() == 1);
  CHECK(make_part_map(3 * kChunk, kChunk, {{.name = "a", .pipelines = 8}}).boxes.size() == 3);
  std::vector<CandidateBox> many;
  for (int box = 0; box < 100; ++box)
    many.push_back({.name = std::to_string(box), .pipelines = 28});
  const auto map = make_part_map(uint64_t{1} << 40, kChunk, many);
  CHECK(map.boxes.size() == limits::kPartsPerJobMax);
  for (const auto& box : many) CHECK(parts_on(map, box.name) >= 2);
}

TEST_CASE("a box's parts are distributed over the others, and no other part moves") {
  const auto before = make_part_map(kBytes, kChunk, {{.name = "a"}, {.name = "b"}, {.name = "c"}});
  const double each = before.bytes_per_part() * kPartsPerPipeline;
  const auto after =
      reassign_parts(before, "b", {{.name = "a", .bytes = each}, {.name = "c", .bytes = each}});
  CHECK(parts_on(after, "b") == 0);
  CHECK(parts_on(after, "a") == 6);
  CHECK(parts_on(after, "c") == 6);
  for (size_t part = 0; part < before.boxes.size(); ++part) {
    if (before.boxes[part] != "b") CHECK(after.boxes[part] == before.boxes[part]);
  }
  const auto bytes = bytes_by_box({before, after});
  CHECK(bytes.at("b") == Approx(each));
}

}  // namespace pbox::cluster::part_map_test
