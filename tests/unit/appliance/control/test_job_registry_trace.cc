// Traces of rounds: only one job is traced at a time, and a trace is kept for a while.
#include <catch2/catch.hpp>

#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control {
namespace {

using Catch::Contains;

bool is_traced(Desk& desk, size_t job_index) {
  const bool first = desk.host().shards(0)[job_index]->trace != nullptr;
  CHECK((desk.host().shards(1)[job_index]->trace != nullptr) == first);
  return first;
}

Status begin(Desk& desk, const std::string& job, uint64_t duration_ns = 2 * kSecond) {
  return desk.registry().begin_trace(job, duration_ns, desk.now_ns());
}

Result<TraceView> trace(Desk& desk, const std::string& job) {
  return desk.registry().trace(job, desk.now_ns());
}

}  // namespace

TEST_CASE("a trace is had when its time is up, and is gone a minute later") {
  Desk desk;
  const auto ids = desk.start("job", 2);
  CHECK(trace(desk, "job").error().code == ErrorCode::kUnavailable);
  REQUIRE(begin(desk, "job"));
  CHECK(is_traced(desk, 0));
  CHECK_THAT(trace(desk, "job").error().message, Contains("for another 2.0 s"));
  CHECK(is_traced(desk, 0));
  desk.pass(3 * kSecond, ids);
  for (int asked = 0; asked < 2; ++asked) {
    const auto view = trace(desk, "job");
    REQUIRE(view);
    CHECK(view->job == "job");
    CHECK(view->world_size == 2);
    CHECK(view->ended_ns - view->begun_ns == 2 * kSecond);
    CHECK_FALSE(is_traced(desk, 0));
  }
  desk.pass(50 * kSecond, ids);
  CHECK(trace(desk, "job"));
  desk.pass(10 * kSecond, ids);
  CHECK_THAT(trace(desk, "job").error().message, Contains("there is no trace"));
}

TEST_CASE("one trace at a time is recorded on a box, and a new one takes the old one's place") {
  Desk desk;
  auto ids = desk.start("job", 2);
  for (const ConnectionId id : desk.start("other", 2)) ids.push_back(id);
  REQUIRE(begin(desk, "job"));
  for (const char* name : {"job", "other"}) {
    const Status refused = begin(desk, name);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::kUnavailable);
    CHECK_THAT(refused.error().message, Contains("of job 'job'"));
  }
  CHECK_FALSE(is_traced(desk, 1));
  desk.pass(3 * kSecond, ids);
  REQUIRE(begin(desk, "other"));
  CHECK(is_traced(desk, 1));
  CHECK_FALSE(is_traced(desk, 0));
  CHECK_THAT(trace(desk, "job").error().message, Contains("there is no trace"));
}

TEST_CASE("jobs that are unknown or gather are not traced") {
  Desk desk;
  CHECK(begin(desk, "job").error().code == ErrorCode::kNotFound);
  CHECK(trace(desk, "job").error().code == ErrorCode::kNotFound);
  desk.join(join_message("job", 0, 2));
  CHECK_THAT(begin(desk, "job").error().message, Contains("does not run yet"));
}

TEST_CASE("a job that ends while it is traced takes its trace along") {
  Desk desk;
  const auto ids = desk.start("job", 2);
  REQUIRE(begin(desk, "job"));
  for (const ConnectionId id : ids) desk.say(id, leave_message());
  CHECK(desk.job_count() == 0);
  desk.start("job", 2);
  CHECK_FALSE(is_traced(desk, 0));
  CHECK(trace(desk, "job").error().code == ErrorCode::kUnavailable);
  CHECK(begin(desk, "job"));
}

}  // namespace pbox::control
