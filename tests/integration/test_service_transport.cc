// Workers and boxes over other paths than one socket per pipeline: NICs that choose queues by a
// hash, and transports that come in libraries.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <ctime>
#include <future>
#include <memory>

#include "nic/wire/control_frame.h"
#include "tests/support/cable.h"
#include "tests/support/daemon.h"
#include "tests/support/steering_nic.h"
#include "tests/support/sums.h"
#include "worker/transport/transport_library.h"

namespace pbox::test {
namespace {

using Catch::Contains;

// Returns the error that pbox_join gives to a lone rank of such a job; empty if it may join. The
// rank runs in the network namespace `name_space`, if it is given.
std::string join_alone(const std::string& box, pbox_status expected,
                       const std::function<void(pbox_options&)>& adjust,
                       const std::string& name_space = "") {
  WorkerProcess process([&](Line& line) {
    if (!name_space.empty()) enter_name_space(name_space);
    AbiWorker worker({.box = box, .adjust = adjust});
    worker.tensor("t", 100'000);
    line.say(worker.must_be(expected, pbox_join(worker.context())));
  });
  const auto said = process.heard();
  CHECK(process.finish() == "");
  return said.value_or("nothing");
}

// Answers each question of one worker with a part map of two parts.
void answer_two_parts(Line& line) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  require(bind(listener, generic, size) == 0 && listen(listener, 1) == 0, "cannot listen");
  require(getsockname(listener, generic, &size) == 0, "no address");
  line.say("127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
  const int worker = accept(listener, nullptr, nullptr);
  proto::BoxMessage answer;
  answer.mutable_part_map()->set_chunk_bytes(4096);
  for (const char* box : {"a", "b"}) answer.mutable_part_map()->add_parts()->set_box(box);
  const std::string frame = *wire::frame(answer);
  char question[4096];
  while (recv(worker, question, sizeof(question), 0) > 0) {
    require(send(worker, frame.data(), frame.size(), MSG_NOSIGNAL) > 0, "cannot answer");
  }
}

}  // namespace

TEST_CASE("a job in several parts is refused on a poll-mode device alone, before it is opened") {
  WorkerProcess box(answer_two_parts);
  const std::string control = box.heard().value_or("nothing");
  const std::string words = join_alone(control, PBOX_INVALID_ARGUMENT, [](pbox_options& options) {
    options.port = "dpdk:net_null0 10.0.0.1/24";
  });
  CHECK_THAT(words,
             Contains("PBOX_PORT=dpdk:net_null0 10.0.0.1/24 can serve only one part of a job") &&
                 Contains("is in 2 parts") && Contains("|socket'"));
}

TEST_CASE(
    "workers find the queues of a NIC with an unknown hash, and misdirect no packet afterwards") {
  Daemon daemon;
  SteeringNic nic({.box = daemon.control()});
  const auto outcome = run_sums({.box = nic.control(), .workers = 3});
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
  CHECK(outcome.pipeline_count == 2);
  CHECK(nic.counts().others_misdirected > 0);
  CHECK(nic.counts().pushes_misdirected == 0);
  CHECK(nic.counts().pushes_passed > 0);
}

TEST_CASE("queues are found although half of the trial packets are lost, and sums survive it too") {
  Daemon daemon;
  SteeringNic nic({.box = daemon.control(), .lose_every = 2});
  const auto outcome =
      run_sums({.box = nic.control(), .workers = 2, .elements = {100, 40'000}, .rounds = 2});
  CHECK(outcome.failure == "");
  CHECK(outcome.retransmitted_fragments > 0);
  CHECK(nic.counts().pushes_misdirected == 0);
}

TEST_CASE("workers follow an RSS hash that the box publishes, and misdirect no packet at all") {
  Daemon daemon;
  SteeringNic nic({.box = daemon.control(), .affinity = nic::QueueAffinity::kRssHash});
  const auto outcome = run_sums({.box = nic.control(), .workers = 3});
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
  CHECK(nic.counts().pushes_misdirected == 0);
  CHECK(nic.counts().others_misdirected == 0);
  CHECK(nic.counts().pushes_passed > 0);
}

TEST_CASE("a worker that does not know the NIC's hash misdirects packets") {
  Daemon daemon;
  SteeringNic nic({.box = daemon.control(), .affinity = nic::QueueAffinity::kUdpPort});
  WorkerProcess process([&](Line& line) {
    for (int attempt = 0; attempt < 20 && nic.counts().pushes_misdirected == 0; ++attempt) {
      // A job of its own: the box may hear of the end of the last one after this one's JOIN.
      AbiWorker worker({.box = nic.control(), .job = "job" + std::to_string(attempt)});
      std::vector<float> values(100'000, 1.0f);
      worker.tensor("t", values.size());
      worker.join();
      worker.push_pull(0, values.data(), values.data());
      static_cast<void>(pbox_wait(worker.context(), 0, 50));
    }
    line.say("tried");
  });
  CHECK(process.heard() == "tried");
  CHECK(process.finish() == "");
  CHECK(nic.counts().pushes_misdirected > 0);
}

TEST_CASE(
    "a join that cannot reach a pipeline from any source port times out and names the pipeline") {
  Daemon daemon;
  SteeringNic nic({.box = daemon.control(), .deaf_pipeline = 1});
  const std::string told = join_alone(nic.control(), PBOX_TIMEOUT,
                                      [](pbox_options& options) { options.join_timeout_ms = 500; });
  CHECK_THAT(told,
             Contains("pipeline 1 of the box") && Contains("source ports") && Contains("firewall"));
  CHECK(daemon.await_no_jobs(kDeadlineMs));
}

TEST_CASE("a join behind a link that is narrower than both ends state names the path and its MTU") {
  for (const int box_mtu : {1400, 9000}) {
    Cable cable(box_mtu, 9000);
    if (!cable.works()) {
      WARN("skipped: network namespaces cannot be made here (needs root and iproute2)");
      return;
    }
    Daemon daemon(Cable::box_arguments(), cable.box());
    if (box_mtu == 9000) {
      CHECK(join_alone(daemon.control(), PBOX_OK, {}, cable.rack()) == "");
      continue;
    }
    const std::string told = join_alone(daemon.control(), PBOX_UNAVAILABLE, {}, cable.rack());
    CHECK_THAT(told, Contains("the path from 10.77.0.2 to pipeline 0 of the box (10.77.0.1:") &&
                         Contains("and passes at most 1400") && Contains("mtu 1400"));
    CHECK_THAT(told, !Contains("rank"));
  }
}

TEST_CASE("a queue affinity of a later release is refused, with the remedy") {
  Daemon daemon;
  SteeringNic nic({.box = daemon.control(), .affinity = static_cast<nic::QueueAffinity>(9)});
  const std::string told = join_alone(nic.control(), PBOX_VERSION_MISMATCH, {});
  CHECK_THAT(told, Contains("queue affinity 9") && Contains("upgrade libpbox"));
}

TEST_CASE(
    "a transport library carries a job's packets, whether or not it has a descriptor to wait on") {
  for (const char* port : {"lossy:wait", "lossy:poll"}) {
    INFO(port);
    Daemon daemon;
    const auto outcome = run_sums({.box = daemon.control(), .port = port});
    CHECK(outcome.failure == "");
    CHECK(outcome.identical);
    CHECK(outcome.retransmitted_fragments > 0);
  }
}

TEST_CASE("a worker falls back to its next port if one cannot be opened or fails during the job") {
  for (const char* port : {"nosuch:device|socket", "lossy:closed|socket", "lossy:breaks|socket",
                           "nosuch:device|lossy:closed|lossy:wait"}) {
    INFO(port);
    Daemon daemon;
    const auto outcome = run_sums({.box = daemon.control(), .workers = 2, .port = port});
    CHECK(outcome.failure == "");
    CHECK(outcome.identical);
    const bool gives_up_two = std::count(port, port + std::strlen(port), '|') == 2;
    CHECK(daemon.metric("pbox_worker_ports_given_up_total") == (gives_up_two ? 4 : 2));
    CHECK(daemon.program().await_errors("port_given_up", kDeadlineMs));
  }
}

TEST_CASE("packet numbers go on when a worker falls back to its next port") {
  Daemon daemon;
  const auto outcome =
      run_sums({.box = daemon.control(), .workers = 2, .port = "lossy:probes|socket"});
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
}

TEST_CASE("if no port is left, the worker reports the last port's fault") {
  Daemon daemon;
  const std::string told =
      join_alone(daemon.control(), PBOX_UNAVAILABLE,
                 [](pbox_options& options) { options.port = "nosuch:device|lossy:closed"; });
  CHECK_THAT(told, Contains("these lanes lead nowhere"));
}

TEST_CASE(
    "registered memory is used by every transport of a worker; unregistered memory is copied") {
  Daemon daemon;
  const SumsOptions whole{.box = daemon.control(), .rounds = 4, .registered_rounds = 4};
  const auto run = [&](SumsOptions options, const char* port) {
    options.port = port;
    const auto outcome = run_sums(options);
    CHECK(outcome.failure == "");
    CHECK(outcome.identical);
    return outcome;
  };
  CHECK(run(whole, "socket").packets_direct == 0);
  CHECK(run(whole, "socket").packets_staged == 0);
  const auto read = run(whole, "lossy:reads");
  CHECK(read.packets_direct > 0);
  CHECK(read.packets_staged_refused == 0);
  SumsOptions none = whole;
  none.registered_rounds = 0;
  CHECK(run(none, "lossy:reads").packets_direct == 0);
  SumsOptions half = whole;
  half.registered_rounds = 2;
  const auto mixed = run(half, "lossy:reads");
  CHECK(mixed.packets_direct > 0);
  CHECK(mixed.packets_staged > read.packets_staged);  // `read` staged the probe packets only
  const auto moved = run(whole, "lossy:breaks|lossy:reads");
  CHECK(moved.packets_direct > 0);
  CHECK(moved.packets_staged > 0);  // through the first transport
}

TEST_CASE(
    "a device that refuses memory is reported once, with the reason, and training goes on with "
    "copies") {
  Daemon daemon;
  WorkerProcess process([&](Line&) {
    AbiWorker worker({.box = daemon.control(),
                      .adjust = [](pbox_options& options) { options.port = "lossy:refuses"; }});
    std::vector<float> values(20'000, 1.0f);
    worker.tensor("t", values.size());
    worker.join();
    pbox_context* context = worker.context();
    require_contains(worker.must_be(PBOX_SYSTEM, pbox_register_memory(context, values.data(),
                                                                      4 * values.size())),
                     "reads nobody's memory");
    worker.push_pull(0, values.data(), values.data());
    worker.wait(0);
    require(worker.statistics().packets_staged_refused > 0, "not counted");
    worker.must(pbox_unregister_memory(context, values.data()));
  });
  CHECK(process.finish() == "");
}

TEST_CASE("rounds go on while the kernel locks memory that another thread registers") {
  Daemon daemon;
  WorkerProcess process([&](Line&) {
    AbiWorker worker({.box = daemon.control(),
                      .adjust = [](pbox_options& options) { options.port = "lossy:locks"; }});
    std::vector<float> values(20'000, 1.0f);
    std::vector<std::atomic<unsigned char>> memory(4096);  // is locked once its first byte is 1
    worker.tensor("t", values.size());
    worker.join();
    auto registered = std::async(std::launch::async, [&] {
      return pbox_register_memory(worker.context(), memory.data(), memory.size());
    });
    {
      const std::shared_ptr<void> unlocks(nullptr, [&](void*) { memory[0] = 1; });
      for (int round = 0; round < 5; ++round) {
        worker.push_pull(0, values.data(), values.data());
        worker.wait(0);
      }
    }
    worker.must(registered.get());
    worker.must(pbox_unregister_memory(worker.context(), memory.data()));
  });
  CHECK(process.finish() == "");
}

TEST_CASE("memory that cannot be registered is refused with the mistake and the remedy") {
  Daemon daemon;
  WorkerProcess process([&](Line&) {
    AbiWorker worker({.box = daemon.control()});
    pbox_context* context = worker.context();
    std::vector<float> values(4096, 1.0f);
    const auto bytes = values.size() * sizeof(float);
    worker.tensor("t", values.size());
    const auto refused = [&](pbox_status expected, pbox_status actual, const std::string& words) {
      require_contains(worker.must_be(expected, actual), words);
    };
    refused(PBOX_INVALID_ARGUMENT, pbox_register_memory(context, values.data(), bytes),
            "call pbox_join first");
    worker.join();
    refused(PBOX_INVALID_ARGUMENT, pbox_register_memory(context, nullptr, 1), "address is NULL");
    refused(PBOX_INVALID_ARGUMENT, pbox_register_memory(context, values.data(), 0), "bytes is 0");
    refused(PBOX_NOT_FOUND, pbox_unregister_memory(context, values.data()), "no memory");
    worker.must(pbox_register_memory(context, values.data(), bytes));
    refused(PBOX_ALREADY_EXISTS, pbox_register_memory(context, values.data() + 1, 4), "overlap");
    worker.push_pull(0, values.data(), values.data());
    worker.wait(0);
    worker.leave();
    worker.must(pbox_unregister_memory(context, values.data()));
    refused(PBOX_NOT_FOUND, pbox_unregister_memory(context, values.data()), "no memory");
    refused(PBOX_CLOSED, pbox_register_memory(context, values.data(), bytes), "left the job");
  });
  CHECK(process.finish() == "");
}

TEST_CASE("a worker whose transport must be polled rests when nothing is in flight") {
  Daemon daemon;
  WorkerProcess process([&](Line& line) {
    AbiWorker worker({.box = daemon.control(),
                      .adjust = [](pbox_options& options) { options.port = "lossy:poll"; }});
    std::vector<float> values(1000, 1.0f);
    worker.tensor("t", values.size());
    worker.join();
    worker.push_pull(0, values.data(), values.data());
    worker.wait(0);
    const std::clock_t before = std::clock();
    usleep(500'000);
    const double used_s = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
    line.say(used_s < 0.25 ? "rests" : "spins for " + std::to_string(used_s) + " s");
    worker.push_pull(0, values.data(), values.data());
    worker.wait(0);
  });
  CHECK(process.heard() == "rests");
  CHECK(process.finish() == "");
}

TEST_CASE("a port comes from the environment if the caller names none") {
  Daemon daemon;
  WorkerProcess process([&](Line& line) {
    setenv("PBOX_PORT", "lossy:bribery", 1);
    pbox_options options;
    require(pbox_options_from_environment(&options) == PBOX_OK, "options");
    AbiWorker worker({.box = daemon.control(),
                      .adjust = [&](pbox_options& chosen) { chosen.port = options.port; }});
    worker.tensor("t", 1);
    line.say(worker.must_be(PBOX_UNAVAILABLE, pbox_join(worker.context())));
  });
  const auto told = process.heard();
  REQUIRE(told);
  CHECK_THAT(*told, Contains("'lossy:bribery'") && Contains("libpbox_lossy.so.1") &&
                        Contains("write wait or poll"));
  CHECK(process.finish() == "");
}

TEST_CASE(
    "a missing or unusable transport is an error with the library, the reason and the remedy") {
  Daemon daemon;
  const auto told = [&](pbox_status expected, const char* port) {
    return join_alone(daemon.control(), expected,
                      [port](pbox_options& options) { options.port = port; });
  };
  CHECK_THAT(told(PBOX_NOT_FOUND, "absent:x"), Contains("libpbox_absent.so.1") &&
                                                   Contains("No such file") &&
                                                   Contains("install the package libpbox-absent"));
  CHECK_THAT(told(PBOX_VERSION_MISMATCH, "hollow:x"), Contains("libpbox_hollow.so.1") &&
                                                          Contains("pbox_transport_open_1") &&
                                                          Contains("libpbox's release"));
  CHECK_THAT(told(PBOX_INVALID_ARGUMENT, "carrier pigeon"), Contains("'carrier pigeon'"));
}

TEST_CASE("a transport library refuses a libpbox of another release") {
  void* library = dlopen(PBOX_LOSSY_PATH, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  auto* open =
      reinterpret_cast<worker::TransportFactory*>(dlsym(library, worker::kTransportFactoryName));
  REQUIRE(open != nullptr);
  char error[256] = "";
  CHECK(open({.version = "0.0.9", .arguments = "wait"}, error, sizeof(error)) == nullptr);
  CHECK_THAT(error, Contains("0.0.9") && Contains("install the same release of both"));
}

}  // namespace pbox::test
