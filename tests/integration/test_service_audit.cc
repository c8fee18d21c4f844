// The audit log of a live box: one line for each kind of event that can be caused here.
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/daemon.h"
#include "tests/support/key_folder.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

using Catch::Contains;
using Json = nlohmann::json;

constexpr char kTenant[] = "pbox://rack/tenant/acme/job/run-*/rank/0-1";

std::vector<Json> lines_of(const std::string& file) {
  std::ifstream text(file);
  std::vector<Json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
  return lines;
}

// Waits for a line of the event, and returns it; null after the deadline.
Json await_line(const std::string& file, const std::string& event) {
  for (int waited_ms = 0; waited_ms < kDeadlineMs; waited_ms += 10) {
    for (const Json& line : lines_of(file)) {
      if (line.at("event") == event) return line;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return {};
}

// Joins in a new process. Returns the error; empty if the join succeeds.
std::string refusal(const WorkerOptions& options) {
  WorkerProcess process([&](Line& line) {
    const AbiWorker worker(options);
    worker.tensor("t", 1'000);
    const pbox_status status = pbox_join(worker.context());
    line.say(status == PBOX_OK ? "" : pbox_last_error(worker.context()));
  });
  return process.heard(kDeadlineMs).value_or("no answer");
}

// A box with keys, TLS over HTTP, a UNIX socket and an audit log, and keys of its clients.
struct AuditedBox {
  tls::KeyPair signer = authority();
  KeyFolder keys{signer, "pbox://rack/box/a"}, tenant{signer, kTenant};
  KeyFolder viewer{signer, "pbox://rack/viewer"}, oper{signer, "pbox://rack/operator"};
  TemporaryFolder folder;
  std::string file = folder.path() + "/audit.log", socket = folder.path() + "/admin.sock";
  std::unique_ptr<Daemon> daemon = std::make_unique<Daemon>(
      Arguments{"--box.name=a", "--security.keys=" + keys.path(), "--admin.tls=on",
                "--admin.socket=" + socket, "--log.audit=" + file, "--log.level=debug",
                "--snapshots.directory=" + folder.path()});

  WorkerOptions worker(const std::string& job) const {
    return {.box = daemon->control(), .job = job, .adjust = [this](pbox_options& options) {
              options.keys = tenant.path().c_str();
            }};
  }
};

}  // namespace

TEST_CASE("a join is in the audit log with its identity, and so is the cut of a snapshot") {
  const AuditedBox box;
  const std::string stop = box.folder.path() + "/stop";
  WorkerProcess rank([&](Line& line) {
    WorkerOptions options = box.worker("acme/run-1");
    options.adjust = [&box](pbox_options& given) {
      given.keys = box.tenant.path().c_str();
      given.mode = PBOX_MODE_OPTIMIZE;
    };
    const AbiWorker worker(options);
    std::vector<float> weights(1'000, 1.0f);
    worker.join_with_sgd(0.5f, worker.tensor("t", weights.size()), weights);
    line.say("joined");
    while (!std::filesystem::exists(stop)) {  // a cut needs rounds
      worker.push_pull(0, weights.data(), weights.data());
      worker.wait(0);
    }
    worker.leave();
  });
  REQUIRE(rank.heard().value_or("nothing") == "joined");
  const Json joined = await_line(box.file, "join");
  CHECK(joined["who"] == kTenant);
  CHECK(joined["job"] == "acme/run-1");
  CHECK(joined["rank"] == 0);
  CHECK_THAT(joined["address"].get<std::string>(), Contains("127.0.0.1:"));
  CHECK_THAT(joined["time"].get<std::string>(), Contains("T") && Contains("Z"));

  run(PBOX_CTL_PATH,
      {"snapshot", "acme/run-1", "--admin", box.daemon->admin(), "--keys", box.oper.path()});
  const Json changed = await_line(box.file, "admin");
  CHECK(changed["who"] == "pbox://rack/operator");
  CHECK_THAT(changed["address"].get<std::string>(), Contains("127.0.0.1:"));
  CHECK(changed["request"] == "POST /api/v1/jobs/acme%2Frun-1/snapshot");
  CHECK(changed["status"] == 202);
  const Json cut = await_line(box.file, "cut");
  CHECK(cut["job"] == "acme/run-1");
  CHECK(cut["snapshot"] == 1);
  CHECK(cut["outcome"] == "begun");
  box.folder.write("stop", "");
  CHECK(rank.finish() == "");
}

TEST_CASE("a refusal is in the audit log with its reason") {
  const AuditedBox box;
  CHECK_FALSE(refusal(box.worker("acme/other")).empty());
  const Json denied = await_line(box.file, "message_denied");  // a join asks for the part map first
  CHECK(denied["who"] == kTenant);
  CHECK_THAT(denied["reason"].get<std::string>(), Contains("do not allow job 'acme/other'"));

  WorkerOptions later = box.worker("acme/run-1");
  later.rank = 2;
  later.world_size = 3;
  CHECK_FALSE(refusal(later).empty());
  const Json refused = await_line(box.file, "join_refused");
  CHECK(refused["who"] == kTenant);
  CHECK(refused["rank"] == 2);
  CHECK_THAT(refused["reason"].get<std::string>(), Contains("do not allow rank 2"));

  CHECK_FALSE(refusal({.box = box.daemon->control(), .job = "acme/run-1"}).empty());
  const Json plain = await_line(box.file, "handshake_refused");
  CHECK_THAT(plain["reason"].get<std::string>(), Contains("does not speak TLS"));
  CHECK_THAT(plain["address"].get<std::string>(), Contains("127.0.0.1:"));
}

TEST_CASE(
    "a request to the HTTP server is in the audit log with its sender, if it is a POST or denied") {
  const AuditedBox box;
  // The box is alone, so it refuses to drain.
  CHECK(run(PBOX_CTL_PATH, {"drain", "a", "--admin", "unix:" + box.socket}).status == 1);
  const Json local = await_line(box.file, "admin_refused");
  CHECK(local["who"] == "uid " + std::to_string(geteuid()));
  CHECK_FALSE(local.contains("address"));
  CHECK(local["request"] == "POST /api/v1/boxes/a/drain");
  CHECK(local["body"] == "{\"draining\":true}");
  CHECK(local["status"] == 409);

  const Arguments viewer = {"--admin", box.daemon->admin(), "--keys", box.viewer.path()};
  for (const char* command : {"jobs", "metrics"}) {
    Arguments words = {command};
    words.insert(words.end(), viewer.begin(), viewer.end());
    run(PBOX_CTL_PATH, words);
  }
  const auto lines = lines_of(box.file);
  REQUIRE(lines.size() == 2);  // none for the metrics, which a viewer may see
  CHECK(lines[1]["event"] == "admin_refused");
  CHECK(lines[1]["who"] == "pbox://rack/viewer");
  CHECK(lines[1]["request"] == "GET /api/v1/jobs");
  CHECK(lines[1]["status"] == 403);
}

TEST_CASE("the file is the owner's, and after SIGHUP the box writes to a new one") {
  const AuditedBox box;
  struct stat found {};
  REQUIRE(stat(box.file.c_str(), &found) == 0);
  CHECK((found.st_mode & 0777) == 0600);
  std::filesystem::rename(box.file, box.file + ".1");
  box.daemon->program().signal(SIGHUP);
  // Two signals that are pending at once may be handled in either order.
  for (int waited_ms = 0; waited_ms < kDeadlineMs && !std::filesystem::exists(box.file);
       waited_ms += 10) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  box.daemon->program().signal(SIGTERM);
  CHECK(box.daemon->program().wait_exit(kDeadlineMs) == 0);
  const auto lines = lines_of(box.file);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0]["event"] == "drain");
  CHECK(lines[0]["box"] == "a");
  CHECK(lines[0]["reason"] == "SIGTERM");
}

TEST_CASE(
    "a box whose audit log cannot be opened does not start, and one that fails later counts") {
  const TemporaryFolder folder;
  const std::string inner = folder.path() + "/inner";
  const Arguments arguments = {"--log.audit=" + inner + "/audit.log"};
  const Output refused = run(daemon_path(), daemon_arguments(arguments));
  CHECK(refused.status == 1);
  CHECK_THAT(refused.errors, Contains("log.audit = " + inner));

  std::filesystem::create_directory(inner);
  const Daemon daemon(arguments);
  std::filesystem::remove_all(inner);
  // The file that was deleted takes lines until the box notices, at most a second later.
  uint64_t lost = 0;
  for (int waited_ms = 0; lost == 0 && waited_ms < kDeadlineMs; waited_ms += 100) {
    daemon.post("/api/v1/boxes/a/drain", "{}");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    lost = daemon.metric("pbox_audit_lost_total");
  }
  CHECK(lost > 0);
  CHECK(daemon.program().await_errors("audit_lost", kDeadlineMs));
  CHECK_THAT(daemon.get("/healthz"), Contains("\"ok\""));
}

TEST_CASE("the audit log may go to standard error") {
  const Daemon daemon({"--log.audit=stderr"});
  daemon.post("/api/v1/boxes/a/drain", "{\"draining\": true}");
  CHECK(daemon.program().await_errors("\"event\":\"admin_refused\"", kDeadlineMs));
}

}  // namespace pbox::test
