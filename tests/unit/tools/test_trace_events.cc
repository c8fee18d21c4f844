#include <catch2/catch.hpp>

#include "tools/pboxctl/trace_events.h"

namespace pboxctl {

using Json = nlohmann::json;

namespace {

Json trace_of(const Json& events) {
  return {{"job", "bert"},
          {"world_size", 2},
          {"recorded_seconds", 1.0},
          {"lost_events", 3},
          {"chunks",
           {{{"part", 0}, {"chunk", 7}, {"pipeline", 1}, {"tensor", "head"}, {"priority", -2}}}},
          {"events", events}};
}

// Returns the time of the only event of this phase and name, in microseconds.
double at(const Json& page, const std::string& phase, const std::string& name) {
  double found = -1;
  for (const Json& event : page.at("traceEvents")) {
    if (event.at("ph") != phase || event.at("name") != name) continue;
    CHECK(found == -1);
    CHECK(event.at("pid") == 1);
    found = event.at("ts");
  }
  return found;
}

}  // namespace

TEST_CASE("a round is a span that contains its parts, whatever the order of its events") {
  const TracePage made =
      make_trace_page(trace_of(Json::parse("[[5000,2,0,4,0],[1000,0,0,4,1],[2000,0,0,4,0],[3000,1,"
                                           "0,4,0],[4000,1,0,4,1],[9000,3,0,4,0]]")));
  CHECK(made.rounds == 1);
  CHECK(made.unfinished == 0);
  CHECK(at(made.page, "b", "head") == 1);
  CHECK(at(made.page, "e", "head") == 9);
  CHECK(at(made.page, "b", "aggregate") == 1);
  CHECK(at(made.page, "e", "aggregate") == 5);
  CHECK(at(made.page, "b", "send") == 5);
  CHECK(at(made.page, "e", "send") == 9);
  CHECK(at(made.page, "b", "rank 0") == 2);
  CHECK(at(made.page, "e", "rank 0") == 3);
  CHECK(at(made.page, "b", "rank 1") == 1);
  CHECK(at(made.page, "e", "rank 1") == 4);
  CHECK(made.page["otherData"]["lost_events"] == 3);
  REQUIRE(made.by_priority.count(-2) == 1);
  CHECK(made.by_priority.at(-2).aggregate_s[0] == Approx(4e-6));
  CHECK(made.by_priority.at(-2).send_s[0] == Approx(4e-6));
}

TEST_CASE("the arrival of a rank that was excluded ends when the round's sum is complete") {
  const TracePage made = make_trace_page(trace_of(
      Json::parse("[[1000,0,0,4,0],[2000,1,0,4,0],[3000,0,0,4,1],[5000,2,0,4,0],[6000,3,0,4,0]]")));
  CHECK(made.rounds == 1);
  CHECK(at(made.page, "e", "rank 1") == 5);
}

TEST_CASE("rounds whose results had not left are counted and not shown") {
  const TracePage made = make_trace_page(
      trace_of(Json::parse("[[1000,0,0,4,0],[2000,1,0,4,0],[5000,2,0,4,0],[6000,0,0,5,0]]")));
  CHECK(made.rounds == 0);
  CHECK(made.unfinished == 2);
  CHECK(made.page["traceEvents"].empty());
  CHECK_THROWS_AS(make_trace_page({{"job", "bert"}}), Json::exception);
}

}  // namespace pboxctl
