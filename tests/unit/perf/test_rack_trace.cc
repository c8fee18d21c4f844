#include <catch2/catch.hpp>

#include "perf/rack/job.h"
#include "perf/rack/spans.h"
#include "perf/rack/trace.h"

namespace pbox::perf {
namespace {

TEST_CASE("a played model has every layer and tensor, at its scale") {
  const auto layers = vgg19_layers();
  std::vector<uint64_t> elements;
  const auto played = played_layers(layers, 32, elements);
  REQUIRE(played.size() == layers.size());
  REQUIRE(elements.size() == 38);
  CHECK(elements[0] == 54);  // 64 x 3 x 3 x 3 / 32
  CHECK(elements[1] == 2);   // 64 / 32
  CHECK(elements[32] == uint64_t{25088} * 4096 / 32);
  uint32_t next = 0;
  double share = 0;
  for (const PlayedLayer& layer : played) {
    CHECK(layer.first_tensor == next);
    next += layer.tensor_count;
    share += layer.share;
  }
  CHECK(next == elements.size());
  CHECK(share == Approx(1));
}

TEST_CASE("no tensor vanishes, however small the scale makes it") {
  std::vector<uint64_t> elements;
  played_layers(sockeye_layers(), 1'000'000, elements);
  for (const uint64_t count : elements) CHECK(count >= 1);
}

TEST_CASE("an iteration that is under way counts in part, and none counts after the last") {
  CHECK(iterations_within({10, 20, 30}, 0) == 0);
  CHECK(iterations_within({10, 20, 30}, 5) == 0.5);
  CHECK(iterations_within({10, 20, 30}, 25) == 1.75);
  CHECK(iterations_within({10, 20, 30}, 60) == 3);
  CHECK(iterations_within({10, 20, 30}, 1000) == 3);
  CHECK(total_ms({10, 20, 30}) == 60);
}

TEST_CASE("spans cross a pipe unchanged and become events that a viewer pairs") {
  const std::vector<Span> spans = {{SpanKind::kBackward, 1, 2'000, 5'000},
                                   {SpanKind::kExchange, 0, 3'000, 9'000},
                                   {SpanKind::kAggregate, 0, 4'000, 7'000, 12}};
  const auto there = spans_from_json(nlohmann::json::parse(to_json(spans).dump()));
  REQUIRE(there.size() == 3);
  CHECK(there[1].kind == SpanKind::kExchange);
  CHECK(there[1].to_ns == 9'000);

  nlohmann::json events = nlohmann::json::array();
  append_trace_events(events, 4, "rank 4", there, {"a", "b"}, {"b.weight"});
  REQUIRE(events.size() == 6);
  CHECK(events[1]["name"] == "backward b");
  CHECK(events[1]["ts"] == 2.0);
  CHECK(events[1]["dur"] == 3.0);
  CHECK(events[2]["ph"] == "b");
  CHECK(events[3]["ph"] == "e");
  CHECK(events[2]["id"] == events[3]["id"]);
  CHECK(events[3]["ts"] == 9.0);
  CHECK(events[4]["name"] == "b.weight chunk 12 aggregate");
  CHECK(events[4]["id"] == 12);
  CHECK(events[5]["ts"] == 7.0);
}

}  // namespace
}  // namespace pbox::perf
