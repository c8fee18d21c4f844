#include <catch2/catch.hpp>

#include "tools/pboxctl/trace_events.h"

namespace pboxctl {

using Json = nlohmann::json;

namespace {

enum class Model { kShared, kOwn, kUnasked };

Json trace_of(const Json& events, Model model = Model::kShared) {
  return {{"job", "bert"},
          {"world_size", 2},
          {"recorded_seconds", 1.0},
          {"lost_events", 3},
          {"chunks",
           {{{"part", 0},
             {"chunk", 7},
             {"pipeline", 1},
             {"tensor", "head"},
             {"priority", -2},
             {"own_rounds", model != Model::kShared},
             {"sent_unasked", model == Model::kUnasked}}}},
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

TEST_CASE("a round that ranks share and that each is sent by itself ends with the last reply") {
  const TracePage made = make_trace_page(trace_of(
      Json::parse("[[1000,0,0,4,0],[2000,1,0,4,0],[2500,0,0,4,1],[5000,2,0,4,0],[6000,6,0,4,1],"
                  "[9000,6,0,4,0],[9500,1,0,4,1]]")));
  CHECK(made.rounds == 1);
  CHECK(at(made.page, "e", "aggregate") == 5);
  CHECK(at(made.page, "e", "send") == 9);
  CHECK(at(made.page, "e", "rank 1") == 9.5);  // it was late
}

TEST_CASE("a rank that was late does not lengthen the round that closed without it") {
  const TracePage made = make_trace_page(trace_of(
      Json::parse("[[1000,0,0,4,0],[2000,1,0,4,0],[5000,2,0,4,0],[6000,6,0,4,0],[7000,0,0,4,1],"
                  "[8000,1,0,4,1],[9000,6,0,4,1],[9000,6,0,4,2]]")));
  CHECK(made.rounds == 1);
  CHECK(at(made.page, "e", "send") == 6);
  CHECK(at(made.page, "b", "rank 1") == 7);
  CHECK(at(made.page, "e", "rank 1") == 8);
  CHECK(at(made.page, "b", "rank 2") == -1);
}

TEST_CASE("a rank with own rounds has spans of its push, its wait and its reply") {
  const TracePage made = make_trace_page(trace_of(
      Json::parse("[[1000,0,0,4,1],[2000,1,0,4,1],[2000,4,0,4,1],[5000,5,0,4,1],[6000,6,0,4,1]]"),
      Model::kOwn));
  CHECK(made.rounds == 0);
  CHECK(made.unfinished == 1);  // it is not known when rank 0 pushed
  CHECK(at(made.page, "b", "rank 1") == 1);
  CHECK(at(made.page, "e", "rank 1") == 6);
  CHECK(at(made.page, "b", "push") == 1);
  CHECK(at(made.page, "e", "push") == 2);
  CHECK(at(made.page, "b", "wait") == 2);
  CHECK(at(made.page, "e", "wait") == 5);
  CHECK(at(made.page, "b", "reply") == 5);
  CHECK(at(made.page, "e", "reply") == 6);
  CHECK(made.by_priority.empty());
  REQUIRE(made.by_rank.size() == 1);
  CHECK(made.by_rank.at(1).push_s[0] == Approx(1e-6));
  CHECK(made.by_rank.at(1).wait_s[0] == Approx(3e-6));
  CHECK(made.by_rank.at(1).reply_s[0] == Approx(1e-6));
}

TEST_CASE("a rank that does not wait is answered from its push on, or from the slowest rank's") {
  for (const Model model : {Model::kOwn, Model::kUnasked}) {
    const TracePage made = make_trace_page(trace_of(
        Json::parse("[[1000,0,0,4,0],[2000,1,0,4,0],[7000,2,0,4,0],[9000,6,0,4,0]]"), model));
    CHECK(made.rounds == 1);
    CHECK(at(made.page, "b", "head") == 1);
    CHECK(at(made.page, "e", "head") == 7);
    CHECK(at(made.page, "b", "reply") == (model == Model::kOwn ? 2 : 7));
    CHECK(at(made.page, "e", "reply") == 9);
    CHECK(made.by_rank.at(0).wait_s.empty());
  }
}

TEST_CASE("a push of which the trace has only the end is left out") {
  const TracePage made =
      make_trace_page(trace_of(Json::parse("[[2000,1,0,4,0],[7000,2,0,4,0]]"), Model::kOwn));
  CHECK(made.unfinished == 1);
  CHECK(made.page["traceEvents"].empty());
  CHECK(made.by_rank.empty());
}

}  // namespace pboxctl
