#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "appliance/admin/routes.h"
#include "tests/unit/appliance/admin/fake_source.h"

namespace pbox::admin {
namespace {

using Json = nlohmann::json;
using Catch::Contains;

// Returns the answer that an operator gets.
AdminResponse answer(AdminSource& source, const AdminRequest& request) {
  return admin::answer(source, {.name = "the test", .role = tls::Role::kOperator}, request);
}

AdminResponse post(AdminSource& source, std::string_view target, std::string_view body,
                   std::string_view type = "application/json") {
  return answer(source, {.method = "POST",
                         .target = target,
                         .has_body = !body.empty(),
                         .content_type = type,
                         .body = body});
}

AdminResponse get(AdminSource& source, std::string_view target) {
  return answer(source, {.method = "GET", .target = target});
}

Json get_json(AdminSource& source, std::string_view target) {
  const AdminResponse response = get(source, target);
  REQUIRE(response.status == 200);
  REQUIRE(response.content_type == "application/json");
  return Json::parse(response.body);
}

TEST_CASE("healthz names the box and shows whether it is insecure, has keys or drains") {
  FakeSource source;
  source.box_view.insecure = true;
  source.box_view.has_keys = true;
  source.box_view.draining = true;
  CHECK(get_json(source, "/healthz") == Json({{"status", "ok"},
                                              {"name", "box<1>"},
                                              {"version", "0.1.0"},
                                              {"uptime_seconds", 12.5},
                                              {"insecure", true},
                                              {"keys", true},
                                              {"draining", true}}));
}

TEST_CASE("readyz is 503 with a reason while the box starts and while it drains") {
  FakeSource source;
  CHECK(get(source, "/readyz").status == 200);
  source.box_view.ready = false;
  AdminResponse response = get(source, "/readyz");
  CHECK(response.status == 503);
  CHECK_THAT(Json::parse(response.body)["reason"].get<std::string>(), Contains("pipelines"));
  source.box_view.ready = true;
  source.box_view.draining = true;
  response = get(source, "/readyz");
  CHECK(response.status == 503);
  CHECK(Json::parse(response.body)["ready"] == false);
  CHECK_THAT(Json::parse(response.body)["reason"].get<std::string>(), Contains("draining"));
}

TEST_CASE("the page of boxes lists the cluster and names its leader") {
  FakeSource source;
  Json page = get_json(source, "/api/v1/boxes");
  CHECK(page["cluster"] == "rack");
  CHECK(page["store_up"] == true);
  CHECK(page["leader"] == "box<1>");
  CHECK(page["leader_since_unix_seconds"] == 1'700'000'000);
  REQUIRE(page["boxes"].size() == 2);
  CHECK(page["boxes"][0]["leads"] == true);
  CHECK(page["boxes"][0]["control"] == "10.0.0.9:9541");
  CHECK(page["boxes"][0]["pipelines"] == 1);
  CHECK(page["boxes"][0]["capacity_bytes_per_second"].is_null());
  CHECK(page["boxes"][1]["leads"] == false);
  CHECK(page["boxes"][1]["capacity_bytes_per_second"] == 125'000'000);

  source.cluster_view.leader.reset();
  source.cluster_view.store_up = false;
  source.cluster_view.store_error = "etcd is away";
  page = get_json(source, "/api/v1/boxes");
  CHECK(page["leader"].is_null());
  CHECK(page["boxes"][0]["leads"] == false);
  CHECK(page["store_error"] == "etcd is away");
}

TEST_CASE("the page of rebalancing has each decision with its reason, or names the leader") {
  FakeSource source;
  Json page = get_json(source, "/api/v1/rebalancing");
  CHECK(page["enabled"] == false);
  CHECK(page["leader"] == "box<1>");
  CHECK(page["jobs"].empty());

  auto& balancing = source.balancing_view;
  balancing = {.enabled = true, .leads = true, .parts_moved = 3};
  balancing.decisions[static_cast<size_t>(placement::DecisionKind::kExploit)] = 2;
  balancing.jobs.push_back(
      {.job = FakeSource::kOddName,
       .state = "judging",
       .iteration_seconds = 0.25,
       .parts_moved = 3,
       .boxes = {{.name = "a", .state = "active", .parts = 5, .busy_seconds = 0.125}},
       .decisions = {{7, placement::DecisionKind::kHold, "too little"},
                     {9, placement::DecisionKind::kExploit, "a is slow"}}});
  page = get_json(source, "/api/v1/rebalancing");
  CHECK(page["decisions"]["exploit"] == 2);
  CHECK(page["decisions"]["revert"] == 0);
  REQUIRE(page["jobs"].size() == 1);
  const Json& job = page["jobs"][0];
  CHECK(job["name"] == FakeSource::kOddName);
  CHECK(job["last_gain"].is_null());
  CHECK(job["boxes"][0]["busy_seconds"] == 0.125);
  REQUIRE(job["decisions"].size() == 2);
  CHECK(job["decisions"][0]["reason"] == "too little");
  CHECK(job["decisions"][1]["kind"] == "exploit");
  CHECK(job["decisions"][1]["unix_seconds"] == 9);
}

TEST_CASE("the jobs page lists every job with its workers by rank") {
  FakeSource source;
  const Json jobs = get_json(source, "/api/v1/jobs").at("jobs");
  REQUIRE(jobs.size() == 2);
  CHECK(jobs[0]["name"] == "bert");
  CHECK(jobs[0]["chunk_rounds"] == 1234);
  CHECK(jobs[0]["optimizer"] == "adam");
  REQUIRE(jobs[0]["workers"].size() == 3);
  CHECK(jobs[0]["workers"][0]["last_arrivals"] == 8);
  CHECK(jobs[0]["workers"][0]["last_packet_age_seconds"] == 0.25);
  CHECK(jobs[0]["workers"][1]["state"] == "lost");
  CHECK(jobs[0]["workers"][1]["last_packet_age_seconds"].is_null());
  CHECK(jobs[0]["workers"][0]["nonfinite_fragments"] == 0);
  CHECK(jobs[0]["workers"][0]["nonfinite_tensor"].is_null());
  CHECK(jobs[0]["workers"][1]["nonfinite_fragments"] == 21);
  CHECK(jobs[0]["workers"][1]["nonfinite_tensor"] == "head");
  CHECK(jobs[0]["workers"][1]["nonfinite_round"] == 12);
  CHECK(jobs[0]["workers"][1]["nonfinite_age_seconds"] == 1.5);
  CHECK(jobs[0]["workers"][0]["gradient_norm"].is_null());
  CHECK(jobs[0]["workers"][1]["gradient_norm"] == 2.5);
  CHECK(jobs[0]["sync"]["model"] == "ssp");
  CHECK(jobs[0]["sync"]["staleness"] == 3);
  CHECK(jobs[0]["sync"]["release"] == "lazy");
  CHECK(jobs[0]["sync"]["pulls_delayed"] == 5);
  CHECK(jobs[0]["sync"]["reads_by_rounds_behind"] == Json({300, 60, 0, 40}));
  CHECK(jobs[0]["workers"][0]["dropped_fragments"].is_null());
  CHECK_FALSE(jobs[1]["sync"].contains("pulls"));
  CHECK(jobs[1]["sync"]["quorum"] == 1);
  CHECK(jobs[1]["workers"][0]["dropped_fragments"] == 17);
  CHECK(jobs[1]["name"] == FakeSource::kOddName);
}

TEST_CASE("the page of stragglers shows the ranks that each job waits for, and past delays") {
  FakeSource source;
  const Json jobs = get_json(source, "/api/v1/stragglers").at("jobs");
  REQUIRE(jobs.size() == 2);
  CHECK(jobs[0]["job"] == "bert");
  CHECK(jobs[0]["chunk_rounds"] == 1234);
  const Json& awaited = jobs[0]["awaited"][0];
  CHECK(awaited["rank"] == 1);
  CHECK(awaited["waited_seconds"] == 3.5);
  CHECK(awaited["last_packet_age_seconds"].is_null());
  CHECK(awaited["tensor"] == "embedding");
  CHECK(awaited["round"] == 17);
  const Json& latest = jobs[0]["ranks"][0];
  CHECK(latest["rank"] == 1);
  CHECK(latest["last_share"] == 0.75);
  CHECK(latest["late_seconds"] == 8.5);
  CHECK(latest["worst_tensor"] == "head");
  CHECK(latest["worst_round"] == 12);
  CHECK(jobs[0]["ranks"][1]["worst_tensor"].is_null());
  CHECK(jobs[0]["tensors"][0]["worst_rank"] == 1);
  CHECK(jobs[0]["rounds"][0]["seconds"] == 0.125);
  CHECK(jobs[0]["rounds"][0]["late_seconds"] == 0.0625);
  CHECK(jobs[0]["rounds"][0]["rank"] == 2);
  CHECK(jobs[1]["awaited"] == Json::array());
}

TEST_CASE("without jobs the list is empty, not null") {
  FakeSource source;
  source.job_views.clear();
  source.straggler_views.clear();
  CHECK(get_json(source, "/api/v1/jobs") == Json({{"jobs", Json::array()}}));
  CHECK(get_json(source, "/api/v1/stragglers") == Json({{"jobs", Json::array()}}));
}

TEST_CASE("a job is found by its percent-encoded name, and the query is ignored") {
  FakeSource source;
  CHECK(get_json(source, "/api/v1/jobs/bert?pretty=1")["world_size"] == 3);
  const std::string target = std::string("/api/v1/jobs/") + FakeSource::kOddNameEncoded;
  CHECK(get_json(source, target)["name"] == FakeSource::kOddName);
}

TEST_CASE("an unknown job is 404, and a broken percent-encoding is 400") {
  FakeSource source;
  CHECK(get(source, "/api/v1/jobs/gpt").status == 404);
  CHECK(get(source, "/api/v1/jobs/").status == 404);
  for (const char* name : {"%", "%4", "bert%zz", "bert%4"}) {
    CHECK(get(source, std::string("/api/v1/jobs/") + name).status == 400);
  }
}

TEST_CASE("the box page has its pipelines, with null for an unpinned CPU or node") {
  FakeSource source;
  const Json box = get_json(source, "/api/v1/box");
  CHECK(box["job_memory_limit_bytes"] == 1 << 20);
  CHECK(box["jobs_finished"] == 5);
  CHECK(box["links_down"] == nlohmann::json{"net_af_packet0", "0000:3b:00.0"});
  REQUIRE(box["pipelines"].size() == 2);
  CHECK(box["pipelines"][0]["cpu"] == 2);
  CHECK(box["pipelines"][0]["udp_port"] == 9542);
  CHECK(box["pipelines"][1]["cpu"].is_null());
  const Json& counters = box["pipelines"][1]["counters"];
  CHECK(counters["pbox_rx_packets_total"] == (uint64_t{1} << 40) + 1);
  CHECK(counters["pbox_rejected_packets_total"]["tag"] == 9);
  CHECK(counters["pbox_port_send_failures_total"] == 6);
  CHECK(counters["pbox_port_dropped_frames_total"]["vlan"] == 8);
}

TEST_CASE("a name that is not UTF-8 leaves the JSON valid") {
  FakeSource source;
  source.box_view.name = "box\xff";
  CHECK(get_json(source, "/healthz")["name"] == "box\xef\xbf\xbd");
}

TEST_CASE("the live page links every page that reads, and loads nothing from other servers") {
  FakeSource source;
  const AdminResponse page = get(source, "/");
  CHECK(page.status == 200);
  CHECK(page.content_type == "text/html; charset=utf-8");
  CHECK(page.body.starts_with("<!doctype html>"));
  CHECK(page.body.ends_with("</html>\n"));
  for (const char* path : {"/metrics", "/healthz", "/readyz", "/api/v1/box", "/api/v1/boxes",
                           "/api/v1/jobs", "/api/v1/stragglers"}) {
    CHECK(page.body.find("<a href=\"" + std::string(path) + "\">") != std::string::npos);
    CHECK(get(source, path).status == 200);
  }
  for (const char* elsewhere : {"https:", "src=", "@import", "innerHTML", "method:"}) {
    CHECK(page.body.find(elsewhere) == std::string::npos);
  }
}

TEST_CASE("POST changes a job's priority policy, and the answer is the changed job") {
  FakeSource source;
  CHECK(get_json(source, "/api/v1/jobs/bert")["priority_policy"] == "forward-order");
  CHECK(get_json(source, "/api/v1/jobs/bert")["priority_source"] == "learned");
  CHECK(get_json(source, "/api/v1/jobs/bert")["delivery"] == "broadcast");
  for (const std::string name : {"bert", FakeSource::kOddNameEncoded}) {
    for (const std::string policy : {"fifo", "explicit", "forward-order"}) {
      const auto changed =
          post(source, "/api/v1/jobs/" + name + "/priorities", "{\"policy\": \"" + policy + "\"}");
      REQUIRE(changed.status == 200);
      CHECK(Json::parse(changed.body)["priority_policy"] == policy);
      CHECK(get_json(source, "/api/v1/jobs/" + name)["priority_policy"] == policy);
    }
  }
}

TEST_CASE("POST starts a snapshot, and GET shows its progress") {
  FakeSource source;
  const std::string path = "/api/v1/jobs/bert/snapshot";
  CHECK(get(source, path).status == 404);
  for (const char* wrong : {"", "{}", R"({"timeout_s": 0})", R"({"timeout_s": "5"})",
                            R"({"timeout_s": 1e9})", R"({"timeout_s": 5, "job": 1})"}) {
    const AdminResponse refused = post(source, path, wrong);
    CHECK(refused.status == 400);
    CHECK_THAT(refused.body, Contains("timeout_s"));
  }
  CHECK(post(source, "/api/v1/jobs/gpt/snapshot", R"({"timeout_s": 5})").status == 404);
  CHECK(post(source, path, R"({"timeout_s": 5})").status == 202);
  CHECK(source.snapshot_timeout_s == 5);
  const AdminResponse again = post(source, path, R"({"timeout_s": 5})");
  CHECK(again.status == 409);
  CHECK_THAT(again.body, Contains("is being taken"));
  const auto page = get_json(source, path);
  CHECK(page["state"] == "cutting");
  CHECK(page["chunks"] == 8);
  CHECK(page["error"] == "");
}

TEST_CASE("POST starts a trace, and GET returns it once it is complete") {
  FakeSource source;
  const std::string path = "/api/v1/jobs/bert/trace";
  CHECK(get(source, path).status == 409);
  for (const std::string body : {"", "{}", R"({"seconds": 0})", R"({"seconds": 601})",
                                 R"({"seconds": "1"})", R"({"seconds": 1, "x": 1})"}) {
    const auto refused = post(source, path, body);
    CHECK(refused.status == 400);
    CHECK_THAT(refused.body, Contains("at most 600"));
  }
  CHECK(post(source, "/api/v1/jobs/gpt/trace", R"({"seconds": 1})").status == 404);
  CHECK(get(source, "/api/v1/jobs/gpt/trace").status == 404);
  CHECK(post(source, path, R"({"seconds": 0.5})").status == 202);
  CHECK(source.traced_s == 0.5);
  CHECK(post(source, path, R"({"seconds": 1})").status == 409);

  Json page = get_json(source, path);
  CHECK(page["job"] == "bert");
  CHECK(page["world_size"] == 3);
  CHECK(page["recorded_seconds"] == 2);
  CHECK(page["lost_events"] == 4);
  CHECK(page["chunks"] == Json({{{"part", 1},
                                 {"chunk", 9},
                                 {"pipeline", 2},
                                 {"tensor", "<head>"},
                                 {"priority", -3},
                                 {"own_rounds", false},
                                 {"sent_unasked", false}}}));
  CHECK(page["events"] == Json::array());
  using Kind = pipeline::TraceEvent::Kind;
  source.trace_view.events = {
      {{.at_ns = 1'007, .chunk = 9, .round = 5, .rank = 2, .kind = Kind::kLast}, 0},
      {{.at_ns = 1'009, .chunk = 9, .round = 5, .kind = Kind::kSent}, 0}};
  page = get_json(source, path);
  CHECK(page["events"] == Json({{7, 1, 0, 5, 2}, {9, 3, 0, 5, 0}}));
}

TEST_CASE("the page of the flight recorder returns its images byte for byte") {
  FakeSource source;
  const AdminResponse recorded = answer(source, {.method = "GET", .target = "/api/v1/recorder"});
  CHECK(recorded.status == 200);
  CHECK(recorded.content_type == "application/octet-stream");
  CHECK(recorded.body == source.flight_image);
  source.flight_image.clear();
  CHECK(answer(source, {.method = "GET", .target = "/api/v1/recorder"}).status == 503);
}

TEST_CASE("POST drains a box, and the answer is the changed list of boxes") {
  FakeSource source;
  const std::string path = "/api/v1/boxes/box%3C2%3E/drain";
  const auto drained = post(source, path, R"({"draining": true})");
  REQUIRE(drained.status == 202);
  const Json second = Json::parse(drained.body)["boxes"][1];
  CHECK(second["draining"] == true);
  CHECK(second["parts"] == 3);
  CHECK(Json::parse(drained.body)["boxes"][0]["draining"] == false);
  CHECK(second["standby"] == false);
  CHECK(post(source, path, R"({"draining": false})").status == 202);
  CHECK(get_json(source, "/api/v1/boxes")["boxes"][1]["draining"] == false);
  CHECK(post(source, path, R"({"draining": true, "standby": true})").status == 202);
  const Json standby = get_json(source, "/api/v1/boxes")["boxes"][1];
  CHECK(standby["draining"] == true);
  CHECK(standby["standby"] == true);

  CHECK(post(source, "/api/v1/boxes/box-9/drain", R"({"draining": true})").status == 404);
  for (const std::string body : {"", "{}", R"({"draining": 1})", R"({"draining": true, "x": 1})",
                                 R"({"standby": true})", R"({"draining": true, "standby": 1})"}) {
    const auto refused = post(source, path, body);
    CHECK(refused.status == 400);
    CHECK_THAT(refused.body, Contains(R"({"draining": true})"));
  }
  source.alone = true;
  const auto alone = post(source, path, R"({"draining": true})");
  CHECK(alone.status == 409);
  CHECK_THAT(alone.body, Contains("alone"));
}

TEST_CASE(
    "a change that is malformed, or may come from a page of another origin, changes nothing") {
  FakeSource source;
  const std::string path = "/api/v1/jobs/bert/priorities";
  const std::string fifo = "{\"policy\": \"fifo\"}";
  const struct {
    AdminResponse response;
    unsigned status;
    const char* says;
  } refusals[] = {
      {post(source, "/api/v1/jobs/gpt/priorities", fifo), 404, "no job 'gpt' here"},
      {post(source, "/api/v1/jobs/%zz/priorities", fifo), 400, "percent-encoded"},
      {post(source, "/api/v1/jobs//priorities", fifo), 405, "not allowed"},
      {post(source, "/api/v1/jobs/bert", fifo), 405, "not allowed for '/api/v1/jobs/bert'"},
      {post(source, path, fifo, "text/plain"), 415, "application/json"},
      {post(source, path, fifo, ""), 415, "application/json"},
      {post(source, path, ""), 400, "\"forward-order\""},
      {post(source, path, "{\"policy\": \"lifo\"}"), 400, "\"fifo\""},
      {post(source, path, "{\"policy\": 2}"), 400, "POLICY"},
      {post(source, path, "[\"policy\"]"), 400, "POLICY"},
      {post(source, path, "{\"policy\": \"fifo\", \"job\": 1}"), 400, "POLICY"},
      {post(source, path, "{\"policy\": \"fifo\""), 400, "POLICY"}};
  for (const auto& refusal : refusals) {
    INFO(refusal.response.body);
    CHECK(refusal.response.status == refusal.status);
    CHECK_THAT(refusal.response.body, Contains(refusal.says));
    CHECK_THAT(refusal.response.body,
               Contains("POST of /api/v1/jobs/NAME/priorities, /api/v1/jobs/NAME/sync, "
                        "/api/v1/jobs/NAME/trace, /api/v1/jobs/NAME/snapshot and "
                        "/api/v1/boxes/NAME/drain\n"));
  }
  CHECK(get_json(source, "/api/v1/jobs/bert")["priority_policy"] == "forward-order");
}

TEST_CASE("POST changes the models of a job's tensors, and the answer is the changed job") {
  FakeSource source;
  const std::string path = "/api/v1/jobs/bert/sync";
  const auto changed = post(source, path, R"({"sync": "pssp:2:0.5", "tensors": "emb*"})");
  CHECK(changed.status == 200);
  CHECK(Json::parse(changed.body)["sync"]["by_tensor"] == Json({{"emb*", "pssp:2:0.5"}}));
  CHECK(post(source, path, R"({"sync": "asp"})").status == 200);
  CHECK(get_json(source, "/api/v1/jobs/bert")["sync"]["text"] == "asp");
  const struct {
    AdminResponse response;
    unsigned status;
    const char* says;
  } refusals[] = {
      {post(source, "/api/v1/jobs/gpt/sync", R"({"sync": "asp"})"), 404, "no job 'gpt' here"},
      {post(source, path, R"({"sync": "bsp"})"), 409, "bsp sums a round"},
      {post(source, path, R"({"sync": "ssp"})"), 400, "as in ssp:3"},
      {post(source, path, R"({"sync": 3})"), 400, "MODEL"},
      {post(source, path, R"({"tensors": "a"})"), 400, "MODEL"},
      {post(source, path, R"({"sync": "asp", "tensors": ""})"), 400, "GLOB"},
      {post(source, path, R"({"sync": "asp", "x": ""})"), 400, "GLOB"},
      {post(source, path, ""), 400, "MODEL"}};
  for (const auto& refusal : refusals) {
    CHECK(refusal.response.status == refusal.status);
    CHECK_THAT(refusal.response.body, Contains(refusal.says));
  }
}

TEST_CASE("an error answer is one line that lists the pages that exist") {
  FakeSource source;
  const AdminResponse refusals[] = {
      get(source, "/metric"),
      get(source, "http://box/metrics"),
      get(source, ""),
      get(source, "/api/v1/jobs/gpt"),
      answer(source, {.method = "POST", .target = "/metrics"}),
      answer(source, {.method = "GET", .target = "/metrics", .has_body = true})};
  const unsigned statuses[] = {404, 400, 400, 404, 405, 400};
  for (size_t index = 0; index < std::size(refusals); ++index) {
    const AdminResponse& refusal = refusals[index];
    CHECK(refusal.status == statuses[index]);
    CHECK(refusal.content_type == "text/plain; charset=utf-8");
    CHECK_THAT(refusal.body, Contains("GET and HEAD of / /metrics /healthz /readyz"));
    CHECK(refusal.body.find('\n') == refusal.body.size() - 1);
  }
}

}  // namespace
}  // namespace pbox::admin
