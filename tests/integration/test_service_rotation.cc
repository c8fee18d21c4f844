// Keys that are renewed, revoked and replaced while boxes and jobs run.
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <thread>

#include "nic/tls/pem.h"
#include "nic/tls/revocation.h"
#include "tests/support/daemon.h"
#include "tests/support/key_folder.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

constexpr char kBox[] = "pbox://rack/box/a";
constexpr char kWorker[] = "pbox://rack/tenant/acme/job/*/rank/*";
constexpr uint64_t kElements = 20'000;
constexpr float kLast = 1000.0f;  // a rank that pushes this value ends the job with this round

Arguments with_keys(const KeyFolder& keys, const std::string& name = "a") {
  return {"--box.name=" + name, "--security.keys=" + keys.path()};
}

WorkerOptions worker_at(const std::string& box, const std::string& keys, uint32_t rank = 0,
                        uint32_t world_size = 1, const std::string& job = "acme/run") {
  return {.box = box,
          .job = job,
          .rank = rank,
          .world_size = world_size,
          .adjust = [keys](pbox_options& options) {
            options.keys = keys.c_str();
            options.recover_timeout_ms = 60'000;
          }};
}

// Exchanges until `stop` is set, which rank 0 tells the others by pushing kLast. Each round must
// have the right sum.
void exchange_until(const AbiWorker& worker, uint32_t rank, uint32_t ranks, const Progress& stop,
                    const Progress& rounds) {
  for (float sum = 0; sum < kLast; rounds.advance(rank)) {
    const bool is_last = rank == 0 && stop.least() > 0;
    std::vector<float> values(kElements, is_last ? kLast : 1.0f);
    worker.push_pull(0, values.data(), values.data());
    worker.wait(0);
    sum = values.front();
    const float others = static_cast<float>(ranks - 1);
    require(sum == 1.0f + others || sum == kLast + others, "a wrong sum");
    require(values.back() == sum, "a wrong sum at the end");
  }
}

void write_keys(const KeyFolder& folder, const tls::KeyPair& signer, const std::string& uri) {
  const auto issued = tls::issue(signer, KeyFolder::order(uri));
  REQUIRE(issued.ok());
  folder.write("cert.pem", issued->certificate, 0644);
  folder.write("key.pem", issued->key);
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Waits until the box has logged `text` that many times.
void await_log(const Daemon& daemon, const std::string& text, size_t count) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kDeadlineMs);
  while (count_of(daemon.program().errors(), text) < count) {
    INFO(daemon.program().errors());
    REQUIRE(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Makes the box read its keys again, for the `count`th time since its start.
void reload(const Daemon& daemon, size_t count) {
  daemon.program().signal(SIGHUP);
  await_log(daemon, std::string(kBox) + ", until ", count + 1);
}

}  // namespace

TEST_CASE("authority, box and workers get new keys while a job runs, and no round fails") {
  constexpr uint32_t kRanks = 2;
  const auto former = authority(), next = authority();
  const KeyFolder box(former, kBox), keys(former, kWorker);
  Daemon daemon(with_keys(box));
  const Progress rounds(kRanks), stop(1);
  std::vector<WorkerProcess> ranks;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank](Line&) {
      const AbiWorker worker(worker_at(daemon.control(), keys.path(), rank, kRanks));
      worker.tensor("t", kElements);
      worker.join();
      exchange_until(worker, rank, kRanks, stop, rounds);
      worker.leave();
    });
  }
  const auto more_rounds = [&] { rounds.await(rounds.least() + 50); };
  more_rounds();

  const std::string both = former.certificate + next.certificate;
  for (const KeyFolder* folder : {&box, &keys}) folder->write("ca.pem", both, 0644);
  reload(daemon, 1);
  more_rounds();
  write_keys(box, next, kBox);
  write_keys(keys, next, kWorker);
  reload(daemon, 2);
  more_rounds();
  CHECK(daemon.metric("pbox_workers_lost_total") == 0);  // no connection has ended so far

  for (const KeyFolder* folder : {&box, &keys}) folder->write("ca.pem", next.certificate, 0644);
  reload(daemon, 3);
  await_log(daemon, "peer_withdrawn", kRanks);
  more_rounds();
  stop.advance(0);
  for (WorkerProcess& rank : ranks) CHECK(rank.finish() == "");
  CHECK(daemon.metric("pbox_workers_lost_total") == kRanks);
  // If all ranks were lost at the same time, the job was recovered. Otherwise they came back.
  CHECK(daemon.metric("pbox_jobs_recovered_total") + daemon.metric("pbox_workers_back_total") > 0);
  CHECK(daemon.metric("pbox_keys_expiry_timestamp_seconds") >
        static_cast<uint64_t>(std::time(nullptr)));
}

TEST_CASE("a rank that loses its connection comes back with the token that has replaced its own") {
  const auto former = authority(), next = authority();
  const std::string both = former.certificate + next.certificate;
  const KeyFolder box(former, KeyFolder::order(kBox), both);
  const KeyFolder keys(former, KeyFolder::order(kWorker), both);
  const KeyFolder renewed(next, KeyFolder::order(kWorker), both);
  const TemporaryFolder folder;
  folder.write("token", keys.token());
  Daemon daemon(with_keys(box));
  const Progress rounds(1), stop(1);
  WorkerProcess process([&](Line&) {
    const AbiWorker worker(worker_at(daemon.control(), folder.path() + "/token"));
    worker.tensor("t", kElements);
    worker.join();
    exchange_until(worker, 0, 1, stop, rounds);
    worker.leave();
  });
  rounds.await(10);
  folder.write("token.new", renewed.token());
  std::filesystem::rename(folder.path() + "/token.new", folder.path() + "/token");
  write_keys(box, next, kBox);
  box.write("ca.pem", next.certificate, 0644);
  reload(daemon, 1);  // the box does not accept the former authority's keys any more
  await_log(daemon, "peer_withdrawn", 1);
  rounds.await(rounds.least() + 50);
  stop.advance(0);
  CHECK(process.finish() == "");
}

TEST_CASE("a revoked worker loses its connection and cannot come back, and others go on") {
  const auto signer = authority();
  const KeyFolder box(signer, kBox), stolen(signer, kWorker), kept(signer, kWorker);
  Daemon daemon(with_keys(box));
  const Progress rounds(1), stop(1);
  WorkerProcess thief([&](Line& line) {
    WorkerOptions options = worker_at(daemon.control(), stolen.path(), 0, 1, "acme/stolen");
    options.adjust = [keys = stolen.path()](pbox_options& chosen) {
      chosen.keys = keys.c_str();
      chosen.recover_timeout_ms = 500;
    };
    const AbiWorker worker(options);
    worker.tensor("t", kElements);
    worker.join();
    std::vector<float> values(20'000, 1.0f);
    line.say("joined");
    pbox_status status = PBOX_OK;
    while (status == PBOX_OK) status = worker.push_pull_and_wait(0, values.data(), values.data());
    line.say(pbox_last_error(worker.context()));
  });
  WorkerProcess honest([&](Line&) {
    const AbiWorker worker(worker_at(daemon.control(), kept.path()));
    worker.tensor("t", kElements);
    worker.join();
    exchange_until(worker, 0, 1, stop, rounds);
    worker.leave();
  });
  REQUIRE(thief.heard() == "joined");
  rounds.await(10);
  const std::vector<tls::KeyPair> authorities = {signer};
  const auto certificate = tls::read_pem_file(stolen.path() + "/cert.pem");
  REQUIRE(certificate.ok());
  box.write("crl.pem", tls::revoke(authorities, "", *certificate, std::time(nullptr))->lists, 0644);
  reload(daemon, 1);
  CHECK_THAT(thief.heard().value_or(""), Catch::Contains("it is revoked"));
  CHECK(thief.finish() == "");
  rounds.await(rounds.least() + 10);
  stop.advance(0);
  CHECK(honest.finish() == "");
  CHECK(daemon.metric("pbox_workers_lost_total") == 1);
}

TEST_CASE("a reload of damaged keys, or of another cluster's, changes nothing and says so") {
  const auto signer = authority();
  const KeyFolder box(signer, kBox), keys(signer, kWorker);
  Daemon daemon(with_keys(box));
  const auto key = tls::read_private_file(box.path() + "/key.pem");
  REQUIRE(key.ok());
  box.write("key.pem", "damaged");
  daemon.program().signal(SIGHUP);
  await_log(daemon, "holds no private key", 1);
  await_log(daemon, "the former keys stay", 1);
  write_keys(box, signer, "pbox://lab/box/a");
  daemon.program().signal(SIGHUP);
  await_log(daemon, "restart the box to change its cluster", 1);
  WorkerProcess process([&](Line&) {
    const AbiWorker worker(worker_at(daemon.control(), keys.path()));
    worker.tensor("t", kElements);
    worker.join();
    worker.leave();
  });
  CHECK(process.finish() == "");
}

TEST_CASE("a box proves new keys to its upper box after the files were replaced") {
  const auto former = authority(), next = authority();
  const KeyFolder box(former, kBox), upper_keys(next, "pbox://rack/box/up");
  const KeyFolder keys(former, KeyFolder::order(kWorker), former.certificate + next.certificate);
  Daemon upper({"--box.name=up", "--security.keys=" + upper_keys.path()});
  Arguments arguments = with_keys(box);
  for (const char* rest : {"--upstream.rank=0", "--upstream.world_size=1"}) {
    arguments.emplace_back(rest);
  }
  arguments.push_back("--upstream.box=" + upper.control());
  Daemon lower(arguments);
  box.write("ca.pem", former.certificate + next.certificate, 0644);
  write_keys(box, next, kBox);
  reload(lower, 1);
  WorkerProcess process([&](Line&) {
    const AbiWorker worker(worker_at(lower.control(), keys.path()));
    worker.tensor("t", kElements);
    worker.join();
    const Progress rounds(1), stop(1);
    stop.advance(0);
    exchange_until(worker, 0, 1, stop, rounds);
    worker.leave();
  });
  CHECK(process.finish() == "");
}

TEST_CASE("keys of packets change a hundred times on a path with loss, and no round fails") {
  constexpr uint32_t kRanks = 2;
  constexpr uint64_t kUpdates = 100;
  const auto signer = authority();
  const KeyFolder box(signer, kBox), keys(signer, kWorker);
  auto arguments = with_keys(box);
  arguments.push_back("--security.key_packets=1000");
  Daemon daemon(arguments);
  const Progress rounds(kRanks), stop(1);
  std::vector<WorkerProcess> ranks;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank](Line&) {
      auto options = worker_at(daemon.control(), keys.path(), rank, kRanks);
      options.adjust = [adjust = options.adjust](pbox_options& of_worker) {
        adjust(of_worker);
        of_worker.port = "lossy:wait";  // one in seven of a worker's packets is lost
      };
      const AbiWorker worker(options);
      worker.tensor("t", kElements);
      worker.join();
      exchange_until(worker, rank, kRanks, stop, rounds);
      require(worker.statistics().retransmitted_fragments > 0, "nothing was lost");
      require(worker.statistics().recoveries == 0, "a rank joined once more");
      worker.leave();
    });
  }
  const auto updates = [&](const std::string& state) {
    return daemon.metric("pbox_key_updates_total", "state=\"" + state + "\"");
  };
  // Each side changes the key with which it sends: the box begins an update, or follows a worker's.
  while (updates("begun") < kUpdates / 2 || updates("followed") < kUpdates / 2) {
    rounds.await(rounds.least() + 10);
  }
  stop.advance(0);
  INFO(daemon.program().errors());
  for (WorkerProcess& rank : ranks) CHECK(rank.finish() == "");
  CHECK(daemon.metric("pbox_workers_lost_total") == 0);
  CHECK(daemon.metric("pbox_jobs_failed_total") == 0);
}

}  // namespace pbox::test
