// The cluster store against a real etcd of three members, which are killed, stopped and started
// again. No call may hang, no change be lost, and no event be delivered twice.
#include <signal.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "appliance/cluster/claim.h"
#include "appliance/cluster/etcd_store.h"
#include "tests/support/etcd_cluster.h"
#include "tests/unit/appliance/cluster/contract.h"

namespace pbox::cluster {
namespace {

using Catch::Contains;

// Reads the program's lines until one says `text`.
bool await_line(test::Program& program, const std::string& text) {
  for (;;) {
    const auto line = program.read_line(test::kDeadlineMs);
    if (!line) return false;
    if (*line == text) return true;
  }
}

std::unique_ptr<Store> open(Desk& desk, const EtcdOptions& options, Observer observer = {}) {
  auto store = make_etcd_store(desk.context, options);
  store->start(std::move(observer));
  return store;
}

EtcdOptions options_for(const test::EtcdCluster& etcd, uint32_t lease_ttl_s = 10) {
  return {.endpoints = etcd.endpoints(), .prefix = "pbox/test/", .lease_ttl_s = lease_ttl_s};
}

Transaction put(int value) {
  return {.conditions = {}, .puts = {{"n", std::to_string(value), false}}, .deletes = {}};
}

// Counts n up in transactions that each expect the previous number, until `done`. Returns whether a
// watch has then seen every number once and in order, whatever happened to the members meanwhile.
class Counter {
 public:
  Counter(Desk& desk, Store& store) : desk_(desk), store_(store) {
    revision_ = desk.commit(store, put(0))->revision;
    watch_ = store.watch(
        "n", revision_,
        {.on_events =
             [this](const std::vector<Event>& events) {
               for (const Event& event : events) seen_.push_back(event.entry.value);
             },
         .on_compacted = [] { FAIL("compaction reported, though nothing was compacted"); }});
  }
  // Takes one step that succeeds, after any number of attempts that fail with a clear error.
  void step() {
    for (;;) {
      const auto outcome = desk_.commit(
          store_, {{{"n", revision_}}, {{"n", std::to_string(value_ + 1), false}}, {}});
      if (outcome && outcome->committed) {
        revision_ = outcome->revision;
        ++value_;
        return;
      }
      if (!outcome) {
        CHECK((outcome.error().code == ErrorCode::kUnavailable ||
               outcome.error().code == ErrorCode::kTimeout));
        CHECK_THAT(outcome.error().message, Contains("[cluster] endpoints"));
      }
      pause();
      // The outcome of the failed attempt is unknown; reading the store tells.
      const auto now = desk_.get(store_, "n");
      if (!now || now->entries[0].mod_revision == revision_) continue;
      REQUIRE(now->entries[0].value == std::to_string(value_ + 1));
      revision_ = now->entries[0].mod_revision;
      ++value_;
      return;
    }
  }
  bool watched_all() {
    if (!desk_.run_until([this] { return seen_.size() > value_; })) return false;
    for (size_t n = 0; n < seen_.size(); ++n) {
      if (seen_[n] != std::to_string(n)) return false;
    }
    return seen_.size() == value_ + 1;
  }

 private:
  void pause() {
    desk_.context.restart();
    desk_.context.run_for(std::chrono::milliseconds(50));
  }

  Desk& desk_;
  Store& store_;
  int64_t revision_ = 0;
  size_t value_ = 0;
  std::vector<std::string> seen_;
  std::unique_ptr<Watch> watch_;
};

std::string file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

EtcdOptions with_tls(const test::EtcdCluster& etcd) {
  EtcdOptions options = options_for(etcd);
  options.ca = file(etcd.folder() + "/ca.pem");
  options.certificate = file(etcd.folder() + "/box.pem");
  options.key = file(etcd.folder() + "/box.key");
  return options;
}

}  // namespace

TEST_CASE("etcd keeps the promises that every cluster store makes") {
  const test::EtcdCluster etcd(3);
  Desk desk;
  const StoreFactory factory = [&](Desk& at, Observer observer) {
    return open(at, options_for(etcd), std::move(observer));
  };
  check_transactions(desk, factory);
  check_watches(desk, factory);
  check_sessions(desk, factory);
  check_claims(desk, factory);
}

TEST_CASE("the leading member is killed, and costs neither a change nor an event") {
  test::EtcdCluster etcd(3);
  Desk desk;
  // The lease outlasts any pause of a busy machine.
  const auto store = open(desk, options_for(etcd, 600));
  REQUIRE(desk.await_session(*store));
  const int64_t session = store->session();
  Counter counter(desk, *store);
  counter.step();
  const size_t member = etcd.leader();
  etcd.kill(member);
  for (int step = 0; step < 3; ++step) counter.step();
  CHECK(counter.watched_all());
  CHECK(etcd.leader() != member);
  etcd.start(member);
  counter.step();
  CHECK(counter.watched_all());
  CHECK(store->session() == session);
}

TEST_CASE("members that are killed or stopped cost neither a change nor an event", "[.slow]") {
  test::EtcdCluster etcd(3);
  Desk desk;
  int sessions = 0;
  const auto store = open(desk, options_for(etcd), {.on_session = [&](int64_t) { ++sessions; }});
  REQUIRE(desk.await_session(*store));
  Counter counter(desk, *store);
  counter.step();
  for (const int how : {SIGKILL, SIGSTOP}) {
    for (size_t member = 0; member < etcd.size(); ++member) {  // one of them is the leader
      CAPTURE(how, member);
      if (how == SIGKILL) {
        etcd.kill(member);
      } else {
        etcd.signal(member, SIGSTOP);
      }
      for (int step = 0; step < 3; ++step) counter.step();
      CHECK(counter.watched_all());
      if (how == SIGKILL) {
        etcd.start(member);
      } else {
        etcd.signal(member, SIGCONT);
      }
      counter.step();
      etcd.leader();
    }
  }
  etcd.kill(etcd.leader());
  for (int step = 0; step < 3; ++step) counter.step();
  CHECK(counter.watched_all());
  CHECK(store->health().up);
  CHECK(sessions == 1);  // the lease was kept alive all the time
}

TEST_CASE("without etcd calls end with a clear error, and everything continues when it is back") {
  test::EtcdCluster etcd(3);
  Desk desk;
  std::vector<bool> up;
  const auto store = open(desk, options_for(etcd, 2),
                          {.on_health = [&](const Health& health) { up.push_back(health.up); }});
  REQUIRE(desk.await_session(*store));
  const int64_t session = store->session();
  Counter counter(desk, *store);
  Claim claim(
      desk.context, *store, "lead", [] { return "me"; }, [] {});
  REQUIRE(desk.run_until([&] { return claim.held(); }));
  for (size_t member = 0; member < etcd.size(); ++member) etcd.kill(member);
  const auto got = desk.get(*store, "n");
  REQUIRE_FALSE(got.ok());
  CHECK_THAT(got.error().message, Contains("127.0.0.1:") && Contains("[cluster] endpoints"));
  CHECK_FALSE(desk.commit(*store, put(9)).ok());
  REQUIRE(desk.run_until([&] { return !store->health().up; }));
  // the lease may have run out by now
  REQUIRE(desk.run_until([&] { return store->session() == 0; }));
  const auto leased = desk.commit(*store, {{}, {{"k", "v", true}}, {}});
  REQUIRE_FALSE(leased.ok());
  CHECK(leased.error().code == ErrorCode::kUnavailable);
  CHECK(store->health().errors[static_cast<size_t>(Operation::kGet)] > 0);

  for (size_t member = 0; member < etcd.size(); ++member) etcd.start(member);
  counter.step();
  CHECK(counter.watched_all());
  REQUIRE(desk.await_session(*store));
  CHECK(store->session() != session);
  CHECK(up == std::vector<bool>{true, false, true});
  CHECK(desk.run_until([&] {
    claim.on_session();
    return claim.held();
  }));
}

TEST_CASE("a store that is opened before etcd runs reports that, and works once etcd is up") {
  test::EtcdCluster etcd(1);
  etcd.kill(0);
  Desk desk;
  std::vector<std::string> errors;
  const auto store =
      open(desk, options_for(etcd),
           {.on_health = [&](const Health& health) { errors.push_back(health.error); }});
  REQUIRE(desk.run_until([&] { return !errors.empty(); }));
  CHECK_THAT(errors[0], Contains(etcd.endpoints()[0]));
  etcd.start(0);
  CHECK(desk.await_session(*store));
}

TEST_CASE("an etcd without space left counts as down until it has space again") {
  const test::EtcdCluster etcd(1, false, {"--quota-backend-bytes=4194304"});
  Desk desk;
  std::vector<Health> reports;
  const Observer observer{.on_health = [&](const Health& health) { reports.push_back(health); }};
  const auto store = open(desk, options_for(etcd, 2), observer);
  // A store that only reads must learn of the lack of space, too.
  const auto reader = open(desk, options_for(etcd, 2));
  REQUIRE(desk.await_session(*store));
  REQUIRE(desk.await_session(*reader));
  const std::string filler(1 << 20, 'x');
  Result<Outcome> outcome = Outcome{};
  // etcd counts its file's size, which grows some time after a write.
  for (int count = 0; count < 500 && outcome; ++count) {
    outcome = desk.commit(*store, {{}, {{"filler", filler, false}}, {}});
  }
  REQUIRE_FALSE(outcome.ok());
  CHECK(outcome.error().code == ErrorCode::kResourceExhausted);
  CHECK_FALSE(store->health().up);
  CHECK_THAT(store->health().error, Contains("space") && Contains("etcdctl alarm disarm"));
  REQUIRE(desk.run_until([&] { return !reader->health().up; }));
  // Calls that succeed do not hide the lack of space.
  CHECK(desk.get(*store, "filler").ok());
  CHECK_FALSE(store->health().up);
  CHECK(desk.commit(*store, {{}, {}, {"filler"}}).ok());
  CHECK_FALSE(store->health().up);

  etcd.free_space();
  CHECK(desk.run_until([&] { return store->health().up && reader->health().up; }));
  CHECK(desk.commit(*store, put(1)).ok());
  REQUIRE(reports.size() == 3);
  CHECK(reports[0].up);
  CHECK_FALSE(reports[1].up);
  CHECK(reports[2].up);
}

TEST_CASE("keys of more than 4 MiB together are read at once") {
  const test::EtcdCluster etcd(1);
  Desk desk;
  const auto store = open(desk, options_for(etcd));
  REQUIRE(desk.await_session(*store));
  const std::string filler(1 << 20, 'x');
  for (int count = 0; count < 6; ++count) {
    REQUIRE(
        desk.commit(*store, {{}, {{"filler/" + std::to_string(count), filler, false}}, {}}).ok());
  }
  const auto got = desk.get(*store, "filler/");
  REQUIRE(got.ok());
  CHECK(got->entries.size() == 6);
}

TEST_CASE(
    "a watch learns that etcd has compacted its history, and a mirror reads everything again") {
  const test::EtcdCluster etcd(1);
  Desk desk;
  const auto store = open(desk, options_for(etcd));
  REQUIRE(desk.await_session(*store));
  const int64_t first = desk.commit(*store, put(1))->revision;
  const int64_t last = desk.commit(*store, put(2))->revision;
  REQUIRE(!etcd.post(0, "/v3/kv/compaction", R"({"revision":")" + std::to_string(last) + R"("})")
               .empty());
  bool is_compacted = false;
  const auto watch = store->watch(
      "", first,
      {.on_events = [](const auto&) { FAIL(); }, .on_compacted = [&] { is_compacted = true; }});
  CHECK(desk.run_until([&] { return is_compacted; }));
  Mirror mirror(desk.context, *store, "n", [] {});
  CHECK(desk.run_until([&] { return mirror.loaded() && mirror.find("n")->value == "2"; }));
}

TEST_CASE("a holder of a claim that is killed or stopped gets a successor and is fenced off") {
  const test::EtcdCluster etcd(3);
  Desk desk;
  EtcdOptions options = options_for(etcd, 2);
  options.prefix = "pbox/holder/";
  const auto store = open(desk, options);
  for (const int how : {SIGKILL, SIGSTOP}) {
    test::Arguments arguments = {"first", "2"};
    for (const auto& endpoint : etcd.endpoints()) arguments.push_back(endpoint);
    test::Program first(PBOX_HOLDER_PATH, arguments);
    REQUIRE(await_line(first, "written"));
    REQUIRE(desk.await_session(*store));
    Claim claim(
        desk.context, *store, "lead", [] { return "second"; }, [] {});
    REQUIRE(desk.run_until([&] { return claim.holder() != nullptr; }));
    const int64_t old_token = claim.holder()->mod_revision;
    CHECK_FALSE(claim.held());
    first.signal(how);
    // the previous holder's lease has run out
    REQUIRE(desk.run_until([&] { return claim.held(); }));
    CHECK(claim.token() > old_token);
    const auto mine = desk.commit(*store, {{claim.fence()}, {{"work", "second", false}}, {}});
    REQUIRE(mine.ok());
    CHECK(mine->committed);
    if (how == SIGSTOP) {
      first.signal(SIGCONT);
      CHECK(await_line(first, "refused"));
    }
    CHECK(desk.get(*store, "work")->entries[0].value == "second");
    REQUIRE(desk.commit(*store, {{}, {}, {"lead", "work"}}).ok());
  }
}

TEST_CASE("a wrong password is reported, a right one works, and a lost token is replaced") {
  test::EtcdCluster etcd(1);
  const auto post = [&](const std::string& what, const std::string& json) {
    REQUIRE(!etcd.post(0, "/v3/auth/" + what, json).empty());
  };
  post("user/add", R"({"name":"root","password":"secret"})");
  post("role/add", R"({"name":"root"})");
  post("user/grant", R"({"user":"root","role":"root"})");
  post("enable", "{}");
  Desk desk;
  EtcdOptions options = options_for(etcd);
  {
    const auto nobody = open(desk, options);
    const auto got = desk.get(*nobody, "");
    REQUIRE_FALSE(got.ok());
    CHECK_THAT(got.error().message, Contains("[cluster] user"));
    CHECK_FALSE(nobody->health().up);
  }
  options.user = "root";
  options.password = "guess";
  {
    const auto guessing = open(desk, options);
    const auto got = desk.get(*guessing, "");
    REQUIRE_FALSE(got.ok());
    CHECK(got.error().code == ErrorCode::kInvalidArgument);
    CHECK_THAT(got.error().message, Contains("password_file") && Contains("user = root"));
  }
  options.password = "secret";
  const auto store = open(desk, options);
  REQUIRE(desk.await_session(*store));
  Counter counter(desk, *store);
  counter.step();
  CHECK(counter.watched_all());
  etcd.kill(0);  // members keep tokens in memory only
  etcd.start(0);
  counter.step();
  CHECK(counter.watched_all());
}

TEST_CASE("TLS checks both sides") {
  const test::EtcdCluster etcd(1, true);
  Desk desk;
  const EtcdOptions good = with_tls(etcd);
  const auto store = open(desk, good);
  REQUIRE(desk.await_session(*store));
  CHECK(desk.commit(*store, put(1)).ok());

  EtcdOptions other = good;
  other.ca = file(etcd.folder() + "/other-ca.pem");
  const auto distrustful = open(desk, other);
  const auto refused = desk.get(*distrustful, "");
  REQUIRE_FALSE(refused.ok());
  CHECK_THAT(refused.error().message, Contains("ca_file"));

  EtcdOptions anonymous = good;
  anonymous.certificate.clear();
  anonymous.key.clear();
  CHECK_FALSE(desk.get(*open(desk, anonymous), "").ok());
}

}  // namespace pbox::cluster
