// Boxes of a cluster that prove their identities to each other, with a real etcd.
#include <signal.h>

#include <catch2/catch.hpp>
#include <map>

#include "tests/support/adam.h"
#include "tests/support/box_cluster.h"
#include "tests/support/key_folder.h"

namespace pbox::test {
namespace {

constexpr char kWorker[] = "pbox://rack/tenant/acme/job/*/rank/*";

struct KeyedBox {
  KeyedBox(const EtcdCluster& etcd, const tls::KeyPair& signer, const std::string& name)
      : keys(signer, "pbox://rack/box/" + name),
        daemon(start_box(etcd, name, "none",
                         {"--cluster.rebalance=false", "--security.keys=" + keys.path()})) {}

  KeyFolder keys;
  std::unique_ptr<Daemon> daemon;
};

class KeyedCluster {
 public:
  KeyedCluster(const EtcdCluster& etcd, const tls::KeyPair& signer,
               const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      boxes_[name] = std::make_unique<KeyedBox>(etcd, signer, name);
    }
    REQUIRE(await([&] { return !agreed_leader(all()).empty(); }));
  }

  KeyedBox& operator[](const std::string& name) { return *boxes_.at(name); }
  std::vector<const Daemon*> all() const {
    std::vector<const Daemon*> daemons;
    for (const auto& [name, box] : boxes_) daemons.push_back(box->daemon.get());
    return daemons;
  }
  std::string control() const {
    std::string list;
    for (const Daemon* box : all()) list += (list.empty() ? "" : ",") + box->control();
    return list;
  }
  uint64_t sum_of(const std::string& metric) const {
    uint64_t sum = 0;
    for (const Daemon* box : all()) sum += box->metric(metric);
    return sum;
  }
  // Gives each box new keys, signed by `signer`, and `trusted` as the authorities that it trusts.
  // Returns once all boxes have loaded them.
  void renew(const tls::KeyPair& signer, const std::string& trusted) {
    for (const auto& [name, box] : boxes_) {
      const auto issued = tls::issue(signer, KeyFolder::order("pbox://rack/box/" + name));
      REQUIRE(issued.ok());
      box->keys.write("ca.pem", trusted, 0644);
      box->keys.write("cert.pem", issued->certificate, 0644);
      box->keys.write("key.pem", issued->key);
      const auto logged = [&, daemon = box->daemon.get()] {
        const std::string log = daemon->program().errors();
        size_t count = 0;
        for (size_t at = 0; (at = log.find(", until ", at)) != std::string::npos; ++at) ++count;
        return count;
      };
      const size_t before = logged();
      box->daemon->program().signal(SIGHUP);
      REQUIRE(await([&] { return logged() > before; }));
    }
  }

 private:
  std::map<std::string, std::unique_ptr<KeyedBox>> boxes_;
};

}  // namespace

TEST_CASE("boxes hand parts and their state over, before and after their authority is replaced") {
  const EtcdCluster etcd(1);
  const auto former = authority(), next = authority();
  const std::string both = former.certificate + next.certificate;
  const KeyFolder worker(former, KeyFolder::order(kWorker), both);
  KeyedCluster boxes(etcd, former, {"a", "b"});
  AdamTraining training(
      {.box = boxes.control(), .checks = true, .job = "acme/adam", .keys = worker.path()});
  const auto move_away_from = [&](const std::string& from, const std::string& to) {
    training.begin_steps();
    training.await_steps(1);
    drain(*boxes[to].daemon, to, false);
    drain(*boxes[to].daemon, from, true);
    const AdamTraining::Report report = training.end_steps();
    CHECK(report.restarts == 0);
    const auto moved = [&] { return boxes[from].daemon->metric("pbox_parts_moved_total") > 0; };
    REQUIRE(await(moved));
  };
  move_away_from("a", "b");
  boxes.renew(former, both);
  boxes.renew(next, both);
  move_away_from("b", "a");
  training.begin_steps();
  CHECK(training.end_steps().restarts == 0);
  CHECK(boxes.sum_of("pbox_optimizer_restarts_total") == 0);
  CHECK(boxes.sum_of("pbox_jobs_failed_total") == 0);
}

TEST_CASE("a box that the store lists keeps replicas of another's parts") {
  const EtcdCluster etcd(1);
  const auto signer = authority();
  const KeyFolder worker(signer, kWorker);
  KeyedCluster boxes(etcd, signer, {"a", "b"});
  AdamTraining training({.box = boxes.control(),
                         .checks = true,
                         .replicas = 1,
                         .job = "acme/adam",
                         .keys = worker.path()});
  REQUIRE(await([&] { return boxes.sum_of("pbox_job_parts_without_copy") == 0; }));
  training.begin_steps();
  CHECK(training.end_steps().restarts == 0);
}

}  // namespace pbox::test
