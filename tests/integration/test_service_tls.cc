// A box with keys, and workers with right, wrong and no keys.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/support/daemon.h"
#include "tests/support/key_folder.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

constexpr char kJob[] = "acme/run-1";
constexpr char kWorker[] = "pbox://rack/tenant/acme/job/run-*/rank/0-1";

Arguments with_keys(const KeyFolder& keys, const Arguments& more = {}) {
  Arguments arguments = {"--box.name=a", "--security.keys=" + keys.path()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

WorkerOptions worker_at(const std::string& box, const std::string& keys, uint32_t rank = 0,
                        uint32_t world_size = 1) {
  return {.box = box,
          .job = kJob,
          .rank = rank,
          .world_size = world_size,
          .adjust = [keys](pbox_options& options) { options.keys = keys.c_str(); }};
}

// One exchange, in which every rank pushes 1.
void exchange(const AbiWorker& worker, float expected) {
  std::vector<float> values(20'000, 1.0f);
  worker.push_pull(0, values.data(), values.data());
  worker.wait(0);
  require(values.front() == expected && values.back() == expected, "a wrong sum");
}

// Joins with these options in a new process. Returns the error; empty if the join succeeds.
std::string refusal(const WorkerOptions& options) {
  WorkerProcess process([&](Line& line) {
    const AbiWorker worker(options);
    worker.tensor("t", 20'000);
    const pbox_status status = pbox_join(worker.context());
    line.say(status == PBOX_OK ? "" : pbox_last_error(worker.context()));
  });
  return process.heard(kDeadlineMs).value_or("no answer");
}

// Trains with the keys that PBOX_KEYS names. Returns the error; empty if there is none.
std::string train_by_environment(const Daemon& daemon, const std::string& keys) {
  WorkerProcess process([&](Line&) {
    require(setenv("PBOX_KEYS", keys.c_str(), 1) == 0, "setenv");
    pbox_options found;
    require(pbox_options_from_environment(&found) == PBOX_OK, "the environment is refused");
    const AbiWorker worker(worker_at(daemon.control(), found.keys));
    worker.tensor("t", 20'000);
    worker.join();
    exchange(worker, 1.0f);
    worker.leave();
  });
  return process.finish();
}

}  // namespace

TEST_CASE("ranks with keys exchange data through a box with keys") {
  const bool encrypts = GENERATE(false, true);
  const auto signer = authority();
  const KeyFolder box(signer, "pbox://rack/box/a"), keys(signer, kWorker);
  Daemon daemon(with_keys(box, {"--security.encrypt=" + std::string(encrypts ? "true" : "false"),
                                "--security.key_packets=1000"}));
  std::vector<WorkerProcess> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank](Line&) {
      const AbiWorker worker(worker_at(daemon.control(), keys.path(), rank, 2));
      worker.tensor("t", 20'000);
      worker.join();
      // Enough packets for some updates of keys.
      for (int round = 0; round < 1200; ++round) exchange(worker, 2.0f);
      worker.leave();
    });
  }
  for (WorkerProcess& rank : ranks) CHECK(rank.finish() == "");
  const auto health = nlohmann::json::parse(daemon.get("/healthz"));
  CHECK(health.at("keys") == true);
  CHECK(health.at("insecure") == false);
  CHECK(daemon.metric("pbox_handshakes_refused_total") == 0);
  REQUIRE(daemon.await_no_jobs(kDeadlineMs));
  const uint64_t begun = daemon.metric("pbox_key_updates_total", "state=\"begun\"");
  const uint64_t followed = daemon.metric("pbox_key_updates_total", "state=\"followed\"");
  CHECK(begun > 0);
  CHECK(followed > 0);
  CHECK(begun >= followed);  // the ranks may have left before they followed the last one
}

TEST_CASE("the folder of keys may come from the environment") {
  const auto signer = authority();
  const KeyFolder box(signer, "pbox://rack/box/a"), keys(signer, kWorker);
  Daemon daemon(with_keys(box));
  CHECK(train_by_environment(daemon, keys.path()) == "");
}

TEST_CASE("a worker joins with a token in place of a folder, and is told what is wrong with it") {
  const auto signer = authority();
  const KeyFolder box(signer, "pbox://rack/box/a"), keys(signer, kWorker);
  const KeyFolder expired(signer, KeyFolder::order(kWorker, -60), signer.certificate);
  const TemporaryFolder folder;
  const std::string token = folder.path() + "/token";
  Daemon daemon(with_keys(box));
  const auto refused = [&] { return refusal(worker_at(daemon.control(), token)); };
  folder.write("token", keys.token() + "\n", 0644);
  CHECK_THAT(refused(), Catch::Contains("chmod 600 " + token));
  folder.write("token", keys.token().substr(0, 1000));
  CHECK_THAT(refused(), Catch::Contains(token + " is a damaged token"));
  folder.write("token", expired.token());
  CHECK_THAT(refused(), Catch::Contains("cert.pem in the token " + token + " expired on 20"));
  // The worker rejected each token itself, before any handshake.
  CHECK(daemon.metric("pbox_handshakes_refused_total") == 0);
  folder.write("token", keys.token() + "\n");
  CHECK(train_by_environment(daemon, token) == "");
}

TEST_CASE("each worker that may not join is told at once why, and what to do") {
  const auto signer = authority(), other = authority();
  const KeyFolder box(signer, "pbox://rack/box/a");
  Daemon daemon(with_keys(box));
  const auto refused = [&](const KeyFolder& keys, const std::string& job = kJob,
                           uint32_t rank = 0) {
    WorkerOptions options = worker_at(daemon.control(), keys.path(), rank, rank + 1);
    options.job = job;
    return refusal(options);
  };
  const KeyFolder keys(signer, kWorker);
  CHECK_THAT(refusal({.box = daemon.control(), .job = kJob}), Catch::Contains("PBOX_KEYS"));
  CHECK_THAT(refused(KeyFolder(other, kWorker)),
             Catch::Contains("no authority in ca.pem has signed it"));
  CHECK_THAT(
      refused(KeyFolder(other, KeyFolder::order(kWorker), other.certificate + signer.certificate)),
      Catch::Contains("does not accept") && Catch::Contains("keys of one cluster"));
  CHECK_THAT(refused(KeyFolder(signer, KeyFolder::order(kWorker, -60), signer.certificate)),
             Catch::Contains("expired on") && Catch::Contains("pboxctl keys"));
  CHECK_THAT(refused(keys, "acme/other"), Catch::Contains("do not allow job 'acme/other'"));
  CHECK_THAT(refused(keys, "run-1"), Catch::Contains("acme/NAME"));
  CHECK_THAT(refused(keys, kJob, 2), Catch::Contains("do not allow rank 2"));
  CHECK_THAT(refused(KeyFolder(signer, "pbox://rack/operator")),
             Catch::Contains("do not allow AskPartMap"));
  CHECK(daemon.program().await_errors("does not speak TLS", kDeadlineMs));
  CHECK(daemon.metric("pbox_handshakes_refused_total") >= 3);
  CHECK(daemon.metric("pbox_joins_refused_total") >= 4);
}

TEST_CASE("keys of a box that the cluster's store does not list allow no replica") {
  const auto signer = authority();
  const KeyFolder box(signer, "pbox://rack/box/a"), stranger(signer, "pbox://rack/box/b");
  const Daemon daemon(with_keys(box));
  WorkerOptions options = worker_at(daemon.control(), stranger.path());
  options.adjust = [keys = stranger.path()](pbox_options& chosen) {
    chosen.keys = keys.c_str();
    chosen.backup = 1;
    chosen.recovery = PBOX_RECOVERY_NONE;
    chosen.delivery = PBOX_DELIVERY_PULL;
  };
  CHECK_THAT(refusal(options),
             Catch::Contains("pbox://rack/box/b") && Catch::Contains("lists no box 'b'"));
  CHECK(daemon.program().await_errors("message_denied", kDeadlineMs));
}

TEST_CASE("a worker with keys does not talk to a box without keys") {
  const KeyFolder keys(authority(), kWorker);
  Daemon daemon;
  CHECK_THAT(refusal(worker_at(daemon.control(), keys.path())), Catch::Contains("[security] keys"));
  CHECK(daemon.program().await_errors("PBOX_KEYS", kDeadlineMs));
}

TEST_CASE("a worker finds its box again with TLS, and another box in its place") {
  const auto signer = authority();
  const KeyFolder box(signer, "pbox://rack/box/a"), keys(signer, kWorker);
  auto daemon = std::make_unique<Daemon>(with_keys(box));
  const std::string where = daemon->control();
  WorkerProcess process([&](Line& line) {
    const AbiWorker worker(worker_at(where, keys.path()));
    worker.tensor("t", 20'000);
    worker.join();
    exchange(worker, 1.0f);
    line.say("one");
    line.await_go();
    exchange(worker, 1.0f);
    worker.leave();
  });
  REQUIRE(process.heard() == "one");
  daemon.reset();
  const std::string port = where.substr(where.rfind(':') + 1);
  daemon = std::make_unique<Daemon>(with_keys(box, {"--control.port=" + port}));
  process.go();
  CHECK(process.finish() == "");
}

TEST_CASE("a box sends its sums on to an upper box with its own keys") {
  const auto signer = authority();
  const KeyFolder box(signer, "pbox://rack/box/a"), upper_keys(signer, "pbox://rack/box/up");
  const KeyFolder keys(signer, kWorker);
  Daemon upper({"--box.name=up", "--security.keys=" + upper_keys.path()});
  Daemon lower(with_keys(
      box, {"--upstream.box=" + upper.control(), "--upstream.rank=0", "--upstream.world_size=1"}));
  WorkerProcess process([&](Line&) {
    const AbiWorker worker(worker_at(lower.control(), keys.path()));
    worker.tensor("t", 20'000);
    worker.join();
    exchange(worker, 1.0f);
    worker.leave();
  });
  CHECK(process.finish() == "");
}

TEST_CASE(
    "the doctor checks a box with the keys of a tenant or of the box, and says what it lacks") {
  const auto signer = authority();
  const KeyFolder box(signer, "pbox://rack/box/a"), narrow(signer, kWorker);
  const KeyFolder tenant(signer, "pbox://rack/tenant/acme/job/x?-*-*/rank/0-0");
  const KeyFolder literal(signer, "pbox://rack/tenant/acme/job/run/rank/*");
  const Daemon daemon(with_keys(box));
  const auto diagnose = [&](const std::string& folder) {
    setenv("PBOX_KEYS", folder.c_str(), 1);
    const Output output =
        run(PBOX_CTL_PATH, {"doctor", "--to", daemon.control(), "--seconds", "1"});
    unsetenv("PBOX_KEYS");
    return output;
  };
  for (const KeyFolder* keys : {&box, &narrow, &tenant}) {
    const Output output = diagnose(keys->path());
    INFO(output.text);
    CHECK(output.status == 0);
    // The check of the keys warns, because they are valid for only an hour.
    CHECK_THAT(output.text, Catch::Contains("WARN  keys") && Catch::Contains("ok    sums"));
  }
  const KeyFolder lasting(signer, KeyFolder::order(kWorker, 8 * 24 * 3600), signer.certificate);
  CHECK_THAT(diagnose(lasting.path()).text, Catch::Contains("ok    keys"));
  const Output none = diagnose("");
  CHECK(none.status == 1);
  CHECK_THAT(none.text, Catch::Contains("PBOX_KEYS"));
  const Output one_job = diagnose(literal.path());
  CHECK(one_job.status == 1);
  CHECK_THAT(one_job.text, Catch::Contains("TENANT/*"));
}

TEST_CASE("pboxd refuses keys that are not its own, or that others may read") {
  const auto signer = authority();
  const KeyFolder other(signer, "pbox://rack/box/b"), keys(signer, "pbox://rack/box/a");
  const Output wrong = run(daemon_path(), daemon_arguments(with_keys(other)));
  CHECK(wrong.status == 1);
  CHECK_THAT(wrong.errors,
             Catch::Contains("pbox://rack/box/b") && Catch::Contains("this is box 'a'"));
  keys.write("key.pem", "", 0644);
  const Output open = run(daemon_path(), daemon_arguments(with_keys(keys)));
  CHECK(open.status == 1);
  CHECK_THAT(open.errors, Catch::Contains("chmod 600 " + keys.path() + "/key.pem"));
}

}  // namespace pbox::test
